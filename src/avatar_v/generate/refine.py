"""Super-resolution of a stream: the latents of chunks to those of larger pictures, in one step.

Each chunk's new latents are decoded, enlarged and encoded at the high resolution (both streams of
the VAE go on from chunk to chunk), with a border where the pictures fill no whole tokens, noised at
the refiner's σ and refined once with the person's reference, sound and motion (Avatar V §4.6,
models/refiner.py). Pictures larger than those of its training are refined in tiles of that size.
Attention is local in time, so a pass needs only what is near: ``context`` latents before and behind
those it gives out are in it. What is given out waits for so many latents of the next chunk; memory
is that of a chunk. The noise of a chunk depends on the request's seed and the chunk's number alone.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.seeds import derive
from avatar_v.base.video_format import VideoFormat
from avatar_v.generate.generator import LatentChunk, inference
from avatar_v.generate.pipelining import Stage
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.person import EncodedPerson, encode_clips, stored_reference, with_picture
from avatar_v.inputs.person_file import REFINED
from avatar_v.media.pixels import clamped, padded
from avatar_v.models.base import check_base, hash_folder, part_folder
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.refiner import CONTEXT_LATENTS, enlarge, predict_tiled
from avatar_v.models.vae import VideoVAE
from avatar_v.motion.stats import same_units
from avatar_v.request.request import Request
from avatar_v.request.resolve import factor_of
from avatar_v.types import SAMPLES_PER_FRAME, TEMPORAL_FACTOR, Cond
from avatar_v.weights.card import Card, read_card, weights_folder
from avatar_v.weights.weights import load_pipeline, read_json

Latents = Float[Tensor, "1 l c h w"]


@dataclass(frozen=True)
class TrainedRefiner:
    """A trained refiner with its own encoders and a decoder of its size."""

    dit: AvatarDiT
    conditioner: Conditioner
    low_vae: VideoVAE  # the generator's: decodes what is to be refined
    card: Card
    name: str = ""  # under which it ships, or its folder

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path, beside: Conditioner) -> "TrainedRefiner":
        """The refiner that ships under a name, or of a folder, for a generator with the
        conditioner ``beside``.

        ValueError for weights that are no refiner, or whose VAE has another encoder, or whose
        motion is in other units.
        """
        folder = check_refiner(name_or_path)
        dit, conditioner = load_pipeline(folder)
        hashes = [c.vae.encoder_hash() for c in (conditioner, beside)]
        if hashes[0] != hashes[1]:
            raise ValueError(
                f"--refiner {name_or_path}: it was trained with the encoder {hashes[0]} of a VAE, "
                f"the weights that it is to refine have {hashes[1]}"
            )
        known = beside.motion_stats
        if known is not None and not same_units(known, conditioner.known_stats):
            raise ValueError(
                f"--refiner {name_or_path}: its motion statistics (motion.json) are not those of "
                "the weights that it is to refine"
            )
        card = read_card(folder)
        return cls(dit.eval(), conditioner.eval(), beside.vae, card, str(name_or_path))

    @property
    def token(self) -> int:
        """Pixels of the side of a token."""
        return self.conditioner.vae.spatial_factor * self.dit.config.patch

    @property
    def tile(self) -> tuple[int, int] | None:
        """Height and width, in latent cells, of the pictures that it was trained on; None where its
        card does not say."""
        factor, video = self.conditioner.vae.spatial_factor, self.card.can.video
        return None if video is None else (video.height // factor, video.width // factor)


def check_refiner(name_or_path: str | Path) -> Path:
    """The folder of a shipped name or of a path; ValueError, before anything is loaded, unless it
    holds weights of a refiner."""
    try:
        folder = weights_folder(name_or_path)
    except ValueError as error:
        raise ValueError(f"--refiner: {error}") from error
    config = part_folder(folder / "dit") / "config.json"
    read_card(folder)
    check_base(folder)
    if not DiTConfig.from_dict(read_json(config), where=str(config)).reads_low:
        raise ValueError(
            f"--refiner {folder}: these weights make video and refine none; expected those of "
            "recipes/refiner.yaml"
        )
    return folder


def refining(
    refiner: TrainedRefiner | None, person: EncodedPerson | None, request: Request, bf16: bool
) -> tuple[Stage, ...]:
    """The stage between sampling and decoding; none where there is no refiner. ``person`` is the
    `refined_person`."""
    if refiner is None or person is None:
        return ()

    def stage(sampled: Iterator[LatentChunk]) -> Iterator[LatentChunk]:
        prompt, seed = request.person.prompt, request.sampling.seed
        return refine_chunks(refiner, person, prompt, sampled, seed=seed, bf16=bf16)

    return (stage,)


def refined_person(
    refiner: TrainedRefiner | None, inputs: Inputs, video: VideoFormat, max_latents: int
) -> EncodedPerson | None:
    """The person as a refiner reads them: the first ``max_latents`` of each reference clip, in
    pictures like the refined ones. None where there is no refiner."""
    if refiner is None:
        return None
    conditioner, size, token = refiner.conditioner, video.size, refiner.token
    if inputs.stored is None:
        how = {"faces": False, "max_latents": max_latents, "token": token}
        reference = encode_clips(inputs, conditioner, size, **how)
    else:
        reference = stored_reference(inputs.stored, REFINED, conditioner, size, token)
    return with_picture(inputs, conditioner, size, reference)


def refine_chunks(
    refiner: TrainedRefiner,
    person: EncodedPerson,
    prompt: str,
    sampled: Iterator[LatentChunk],
    *,
    seed: int,
    bf16: bool = False,
    context: int = CONTEXT_LATENTS,
) -> Iterator[LatentChunk]:
    """The chunks of ``sampled`` at the high resolution, each without its last ``context`` latents
    and with those of the chunk before; the last one gives all.

    ``person`` has the reference at that resolution. ValueError for a negative context.
    """
    if context < 0:
        raise ValueError(f"the context of a pass is at least 0 latents, got {context}")
    device = refiner.dit.patch_embed.weight.device
    reference = None if person.reference is None else person.reference.to(device)
    with inference(device, bf16=False):
        text = refiner.conditioner.encode_text([prompt]).float()
    with inference(device, bf16=bf16):
        past = None if reference is None else refiner.dit.encode_reference(reference)
        past = None if past is None else past.rotated()
        cond = Cond(text, moments=refiner.dit.reference_moments(reference))
    larger, waiting = _Enlarger(refiner), _Waiting(context)
    for part in sampled:
        with inference(device, bf16=bf16):
            low = larger.push(part.latents, part.index)
            waiting.push(low, _noise(low, seed, part.index), part)
        yield from _refined(refiner, cond, past, waiting, ended=False, bf16=bf16)
    yield from _refined(refiner, cond, past, waiting, ended=True, bf16=bf16)


class _Enlarger:
    """Low latents to latents of the enlarged video: as many, one after the other."""

    def __init__(self, refiner: TrainedRefiner) -> None:
        self._decoder = refiner.low_vae.stream_decoder(clamp=False)
        self._encoder = refiner.conditioner.vae.stream_encoder()
        self._factor, self._token = factor_of(refiner.card), refiner.token

    def push(self, latents: Latents, chunk: int = 0) -> Float[Tensor, "1 l c lh lw"]:
        video = enlarge(clamped(self._decoder.push(latents), chunk), self._factor)
        return self._encoder.push(padded(video, self._token))


@dataclass
class _Waiting:
    """Latents that a pass still needs, of which the first ``num_done`` have been given out, and the
    sound of the others."""

    context: int
    low: Tensor | None = None
    noise: Tensor | None = None
    audio: Tensor | None = None
    motion: Tensor | None = None
    sound: Tensor | None = None
    num_done: int = 0
    num_frames: int = 0  # of what is not given out
    begun: bool = False  # the video's first latent, one frame, has been given out
    index: int = 0

    def push(self, low: Tensor, noise: Tensor, part: LatentChunk) -> None:
        self.low, self.noise = _joined(self.low, low), _joined(self.noise, noise)
        if part.refiner_audio is not None:
            self.audio = _joined(self.audio, part.refiner_audio)
        if part.motion is not None:
            self.motion = _joined(self.motion, part.motion)
        self.sound = part.sound if self.sound is None else torch.cat([self.sound, part.sound])
        self.num_frames += part.num_frames
        self.index = part.index

    def take(self, latents: Tensor) -> LatentChunk:
        """``latents`` are the refined ones behind those given out; with the sound of theirs."""
        assert self.sound is not None
        num = latents.shape[1]
        frames = TEMPORAL_FACTOR * num - (0 if self.begun else TEMPORAL_FACTOR - 1)
        frames = min(frames, self.num_frames)
        cut = frames * SAMPLES_PER_FRAME
        part = LatentChunk(latents, self.sound[:cut], frames, self.index)
        self.sound, self.num_frames, self.begun = self.sound[cut:], self.num_frames - frames, True
        self._forget(num)
        return part

    def _forget(self, num: int) -> None:
        """``num`` more latents are given out; of those only the context stays."""
        away = max(self.num_done + num - self.context, 0)
        self.num_done += num - away
        for name in ("low", "noise", "audio", "motion"):
            value = getattr(self, name)
            setattr(self, name, None if value is None else value[:, away:])


def _refined(
    refiner: TrainedRefiner,
    cond: Cond,
    past: KeyValueCache | None,
    waiting: _Waiting,
    *,
    ended: bool,
    bf16: bool,
) -> Iterator[LatentChunk]:
    """The pass over what waits, if there is anything to give out yet."""
    if waiting.low is None or waiting.noise is None:
        return
    stop = waiting.low.shape[1] - (0 if ended else waiting.context)
    if stop <= waiting.num_done:
        return
    low, sigma = waiting.low, refiner.dit.config.refines_from
    assert sigma is not None
    with inference(low.device, bf16=bf16):
        x = predict_tiled(
            refiner.dit,
            (1 - sigma) * low + sigma * waiting.noise,
            low.new_full(low.shape[:2], sigma),
            dataclasses.replace(cond, audio=waiting.audio, low=low),
            refiner.tile,
            motion=waiting.motion,
            past=past,
        )
    yield waiting.take(x[:, waiting.num_done : stop])


def _noise(like: Latents, seed: int, chunk: int) -> Latents:
    generator = torch.Generator().manual_seed(derive("refine", seed, chunk))
    return torch.randn(like.shape, generator=generator).to(like)


def _joined(old: Tensor | None, new: Tensor) -> Tensor:
    return new if old is None else torch.cat([old, new.to(old)], dim=1)


def hash_of_refiner(name_or_path: str | Path) -> str:
    """Hash of the files of a refiner. ValueError for other weights."""
    return hash_folder(check_refiner(name_or_path))
