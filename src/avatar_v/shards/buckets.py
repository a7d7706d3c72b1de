"""Which clips make which batch: buckets by size and length, pairs, and the order of an epoch.

Pure functions of the index: `plan_epoch` lists every batch of an epoch as f(seed, epoch, rank),
before anything is read. That makes resuming free (skip the first k of the list) and exact for any
number of loader workers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from avatar_v.shards.writer import ClipEntry
from avatar_v.types import num_latents


@dataclass(frozen=True, order=True)
class Bucket:
    """Clips that are batched together: one picture size (0: no pictures) and one length."""

    height: int
    width: int
    num_frames: int  # 4k + 1

    def __post_init__(self) -> None:
        num_latents(self.num_frames)
        if min(self.height, self.width) < 0 or (self.height == 0) != (self.width == 0):
            raise ValueError(f"a bucket has a positive size, or none at all, got {self}")


@dataclass(frozen=True)
class BatchPlan:
    """One batch: positions in the index of its clips, of their references, and its own seed."""

    bucket: Bucket
    clips: tuple[int, ...]
    references: tuple[int, ...] | None
    seed: tuple[int, ...]  # for what is drawn while loading: the start of a crop in time


def natural_buckets(clips: Sequence[ClipEntry]) -> list[Bucket]:
    """The sizes and lengths that occur: nothing is resized and nothing cut."""
    return sorted({Bucket(clip.height, clip.width, clip.num_frames) for clip in clips})


def assign(clip: ClipEntry, buckets: Sequence[Bucket], *, uses_latents: bool) -> Bucket | None:
    """The largest bucket that a clip fills without being enlarged or stretched, or None.

    The longest one wins among the largest. Latents cannot be resized: with ``uses_latents`` the
    picture size must be the clip's own.
    """
    fits = [bucket for bucket in buckets if _fits(clip, bucket, uses_latents)]
    return max(fits, key=lambda b: (b.height * b.width, b.num_frames), default=None)


def pair_candidates(
    clips: Sequence[ClipEntry], members: Sequence[int], *, same_scene: bool
) -> dict[int, list[int]]:
    """For each clip of a bucket, the clips of the same person it may be paired with.

    They come from another scene (Avatar V §3.3, cross-scene pairs), or with ``same_scene`` from
    any; never the clip itself. A clip without a partner is absent from the result.
    """
    by_person: dict[str, list[int]] = {}
    for index in members:
        by_person.setdefault(clips[index].person, []).append(index)
    partners = {}
    for index in members:
        clip = clips[index]
        found = [
            other
            for other in by_person[clip.person]
            if other != index and (same_scene or clips[other].scene != clip.scene)
        ]
        if found:
            partners[index] = found
    return partners


def plan_epoch(
    members: dict[Bucket, list[int]],
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    rank: int,
    num_ranks: int,
    shuffle: bool,
    fill: bool,
    partners: dict[int, list[int]] | None = None,
) -> list[BatchPlan]:
    """All batches of one rank in order; every rank gets as many, of the same buckets.

    Each bucket is permuted, cut into groups of ``num_ranks · batch_size`` clips, and the groups of
    all buckets are permuted together, so that at each step all ranks work on one size. ``fill``
    completes a bucket's last group with clips from its own beginning: no clip is lost, and all
    ranks have as many batches. Without it (one rank, validation) the last batch stays short.
    """
    assert fill or num_ranks == 1, "short groups would leave some ranks without a batch"
    rng = np.random.default_rng([seed, epoch])
    groups = []
    for bucket, indices in sorted(members.items()):
        order = rng.permutation(indices).tolist() if shuffle else list(indices)
        chosen = None if partners is None else _draw_partners(order, partners, rng, shuffle)
        step = batch_size * num_ranks
        for start in range(0, len(order), step):
            slots = list(range(start, min(start + step, len(order))))
            while fill and len(slots) < step:
                slots.append(slots[-1] + 1)
            slots = [slot % len(order) for slot in slots]
            groups.append((bucket, order, chosen, slots))
    if shuffle:
        groups = [groups[i] for i in rng.permutation(len(groups))]
    plans = []
    for number, (bucket, order, chosen, slots) in enumerate(groups):
        mine = slots[rank::num_ranks]
        references = None if chosen is None else tuple(chosen[slot] for slot in mine)
        clips = tuple(order[slot] for slot in mine)
        plans.append(BatchPlan(bucket, clips, references, (seed, epoch, number, rank)))
    return plans


def _draw_partners(
    order: Sequence[int],
    partners: dict[int, list[int]],
    rng: np.random.Generator,
    shuffle: bool,
) -> list[int]:
    draws = rng.random(len(order)) if shuffle else np.zeros(len(order))
    candidates = [partners[index] for index in order]
    return [found[int(draw * len(found))] for found, draw in zip(candidates, draws, strict=True)]


def _fits(clip: ClipEntry, bucket: Bucket, uses_latents: bool) -> bool:
    if clip.num_frames < bucket.num_frames:
        return False
    if (clip.height, clip.width) == (bucket.height, bucket.width):
        return True
    if 0 in (clip.height, bucket.height):  # motion and sound alone
        return False
    stretch = (clip.height * bucket.width) / (clip.width * bucket.height)
    return not uses_latents and clip.height >= bucket.height and abs(stretch - 1) < 0.02
