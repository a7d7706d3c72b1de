"""Pairs to learn preferences from: two samples of each condition, ranked by raters.

Conditions are clips of shards: their sound, cut to the length of the samples, their first frame's
motion, and the habits of another clip of the person. Samples are made as generation makes motion,
by two systems or by one with two seeds, and which is shown first is drawn. Raters are simulated
(critics/raters.py); pairs that people judged come from the rating study.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v import checks
from avatar_v.critics.raters import Panel, SimulatedRater
from avatar_v.critics.reward_terms import Samples
from avatar_v.generate.request import Request
from avatar_v.generate.resolve import num_steps_of, settings_of
from avatar_v.models.card import read_card, weights_folder
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.weights import load_pipeline
from avatar_v.motion.own_units import style_of
from avatar_v.motion.vectors import unpack_motion
from avatar_v.sampling.motion_rollout import roll_motion
from avatar_v.sampling.rollout import Settings
from avatar_v.seeds import derive, stream
from avatar_v.shards.buckets import Bucket, Partners
from avatar_v.shards.loader import (
    collate,
    fit_sample,
    levelled,
    read_clip,
    read_folder,
    read_members,
)
from avatar_v.shards.pairs import WINNERS, Judgment, Pair, encode_pair, reference_batch
from avatar_v.shards.schema import FACE, META, MOTION, Sample, decode_motion
from avatar_v.shards.table import ClipTable
from avatar_v.shards.writer import ClipEntry, Failure, RawClip, write_shard
from avatar_v.types import Batch, num_latents

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
class MotionSystem:
    """Weights with a motion network, and how generation samples with them."""

    name: str
    conditioner: Conditioner
    settings: Settings

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
        return cls(weights, conditioner.eval(), settings_of(request, card, bf16=False))

    @torch.inference_mode()
    def samples(self, batch: Batch, seeds: Sequence[int]) -> Motion:
        """Motion to the sound of each clip, behind its first frame, by the habits of its
        reference; of each clip from a seed of its own."""
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
            style_of(moments, conditioner.known_stats),
            batch.motion.shape[1],
            [torch.Generator().manual_seed(seed) for seed in seeds],
        )
        return unpack_motion(made, conditioner.known_stats)


def make_pairs(
    folder: str | Path,
    out: str | Path,
    systems: tuple[MotionSystem, MotionSystem],
    panel: Panel,
    settings: PairSettings,
    *,
    on_pair: Callable[[int], None] = lambda num_done: None,
) -> tuple[int, dict[str, int]]:
    """Write shards of pairs, conditions being clips of ``folder`` that are long enough, round and
    round. Returns the number of pairs that no rater could judge, and of each winner.

    ValueError where no person has two clips.
    """
    clips = ClipTable(c for c in read_folder(folder) if c.num_frames >= settings.num_frames)
    partners = Partners(clips, np.arange(len(clips)), same_scene=False)
    if not len(partners.paired):
        raise ValueError(
            f"{folder}: no person has two clips of {settings.num_frames} frames or more in two "
            "scenes"
        )
    counts = {"failed": 0, **dict.fromkeys(WINNERS, 0)}
    made: list[RawClip | Failure] = []
    num_done = num_shards = 0
    for items in _judged(clips, partners, systems, panel, settings):
        for item in items:
            counts["failed" if isinstance(item, Failure) else item.judgment.winner] += 1
            made.append(item if isinstance(item, Failure) else encode_pair(item))
        num_done += len(items)
        on_pair(num_done)
        while len(made) >= settings.pairs_per_shard or (made and num_done == settings.num_pairs):
            path = Path(out) / f"pairs-{num_shards:06d}.tar"
            write_shard(path, made[: settings.pairs_per_shard])
            made, num_shards = made[settings.pairs_per_shard :], num_shards + 1
    return counts.pop("failed"), counts


def _judged(
    clips: ClipTable,
    partners: Partners,
    systems: tuple[MotionSystem, MotionSystem],
    panel: Panel,
    settings: PairSettings,
) -> Iterator[list[Pair | Failure]]:
    """The pairs, batch after batch; every draw is one of the seed and the number of the pair."""
    names, order = partners.paired, stream("pairs", settings.seed)
    rounds = -(-settings.num_pairs // len(names))
    conditions = np.concatenate([order.permutation(names) for _ in range(rounds)])
    for begin in range(0, settings.num_pairs, settings.batch_size):
        numbers = range(begin, min(begin + settings.batch_size, settings.num_pairs))
        draws = [stream("pair", settings.seed, number) for number in numbers]
        chosen, references = [], []
        for number, draw in zip(numbers, draws, strict=True):
            index = int(conditions[number])
            found = partners.of(index)
            reference = found[int(draw.integers(len(found)))]
            key = f"pair-{settings.seed}-{number:06d}"
            chosen.append(_condition(clips[index], settings.num_frames, key, draw))
            references.append(_reference(clips[reference]))
        yield judged_pairs(chosen, references, systems, panel, settings.seed, numbers)


def _reference(clip: ClipEntry) -> Reference:
    members = read_members(clip, [META, MOTION, FACE])
    return decode_motion(clip.key, members, where=clip.shard)[1:]


def _condition(clip: ClipEntry, num_frames: int, key: str, draw: np.random.Generator) -> Sample:
    """A part of a clip without its pictures."""
    sample = read_clip(clip, decode_video=False, use_latents=False)
    meta = dataclasses.replace(sample.meta, height=0, width=0, vae_hash=None)
    sample = dataclasses.replace(sample, key=key, meta=meta)
    return fit_sample(sample, Bucket(0, 0, num_frames), draw)


def judged_pairs(
    conditions: Sequence[Sample],
    references: Sequence[Reference],
    systems: tuple[MotionSystem, MotionSystem],
    panel: Panel,
    seed: int,
    numbers: Sequence[int],
) -> list[Pair | Failure]:
    """Samples of both systems for every condition, in a drawn order, and what a rater of the panel
    that is drawn for each pair says."""
    batch = collate([levelled(sample) for sample in conditions])
    batch = dataclasses.replace(batch, reference=reference_batch(batch, references))
    sides = [
        system.samples(batch, [derive("sample", seed, number, side) for number in numbers])
        for side, system in enumerate(systems)
    ]
    generator = torch.Generator().manual_seed(derive("judgments", seed, numbers[0]))
    swapped = torch.rand(len(numbers), generator=generator) < 0.5
    first, second = (torch.where(swapped[:, None, None], b, a) for a, b in (sides, reversed(sides)))
    whose = torch.randint(len(panel.raters), (len(numbers),), generator=generator)
    answers, margins = torch.zeros_like(whose), torch.zeros(len(whose))
    for place, rater in enumerate(panel.raters):
        margin = margin_of(rater, batch, first, second)
        said = rater.judge(margin, generator)
        answers, margins = (
            torch.where(whose == place, new, old)
            for new, old in ((said, answers), (margin, margins))
        )
    items: list[Pair | Failure] = []
    for i, sample in enumerate(conditions):
        rater, order = panel.raters[int(whose[i])], (1, 0) if swapped[i] else (0, 1)
        if not bool(margins[i].isfinite()):
            items.append(Failure(sample.key, f"rater {rater.name} has no value for a sample"))
            continue
        winner = WINNERS[int(answers[i])]
        names = (systems[place].name for place in order)
        judgment = Judgment(winner, rater.name, rater.axis, *names)
        items.append(Pair(sample, first[i], second[i], *references[i], judgment))
    return items


def margin_of(
    rater: SimulatedRater, batch: Batch, first: Motion, second: Motion
) -> Float[Tensor, " b"]:
    """How much better the rater holds the first motion of each clip; NaN where that is unknown."""
    values = [rater.values(samples_of(batch, motion)) for motion in (first, second)]
    return rater.margin(*values)


def samples_of(batch: Batch, motion: Motion) -> Samples:
    """One sample of each clip, for critics."""
    return Samples(
        frames=None,
        audio=batch.audio,
        reference=batch.reference,
        motion=motion,
        condition=torch.arange(len(motion)),
        num_given=NUM_GIVEN,
        columns={"true_motion": batch.motion, "person": batch.person, "text": batch.text},
    )
