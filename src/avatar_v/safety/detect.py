"""Whether a video carries a mark (watermark.py), and of which id.

The video is freed of what does not change at the mark's rate and laid over itself, period upon
period. For every beginning that the cut may have left and every crop in `BOXES`, each cell's change
is compared with the signs of every word: a matched filter.

**False positives.** Let y be the cells' changes of a video that was made without the key. The signs
s of an id are drawn without the video, so that P(s · y ≥ z |y|) ≤ exp(-z² / 2) whatever y is
(Hoeffding 1963, theorem 2). The detector looks at `NUM_TRIALS` ids, beginnings and crops, and says
that there is a mark where `NUM_TRIALS` exp(-z² / 2) ≤ `MOST_FALSE`, from `LEAST_Z` on. That is a
bound for each video, over keys; the study "watermark" counts.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.safety.key import PUBLIC_KEY
from avatar_v.safety.watermark import (
    CELLS,
    CYCLE,
    NUM_BYTES,
    NUM_PATTERNS,
    NUM_WORDS,
    PERIOD,
    luma,
    places,
    wave,
    words_of,
)

MOST_FALSE = 1e-6
"""The largest share of videos without a mark that may be said to have one."""
SIDE = 4 * CELLS
"""Pixels to which a picture is reduced."""
MOST_CROPPED, NUM_SIZES = 0.1, 5
"""The largest share of each side that a crop may have taken, and sizes from it to the whole."""
LEAST_FRAMES = 2 * CYCLE
AT_ONCE = 512
"""Frames that are held in memory."""


@dataclass(frozen=True)
class Found:
    """The best of all ids, beginnings and crops."""

    best: str  # of whatever video
    confidence: float  # that all bits of ``best`` are right, given that there is a mark
    z: float
    num_frames: int

    @property
    def id(self) -> str | None:
        """The id of the video; None where no mark is found."""
        return self.best if self.z >= LEAST_Z else None


@dataclass(frozen=True)
class Box:
    """The part of the marked picture that is left: its sides and its corner, as shares."""

    side: float = 1.0
    left: float = 0.0
    top: float = 0.0


def boxes() -> tuple[Box, ...]:
    """The whole picture, then crops of both sides by the same share, half a cell apart."""
    found = [Box()]
    for i in range(1, NUM_SIZES):
        cut = MOST_CROPPED * i / (NUM_SIZES - 1)
        steps = 1 + math.ceil(cut * CELLS * 2)
        corners = [cut * j / (steps - 1) for j in range(steps)]
        found += [Box(1 - cut, *corner) for corner in itertools.product(corners, corners)]
    return tuple(found)


BOXES = boxes()
NUM_TRIALS = NUM_WORDS**NUM_BYTES * PERIOD * len(BOXES)
LEAST_Z = math.sqrt(2 * math.log(NUM_TRIALS / MOST_FALSE))
"""Of a video that has a mark."""


def detect(frames: Iterable[UInt8[Tensor, "3 h w"]], key: bytes = PUBLIC_KEY) -> Found:
    """The mark in the frames of a video at 25 a second. ValueError for fewer than 16 frames."""
    folded, num = torch.zeros(PERIOD, SIDE, SIDE), 0
    for part in _parts(frames):
        time = torch.arange(num, num + len(part)) % PERIOD
        folded.index_add_(0, time, changes(part))
        num += len(part)
    if num < LEAST_FRAMES:
        raise ValueError(f"a mark is read from {LEAST_FRAMES} frames or more, got {num}")
    means = F.avg_pool2d(folded[:, None], SIDE // CELLS, 1)
    whole, *crops = BOXES
    found = _best(cells_of(means, whole), key, num)
    if found.id is not None:
        return found
    tried = [_best(cells_of(means, box), key, num) for box in crops]
    return max(found, *tried, key=lambda one: one.z)


def changes(part: Float[Tensor, "f side side"]) -> Float[Tensor, "f side side"]:
    """What differs from the mean of a cycle around each frame, in units of its usual size at that
    place; large values are limited, since they are motion."""
    num = len(part)
    length = min(CYCLE, num)
    total = F.pad(part.cumsum(0), (0, 0, 0, 0, 1, 0))
    first = (torch.arange(num) - length // 2).clamp(0, num - length)
    rest = part - (total[first + length] - total[first]) / length
    return (rest / (rest.square().mean(0).sqrt() + 0.3)).clamp(-2, 2)


def cells_of(means: Float[Tensor, "t 1 m m"], box: Box) -> Float[Tensor, "t cells2"]:
    """The mean change of each cell of the marked picture, of which ``box`` is left; 0 outside.
    ``means`` are those of all places where a cell may lie."""
    centre = (torch.arange(CELLS) + 0.5) / CELLS
    last = means.shape[-1] - 1

    def places_of(start: float) -> Tensor:
        """Where the centres lie among ``means``, in -1 … 1."""
        pixel = (centre - start) / box.side * SIDE - SIDE / CELLS / 2
        return pixel / last * 2 - 1

    across, down = places_of(box.left), places_of(box.top)
    grid = torch.stack(torch.meshgrid(across, down, indexing="xy"), -1)
    sampled = F.grid_sample(
        means, grid.expand(len(means), -1, -1, -1), padding_mode="zeros", align_corners=True
    )
    return sampled.flatten(1)


def _best(cells: Float[Tensor, "t cells2"], key: bytes, num: int) -> Found:
    """The best id and beginning."""
    patterns = (turned_waves() @ cells).view(PERIOD, NUM_PATTERNS, CELLS, CELLS)
    level = F.avg_pool2d(
        patterns.square().mean(1, keepdim=True), 5, 1, 2, count_include_pad=False
    ).sqrt()
    patterns = patterns / (level + 0.1 * level.mean((2, 3), keepdim=True) + 1e-9)
    signs = patterns.flatten(1)[:, places()]
    scores = torch.einsum("pbs,bws->pbw", signs, words_of(key))
    size = signs.square().sum((1, 2)).sqrt().clamp(min=1e-9)
    z, start = (scores.amax(2).sum(1) / size).max(0)
    return Found(*_read(scores[start], signs[start]), float(z), num)


def _read(
    scores: Float[Tensor, "bytes words"], signs: Float[Tensor, "bytes signs"]
) -> tuple[str, float]:
    """The best word of each byte, and the chance that all are right: scores of wrong words are
    normal around 0, of right ones around their common mean."""
    units = scores.double() / signs.double().square().sum(1, keepdim=True).sqrt().clamp(min=1e-9)
    most, words = units.max(1)
    chance = (most.mean() * units).softmax(1).amax(1).prod()
    return bytes(words.tolist()).hex(), float(chance)


@lru_cache(maxsize=1)
def turned_waves() -> Float[Tensor, "starts k t"]:
    """How strongly each pattern is shown at each time of the period, for every beginning."""
    shown = torch.block_diag(*(wave()[None] for _ in range(NUM_PATTERNS)))
    return torch.stack([shown.roll(-start, 1) for start in range(PERIOD)])


def _parts(frames: Iterable[UInt8[Tensor, "3 h w"]]) -> Iterator[Float[Tensor, "f side side"]]:
    """The brightness of the frames, reduced, some at a time."""
    small = (_reduced(frame) for frame in frames)
    while part := list(itertools.islice(small, AT_ONCE)):
        yield torch.stack(part)


def _reduced(frame: UInt8[Tensor, "3 h w"]) -> Float[Tensor, "side side"]:
    grey = luma(frame.float())[None, None]
    return F.interpolate(grey, (SIDE, SIDE), mode="bilinear", antialias=True)[0, 0]
