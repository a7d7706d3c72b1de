"""An invisible mark in every frame, which carries an id of 32 bits and can be read from the video.

Spread spectrum (Cox et al. 1997, *Secure spread spectrum watermarking for multimedia*): the picture
is divided into 16 x 16 cells whatever its size, and each cell is made a little lighter or darker
for four frames, then darker or lighter for four: a cycle. How much a cell changes follows the
contrast around it, so that flat areas stay as they are. `detect.py` reads the mark.

Each cycle has signs of its own, from a secret key and the number of the cycle. In one cell of four
they are those by which a reader finds the number; in the others each byte of the id chooses one of
256 words. The numbers begin where the id says, so that neither a video over itself nor videos over
each other add up to signs; after `NUM_CYCLES`, 44 minutes, they begin again.

In each cycle the signs are multiplied by those of random sums of its first picture (`content`). So
signs that were taken from one video fit no other.

A frame depends on itself, the first of its cycle, its number, the id and the key alone, so a video
may come in blocks.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from avatar_v.safety.key import PUBLIC_KEY

Frames = UInt8[Tensor, "f 3 h w"]

CELLS = 16
"""Cells along each side of the picture."""
CYCLE = 8
"""Frames in which signs are shown and shown again turned round: 3 Hz at 25 frames/s."""
NUM_CYCLES = 2**13
NUM_BYTES, NUM_WORDS = 4, 256
SYNC, WORD = CELLS**2 // 4, 3 * CELLS**2 // 16
"""Signs of a cycle that are the same for all ids, and those of a word."""
LOOK, EDGE, NUM_SUMS = 6, 1 / 8, 3
"""Cells along each side of the part that sums are taken of, the share of the picture at each side
that is left out, since a crop may take it, and sums for each sign: the more, the less alike are the
signs of pictures that are alike, and the less of a mark survives."""
STRENGTH, MOST = 0.3, 3.5
"""Change of a cell as a share of the standard deviation around it, and the largest one in grey
levels of 255, in pictures of 64 pixels. In larger ones, whose cells have more pixels to be read
from, both are less: half at 512."""
LUMA = (0.2126, 0.7152, 0.0722)
"""Shares of red, green and blue in the brightness (BT.709)."""


@dataclass(frozen=True)
class Mark:
    """The mark of an id, 8 hexadecimal digits. ValueError for another id."""

    id: str
    key: bytes = PUBLIC_KEY

    def __post_init__(self) -> None:
        try:
            whole = len(bytes.fromhex(self.id)) == NUM_BYTES and self.id == self.id.lower()
        except ValueError:
            whole = False
        if not whole or len(self.id) != 2 * NUM_BYTES:
            raise ValueError(f"the id of a mark is 8 hexadecimal digits, got {self.id!r}")

    @cached_property
    def first(self) -> int:
        """The number of the first cycle."""
        return int.from_bytes(_key_bytes(self.key, b"first" + self.id.encode(), 4)) % NUM_CYCLES

    def signs(self, cycle: int) -> Float[Tensor, "cells cells"]:
        """+1 or -1 in each cell, in the cycle so many cycles behind the first."""
        number = (self.first + cycle) % NUM_CYCLES
        words = code_words(self.key, number)[range(NUM_BYTES), list(bytes.fromhex(self.id))]
        signs = torch.cat([sync_signs(self.key)[number], words.roll(number, 0).flatten()])
        return torch.empty_like(signs).index_copy(0, places(), signs).view(CELLS, CELLS)


def id_of(made_of: Mapping[str, Any]) -> str:
    """The id of what depends on these values alone."""
    text = json.dumps(made_of, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[: 2 * NUM_BYTES]


class Marker:
    """``marker(frames)`` draws a mark into the blocks of one video in their order."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self._num = 0
        self._signs = torch.empty(0)  # of the cycle that the next frame is in

    def __call__(self, frames: Frames) -> Frames:
        return torch.stack([self._drawn(frame) for frame in frames])

    def _drawn(self, frame: UInt8[Tensor, "3 h w"]) -> UInt8[Tensor, "3 h w"]:
        cycle, time = divmod(self._num, CYCLE)
        pixels = frame.float()
        grey = luma(pixels)[None, None]
        if time == 0:
            sums = content(_look(grey), self.mark.key)
            self._signs = self.mark.signs(cycle) * sums.sign().prod(0).view(CELLS, CELLS)
        self._num += 1
        change = mark_change(grey, self._signs * wave(time))
        return (pixels + change).round().clamp(0, 255).to(torch.uint8)


@lru_cache(maxsize=4)
def sync_signs(key: bytes) -> Float[Tensor, "n sync"]:
    """The signs of each cycle that are the same for all ids, +1 or -1."""
    return _signs(key, b"sync", NUM_CYCLES, SYNC)


def code_words(key: bytes, number: int) -> Float[Tensor, "bytes words signs"]:
    """The words of a cycle, +1 or -1."""
    return _signs(key, b"words %d" % number, NUM_BYTES, NUM_WORDS, WORD)


@lru_cache(maxsize=1)
def places() -> Int[Tensor, " cells2"]:
    """The cells of the signs that are the same for all ids, then those of each byte: in every
    4 x 4 cells four and three of each. (Bytes change places with each cycle, so that all see
    the same of the picture.)"""
    y, x = np.indices((CELLS, CELLS)) % 4
    part = (x - y) % (NUM_BYTES + 1)  # 0 on the diagonals
    return torch.from_numpy(np.argsort(part.reshape(-1), kind="stable"))


def wave(time: int | Tensor) -> Float[Tensor, "*any"]:
    """How strongly signs are shown at a time of their cycle, in frames, -1 to 1: a sine, which
    flickers less than a jump."""
    return torch.sin(2 * torch.pi * (torch.as_tensor(time) + 0.5) / CYCLE)


def content(look: Float[Tensor, "*any look2"], key: bytes) -> Float[Tensor, "*any sums cells2"]:
    """Random sums of a picture's brightness in `LOOK` x `LOOK` cells, in units of the spread that
    sums of such a picture have. A cell's sign is the product of its sums' signs."""
    rest = look - look.mean(-1, keepdim=True)
    size = rest.square().sum(-1, keepdim=True).sqrt() + 1e-3
    sums = (rest / size) @ _look_sums(key).T
    return sums.unflatten(-1, (NUM_SUMS, CELLS**2))


def luma(pixels: Float[Tensor, "*any 3 h w"]) -> Float[Tensor, "*any h w"]:
    """The brightness of pixels, 0 to 255."""
    red, green, blue = pixels.unbind(-3)
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


@lru_cache(maxsize=4)
def _look_sums(key: bytes) -> Float[Tensor, "sums look2"]:
    return _signs(key, b"sums", NUM_SUMS * CELLS**2, LOOK**2)


def _signs(key: bytes, name: bytes, *shape: int) -> Tensor:
    """Random signs, +1 or -1, of a key and a name."""
    bits = np.unpackbits(np.frombuffer(_key_bytes(key, name, math.prod(shape) // 8), np.uint8))
    return torch.from_numpy(bits.reshape(shape)).float() * 2 - 1


def _key_bytes(key: bytes, name: bytes, num: int) -> bytes:
    """From SHAKE-256, which is the same everywhere and always."""
    return hashlib.shake_256(hashlib.sha256(key).digest() + name).digest(num)


def _look(grey: Float[Tensor, "1 1 h w"]) -> Float[Tensor, " look2"]:
    """What `content` is taken of."""
    halves = F.interpolate(grey, (2 * CELLS, 2 * CELLS), mode="area")
    edge = round(EDGE * 2 * CELLS)
    return F.avg_pool2d(halves[..., edge:-edge, edge:-edge], 4).flatten()


def mark_change(
    grey: Float[Tensor, "1 1 h w"], signs: Float[Tensor, "cells cells"]
) -> Float[Tensor, "h w"]:
    """What is added to all colours of a frame: the signs times the contrast, which is taken from
    half cells and smooth between them."""
    side = (2 * CELLS, 2 * CELLS)
    mean, power = (
        F.avg_pool2d(F.interpolate(x, side, mode="area"), 3, 1, 1, count_include_pad=False)
        for x in (grey, grey.square())
    )
    contrast = (power - mean.square()).clamp(min=0).sqrt()
    less = min(1.0, (64 / min(grey.shape[2:])) ** (1 / 3))
    strength = less * (STRENGTH * contrast).clamp(max=MOST)
    fine = F.interpolate(signs[None, None], side, mode="bilinear") * strength
    return F.interpolate(fine, grey.shape[2:], mode="bilinear")[0, 0]
