"""Pairs to learn preferences from: two samples of each condition, ranked by raters.

Conditions are clips of shards: their sound, cut to the length of the samples, their first frame's
motion, and another clip of the person. Samples are made as generation makes them, motion alone or
videos (video_systems.py), by two systems or by one with two seeds, or they are videos that are
there already (made_videos.py). Which is shown first is drawn. Raters are simulated
(rewards/raters.py); pairs that people judged come from the rating study.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from avatar_v.base import checks
from avatar_v.base.paths import whole_folder
from avatar_v.base.seeds import derive, stream
from avatar_v.base.video_format import FrameRate
from avatar_v.faces.face_track import spread_frames
from avatar_v.models.conditioner import Conditioner
from avatar_v.motion.own_units import build_style
from avatar_v.motion.vectors import unpack_motion
from avatar_v.request.request import Request
from avatar_v.request.resolve import num_steps_of, sampler_settings
from avatar_v.rewards.raters import Panel
from avatar_v.rewards.terms import RewardSamples
from avatar_v.sampling.motion_rollout import roll_motion
from avatar_v.sampling.settings import Settings
from avatar_v.shards.buckets import Bucket, Partners, Positions
from avatar_v.shards.loader import (
    collate,
    fit_sample,
    levelled,
    read_clip,
    read_folder,
)
from avatar_v.shards.pairs import (
    NUM_PORTRAITS,
    WINNERS,
    Judgment,
    Pair,
    PairPictures,
    encode_pair,
    reference_batch,
)
from avatar_v.shards.schema import Sample
from avatar_v.shards.table import ClipTable
from avatar_v.shards.writer import ClipEntry, Failure, RawClip, write_shard
from avatar_v.types import Batch, num_latents
from avatar_v.weights.card import read_card, weights_folder
from avatar_v.weights.presets import format_of
from avatar_v.weights.weights import load_pipeline

Motion = Float[Tensor, "b f m"]
Reference = tuple[Float[Tensor, "r m"], Bool[Tensor, " r"]]
"""The motion of a clip, and where a face is seen."""
NUM_GIVEN = 1
"""Latents that a sample shares with its clip."""


@dataclass(frozen=True)
class PairSettings:
    """How many pairs, and of what."""

    num_pairs: int
    num_frames: int = 137  # of a sample, 4k + 1
    batch_size: int = 64
    pairs_per_shard: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        checks.each(checks.count, self, ("num_pairs", "batch_size", "pairs_per_shard"))
        checks.count("num_frames", self.num_frames, least=5)
        num_latents(self.num_frames)
        checks.seed("seed", self.seed)


@dataclass(frozen=True)
class Conditions:
    """What samples are made for: clips of one length, and another clip of each person. Both have
    pictures where videos are made."""

    clips: Sequence[Sample]
    references: Sequence[Sample]

    def batch(self) -> Batch:
        """The clips and references as a batch, for critics."""
        batch = collate([levelled(clip) for clip in self.clips])
        rows = [(clip.motion, clip.valid) for clip in self.references]
        return dataclasses.replace(batch, reference=reference_batch(batch, rows))

    def portraits(self) -> UInt8[Tensor, "b k 3 h w"] | None:
        """Pictures of each person, elsewhere; None without pictures."""
        found = []
        for clip in self.references:
            if clip.video is None:
                return None
            frames = spread_frames(clip.valid, NUM_PORTRAITS)
            short = NUM_PORTRAITS - len(frames)  # of a face that is hardly seen, any frames
            found.append(clip.video[torch.cat([frames, frames.new_zeros(short)])])
        return torch.stack(found)


@dataclass(frozen=True)
class Made:
    """A sample of each condition."""

    motion: Motion
    video: UInt8[Tensor, "b f 3 h w"] | None = None  # None: motion alone was made


@runtime_checkable
class PairSystem(Protocol):
    """Weights, and how generation samples with them."""

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of the pictures; None where motion alone is made."""
        ...

    @property
    def frame_rate_hz(self) -> FrameRate | None:
        """None: that of the conditions."""
        ...

    def samples(self, conditions: Conditions, seeds: Sequence[int]) -> Made:
        """One of each condition, from a seed of its own."""
        ...


@dataclass(frozen=True)
class MotionSystem:
    """Weights with a motion network, and how generation samples with them."""

    name: str
    conditioner: Conditioner
    settings: Settings
    frame_rate_hz: FrameRate

    @property
    def size(self) -> None:
        """Motion alone is made."""

    @classmethod
    def load(cls, weights: str) -> "MotionSystem":
        """Of a folder or a shipped name. ValueError for weights without a motion network."""
        folder = weights_folder(weights)
        card, conditioner = read_card(folder), load_pipeline(folder)[1]
        if conditioner.motion_net is None:
            raise ValueError(f"{weights} have no motion network: see recipes/3_motion.yaml")
        request = Request.of(
            reference="",
            audio="",
            num_steps=num_steps_of(None, card),
            guidance_audio=card.guidance_audio,
            guidance_motion=card.guidance_motion,
        )
        settings = sampler_settings(request, card, bf16=False)
        return cls(weights, conditioner.eval(), settings, format_of(card).video.frame_rate_hz)

    @torch.inference_mode()
    def samples(self, conditions: Conditions, seeds: Sequence[int]) -> Made:
        """Motion to the sound of each clip, behind its first frame, by the habits of its
        reference; of each clip from a seed of its own."""
        batch = conditions.batch()
        conditioner, reference = self.conditioner, batch.reference
        assert reference is not None
        assert conditioner.motion_net is not None
        tokens = conditioner.encode_audio(batch.audio)
        moments = conditioner.clip_moments(
            reference.motion, reference.valid, known=reference.habits_known
        )
        made = roll_motion(
            conditioner.motion_net,
            self.settings,
            conditioner.pack_motion(batch.motion[:, :1]),
            lambda latents: tokens[:, latents.start : latents.stop],
            build_style(moments, conditioner.known_stats),
            batch.motion.shape[1],
            [torch.Generator().manual_seed(seed) for seed in seeds],
        )
        return Made(unpack_motion(made, conditioner.known_stats))


def make_pairs(
    folder: str | Path,
    out: str | Path,
    systems: tuple[PairSystem, PairSystem],
    panel: Panel,
    settings: PairSettings,
    *,
    keys: Collection[str] | None = None,
    on_pair: Callable[[int], None] = lambda num_done: None,
) -> tuple[int, dict[str, int]]:
    """Write shards of pairs, conditions being clips of ``folder`` that are long enough, round and
    round. Returns the number of pairs that no rater could judge, and of each winner. ``out``, a new
    or empty folder, appears whole.

    ``keys`` are those of the clips that the systems have samples of, which begin where the clips
    do; None: of any, begun anywhere.

    ValueError where no person has two clips, for systems of which one makes videos and one motion
    alone, or videos of another size, for clips without pictures where videos are made, and where
    no clip is one of ``keys``, and for clips of another rate than the systems make.
    """
    out = Path(out).resolve()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} already exists; choose a new or empty folder")
    sizes = [system.size for system in systems]
    if sizes[0] != sizes[1]:
        raise ValueError(f"both systems make pictures of one size, got {sizes[0]} and {sizes[1]}")
    clips = ClipTable(c for c in read_folder(folder) if c.num_frames >= settings.num_frames)
    rates = {clip.frame_rate_hz for clip, _ in clips.kinds()}
    for system in systems:
        if system.frame_rate_hz is not None and rates - {system.frame_rate_hz}:
            raise ValueError(
                f"{system.name} makes {system.frame_rate_hz} frames a second, and the clips of "
                f"{folder} have {', '.join(map(str, sorted(rates)))}"
            )
    partners = Partners(clips, np.arange(len(clips)), same_scene=False)
    if not len(partners.paired):
        raise ValueError(
            f"{folder}: no person has two clips of {settings.num_frames} frames or more in two "
            "scenes"
        )
    names = partners.paired
    if keys is not None:
        names = np.array([i for i in names if clips[int(i)].key in keys], dtype=names.dtype)
        if not len(names):
            raise ValueError(f"{folder}: of none of its clips there are videos of both systems")
    counts = {"failed": 0, **dict.fromkeys(WINNERS, 0)}
    judged = _judge(clips, partners, names, systems, panel, settings, anywhere=keys is None)
    with whole_folder(out) as folder:
        _write_pairs(folder, judged, settings, counts, on_pair)
    return counts.pop("failed"), counts


def _write_pairs(
    folder: Path,
    judged: Iterable[list[Pair | Failure]],
    settings: PairSettings,
    counts: dict[str, int],
    on_pair: Callable[[int], None],
) -> None:
    """All shards; failures and winners are counted."""
    made: list[RawClip | Failure] = []
    num_done = num_shards = 0
    for items in judged:
        for item in items:
            counts["failed" if isinstance(item, Failure) else item.judgment.winner] += 1
            made.append(item if isinstance(item, Failure) else encode_pair(item))
        num_done += len(items)
        on_pair(num_done)
        while len(made) >= settings.pairs_per_shard or (made and num_done == settings.num_pairs):
            path = folder / f"pairs-{num_shards:06d}.tar"
            write_shard(path, made[: settings.pairs_per_shard])
            made, num_shards = made[settings.pairs_per_shard :], num_shards + 1


def _judge(
    clips: ClipTable,
    partners: Partners,
    names: Positions,
    systems: tuple[PairSystem, PairSystem],
    panel: Panel,
    settings: PairSettings,
    *,
    anywhere: bool,
) -> Iterator[list[Pair | Failure]]:
    """The pairs, batch after batch; every draw is one of the seed and the number of the pair."""
    order = stream("pairs", settings.seed)
    rounds = -(-settings.num_pairs // len(names))
    chosen = np.concatenate([order.permutation(names) for _ in range(rounds)])
    for begin in range(0, settings.num_pairs, settings.batch_size):
        numbers = range(begin, min(begin + settings.batch_size, settings.num_pairs))
        said, references = [], []
        for number in numbers:
            index, draw = int(chosen[number]), stream("pair", settings.seed, number)
            found = partners.of(index)
            reference = found[int(draw.integers(len(found)))]
            begin_at = draw if anywhere else None
            said.append(_read(clips[index], systems[0].size, settings.num_frames, begin_at))
            references.append(_read(clips[reference], systems[0].size, None, draw))
        yield judge_pairs(Conditions(said, references), systems, panel, settings.seed, numbers)


def _read(
    clip: ClipEntry,
    size: tuple[int, int] | None,
    num_frames: int | None,
    draw: np.random.Generator | None,
) -> Sample:
    """A clip, or a part of so many frames, the first ones without ``draw``; with pictures of a
    ``size``, or with none."""
    sample = read_clip(clip, decode_video=size is not None, use_latents=False)
    if size is not None and sample.video is None:
        raise ValueError(f"{clip.shard}, clip {clip.key}: videos need clips with pictures")
    if size is None:
        meta = dataclasses.replace(sample.meta, height=0, width=0, vae_hash=None)
        sample = dataclasses.replace(sample, meta=meta)
    bucket = Bucket(*(size or (0, 0)), num_frames or sample.meta.num_frames)
    return fit_sample(sample, bucket, draw)


def judge_pairs(
    conditions: Conditions,
    systems: tuple[PairSystem, PairSystem],
    panel: Panel,
    seed: int,
    numbers: Sequence[int],
) -> list[Pair | Failure]:
    """Samples of both systems for every condition, in a drawn order, and what a rater of the panel
    that is drawn for each pair says."""
    sides = [
        system.samples(conditions, [derive("sample", seed, number, side) for number in numbers])
        for side, system in enumerate(systems)
    ]
    generator = torch.Generator().manual_seed(derive("judgments", seed, numbers[0]))
    swapped = torch.rand(len(numbers), generator=generator) < 0.5
    first, second = (_either(swapped, a, b) for a, b in (sides, reversed(sides)))
    batch, portraits = conditions.batch(), conditions.portraits()
    whose = torch.randint(len(panel.raters), (len(numbers),), generator=generator)
    answers, margins = torch.zeros_like(whose), torch.zeros(len(whose))
    seen = [build_samples(batch, made, portraits) for made in (first, second)]
    for place, rater in enumerate(panel.raters):
        margin = rater.margin(*(rater.values(samples) for samples in seen))
        said = rater.judge(margin, generator)
        answers, margins = (
            torch.where(whose == place, new, old)
            for new, old in ((said, answers), (margin, margins))
        )
    items: list[Pair | Failure] = []
    for i, (clip, reference) in enumerate(
        zip(conditions.clips, conditions.references, strict=True)
    ):
        rater, order = panel.raters[int(whose[i])], (1, 0) if swapped[i] else (0, 1)
        key = f"pair-{seed}-{numbers[i]:06d}"
        if not bool(margins[i].isfinite()):
            items.append(Failure(key, f"rater {rater.name} has no value for a sample"))
            continue
        winner = WINNERS[int(answers[i])]
        names = (systems[place].name for place in order)
        judgment = Judgment(winner, rater.name, rater.axis, *names)
        reference = conditions.references[i]
        tracks = (first.motion[i], second.motion[i], reference.motion, reference.valid)
        pictures = None
        if first.video is not None and second.video is not None and portraits is not None:
            pictures = PairPictures(first.video[i], second.video[i], portraits[i])
        condition = dataclasses.replace(without_pictures(clip), key=key)
        items.append(Pair(condition, *tracks, judgment, pictures))
    return items


def _either(swapped: Bool[Tensor, " b"], one: Made, other: Made) -> Made:
    """Of each condition the sample of ``one``, or where ``swapped`` that of ``other``."""

    def chosen(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(swapped.view(-1, *[1] * (a.dim() - 1)), b, a)

    if one.video is None or other.video is None:
        return Made(chosen(one.motion, other.motion))
    return Made(chosen(one.motion, other.motion), chosen(one.video, other.video))


def without_pictures(clip: Sample) -> Sample:
    """Its sound, words and motion."""
    meta = dataclasses.replace(clip.meta, height=0, width=0, vae_hash=None)
    return dataclasses.replace(clip, meta=meta, video=None, close_ups=None, close_up_frames=None)


def build_samples(
    batch: Batch, made: Made, portraits: UInt8[Tensor, "b k 3 h w"] | None = None
) -> RewardSamples:
    """One sample of each clip, for critics."""
    columns = {"true_motion": batch.motion, "person": batch.person, "text": batch.text}
    if portraits is not None:
        columns |= {"portrait": _signed(portraits), "truth": batch.video}
    return RewardSamples(
        frames=None if made.video is None else _signed(made.video),
        audio=batch.audio,
        reference=batch.reference,
        motion=made.motion,
        condition=torch.arange(len(made.motion)),
        num_given=NUM_GIVEN,
        columns=columns,
    )


def _signed(pictures: UInt8[Tensor, "*b 3 h w"]) -> Float[Tensor, "*b 3 h w"]:
    return pictures.to(torch.float32) / 127.5 - 1
