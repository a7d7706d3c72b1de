"""What each recording shows in a few numbers, and by them what another one shows, too, or what
stands still: known before any model looks, so that no stage behind is given it, or, where each
frame is to be decoded once, when clips are chosen.

Small grey pictures are cut into pieces of one shot. A piece has perceptual hashes of its mean
picture, as it is, mirrored and cropped: where two are near, two pieces may be one. They are where
their pictures change alike, cell by cell, at some shift and speed. Two clips of one interview look
alike and move otherwise. Of two the piece in the larger picture stays, of equal ones the first by
the name of its file. Sound plays no part: a copy that music was laid over is one.
"""

import base64
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import cv2
import numpy as np
from jaxtyping import Float, Int16
from scipy.fft import dctn

from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.copies import best_fits
from avatar_v_data.curation.index import Pairs, near_pairs
from avatar_v_data.curation.stages import (
    TICK,
    TICKS_PER_S,
    Frame,
    Reader,
    Reads,
    Result,
    Seen,
    Stage,
)

SIDE = 64
"""Pixels of the pictures that are compared."""
CELLS = 4
"""To a side, whose changes are compared."""
CUT, ABOVE = 8.0, 3.0
"""Grey levels of a mean change from a tick to the next from which on another piece begins, where it
is so many times what is usual, too."""
STILL = 2.5
"""Grey levels of the largest change of any pixel in a second, below which nothing moves."""
LONGEST_S = 60.0  # of a piece
LEAST_S = 2.0  # that two pieces have in common
STILL_S = 2.0
CROPS = (0.0, 0.05, 0.1)
"""Shares that are cut off all four sides for further hashes."""
NEAR = 14
"""Bits of 64 by which hashes of one picture may differ."""
SPEEDS = (1.0, 0.5, 0.67, 0.75, 0.8, 0.9, 1.1, 1.25, 1.33, 1.5, 2.0)
STEPS = 2
"""To a tick, at which changes are compared."""
SMOOTH = np.array([1, 2, 3, 2, 1]) / 9
"""Of steps, so that it does not matter where in a copy a tick begins."""
SHORTEST = int(LEAST_S * TICKS_PER_S * STEPS)
"""Steps that two pieces have in common."""
MOVES = 0.05
"""Variance of the changes, grey levels squared over all cells, below which nothing is compared."""
AT_ONCE = 16
"""Pairs that are compared together."""
MOST_MOVES = 20_000
"""Pieces whose changes are kept between pairs: some 250 MB."""
Picture = Float[np.ndarray, "h w"]
Cells = Int16[np.ndarray, "t c c"]
LeftOut = Mapping[str, "NotSeen"]
"""What `left_out` gives, by recording."""
Row = tuple[str, int, int, list[str]]
"""A piece of a recording: its first tick, its last + 1, its hashes."""


class NotSeen(NamedTuple):
    """Of a recording."""

    spans: list[list[int]]  # of frames that no stage behind is given
    why: str = ""  # where it has nothing else
    originals: Sequence[str] = ()  # recordings that show the same there


@dataclass(frozen=True)
class PrintStage(Stage):
    """``pieces`` [first tick, last + 1, hashes]; ``cells`` by tick, hundredths of grey levels, 16
    bits each in base64; ``stills`` [first frame, last + 1]; ``height`` of the picture."""

    beforehand: bool = True
    """Of all recordings before any other stage begins, which decodes each twice; False: in the one
    pass of the others, which are then run on copies, too."""

    name: ClassVar[str] = "prints"
    version: ClassVar[int] = 1
    reads: ClassVar[Reads] = "frames"
    needs: ClassVar[tuple[str, ...]] = ("probe",)

    @property
    def side(self) -> int:
        return SIDE

    def begin(self, seen: Seen) -> Reader:
        return Prints(seen.results["probe"]["height"])


class Prints(Reader):
    """At work on a recording whose picture is so high."""

    def __init__(self, height: int) -> None:
        super().__init__()
        self._height = height
        self._some: list[Picture] = []  # of the tick that is not yet over
        self._own: list[Picture] = []  # of the piece that is not yet over
        self._recent: deque[Picture] = deque(maxlen=int(TICKS_PER_S) + 1)
        self._changes: list[float] = []
        self._cells: list[bytes] = []
        self._pieces: list[list] = []
        self._stills: list[list[int]] = []

    def frame(self, number: int, picture: Frame) -> None:
        """A tick has the mean of its frames: neither noise nor the frames' phase count."""
        self._some.append(picture.numpy().mean(0, dtype=np.float32))
        if len(self._some) == TICK:
            self.tick(np.mean(self._some, 0))
            self._some = []

    def tick(self, picture: Picture) -> None:
        """The next one's picture."""
        tick, own, changes = len(self._cells), self._own, self._changes
        changes.append(float(np.abs(picture - own[-1]).mean()) if own else 0.0)
        usual = np.median(changes[-1 - len(own) :][-int(2 * TICKS_PER_S) :])
        if changes[-1] > max(CUT, ABOVE * usual) or len(own) == LONGEST_S * TICKS_PER_S:
            self._end_piece()
        self._own.append(picture)
        self._recent.append(picture)
        self._cells.append(np.round(100 * _resized(picture, CELLS)).astype("<i2").tobytes())
        is_second = len(self._recent) == self._recent.maxlen
        if is_second and np.abs(picture - self._recent[0]).max() < STILL:
            self._stills.append([(tick - len(self._recent) + 1) * TICK, (tick + 1) * TICK])

    def _end_piece(self) -> None:
        stop = len(self._cells)
        self._pieces.append([stop - len(self._own), stop, hashes(np.mean(self._own, 0))])
        self._own = []

    def finish(self) -> Result:
        if self._own:
            self._end_piece()
        least = STILL_S * FRAME_RATE_HZ
        return {
            "pieces": self._pieces,
            "cells": base64.b64encode(b"".join(self._cells)).decode(),
            "stills": [x for x in _joined(self._stills, 0.0) if x[1] - x[0] >= least],
            "height": self._height,
        }


def hashes(picture: Picture) -> list[str]:
    """pHash (the signs of the lowest frequencies against their median) of the picture and of its
    crops, each as it is and mirrored: 16 hex digits."""
    height, width = picture.shape
    found = []
    for crop in CROPS:
        top, left = round(crop * height), round(crop * width)
        small = _resized(picture[top : height - top, left : width - left], 32)
        for one in (small, small[:, ::-1]):
            low = np.asarray(dctn(one))[:8, :8].ravel()
            found.append(np.packbits(low > np.median(low[1:])).tobytes().hex())
    return found


def left_out(found: Mapping[str, Result], same: float, min_s: float) -> dict[str, NotSeen]:
    """What no stage behind is given. What a recording that is left out whole shows, too, stays in
    another.

    ``found``: the results of all recordings. ``same``: the least correlation of the changes of two
    pieces that are one. ``min_s``: the shortest clip; what lies between two spans and is shorter
    is left out, too.
    """
    names = sorted(found, key=lambda name: (-found[name]["height"], name))
    cells = {
        name: np.frombuffer(base64.b64decode(found[name]["cells"]), "<i2").reshape(-1, CELLS, CELLS)
        for name in names
    }
    pieces: Iterator[Row] = (
        (name, start, stop, own)
        for name in names
        for start, stop, own in found[name]["pieces"]
        if stop - start >= LEAST_S * TICKS_PER_S + 6
    )
    rows = [row for row in pieces if _can_be_told(cells, row)]
    repeats: dict[str, list[tuple[str, list[int]]]] = {name: [] for name in names}
    for left, right, (start, stop) in _repeats(rows, cells, same):
        repeats[rows[right][0]].append((rows[left][0], [start * TICK, stop * TICK]))
    out: dict[str, NotSeen] = {}
    for name in names:  # of two the one that stays comes first
        own = [
            (other, span) for other, span in repeats[name] if other not in out or not out[other].why
        ]
        spans = _joined([*found[name]["stills"], *(span for _, span in own)], min_s * FRAME_RATE_HZ)
        if not spans:
            continue
        edges = [0, *(edge for span in spans for edge in span), len(cells[name]) * TICK]
        gaps = [stop - start for start, stop in zip(edges[::2], edges[1::2], strict=True)]
        why = ""
        if max(gaps) < min_s * FRAME_RATE_HZ:
            why = f"prints: shows what {own[0][0]} shows" if own else "prints: stands still"
        out[name] = NotSeen(spans, why, sorted({other for other, _ in own} - {name}))
    return out


def _can_be_told(cells: Mapping[str, Cells], row: Row) -> bool:
    """Whether a piece moves enough to be like another in any part that the two may have in common.
    Black pictures and titles, of which a thousand may have one hash, are compared with nothing."""
    moves = _moves(cells, row, 1.0, mirrored=False)
    return float(np.square(moves - moves.mean(0)).sum()) > MOVES * SHORTEST


def _repeats(
    rows: Sequence[Row], cells: Mapping[str, Cells], same: float
) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Pieces that are one: the row that stays, the one that goes, and which ticks of it."""
    if len(rows) < 2:
        return
    ways = len(rows[0][3])
    bytes_of = np.frombuffer(bytes.fromhex("".join("".join(row[3]) for row in rows)), np.uint8)
    bits = np.unpackbits(bytes_of).reshape(-1, 64).astype(np.float32)
    is_plain = np.arange(len(bits)) % ways == 0
    near = near_pairs(bits, NEAR**0.5, is_plain, Pairs.none())
    ends = np.stack([near.left // ways, near.right // ways, (near.left + near.right) % 2], 1)
    left = {tuple(pair) for pair in ends[ends[:, 0] != ends[:, 1]].tolist()}

    @lru_cache(MOST_MOVES)
    def moves(row: int, speed: float, mirrored: bool) -> Float[np.ndarray, "n d"]:
        return _moves(cells, rows[row], speed, mirrored=mirrored)

    def lengths(pair: tuple[int, int, int]) -> list[int]:
        return sorted(rows[n][2] - rows[n][1] for n in pair[:2])

    for speed in SPEEDS:
        todo = sorted(left, key=lambda pair: (lengths(pair), pair))  # little is padded
        found = []
        for some in (todo[n : n + AT_ONCE] for n in range(0, len(todo), AT_ONCE)):
            ones = [moves(i, 1.0, False) for i, *_ in some]
            others = [moves(j, speed, bool(m)) for _, j, m in some]
            fits, shifts = best_fits(ones, others, SHORTEST, MOVES)
            is_long = np.array([min(map(len, pair)) for pair in zip(ones, others, strict=True)])
            for n in np.flatnonzero((fits >= same) & (is_long >= SHORTEST)).tolist():
                shift = int(shifts[n]) * (1 if len(ones[n]) <= len(others[n]) else -1)
                stop = min(shift + len(ones[n]), len(others[n])) + STEPS + len(SMOOTH)
                found.append((some[n], shift, stop))
        for (stays, goes, m), shift, stop in sorted(found):
            left.discard((stays, goes, m))
            first, last = rows[goes][1] + 1, rows[goes][2]
            ticks = [first + round(at * speed / STEPS) for at in (max(shift, 0), stop)]
            yield stays, goes, (ticks[0], min(ticks[1], last))


def _moves(
    cells: Mapping[str, Cells], row: Row, speed: float, *, mirrored: bool
) -> Float[np.ndarray, "n d"]:
    """How much each cell changes in a tick, at each step, when the piece is played so fast; less
    its first and last tick, in which the shots beside it may be seen, too."""
    name, start, stop, _ = row
    own = cells[name][start + 1 : stop - 1] / 100
    levels = (own[:, :, ::-1] if mirrored else own).reshape(len(own), -1)
    at = np.arange(0, len(levels) - 1 + 1e-9, speed / STEPS)
    lines = (np.interp(at, np.arange(len(levels)), cell) for cell in levels.T)
    fine = np.stack([np.convolve(line, SMOOTH, "valid") for line in lines], 1)
    return fine[STEPS:] - fine[:-STEPS]


def _resized(picture: Picture, side: int) -> Float[np.ndarray, "side side"]:
    return cv2.resize(picture, (side, side), interpolation=cv2.INTER_AREA)


def _joined(spans: Sequence[Sequence[int]], gap: float) -> list[list[int]]:
    """Spans in order; what lies nearer than ``gap`` becomes one."""
    joined: list[list[int]] = []
    for start, stop in sorted(list(span) for span in spans):
        if joined and start <= joined[-1][1] + gap:
            joined[-1][1] = max(joined[-1][1], stop)
        else:
            joined.append([start, stop])
    return joined
