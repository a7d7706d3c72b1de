"""Which stretches become clips: as many seconds as the constraints allow (Avatar V §5.1.1).

A clip lies within one shot, has a length between two bounds, shows exactly one face most of the
time, always the same, large and sharp enough, and holds speech. Of all sets of clips that do not
overlap, dynamic programming finds the one with the most seconds, and of these the one with the
fewest clips. Everything is counted in looks of `EVERY` frames.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np

from avatar_v.faces.face_track import overlap
from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.stages import EVERY, FootageRecording, Result

LOOKS_PER_S = FRAME_RATE_HZ / EVERY
SAME_FACE = 0.2
"""Overlap of the boxes of two looks, intersection over union, below which they are two faces."""


@dataclass(frozen=True)
class ClipStage:
    """Seconds are at least `EVERY` frames; shares are of a clip's looks."""

    min_s: float = 3.0
    max_s: float = 20.0
    margin_s: float = 0.4  # left out at both ends of a shot, where a dissolve may be
    good: float = 0.95  # looks that show one face, as large and as sharp as this:
    smallest_face: float = 0.1  # height of its box, of the picture's
    sharpness: float = 20.0
    speech: float = 0.5

    name: ClassVar[str] = "clips"
    version: ClassVar[int] = 2
    needs: ClassVar[tuple[str, ...]] = ("shots", "faces", "speech")

    def __post_init__(self) -> None:
        if not 0 < self.min_s <= self.max_s:
            raise ValueError(f"min_s is above 0 and at most max_s, got {self.min_s}, {self.max_s}")

    def weights(self) -> str:
        return ""

    def run(self, recording: FootageRecording, results: Mapping[str, Result]) -> Result:
        faces = results["faces"]["boxes"]
        good = self.good_looks(results["faces"])
        spoken = speech_per_look(results["speech"]["speech"], len(faces))
        found = []
        margin = round(self.margin_s * LOOKS_PER_S)
        for start, stop in results["shots"]["shots"]:
            first, last = -(-start // EVERY) + margin, stop // EVERY - margin
            for part_first, part_last in same_face_runs(faces, first, last):
                found += longest_cover(
                    good[part_first:part_last],
                    spoken[part_first:part_last],
                    (self.good, self.speech),
                    round(self.min_s * LOOKS_PER_S),
                    round(self.max_s * LOOKS_PER_S),
                    offset=part_first,
                )
        clips = [
            {
                "start": first * EVERY,
                "stop": last * EVERY,
                "good": round(float(good[first:last].mean()), 4),
                "speech": round(float(spoken[first:last].mean()), 4),
            }
            for first, last in found
        ]
        return {"clips": clips}

    def good_looks(self, faces: Result) -> np.ndarray:
        """1 for each look that shows exactly one face, large and sharp enough."""
        rows = zip(faces["counts"], faces["boxes"], faces["sharpness"], strict=True)
        return np.array(
            [
                float(
                    count == 1 and box[3] - box[1] >= self.smallest_face and sharp >= self.sharpness
                )
                for count, box, sharp in rows
            ]
        )


def speech_per_look(spans: Sequence[Sequence[float]], num: int) -> np.ndarray:
    """The share of each look's time in which somebody speaks. ``spans`` in seconds."""
    edges = np.arange(num + 1) / LOOKS_PER_S
    share = np.zeros(num)
    for begin, end in spans:
        share += np.clip(np.minimum(end, edges[1:]) - np.maximum(begin, edges[:-1]), 0, None)
    return share * LOOKS_PER_S


def same_face_runs(
    boxes: Sequence[Sequence[float] | None], first: int, last: int
) -> list[tuple[int, int]]:
    """The looks ``first`` to ``last`` in runs in which the largest face nowhere jumps."""
    edges, before = [first], None
    for look in range(first, last):
        if boxes[look] is None:
            continue
        box = np.array(boxes[look])
        if before is not None and overlap(before, box) < SAME_FACE:
            edges.append(look)
        before = box
    edges.append(last)
    return [(a, b) for a, b in pairwise(edges) if b > a]


def longest_cover(
    good: np.ndarray,
    spoken: np.ndarray,
    limits: tuple[float, float],
    shortest: int,
    longest: int,
    *,
    offset: int = 0,
) -> list[tuple[int, int]]:
    """Spans of looks that do not overlap, ``shortest`` to ``longest`` long, in each of which the
    means of ``good`` and ``spoken`` reach ``limits``: those that cover the most looks, and of
    equal ones the fewest. ``offset`` is added to the result."""
    num = len(good)
    sums = [np.concatenate([[0.0], np.cumsum(values)]) for values in (good, spoken)]
    best = np.zeros((num + 1, 2))  # looks covered, minus clips
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
