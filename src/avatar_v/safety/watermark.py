"""An invisible mark in every frame, which carries an id of 32 bits and can be read from the video.

Spread spectrum (Cox et al. 1997, *Secure spread spectrum watermarking for multimedia*): the picture
is divided into 16 x 16 cells whatever its size, and each cell is made a little lighter or darker
for four frames, then darker or lighter for four. A secret key gives 256 words of random signs for
each byte of the id; the signs of the id's four words are the mark. They fill eight such patterns,
one after the other: 64 frames, which repeat. How much a cell changes follows the contrast around
it, so that flat areas stay as they are. `detect.py` reads the mark.

Frame t depends on the picture, the id, the key and t alone, so a video may come in blocks.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache

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
"""Frames in which a pattern is shown and shown again with the other signs: 3 Hz at 25 frames/s."""
NUM_PATTERNS = 8
PERIOD = CYCLE * NUM_PATTERNS
NUM_BYTES, NUM_WORDS = 4, 256
WORD = NUM_PATTERNS * CELLS**2 // NUM_BYTES
"""Signs of a word."""
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
    def signs(self) -> Float[Tensor, "k cells cells"]:
        """The patterns, +1 or -1 in each cell."""
        words = [words_of(self.key)[i, byte] for i, byte in enumerate(bytes.fromhex(self.id))]
        flat = torch.empty(NUM_PATTERNS * CELLS**2)
        flat[places()] = torch.stack(words)
        return flat.view(NUM_PATTERNS, CELLS, CELLS)

    def draw(self, frames: Frames, first: int) -> Frames:
        """The frames with the mark; ``first`` is the number of the first one in its video."""
        drawn = torch.empty_like(frames)
        for i, frame in enumerate(frames):
            time = first + i
            signs = self.signs[time // CYCLE % NUM_PATTERNS] * wave()[time % CYCLE]
            pixels = frame.float()
            drawn[i] = (pixels + _change(pixels, signs)).round().clamp(0, 255).to(torch.uint8)
        return drawn


class Marker:
    """``marker(frames)`` for the blocks of one video in their order."""

    def __init__(self, mark: Mark) -> None:
        self.mark = mark
        self._num = 0

    def __call__(self, frames: Frames) -> Frames:
        drawn = self.mark.draw(frames, self._num)
        self._num += len(frames)
        return drawn


@lru_cache(maxsize=4)
def words_of(key: bytes) -> Float[Tensor, "bytes words signs"]:
    """The words of a key, +1 or -1, from SHAKE-256, which is the same everywhere and always."""
    shape = (NUM_BYTES, NUM_WORDS, WORD)
    data = hashlib.shake_256(key).digest(int(np.prod(shape)) // 8)
    bits = np.unpackbits(np.frombuffer(data, np.uint8)).reshape(shape)
    return torch.from_numpy(bits).float() * 2 - 1


@lru_cache(maxsize=1)
def places() -> Int[Tensor, "bytes signs"]:
    """The flat indices into "k cells cells" that each byte has. Four neighbours are of four bytes,
    and the next pattern moves them on, so that all bytes see the same of the picture."""
    k, y, x = np.indices((NUM_PATTERNS, CELLS, CELLS))
    byte = (y + 2 * x + k) % NUM_BYTES
    order = np.argsort(byte.reshape(-1), kind="stable")
    return torch.from_numpy(order.reshape(NUM_BYTES, WORD))


@lru_cache(maxsize=1)
def wave() -> Float[Tensor, " cycle"]:
    """How strongly a pattern is shown in each frame of its cycle, -1 to 1: a sine, which flickers
    less than a jump."""
    return torch.from_numpy(np.sin(2 * np.pi * (np.arange(CYCLE) + 0.5) / CYCLE)).float()


def luma(pixels: Float[Tensor, "*any 3 h w"]) -> Float[Tensor, "*any h w"]:
    """The brightness of pixels, 0 to 255."""
    red, green, blue = pixels.unbind(-3)
    return LUMA[0] * red + LUMA[1] * green + LUMA[2] * blue


def _change(
    pixels: Float[Tensor, "3 h w"], signs: Float[Tensor, "cells cells"]
) -> Float[Tensor, "h w"]:
    """What is added to all colours of a frame: the signs times the contrast, which is taken from
    half cells and smooth between them."""
    grey = luma(pixels)[None, None]
    side = (2 * CELLS, 2 * CELLS)
    mean, power = (
        F.avg_pool2d(F.interpolate(x, side, mode="area"), 3, 1, 1, count_include_pad=False)
        for x in (grey, grey.square())
    )
    contrast = (power - mean.square()).clamp(min=0).sqrt()
    less = min(1.0, (64 / min(grey.shape[2:])) ** (1 / 3))
    strength = less * (STRENGTH * contrast).clamp(max=MOST)
    fine = F.interpolate(signs[None, None], side, mode="bilinear") * strength
    return F.interpolate(fine, pixels.shape[1:], mode="bilinear")[0, 0]
