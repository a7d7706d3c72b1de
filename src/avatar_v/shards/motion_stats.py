"""Motion statistics of training shards: `avatar-v shards stats`, and stages that start without any.

Means and deviations are those of all visible frames; the style of a person is that of all their
clips together. Of each clip only its motion, and of which frames show a face, is read.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.models.conditioner import latent_validity
from avatar_v.motion.stats import NUM_KINDS, MotionStats
from avatar_v.motion.style import STYLE_DIM, motion_moments, style_shrinking, style_statistics
from avatar_v.motion.vectors import known_mask, pack_motion
from avatar_v.shards.loader import read_folder, read_members
from avatar_v.shards.schema import FACE, META, MOTION, decode_motion
from avatar_v.types import MOTION_NAMES

LEAST_DEVIATION = 1e-3
"""A component that moves less in all clips is one that never moves; its unit stays its own."""
LEAST_STYLE_DEVIATION = 0.05
"""Numbers of a style in which people hardly differ are not blown up (our choice)."""
NUM = len(MOTION_NAMES)


@dataclasses.dataclass(frozen=True)
class ClipMotion:
    """What the statistics read of a clip."""

    person: str
    motion: Float[Tensor, "f m"]
    valid: Bool[Tensor, " f"]
    known: Bool[Tensor, " m"]  # components that were read
    style_known: Bool[Tensor, " m"]  # components that tell the person's style


def stats_of_folder(
    folder: str | Path, *, on_clip: Callable[[int, int], None] = lambda done, total: None
) -> MotionStats:
    """The motion statistics of all clips in and below a folder of shards; ``on_clip`` hears the
    number of clips read, of twice as many as there are. ValueError for fewer than two people."""
    entries = read_folder(folder)
    num_done = 0

    def read() -> Iterator[ClipMotion]:
        nonlocal num_done
        for entry in entries:
            members = read_members(entry, [META, MOTION, FACE])
            meta, motion, valid = decode_motion(entry.key, members, where=entry.shard)
            known, habits = (known_mask(of)[0] for of in (meta.motion_known, meta.habits_known))
            yield ClipMotion(meta.person, motion, valid, known, habits)
            num_done += 1
            on_clip(num_done, 2 * len(entries))

    return motion_stats(read)


def motion_stats(read: Callable[[], Iterable[ClipMotion]]) -> MotionStats:
    """The statistics of the clips that ``read`` gives, which is called twice. A component that no
    clip tells has mean 0 and deviation 1, and everybody's style in it is the average one."""
    count = torch.zeros(NUM, dtype=torch.float64)
    first, second = torch.zeros_like(count), torch.zeros_like(count)
    for clip in read():
        seen = clip.motion[clip.valid].double() * clip.known
        count += clip.known * len(seen)
        first += seen.sum(0)
        second += seen.square().sum(0)
    mean = first / count.clamp_min(1)
    deviation = (second / count.clamp_min(1) - mean.square()).clamp_min(0).sqrt()
    still = deviation < LEAST_DEVIATION
    deviation = torch.where(still, 1.0, deviation)
    average, style_deviation = torch.zeros(STYLE_DIM), torch.ones(STYLE_DIM)
    units = MotionStats(mean.float(), deviation.float(), average, style_deviation)
    return _with_styles(units, read)


def _with_styles(units: MotionStats, read: Callable[[], Iterable[ClipMotion]]) -> MotionStats:
    """``units`` with the average style, and how far people differ in each of its numbers."""
    moments_of: dict[str, Tensor] = {}
    known_of: dict[str, Tensor] = {}
    num_clips = 0
    for num_clips, clip in enumerate(read(), start=1):  # noqa: B007
        packed, seen = pack_motion(clip.motion[None], units), latent_validity(clip.valid[None])
        found = motion_moments(packed, seen, units)[0]
        moments_of[clip.person] = moments_of.get(clip.person, 0) + found
        known_of[clip.person] = known_of.get(clip.person, True) & clip.style_known
    if len(moments_of) < 2:
        raise ValueError(f"motion statistics are of two people or more, got {len(moments_of)}")
    moments, known = torch.stack([*moments_of.values()]), torch.stack([*known_of.values()])
    frames, habits = moments[:, :1], known.repeat(1, NUM_KINDS) & (moments[:, :1] > 0)
    styles = style_statistics(moments).double()
    shrinking = style_shrinking(frames.clamp_min(1)).double()
    num = habits.sum(0)
    average = (styles / shrinking * habits).sum(0) / num.clamp_min(1)
    middle = (styles * habits).sum(0) / num.clamp_min(1)
    squares = ((styles - middle).square() * habits).sum(0) / (num - 1).clamp_min(1)
    differ = torch.where(num > 1, squares.sqrt().clamp_min(LEAST_STYLE_DEVIATION), 1.0)
    return dataclasses.replace(
        units,
        style_average=average.float(),
        style_deviation=differ.float(),
        num_clips=num_clips,
        num_people=len(moments_of),
    )
