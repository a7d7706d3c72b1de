"""Which clips make which batch: buckets by size and length, pairs, and the order of an epoch.

Pure functions of the index: `plan_epoch` knows every batch of an epoch as f(seed, epoch, rank),
before anything is read. That makes resuming free (skip the first k of them) and exact for any
number of loader workers. All is in arrays, a few numbers a clip: a plan of a million clips holds
no objects of them, and makes a batch's when it is asked for.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from jaxtyping import Float, Integer

from avatar_v.shards.table import ClipTable
from avatar_v.shards.writer import ClipEntry
from avatar_v.types import num_latents

Positions = Integer[np.ndarray, " _n"]
"""Of clips in an index."""


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


def natural_buckets(clips: Iterable[ClipEntry]) -> list[Bucket]:
    """The sizes and lengths that occur: nothing is resized and nothing cut."""
    return sorted({Bucket(clip.height, clip.width, clip.num_frames) for clip in clips})


def assign(clip: ClipEntry, buckets: Sequence[Bucket], *, uses_latents: bool) -> Bucket | None:
    """The largest bucket that a clip fills without being enlarged or stretched, or None.

    The longest one wins among the largest. Latents cannot be resized: with ``uses_latents`` the
    picture size must be the clip's own.
    """
    fits = [bucket for bucket in buckets if _fits(clip, bucket, uses_latents)]
    return max(fits, key=lambda b: (b.height * b.width, b.num_frames), default=None)


class Partners:
    """For the clips of a bucket, those of the same person that each may be paired with.

    They come from another scene (Avatar V §3.3, cross-scene pairs), or with ``same_scene`` from
    any; never the clip itself. ``members`` are positions in ``clips``, ascending.
    """

    def __init__(self, clips: ClipTable, members: Positions, *, same_scene: bool):
        num = len(members)
        persons = clips.persons[members]
        scenes = np.arange(num) if same_scene else clips.scenes[members]
        by_person = np.argsort(persons, kind="stable")
        self._members, self._grouped = members, members[by_person]
        _, self._start, size = _runs(persons[by_person], by_person)
        place = np.empty(num, np.int32)  # of a clip among those of its person
        place[by_person] = np.arange(num) - self._start[by_person]
        by_scene = np.lexsort((scenes, persons))
        changes = np.stack([persons, scenes], axis=1)[by_scene]
        self._run, self._first, num_near = _runs(changes, by_scene)
        # Of a clip's own scene, the i-th clip stands behind `place - i` clips of other scenes: the
        # row ascends, so a search tells how many of them come before the k-th of the others.
        before = place[by_scene] - (np.arange(num) - self._first[by_scene])
        self._before = self._run[by_scene].astype(np.int64) * (num + 1) + before
        self._num = (size - num_near).astype(np.int32)

    @property
    def paired(self) -> Positions:
        """The members that have a partner."""
        return self._members[self._num > 0]

    def of(self, clip: int) -> list[int]:
        """The partners of a member, ascending."""
        slot = int(np.searchsorted(self._members, clip))
        k = np.arange(int(self._num[slot]))
        return self._pick(np.full_like(k, slot), k).tolist()

    def draw(self, clips: Positions, draws: Float[np.ndarray, " _n"]) -> Positions:
        """One partner of each clip, by a number from 0 to 1."""
        slots = np.searchsorted(self._members, clips)
        return self._pick(slots, (draws * self._num[slots]).astype(np.int64))

    def _pick(self, slots: Positions, k: Positions) -> Positions:
        """Partner number k of each slot."""
        wanted = self._run[slots].astype(np.int64) * (len(self._members) + 1) + k
        skipped = np.searchsorted(self._before, wanted, side="right") - self._first[slots]
        return self._grouped[self._start[slots] + k + skipped]


@dataclass(frozen=True)
class _Order:
    """A bucket's clips in the order of an epoch, and their references."""

    bucket: Bucket
    clips: Positions
    references: Positions | None


class EpochPlan(Sequence[BatchPlan]):
    """All batches of one rank in order, each made when it is asked for (`plan_epoch`)."""

    def __init__(
        self,
        orders: list[_Order],
        groups: Integer[
            np.ndarray, "g 2"
        ],  # number of the bucket, and the group's first place in it
        *,
        batch_size: int,
        seed: tuple[int, int],
        rank: int,
        num_ranks: int,
        fill: bool,
    ):
        self._orders, self._groups = orders, groups
        self._step, self._seed, self._fill = batch_size * num_ranks, seed, fill
        self._rank, self._num_ranks = rank, num_ranks

    def __len__(self) -> int:
        return len(self._groups)

    @overload
    def __getitem__(self, index: int) -> BatchPlan: ...
    @overload
    def __getitem__(self, index: slice) -> list[BatchPlan]: ...
    def __getitem__(self, index: int | slice) -> BatchPlan | list[BatchPlan]:
        if isinstance(index, slice):
            return [self._batch(number) for number in range(*index.indices(len(self)))]
        return self._batch(range(len(self))[index])

    def _batch(self, number: int) -> BatchPlan:
        which, start = self._groups[number].tolist()
        order = self._orders[which]
        num, end = len(order.clips), start + self._step
        slots = np.arange(start, end if self._fill else min(end, num)) % num
        mine = slots[self._rank :: self._num_ranks]
        references = order.references
        return BatchPlan(
            order.bucket,
            tuple(order.clips[mine].tolist()),
            None if references is None else tuple(references[mine].tolist()),
            (*self._seed, number, self._rank),
        )


def plan_epoch(
    members: dict[Bucket, Positions],
    *,
    batch_size: int,
    seed: int,
    epoch: int,
    rank: int,
    num_ranks: int,
    shuffle: bool,
    fill: bool,
    partners: dict[Bucket, Partners] | None = None,
) -> EpochPlan:
    """All batches of one rank in order; every rank gets as many, of the same buckets.

    Each bucket is permuted, cut into groups of ``num_ranks · batch_size`` clips, and the groups of
    all buckets are permuted together, so that at each step all ranks work on one size. ``fill``
    completes a bucket's last group with clips from its own beginning: no clip is lost, and all
    ranks have as many batches. Without it (one rank, validation) the last batch stays short.
    """
    assert fill or num_ranks == 1, "short groups would leave some ranks without a batch"
    rng = np.random.default_rng([seed, epoch])
    orders, groups = [], []
    for number, bucket in enumerate(sorted(members)):
        order = rng.permutation(members[bucket]) if shuffle else members[bucket]
        references = None
        if partners is not None:
            draws = rng.random(len(order)) if shuffle else np.zeros(len(order))
            references = partners[bucket].draw(order, draws)
        orders.append(_Order(bucket, order, references))
        starts = np.arange(0, len(order), batch_size * num_ranks)
        groups.append(np.stack([np.full_like(starts, number), starts], axis=1))
    together = np.concatenate(groups)
    return EpochPlan(
        orders,
        together[rng.permutation(len(together))] if shuffle else together,
        batch_size=batch_size,
        seed=(seed, epoch),
        rank=rank,
        num_ranks=num_ranks,
        fill=fill,
    )


def _runs(
    ordered: Integer[np.ndarray, "n *_"], order: Integer[np.ndarray, " n"]
) -> tuple[Integer[np.ndarray, " n"], Integer[np.ndarray, " n"], Integer[np.ndarray, " n"]]:
    """Of each element the number, start and length of the run of equal rows it is in, where
    ``ordered`` is sorted and ``order`` tells the elements' places before that."""
    changed = np.ones(len(ordered), bool)
    differs = ordered[1:] != ordered[:-1]
    changed[1:] = differs if differs.ndim == 1 else differs.any(axis=1)
    starts = np.flatnonzero(changed)
    run = np.cumsum(changed) - 1
    lengths = np.diff(starts, append=len(ordered))
    found = np.empty((3, len(ordered)), np.int32)
    for row, numbers in zip(found, (run, starts[run], lengths[run]), strict=True):
        row[order] = numbers
    return found[0].copy(), found[1].copy(), found[2].copy()


def _fits(clip: ClipEntry, bucket: Bucket, uses_latents: bool) -> bool:
    if clip.num_frames < bucket.num_frames:
        return False
    if (clip.height, clip.width) == (bucket.height, bucket.width):
        return True
    if 0 in (clip.height, bucket.height):  # motion and sound alone
        return False
    stretch = (clip.height * bucket.width) / (clip.width * bucket.height)
    return not uses_latents and clip.height >= bucket.height and abs(stretch - 1) < 0.02
