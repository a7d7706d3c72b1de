"""PairData: folders of judged pairs as batches with ``preferences`` (shards/pairs.py)."""

import dataclasses
from collections.abc import Sequence
from functools import partial

import numpy as np

from avatar_v.shards.buckets import BatchPlan
from avatar_v.shards.datamodule import ClipSet, ShardData, sorted_clips
from avatar_v.shards.loader import read_folder
from avatar_v.shards.pairs import (
    WINNERS,
    Judgment,
    Pair,
    Winner,
    collate_pairs,
    read_judgment,
    read_pair,
    require_pair,
)
from avatar_v.shards.table import ClipTable
from avatar_v.shards.writer import ClipEntry
from avatar_v.types import Batch


class PairReader:
    """Pair number i of an index; with ``cache`` each is decoded once and then kept."""

    def __init__(
        self,
        clips: Sequence[ClipEntry],
        winners: list[Winner] | None,
        *,
        cache: bool,
        videos: bool = False,
    ):
        """``winners`` in the place of those that the pairs have; ``videos``: with pictures."""
        self.clips = clips
        self.winners = winners
        self.videos = videos
        self._kept: dict[int, Pair] | None = {} if cache else None

    def __call__(self, index: int) -> Pair:
        if self._kept is not None and index in self._kept:
            return self._kept[index]
        pair = read_pair(self.clips[index], pictures=self.videos)
        if self.winners is not None:
            judgment = dataclasses.replace(pair.judgment, winner=self.winners[index])
            pair = dataclasses.replace(pair, judgment=judgment)
        if self._kept is not None:
            self._kept[index] = pair
        return pair


class PairData(ShardData):
    """Training and validation pairs.

    Args:
        train: Folder of shards of pairs; subfolders are read too.
        validation: Another folder, always in the same order; None for no validation.
        batch_size: Pairs a batch and rank.
        num_workers: Loader processes; 0 reads in the training process.
        ties: False leaves out the pairs that are ties.
        shuffled: Deal the winners of the training pairs out among them anew, by the seed: a control
            whose pairs say nothing.
        seed: Of order and shuffling.
        cache: Keep decoded pairs in memory (num_workers must be 0).
        videos: Decode the pictures of judged videos; pairs of motion alone are an error.
    """

    def __init__(
        self,
        train: str,
        batch_size: int,
        validation: str | None = None,
        num_workers: int = 0,
        ties: bool = True,
        shuffled: bool = False,
        seed: int = 0,
        cache: bool = False,
        videos: bool = False,
    ):
        super().__init__(
            train,
            batch_size,
            validation,
            num_workers,
            pictures=False,
            seed=seed,
            cache=cache,
        )
        self.ties = ties
        self.shuffled = shuffled
        self.videos = videos

    def judgments(self, folder: str) -> list[Judgment]:
        """Of all pairs of the training or validation folder."""
        return [read_judgment(clip) for clip in self.clip_set(folder).clips]

    def _clip_set(self, folder: str) -> ClipSet:
        clips = read_folder(folder)
        for clip, _ in clips.kinds():
            require_pair(clip, pictures=self.videos)
        if not self.ties:
            clips = ClipTable(clip for clip in clips if read_judgment(clip).winner != "tie")
            if not clips:
                raise ValueError(f"{folder}: all pairs are ties, and ties is false")
        members = sorted_clips(clips, None, uses_latents=False)
        winners = None
        if self.shuffled and folder == self.train_folder:
            found = [WINNERS.index(read_judgment(clip).winner) for clip in clips]
            dealt = np.random.default_rng(self.seed).permutation(found)
            winners = [WINNERS[number] for number in dealt]
        reader = PairReader(clips, winners, cache=self.cache, videos=self.videos)
        return ClipSet(folder, clips, members, None, partial(load_pairs, read=reader))


def load_pairs(plan: BatchPlan, read: PairReader) -> Batch:
    """The pairs of a plan."""
    return collate_pairs([read(index) for index in plan.clips])
