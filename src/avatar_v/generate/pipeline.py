"""AvatarPipeline: trained weights as one callable, and a request carried out into files.

``for frame in AvatarPipeline.from_pretrained("small")(reference="me.mp4", audio="talk.wav")``.
The weights decide picture size and chunk length; everything else is the request's.
"""

import dataclasses
import itertools
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from jaxtyping import UInt8
from torch import Tensor

from avatar_v.device import chosen_device, chosen_precision
from avatar_v.generate.formats import FORMATS
from avatar_v.generate.generator import (
    Clip,
    Person,
    Spoken,
    context_latents,
    decode_chunks,
    sample_chunks,
    speak_live,
    speak_whole,
)
from avatar_v.generate.inputs import (
    LIVE,
    Inputs,
    Wanted,
    check_settings,
    finished,
    is_file,
    json_path,
    read_inputs,
    read_sources,
)
from avatar_v.generate.live import Block, LiveSound, hear
from avatar_v.generate.outputs import output_of
from avatar_v.generate.person import encode_person
from avatar_v.generate.record import Record, Timing, hash_folder, save_record, timing_of
from avatar_v.generate.refine import Refiner, check_refiner, refining
from avatar_v.generate.resume import KeptChunks, OnKept, keeping
from avatar_v.generate.sampling import Settings
from avatar_v.generate.stream import chained, pipelined
from avatar_v.generate.writer import Writer
from avatar_v.loudness import loudness_gain
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.refiner import FACTOR
from avatar_v.models.weights import Card, load_pipeline, read_card, weights_folder
from avatar_v.parallel.offload import offload_models
from avatar_v.parallel.streams import check_offload, streams_of
from avatar_v.recording import Sound
from avatar_v.types import Request

Frame = UInt8[Tensor, "3 h w"]
Frames = UInt8[Tensor, "f 3 h w"]


class AvatarPipeline:
    """Loaded networks on one device. ``precision`` "auto" is bf16 where the hardware has it.

    ``overlap`` samples a chunk while the one before is decoded, in threads; the result is the same.
    None is: on an accelerator; on a CPU both want the same cores, and the first frames come later.
    ``offload`` keeps the weights in main memory, from where they visit a GPU block by block; the
    result is the same. A ``refiner`` (refine.py) makes the picture twice as large.
    """

    def __init__(
        self,
        dit: AvatarDiT,
        conditioner: Conditioner,
        card: Card,
        *,
        device: str = "auto",
        precision: str = "auto",
        overlap: bool | None = None,
        offload: bool = False,
        refiner: str | Path | None = None,
    ) -> None:
        wanted(card)
        if dit.config.reads_low:
            raise ValueError("these weights are a refiner: pass them as --refiner")
        self.card = card
        self.format = FORMATS[card.preset]
        self.device = chosen_device(device)
        self.overlap = self.device.type != "cpu" if overlap is None else overlap
        self.bf16 = chosen_precision(precision, self.device) == "bf16"
        self.dit, self.conditioner = dit.eval(), conditioner.eval()
        self.refiner = None if refiner is None else Refiner.from_pretrained(refiner, conditioner)
        self.offload = offload
        networks = [(dit, conditioner)]
        if self.refiner is not None:
            networks.append((self.refiner.dit, self.refiner.conditioner))
        if offload:
            offload_models(networks, streams_of(self.device))
        else:
            for part in itertools.chain.from_iterable(networks):
                part.to(self.device)

    @classmethod
    def from_pretrained(
        cls,
        name_or_path: str | Path = "small",
        *,
        device: str = "auto",
        precision: str = "auto",
        offload: bool = False,
        refiner: str | Path | None = None,
    ) -> "AvatarPipeline":
        """The weights that ship under a name ("small"), or those of a folder.

        ValueError, before any network is built, for a missing part, another schema version or an
        unknown preset, for ``offload`` without a GPU, and for every key that does not fit
        (models/weights.py).
        """
        if offload:
            check_offload(chosen_device(device))
        folder = weights_folder(name_or_path)
        card = read_card(folder)
        return cls(
            *load_pipeline(folder),
            card,
            device=device,
            precision=precision,
            offload=offload,
            refiner=refiner,
        )

    def __call__(
        self,
        *,
        reference: str | Path,
        audio: str | Path | Iterable[Block],
        prompt: str = "",
        image: str | Path | None = None,
        from_prompt: bool = False,
        seed: int = 0,
        num_steps: int = 24,
        guidance_text: float = 1.0,
        guidance_audio: float | None = None,
        guidance_reference: float = 1.0,
        guidance_motion: float | None = None,
        reference_s: float = 16.0,
        also: Sequence[str | Path] = (),
        motion: str = "auto",
        overshoot: float = 0.0,
        anchor: bool | None = None,
        ease: bool = True,
        interpolate: bool = False,
        face_crop: bool = True,
        gain_db: float | None = None,
    ) -> Iterator[Frame]:
        """Frames of ``reference``'s person speaking ``audio``, 25 a second, as they are made.

        Files are read and checked before the first frame is asked for (ValueError). ``image``, a
        picture or video, replaces the reference's own best frame as the first frame;
        ``from_prompt`` gives none: the network makes it from prompt and reference. ``audio`` may
        be a live sound, blocks (live.Block) taken from in a thread: frames come before it ends;
        closing waits for its next block; an OSError ends the video there, with a warning.
        """
        sound = None if isinstance(audio, (str, Path)) else LiveSound(audio)
        request = Request(
            reference=str(reference),
            audio=LIVE if sound is not None else str(audio),
            out="",
            prompt=prompt,
            image=None if image is None else str(image),
            from_prompt=from_prompt,
            seed=seed,
            num_steps=num_steps,
            guidance_text=guidance_text,
            guidance_audio=guidance_audio,
            guidance_reference=guidance_reference,
            guidance_motion=guidance_motion,
            reference_s=reference_s,
            also=tuple(map(str, also)),
            motion=motion,
            overshoot=overshoot,
            anchor=anchor,
            ease=ease,
            interpolate=interpolate,
            face_crop=face_crop,
            gain_db=gain_db,
        )
        check_settings(request)
        inputs = read_sources(request, self.wanted, sound)
        blocks = self.stream(inputs, request)

        def frames() -> Iterator[Frame]:
            for block in blocks:
                yield from block
            for text in () if sound is None else sound.warnings:
                warnings.warn(text, stacklevel=2)

        return frames()

    def stream(self, inputs: Inputs, request: Request) -> Iterator[Frames]:
        """Blocks of frames for files already read; of ``request`` only prompt and numbers count."""
        return (clip.frames for clip in self.clips(inputs, request))

    def clips(
        self, inputs: Inputs, request: Request, kept: KeptChunks | None = None
    ) -> Generator[Clip, None, None]:
        """``stream`` with the sound of each block; closing it ends all its threads. Chunks that
        ``kept`` holds are not sampled, others are kept there."""
        request = decided(request, self.card, inputs)
        settings = self.settings(request)
        person, sound = self.person(inputs, from_prompt=request.from_prompt), inputs.audio
        decoding = self.conditioner if self.refiner is None else self.refiner.conditioner
        stages = (
            lambda spoken: sample_chunks(
                self.dit, self.conditioner, person, request.prompt, settings, spoken, kept
            ),
            *refining(
                self.refiner, inputs, request, self.size, self.format.refiner_latents, self.bf16
            ),
            lambda sampled: decode_chunks(decoding, settings, sampled),
        )
        spoken = self._spoken(sound, request.gain_db)
        if isinstance(sound, LiveSound):  # whoever speaks is listened to all the time
            return pipelined(spoken, *stages, interrupt=sound.interrupt)
        return pipelined(spoken, *stages) if self.overlap else chained(spoken, *stages)

    def settings(self, request: Request) -> Settings:
        """How ``request`` is sampled, with nothing left to the weights (`decided`)."""
        assert request.guidance_audio is not None
        assert request.guidance_motion is not None
        return Settings(
            chunk_latents=self.format.chunk_latents,
            shift=self.format.shift,
            num_steps=request.num_steps,
            guidance_text=request.guidance_text,
            guidance_audio=request.guidance_audio,
            guidance_reference=request.guidance_reference,
            overshoot=request.overshoot,
            from_prompt=request.from_prompt,
            guidance_motion=request.guidance_motion,
            motion_first=self.card.motion_first,
            anchor=bool(request.anchor),
            ease=request.ease,
            interpolate=request.interpolate,
            seed=request.seed,
            bf16=self.bf16,
        )

    def _spoken(self, sound: Sound | LiveSound, gain_db: float | None) -> Iterator[Spoken]:
        """Levelled as in training, a live one by what was heard so far; or at ``gain_db``."""

        def gain(heard: Sound) -> float:
            return loudness_gain(heard) if gain_db is None else 10 ** (gain_db / 20)

        length = self.format.chunk_latents
        own = None if self.refiner is None else self.refiner.conditioner
        if not isinstance(sound, LiveSound):
            return speak_whole(self.conditioner, sound, length, gain=gain(sound), refiner=own)
        context = max(context_latents(c) for c in (self.conditioner, own or self.conditioner))
        heard = hear(sound, chunk_latents=length, context=context, gain=gain)
        return speak_live(self.conditioner, heard, own)

    def person(self, inputs: Inputs, *, from_prompt: bool = False) -> Person:
        """Who is to speak, as the sampler takes it: picture, encoded reference and motion.

        ``from_prompt``: the picture will not be given (Card.stills_from_prompt)."""
        return encode_person(
            inputs,
            self.conditioner,
            self.format.side,
            faces=self.card.faces,
            stills=self.card.num_stills(from_prompt=from_prompt),
        )

    @property
    def size(self) -> int:
        """Height and width of the frames that come out."""
        return self.wanted.side

    @property
    def wanted(self) -> Wanted:
        """What is to be read of a person."""
        return wanted(self.card, refined=self.refiner is not None)


def wanted(card: Card, *, refined: bool = False) -> Wanted:
    """What weights with this card take of a person, with a refiner behind them in larger pictures.
    ValueError for a preset without a format."""
    if card.preset not in FORMATS:
        raise ValueError(f"no format for weights of preset {card.preset!r}")
    side = FORMATS[card.preset].side * (FACTOR if refined else 1)
    return Wanted(side, card.reference, card.motion, card.faces)


def decided(request: Request, card: Card, inputs: Inputs) -> Request:
    """``request`` with what it left to the weights: the guidance of audio and motion, and whether
    the first frame becomes an anchor."""
    anchor, audio, motion = request.anchor, request.guidance_audio, request.guidance_motion
    return dataclasses.replace(
        request,
        anchor=card.anchor and bool(inputs.clips) if anchor is None else anchor,
        guidance_audio=card.guidance_audio if audio is None else audio,
        guidance_motion=card.guidance_motion if motion is None else motion,
    )


def carry_out(
    request: Request,
    *,
    weights: str | Path = "small",
    refiner: str | Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    offload: bool = False,
    on_ready: Callable[[Inputs], None] = lambda inputs: None,
    on_frames: Callable[[Frames], None] = lambda frames: None,
    on_kept: OnKept = lambda folder, num: None,
) -> Record:
    """Check, load, generate and write ``request.out`` and its .json (files only).

    ``on_ready`` is called once the inputs are read, ``on_frames`` with every block of frames.
    ValueError for bad input before anything is loaded, OSError if writing fails; then, and after
    an interrupt, neither ``request.out`` nor a record is left of an mp4, but the video as far as it
    is written (resume.py), and what is left of an HLS stream plays. Of a sound from a file the
    whole chunks are left too. ``on_kept`` is told.
    """
    kind = chosen_device(device)
    if offload:
        check_offload(kind)
    folder = weights_folder(weights)
    made_with = {"precision": chosen_precision(precision, kind), "device": kind.type}
    if refiner is not None:
        made_with["refiner"] = hash_folder(check_refiner(refiner))
    card = read_card(folder)
    inputs = read_inputs(request, wanted(card, refined=refiner is not None))
    request = decided(request, card, inputs)
    on_ready(inputs)
    weights_hash = hash_folder(folder)
    with keeping(request, inputs, on_kept, weights=weights_hash, **made_with) as kept:
        begin = time.perf_counter()
        pipeline = AvatarPipeline.from_pretrained(
            folder, device=device, precision=precision, offload=offload, refiner=refiner
        )
        loaded, first = time.perf_counter(), None
        clips = pipeline.clips(inputs, request, kept)
        output = output_of(
            request.out,
            growing=None if kept is None else kept.growing,
            goes_on=kept is not None and kept.goes_on,
        )
        with Writer(output) as writer, closing(clips):
            for clip in clips:
                first = first or time.perf_counter()
                writer.write(clip.frames, clip.sound)
                on_frames(clip.frames)
        assert first is not None
        arrived = inputs.audio.arrived_s if isinstance(inputs.audio, LiveSound) else None
        record = record_of(
            request,
            finished(inputs, writer.num_frames),
            pipeline,
            str(weights),
            weights_hash,
            timing_of(writer.num_frames, begin, loaded, first, arrived),
            0 if kept is None else kept.num_found,
        )
        if is_file(request.out):
            save_record(json_path(request.out), record)
    return record


def record_of(
    request: Request,
    inputs: Inputs,
    pipeline: AvatarPipeline,
    weights: str,
    weights_hash: str,
    timing: Timing,
    resumed_chunks: int = 0,
) -> Record:
    """All that is known about a finished video; ``inputs`` with the frames that were made."""
    assert inputs.num_frames is not None
    return Record(
        request=request,
        num_frames=inputs.num_frames,
        size=pipeline.size,
        reference_frame=inputs.reference_frame,
        warnings=inputs.warnings,
        weights=weights,
        weights_hash=weights_hash,
        weights_card=dataclasses.asdict(pipeline.card),
        refiner=None if pipeline.refiner is None else pipeline.refiner.name,
        precision="bf16" if pipeline.bf16 else "fp32",
        device=str(pipeline.device),
        timing=timing,
        resumed_chunks=resumed_chunks,
        offload=pipeline.offload,
    )
