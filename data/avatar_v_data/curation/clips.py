"""Which stretches become clips: as many seconds as the constraints allow (Avatar V §5.1.1).

A clip lies within one shot, has a length between two bounds, shows exactly one face most of the
time, always the same, large and sharp enough, and holds speech. Of all sets of clips that do not
overlap, dynamic programming finds the one with the most seconds, and of these the one with the
fewest clips. Where one face is seen for longer than two clips this is done over two clips' length
at a time, so that frames need not wait for the end; the set may then not be the best of all.
Everything is counted in ticks of `TICK` frames.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from avatar_v.faces.face_track import overlap
from avatar_v_data.curation.shots import LATE
from avatar_v_data.curation.stages import (
    ALL,
    TICK,
    TICKS_PER_S,
    Reader,
    Reads,
    Result,
    Seen,
    Stage,
)

SAME_FACE = 0.2
"""Overlap of the boxes of two ticks, intersection over union, below which they are two faces."""


@dataclass(frozen=True)
class ClipStage(Stage):
    """Seconds are at least `TICK` frames; shares are of a clip's ticks."""

    min_s: float = 3.0
    max_s: float = 20.0
    margin_s: float = 0.4  # left out at both ends of a shot, where a dissolve may be
    good: float = 0.95  # ticks that show one face, as large and as sharp as this:
    smallest_face: float = 0.1  # height of its box, of the picture's
    sharpness: float = 20.0
    speech: float = 0.5

    name: ClassVar[str] = "clips"
    version: ClassVar[int] = 3
    reads: ClassVar[Reads] = "results"
    needs: ClassVar[tuple[str, ...]] = ("shots", "faces", "speech")
    numbers: ClassVar[tuple[str, ...]] = ("start", "stop", "good", "speech")

    def __post_init__(self) -> None:
        if not 0 < self.min_s <= self.max_s:
            raise ValueError(f"min_s is above 0 and at most max_s, got {self.min_s}, {self.max_s}")

    def begin(self, seen: Seen) -> Reader:
        return ClipFinder(self, seen)


class ClipFinder(Reader):
    """Decides while ticks come: what depends on no later one."""

    def __init__(self, stage: ClipStage, seen: Seen) -> None:
        self.columns = {"clips": []}
        self._stage, self._results = stage, seen.results
        self._shortest, self._longest, self._margin = (
            round(length * TICKS_PER_S) for length in (stage.min_s, stage.max_s, stage.margin_s)
        )
        self._horizon = 2 * self._longest
        self._hopeless = int((1 - stage.good) * self._longest) + 1 if stage.good else ALL
        self._shot = 0  # the one that is looked at
        self._tick: int | None = None  # its next tick
        self._begin = 0  # the first tick that a later clip may have
        self._box: np.ndarray | None = None  # of the last tick that shows a face

    def decide(self, num_frames: int, *, ended: bool) -> int:
        told, num_ticks = self._results["shots"], len(self._results["faces"]["boxes"])
        shots = told["shots"]
        while self._shot < len(shots) and shots[self._shot][1] // TICK <= num_ticks:
            start, stop = shots[self._shot]
            self._advance(start, stop // TICK - self._margin)
            self._settle(self._tick or 0, is_end=True)
            self._shot, self._tick, self._box = self._shot + 1, None, None
        if self._shot < len(shots):  # known from before, and its faces are not yet
            start, known = shots[self._shot][0], min(num_ticks, shots[self._shot][1] // TICK)
        elif "num_frames" in told:  # no further one comes
            return ALL
        else:
            start = shots[-1][1] if shots else 0
            known = min(num_ticks, (num_frames - LATE) // TICK)
        self._advance(start, known - self._margin)
        self._settle(self._tick or 0, is_end=False)
        return self._begin * TICK

    def _advance(self, start: int, last: int) -> None:
        """Go through the ticks before ``last`` of the shot that begins at frame ``start``; where
        the face jumps, one run ends and another begins."""
        if self._tick is None:
            self._tick = self._begin = -(-start // TICK) + self._margin
        boxes = self._results["faces"]["boxes"]
        while self._tick < last:
            box = None if boxes[self._tick] is None else np.array(boxes[self._tick])
            if box is not None and self._box is not None and overlap(self._box, box) < SAME_FACE:
                self._settle(self._tick, is_end=True)
                self._begin = self._tick
            self._box = self._box if box is None else box
            self._tick += 1

    def _settle(self, stop: int, *, is_end: bool) -> None:
        """Decide on the ticks before ``stop`` of this run: all of them at its end, and before it
        as far as a horizon of two clips, whose last clip may still change, reaches."""
        good = good_ticks(self._stage, self._results["faces"], self._begin, stop)
        at, num = 0, len(good)
        while at < num:
            if num - at >= self._hopeless and not good[at : at + self._hopeless].any():
                at += 1
            elif num - at >= self._horizon:
                found = self._cover(good[at : at + self._horizon], self._begin + at)
                found = found[:-1] or found
                self._add(found)
                further = at + self._horizon - self._longest + 1
                at = found[-1][1] - self._begin if found else further
            elif is_end:
                self._add(self._cover(good[at:], self._begin + at))
                at = num
            else:
                break
        self._begin += at

    def _cover(self, good: np.ndarray, first: int) -> list[tuple[int, int]]:
        spoken = speech_per_tick(self._results["speech"]["speech"], first, first + len(good))
        limits = (self._stage.good, self._stage.speech)
        return longest_cover(good, spoken, limits, self._shortest, self._longest, offset=first)

    def _add(self, found: Sequence[tuple[int, int]]) -> None:
        for first, last in found:
            good = good_ticks(self._stage, self._results["faces"], first, last)
            spoken = speech_per_tick(self._results["speech"]["speech"], first, last)
            self.columns["clips"].append(
                {
                    "start": first * TICK,
                    "stop": last * TICK,
                    "good": round(float(good.mean()), 4),
                    "speech": round(float(spoken.mean()), 4),
                }
            )


def good_ticks(stage: ClipStage, faces: Result, first: int, last: int) -> np.ndarray:
    """1 for each tick that shows exactly one face, large and sharp enough. ``faces``: what that
    stage says."""
    parts = (faces[name][first:last] for name in ("counts", "boxes", "sharpness"))
    return np.array(
        [
            float(
                count == 1 and box[3] - box[1] >= stage.smallest_face and sharp >= stage.sharpness
            )
            for count, box, sharp in zip(*parts, strict=True)
        ]
    )


def speech_per_tick(spans: Sequence[Sequence[float]], first: int, last: int) -> np.ndarray:
    """The share of each tick's time in which somebody speaks. ``spans`` in seconds."""
    edges = np.arange(first, last + 1) / TICKS_PER_S
    share = np.zeros(last - first)
    for begin, end in spans:
        if begin < edges[-1] and end > edges[0]:
            both = np.minimum(end, edges[1:]) - np.maximum(begin, edges[:-1])
            share += np.clip(both, 0, None)
    return share * TICKS_PER_S


def longest_cover(
    good: np.ndarray,
    spoken: np.ndarray,
    limits: tuple[float, float],
    shortest: int,
    longest: int,
    *,
    offset: int = 0,
) -> list[tuple[int, int]]:
    """Spans of ticks that do not overlap, ``shortest`` to ``longest`` long, in each of which the
    means of ``good`` and ``spoken`` reach ``limits``: those that cover the most ticks, and of
    equal ones the fewest. ``offset`` is added to the result."""
    num = len(good)
    sums = [np.concatenate([[0.0], np.cumsum(values)]) for values in (good, spoken)]
    best = np.zeros((num + 1, 2))  # ticks covered, minus clips
    came = np.full(num + 1, -1)
    for stop in range(1, num + 1):
        best[stop] = best[stop - 1]
        starts = np.arange(max(stop - longest, 0), stop - shortest + 1)
        if len(starts) == 0:
            continue
        length = stop - starts
        enough = np.ones(len(starts), bool)
        for total, limit in zip(sums, limits, strict=True):
            enough &= total[stop] - total[starts] >= limit * length - 1e-9
        for start in starts[enough]:
            value = best[start] + (stop - start, -1)
            if tuple(value) > tuple(best[stop]):
                best[stop], came[stop] = value, start
    found, at = [], num
    while at > 0:
        if came[at] >= 0:
            found.append((int(came[at]) + offset, at + offset))
            at = int(came[at])
        else:
            at -= 1
    return found[::-1]
