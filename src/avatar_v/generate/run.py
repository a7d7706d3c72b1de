"""One request carried out, for the command line, Python and the page alike.

The request is resolved against the card of the weights, its files are read, clips are made, each
passes the watermark, goes into the outputs and to the caller, and a record is left. Every frame
that leaves a request passes through here.
"""

import dataclasses
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

from avatar_v.base.traces import spans, trace_id
from avatar_v.engines.writing import Written
from avatar_v.generate.generator import Clip
from avatar_v.generate.loaded import LoadedPipeline
from avatar_v.generate.marking import build_mark, sign_video
from avatar_v.generate.resume import ChunkCheckpoint, OnKept, keeping
from avatar_v.generate.scene import (
    RankedScenes,
    check_scene,
    save_picture,
    side_by_side,
    stage_scene,
)
from avatar_v.generate.stored_pipeline import StoredPipeline
from avatar_v.inputs.consented import check_consent, request_records
from avatar_v.inputs.enhanced import enhance
from avatar_v.inputs.inputs import Inputs, completed, read_inputs, reference_checked
from avatar_v.inputs.live import LiveSound
from avatar_v.inputs.moderated import build_moderator, check_inputs
from avatar_v.media.delivered import SoundFormat
from avatar_v.media.pixels import Frames
from avatar_v.request.checks import check_settings
from avatar_v.request.output_files import is_file, json_path, sheet_path, sound_path
from avatar_v.request.record import Record, measure_timing, save_record
from avatar_v.request.request import Request, Weights
from avatar_v.request.resolve import (
    LiveDelay,
    check_fits,
    format_warnings,
    live_delay,
    motion_warnings,
    resolved,
    sampling_warnings,
    sizes_of,
    sound_warnings,
)
from avatar_v.safety.consent import Consented
from avatar_v.safety.key import digest_of_key
from avatar_v.safety.moderation import Moderator
from avatar_v.safety.sound_mark import SoundMarker
from avatar_v.safety.watermark import Marker
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.weights.weights import check_parts

if TYPE_CHECKING:
    import avatar_v.media.files

Watermark: TypeAlias = Callable[[Frames], Frames]
OnWarnings: TypeAlias = Callable[[tuple[str, ...]], None]


def no_watermark(frames: Frames) -> Frames:
    """The frames as they are."""
    return frames


def save_beside(record: Record) -> Record:
    """Write the record beside a video that is a file; no other output has one."""
    if is_file(record.request.output.out):
        assert record.request.output.out is not None
        save_record(json_path(record.request.output.out), record)
    return record


def run(
    request: Request,
    weights: Weights | LoadedPipeline,
    *,
    sound: LiveSound | None = None,
    watermark: Watermark | None = None,
    beside: "Sequence[avatar_v.media.files.Output]" = (),
    keep: bool = True,
    save: Callable[[Record], Record] = save_beside,
    on_warnings: OnWarnings = lambda warnings: None,
    on_kept: OnKept = lambda folder, num: None,
    started: float | None = None,
) -> "Run":
    """Check ``request`` and read its files; iterating over the result makes the video.

    Weights that are not loaded yet are checked first and loaded when the video is begun.

    Args:
        sound: takes the place of stdin for a live request.
        watermark: drawn into all frames in place of the request's own (safety/watermark.py).
        beside: further outputs, which take the same frames as the request's own.
        keep: whether an interrupted run leaves its chunks for ``--resume`` (resume.py).
        save: takes the record of a whole video; its result is ``Run.record``.
        on_warnings: told what the loaded weights say of the inputs.
        on_kept: told of the folder that an interrupted run leaves.
        started: the beginning of the command, in the time of `time.perf_counter`.

    ValueError for bad input, before anything is loaded.
    """
    entered = time.perf_counter()
    source = weights if isinstance(weights, LoadedPipeline) else StoredPipeline(weights)
    check_settings(request)
    if request.person.enhance is None:
        _check_words(request, source)
    check_fits(source.card, request, source.num_ranks)
    moderator = build_moderator(request)
    spec = source.input_spec(request)
    records, notes = request_records(request.person)
    inputs = read_inputs(request, spec, sound)
    if request.person.listen is not None:
        check_listens(inputs, source)
    if inputs.stored is not None:
        sizes = sizes_of(request.sampling.size, source.card, source.refiner_card)
        refiner = source.made_with.get("refiner")
        inputs.stored.check_made_for(source.weights_hash, refiner, sizes.base.size)
    consented = check_consent(request, inputs, source.card, spec, records)
    if moderator is not None:
        check_inputs(moderator, request, inputs, spec.video.frame_rate_hz)
    if request.person.scene is not None:
        check_scene(inputs, source.card)
    request, enhanced = enhance(request, source.card, moderator)
    if enhanced is not None:
        _check_words(request, source)
    if isinstance(inputs.audio, LiveSound):
        source.check_follows()
    if isinstance(source, LoadedPipeline):
        inputs = _check_inputs(inputs, request, source)
    request = resolved(request, source.card, has_clips=inputs.has_reference)
    more = sampling_warnings(request, source.card)
    more += format_warnings(source.card, source.refiner_card, request.sampling.size)
    more += motion_warnings(source.card, makes_motion=source.makes_motion)
    inputs = dataclasses.replace(inputs, warnings=(*inputs.warnings, *notes, *more))
    return Run(
        request,
        inputs,
        source,
        enhanced=enhanced,
        consented=consented,
        moderator=moderator,
        watermark=watermark,
        beside=beside,
        keep=keep,
        save=save,
        on_warnings=on_warnings,
        on_kept=on_kept,
        started=entered if started is None else started,
        read_s=time.perf_counter() - entered,
    )


def check_listens(inputs: Inputs, source: LoadedPipeline | StoredPipeline) -> None:
    """ValueError where no motion is made that somebody who listens could change."""
    if not (source.card.can.motion and source.makes_motion):
        raise ValueError("nobody nods: these weights make no motion, as recipes/3_motion.yaml does")
    if inputs.motion is None:
        raise ValueError("nobody nods: no motion is read from the first picture (--motion)")


def _check_words(request: Request, source: LoadedPipeline | StoredPipeline) -> None:
    """ValueError for a prompt that weights which are not loaded yet cannot take."""
    if isinstance(source, StoredPipeline):
        for words in (request.person.prompt, request.person.scene or ""):
            check_parts(source.folder, prompt=words)


def _check_inputs(inputs: Inputs, request: Request, pipeline: LoadedPipeline) -> Inputs:
    """``inputs`` with what the loaded networks say of them."""
    inputs = reference_checked(inputs, request.person, pipeline.check_reference)
    more = sound_warnings(has_audio=pipeline.has_audio)
    return dataclasses.replace(inputs, warnings=(*inputs.warnings, *more))


class Run:
    """A request whose files are read. Iterating over it, once, makes its clips and writes them.

    Closing the iterator ends all threads. Then, and after an error (OSError if writing fails),
    neither the mp4 nor a record is left, but the video as far as it is written and, of a sound from
    a file, whole chunks (resume.py); the rest of an HLS stream plays. ``record`` is there when the
    iterator has ended; a video that goes to the caller alone has none.
    """

    def __init__(
        self,
        request: Request,
        inputs: Inputs,
        source: LoadedPipeline | StoredPipeline,
        *,
        enhanced: Written | None,
        consented: Consented | None,
        moderator: Moderator | None,
        watermark: Watermark | None,
        beside: "Sequence[avatar_v.media.files.Output]",
        keep: bool,
        save: Callable[[Record], Record],
        on_warnings: OnWarnings,
        on_kept: OnKept,
        started: float,
        read_s: float,
    ) -> None:
        self.request, self.inputs, self.enhanced = request, inputs, enhanced
        self.delay: LiveDelay | None = None  # of a live sound
        if isinstance(inputs.audio, LiveSound):
            self.delay = live_delay(request, source.card, source.refiner_card)
        self.record: Record | None = None
        self._scene: RankedScenes | None = None
        self._prepared: Generator[Clip, None, None] | None = None
        self._consented, self._moderator = consented, moderator
        self._source, self._watermark, self._beside = source, watermark, beside
        is_own = watermark is None and request.output.watermark
        self.compiles = source.compiles(inputs, request)
        self._mark = build_mark(request, inputs, **self._made_with()) if is_own else None
        self._keep, self._save = keep, save
        self._on_warnings, self._on_kept = on_warnings, on_kept
        self._started, self._read_s = started, read_s

    def finish(self, on_frames: Callable[[Frames], None] = lambda frames: None) -> Record:
        """Make the whole video and give its record. ``on_frames`` is called with each block."""
        with closing(iter(self)) as clips:
            for clip in clips:
                on_frames(clip.frames)
        assert self.record is not None, "a video for the caller alone has no record"
        return self.record

    def __iter__(self) -> Generator[Clip, None, None]:
        from avatar_v.media.writer import Writer  # PyAV, which frames in memory do without

        with self._keeping() as kept:
            begin = time.perf_counter()
            pipeline, draw = self._loaded(), self._drawing()
            loaded, first, num = time.perf_counter(), None, 0
            outputs = [*self._beside, *self._outputs(kept)]
            chunks = None if self._is_causal else kept
            inputs, clips = self.inputs, self._prepared or self._begun(pipeline, chunks)
            with ExitStack() as stack:
                if not isinstance(self._source, LoadedPipeline):
                    stack.callback(pipeline.close)
                rate = pipeline.format.video.frame_rate_hz
                own = SoundFormat(rate * SAMPLES_PER_FRAME, frame_rate_hz=rate)
                form = own if inputs.delivered is None else inputs.delivered.form
                mark_sound = self._marking(form.sample_rate_hz)
                writers = [stack.enter_context(Writer(output, form)) for output in outputs]
                stack.enter_context(closing(clips))
                for clip in spans("chunk", clips):
                    first = first or time.perf_counter()
                    if self._moderator is not None:
                        self._moderator.check_video("the video", clip.frames, num, rate)
                    sound = clip.sound[None]
                    if inputs.delivered is not None:
                        sound = inputs.delivered.of_frames(num, len(clip.frames))
                    sound = mark_sound(sound)
                    heard = clip.sound if inputs.delivered is not None else sound[0]
                    clip = dataclasses.replace(clip, frames=draw(clip.frames), sound=heard)
                    for writer in writers:
                        writer.write(clip.frames, sound)
                    num += len(clip.frames)
                    yield clip
            self.inputs = completed(self.inputs, num)
            if self.request.output.out is not None:
                assert first is not None
                self._record(pipeline, begin, loaded, first, 0 if kept is None else kept.num_found)

    def prepare(self) -> None:
        """Encode the person, and make the scene, before the frames are asked for."""
        assert not self._keep, "what is kept of a video is known when it is made"
        self._prepared = self._begun(self._loaded(), None)

    def _begun(
        self, pipeline: LoadedPipeline, kept: ChunkCheckpoint | None
    ) -> Generator[Clip, None, None]:
        inputs, request = self.inputs, self.request
        if request.person.scene is not None:
            inputs, request, self._scene = stage_scene(pipeline, inputs, request)
            if self._moderator is not None:
                self._moderator.check_pictures("the scene", self._scene.pictures)
        return pipeline.clips(inputs, request, kept)

    def check_texts(self, texts: Mapping[str, str]) -> None:
        """RefusedError for the first text, by its name, that the request's policy refuses."""
        if self._moderator is not None:
            self._moderator.check_texts(texts)

    def _keeping(self) -> AbstractContextManager[ChunkCheckpoint | None]:
        if not (self._keep and is_file(self.request.output.out)):
            return nullcontext()
        made_with = None
        if not self._is_causal:
            made_with = self._made_with()
            if self._mark is not None:
                made_with["watermark_key"] = digest_of_key(self._mark.key)
        return keeping(self.request, self.inputs, self._on_kept, made_with)

    def _made_with(self) -> dict[str, str]:
        """Everything besides the request that frames depend on, by name."""
        source, compiled = self._source, {"compile": "blocks"} if self.compiles else {}
        return {"weights": source.weights_hash, **source.made_with, **compiled}

    @property
    def _is_causal(self) -> bool:
        """Whether keys and values, which are in no file, are what a video goes on from."""
        return self._source.card.can.causal_block is not None

    def _drawing(self) -> Watermark:
        """The marker that draws into the frames of one video, block by block."""
        own = no_watermark if self._mark is None else Marker(self._mark)
        return self._watermark or own

    def _marking(self, sample_rate_hz: int) -> Callable[[Tensor], Tensor]:
        """The same of its sound."""
        if self._mark is None:
            return lambda sound: sound
        return SoundMarker(self._mark, sample_rate_hz)

    def _loaded(self) -> LoadedPipeline:
        """The networks; those that were not loaded before now judge the inputs."""
        if isinstance(self._source, LoadedPipeline):
            return self._source
        pipeline, num_before = self._source.load(), len(self.inputs.warnings)
        self.inputs = _check_inputs(self.inputs, self.request, pipeline)
        self._on_warnings(self.inputs.warnings[num_before:])
        return pipeline

    def _outputs(self, kept: ChunkCheckpoint | None) -> "list[avatar_v.media.files.Output]":
        from avatar_v.media.outputs import build_output

        out = self.request.output.out
        if out is None:
            return []
        growing, goes_on = (None, False) if kept is None else (kept.growing, kept.goes_on)
        return [build_output(out, growing=growing, goes_on=goes_on)]

    def _record(
        self, pipeline: LoadedPipeline, begin: float, loaded: float, first: float, num_found: int
    ) -> None:
        """Save all that is known about the finished video. Times as `measure_timing` takes them."""
        from avatar_v.media.writer import write_wav

        inputs, sound = self.inputs, self.inputs.audio
        assert inputs.num_frames is not None
        arrived = sound.arrived_s if isinstance(sound, LiveSound) else None
        if inputs.said is not None and is_file(self.request.output.out):
            assert self.request.output.out is not None
            assert not isinstance(sound, LiveSound), "a script is spoken before the video is begun"
            rate = pipeline.format.video.frame_rate_hz * SAMPLES_PER_FRAME
            spoken = self._marking(rate)(sound[:][None])[0]
            write_wav(sound_path(self.request.output.out), spoken, rate)
        if self._scene is not None and is_file(self.request.output.out):
            assert self.request.output.out is not None
            pictures = self._drawing()(self._scene.pictures)
            save_picture(sheet_path(self.request.output.out), side_by_side(pictures))
        times = (self._started, self._read_s, begin, loaded, first, arrived)
        record = Record(
            request=self.request,
            num_frames=inputs.num_frames,
            video=pipeline.sizes(self.request.sampling.size).out,
            reference_frame=inputs.reference_frame,
            warnings=inputs.warnings,
            weights=pipeline.name,
            weights_hash=self._source.weights_hash,
            weights_card=dataclasses.asdict(pipeline.card),
            refiner=None if pipeline.refiner is None else pipeline.refiner.name,
            lora=tuple(map(str, pipeline.adapters)),
            precision="bf16" if pipeline.bf16 else "fp32",
            device=str(pipeline.device),
            timing=measure_timing(inputs.num_frames, *times),
            reference_check=inputs.check,
            resumed_chunks=num_found,
            offload=pipeline.offload,
            shard=pipeline.shard,
            compile=self.compiles,
            watermark=None if self._mark is None else self._mark.id,
            consented=self._consented,
            scene=() if self._scene is None else self._scene.candidates,
            said=inputs.said,
            enhanced=self.enhanced,
            track=inputs.track,
            trace=trace_id(),
        )
        sign_video(record)
        self.record = self._save(record)
