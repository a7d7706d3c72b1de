"""Whether a video carries a mark (watermark.py), and of which id.

The video is read in sections, freed of what does not change at the mark's rate. A section is looked
at in many ways (`views`): as it is, mirrored, cropped, without bars, faster and slower. For each of
them, every number that its first cycle may have is tried with the signs that are the same for all
ids; where these fit best, the changes of the cells are compared with all signs: a matched filter.

**False positives.** Let y be the cells' changes of a video that was made without the key, times
whatever its content gives. The signs s of an id are drawn without the video, so that
P(s · y ≥ z |y|) ≤ exp(-z² / 2) whatever y is (Hoeffding 1963, theorem 2). In section i, counted
from 1, the detector looks at no more than n = `NUM_PLAIN` ids and beginnings in the plain view, and
at n = `NUM_OTHERS` in the others. Each of both may give `MOST_FALSE` / (2 i (i + 1)): there is a
mark where n exp(-z² / 2) is not more. Over all sections these shares sum to `MOST_FALSE`: a bound
for each video of any length, over keys. The study "watermark" counts.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from avatar_v.safety.key import PUBLIC_KEY
from avatar_v.safety.watermark import (
    CELLS,
    CYCLE,
    EDGE,
    LOOK,
    MOST,
    NUM_BYTES,
    NUM_CYCLES,
    NUM_WORDS,
    STRENGTH,
    SYNC,
    WORD,
    code_words,
    content,
    luma,
    places,
    sync_signs,
    wave,
)

MOST_FALSE = 1e-6
"""The largest share of videos without a mark that may be said to have one."""
LEAST_CONFIDENCE = 0.9
"""Of an id that is said."""
SIDE = 6 * CELLS
"""Pixels to which a picture is reduced."""
LOOK_SIDE = round((1 - 2 * EDGE) * SIDE / LOOK)
MOST_CROPPED, NUM_SIZES = 0.1, 5
"""The largest share of each side that a crop may have taken, and sizes from it to the whole."""
SPEEDS = (0.75, 0.8, 0.9, 1 / 1.1, 0.95, 0.96, 25 / 24, 1.05, 1.1, 1.15, 1.2, 1.25, 1.5)
"""Of copies that play faster or slower. A speed between them is not found: over a section of 5 s
it may be wrong by 2 %."""
LEAST_FRAMES = 2 * CYCLE
SECTION = 640
"""Frames of a section: 26 s."""
EVEN = 8
"""Grey levels within which bars around a picture lie."""
SURE = 8.0
"""Sums of the content that are so many times less than usual count less in proportion."""
WEAK, LARGE = 0.5, 1.2
"""A cell counts less where a mark is less than so many times as strong as on average, and changes
are limited to so many times their usual size around it."""
NUM_BEST = 64
"""Beginnings and views that are compared with all signs."""


class TooFewFramesError(ValueError):
    """Fewer than `LEAST_FRAMES`."""


@dataclass(frozen=True)
class Box:
    """The part of the marked picture that is left: its sides and its corner, as shares. Beyond 0
    to 1 where there is more than the picture."""

    width: float = 1.0
    height: float = 1.0
    left: float = 0.0
    top: float = 0.0


@dataclass(frozen=True)
class View:
    """A way in which a section is looked at."""

    box: Box = Box()
    speed: float = 1.0
    mirrored: bool = False


@dataclass(frozen=True)
class DetectedMark:
    """The best of all ids, beginnings and views, of the section with a mark or of all sections."""

    best: str  # of whatever video
    confidence: float  # that all bits of ``best`` are right, given that there is a mark
    z: float
    least_z: float  # from which on there is a mark
    num_frames: int  # that were read

    @property
    def is_marked(self) -> bool:
        return self.z >= self.least_z

    @property
    def id(self) -> str | None:
        """The id of the video; None where no mark is found, or one whose id is not sure."""
        return self.best if self.is_marked and self.confidence >= LEAST_CONFIDENCE else None


def crops() -> tuple[Box, ...]:
    """Crops of both sides by the same share, half a cell apart."""
    found = []
    for i in range(1, NUM_SIZES):
        cut = MOST_CROPPED * i / (NUM_SIZES - 1)
        steps = 1 + math.ceil(cut * CELLS * 2)
        corners = [cut * j / (steps - 1) for j in range(steps)]
        found += [Box(1 - cut, 1 - cut, *at) for at in itertools.product(corners, corners)]
    return tuple(found)


NUM_PLAIN = NUM_WORDS**NUM_BYTES * NUM_CYCLES * CYCLE
"""Ids and beginnings of a view."""
NUM_OTHERS = NUM_PLAIN * (2 * (1 + len(SPEEDS) + 1 + len(crops())) - 1)


def least_z(num_trials: int, section: int = 1) -> float:
    """Of a section that has a mark."""
    return math.sqrt(2 * math.log(num_trials * 2 * section * (section + 1) / MOST_FALSE))


def detect(frames: Iterable[UInt8[Tensor, "3 h w"]], key: bytes = PUBLIC_KEY) -> DetectedMark:
    """The mark in the frames of a video at 25 a second, which are read until it is found.
    TooFewFramesError for fewer than 16 frames."""
    found, num = [], 0
    for i, part in enumerate(_sections(frames), start=1):
        num += len(part)
        if len(part) < LEAST_FRAMES:
            break
        found.append(_best_view(part, key, i))
        if found[-1].id is not None:
            break
    if not found:
        raise TooFewFramesError(f"a mark is read from {LEAST_FRAMES} frames or more, got {num}")
    return dataclasses.replace(max(found, key=_lead), num_frames=num)


def _lead(found: DetectedMark) -> tuple[bool, float]:
    return found.id is not None, found.z - found.least_z


def _best_view(part: Float[Tensor, "f side side"], key: bytes, number: int) -> DetectedMark:
    """The best of a section's views; of others than the plain one where that has no mark."""
    section = _Section.of(part, key)
    plain = best_read(section, [View()], least_z(NUM_PLAIN, number))
    if plain.is_marked:
        return plain
    views = [View(speed=speed) for speed in SPEEDS]
    views += [View(box) for box in (*crops(), *_behind_bars(part))]
    views += [dataclasses.replace(view, mirrored=True) for view in (View(), *views)]
    return max(plain, best_read(section, views, least_z(NUM_OTHERS, number)), key=_lead)


@dataclass(frozen=True)
class _Section:
    """What views of a section are taken of: means over all places where a cell may lie."""

    key: bytes
    changes: Float[Tensor, "t 1 m m"]
    looks: Float[Tensor, "t 1 l l"]  # of the picture, in cells of the content
    strengths: Float[Tensor, "1 1 m m"]  # of a mark, in units of the changes

    @classmethod
    def of(cls, part: Float[Tensor, "f side side"], key: bytes) -> "_Section":
        slow = mean_of_cycle(part)
        rest = part - slow
        usual = rest.square().mean(0).sqrt() + 0.3
        rest = (rest / usual).clamp(-2, 2)  # large ones are motion
        strengths = _allowed_change(slow[::CYCLE]).mean(0, keepdim=True) / usual
        return cls(
            key,
            F.avg_pool2d(rest[:, None], SIDE // CELLS, 1),
            F.avg_pool2d(part[:, None], LOOK_SIDE, 1),
            F.avg_pool2d(strengths[None], SIDE // CELLS, 1),
        )

    @property
    def num_frames(self) -> int:
        return len(self.changes)

    def signs(self, view: View) -> Float[Tensor, "phases t cells2"]:
        """How much each cell changes in each cycle, for every frame of a cycle that the first one
        may be; signs of the content are taken out."""
        cells = cell_means(self.changes, view, CELLS)
        patterns = waves(len(cells), view.speed) @ cells
        sums = content(cell_means(self.looks, view, LOOK, EDGE), self.key)
        signs = (SURE * sums).clamp(-1, 1).prod(-2)
        patterns = patterns * signs[beginnings(len(cells), view.speed)]
        maps = patterns.view(*patterns.shape[:2], CELLS, CELLS)
        power = maps.square().mean(1, keepdim=True)
        level = F.avg_pool2d(power, 5, 1, 2, count_include_pad=False).sqrt()
        level = level + 0.1 * level.mean((2, 3), keepdim=True) + 1e-9
        strength = cell_means(self.strengths, view, CELLS).view(CELLS, CELLS)
        weak = (strength / (WEAK * strength.mean() + 1e-9)).clamp(max=1)
        maps = (maps / level).clamp(-LARGE, LARGE) * weak
        return maps.flatten(2)[..., places()]


@runtime_checkable
class Looked(Protocol):
    """A section, of pictures or of a sound (sound_detect.py)."""

    @property
    def key(self) -> bytes: ...

    @property
    def num_frames(self) -> int: ...

    def signs(self, view: Any, /) -> Float[Tensor, "phases t cells2"]:
        """How much each cell changes in each cycle in a view, for every place where the first cycle
        may begin."""
        ...


def best_read(section: Looked, views: Sequence[Any], least: float) -> DetectedMark:
    """The best of the beginnings and views that fit best to the signs of all ids."""
    sync = sync_signs(section.key).T
    tried = []
    for i, view in enumerate(views):
        signs = section.signs(view)
        num = signs.shape[1]
        around = torch.cat([sync, sync[:, : num - 1]], 1)[None]
        scores = F.conv1d(around, signs[..., :SYNC].transpose(1, 2))[0]
        scores = scores / signs[..., :SYNC].square().sum((1, 2)).sqrt().clamp(min=1e-9)[:, None]
        most, at = scores.flatten().topk(NUM_BEST)
        tried += zip(most.tolist(), itertools.repeat(i), at.tolist(), strict=False)
    tried = sorted(tried, reverse=True)[:NUM_BEST]
    found = []
    for i, same in itertools.groupby(sorted(tried, key=lambda one: one[1]), lambda one: one[1]):
        signs = section.signs(views[i])
        found += [_read(signs[at // NUM_CYCLES], at % NUM_CYCLES, section.key) for *_, at in same]
    z, best, confidence = max(found)
    return DetectedMark(best, confidence, z, least, section.num_frames)


def _read(signs: Float[Tensor, "t cells2"], first: int, key: bytes) -> tuple[float, str, float]:
    """z, the best word of each byte where the cycles' numbers begin with ``first``, and the
    chance that all are right: scores of wrong words are normal around 0, of right ones around their
    common mean."""
    numbers = [(first + i) % NUM_CYCLES for i in range(len(signs))]
    rolled = signs[:, SYNC:].view(-1, NUM_BYTES, WORD)
    parts = torch.stack(
        [part.roll(-number, 0) for part, number in zip(rolled, numbers, strict=True)]
    )
    scores = sum(
        torch.einsum("bs,bws->bw", part, code_words(key, number))
        for part, number in zip(parts, numbers, strict=True)
    )
    assert isinstance(scores, Tensor)
    units = scores.double() / parts.double().square().sum((0, 2)).sqrt().clamp(min=1e-9)[:, None]
    most, words = units.max(1)
    chance = (most.mean() * units).softmax(1).amax(1).prod()
    sync = (signs[:, :SYNC] * sync_signs(key)[numbers]).sum()
    size = signs.square().sum().sqrt().clamp(min=1e-9)
    z = (sync + scores.amax(1).sum()) / size
    return float(z), bytes(words.tolist()).hex(), float(chance)


def cell_means(
    means: Float[Tensor, "t 1 m m"], view: View, num: int, edge: float = 0.0
) -> Float[Tensor, "t cells2"]:
    """The means of ``num`` x ``num`` cells of the marked picture. ``means`` are those of all places
    where a cell may lie; ``beyond`` them, as grid_sample has it."""
    centre = edge + (1 - 2 * edge) * (torch.arange(num) + 0.5) / num
    last = means.shape[-1] - 1
    size = SIDE - last

    def grid_places(start: float, side: float) -> Tensor:
        """Where the centres lie among ``means``, in -1 … 1."""
        pixel = (centre - start) / side * SIDE - size / 2
        return pixel / last * 2 - 1

    box = view.box
    across, down = grid_places(box.left, box.width), grid_places(box.top, box.height)
    grid = torch.stack(torch.meshgrid(across, down, indexing="xy"), -1)
    sampled = F.grid_sample(means, grid.expand(len(means), -1, -1, -1), align_corners=True)
    return (sampled.flip(-1) if view.mirrored else sampled).flatten(1)


@lru_cache(maxsize=32)
def waves(num: int, speed: float) -> Float[Tensor, "phases t f"]:
    """How strongly the signs of each cycle are shown in each of ``num`` frames, for every frame of
    a cycle that the first one may be."""
    time = torch.arange(num) * speed + torch.arange(CYCLE)[:, None]
    cycles = (time / CYCLE).long()
    shown = torch.zeros(CYCLE, int(cycles.max()) + 1, num)
    return shown.scatter_(1, cycles[:, None], wave(time % CYCLE)[:, None])


def beginnings(num: int, speed: float) -> Int[Tensor, "phases t"]:
    """The first frame of each cycle, as `waves` has them."""
    phase = torch.arange(CYCLE)[:, None]
    cycles = torch.arange(waves(num, speed).shape[1])
    return ((cycles * CYCLE - phase) / speed).ceil().long().clamp(0, num - 1)


def _allowed_change(grey: Float[Tensor, "f side side"]) -> Float[Tensor, "f side side"]:
    """What a mark may change at each place, by the contrast around it."""
    size = 3 * SIDE // CELLS // 2
    mean, power = (
        F.avg_pool2d(x, size, 1, size // 2, count_include_pad=False) for x in (grey, grey.square())
    )
    return (STRENGTH * (power - mean.square()).clamp(min=0).sqrt()).clamp(max=MOST)


def mean_of_cycle(part: Float[Tensor, "f side side"]) -> Float[Tensor, "f side side"]:
    """The mean of a cycle around each frame."""
    num = len(part)
    length = min(CYCLE, num)
    total = F.pad(part.cumsum(0), (0, 0, 0, 0, 1, 0))
    first = (torch.arange(num) - length // 2).clamp(0, num - length)
    return (total[first + length] - total[first]) / length


def _behind_bars(part: Float[Tensor, "f side side"]) -> list[Box]:
    """The box of a picture with even bars at its sides, above or below it, if there are any."""
    ends = []
    for least, most in (
        (part.amin((0, 1)), part.amax((0, 1))),
        (part.amin((0, 2)), part.amax((0, 2))),
    ):
        inside = (most - least > EVEN).nonzero().flatten()
        if not len(inside):
            return []
        ends.append((int(inside[0]), int(inside[-1]) + 1))
    if ends == [(0, SIDE)] * 2:
        return []
    (left, right), (top, bottom) = ends
    width, height = SIDE / (right - left), SIDE / (bottom - top)
    return [Box(width, height, -left / (right - left), -top / (bottom - top))]


def _sections(frames: Iterable[UInt8[Tensor, "3 h w"]]) -> Iterator[Float[Tensor, "f side side"]]:
    """The brightness of the frames, reduced, a section at a time."""
    small = (_reduced(frame) for frame in frames)
    while part := list(itertools.islice(small, SECTION)):
        yield torch.stack(part)


def _reduced(frame: UInt8[Tensor, "3 h w"]) -> Float[Tensor, "side side"]:
    grey = luma(frame.float())[None, None]
    return F.interpolate(grey, (SIDE, SIDE), mode="bilinear", antialias=True)[0, 0]
