"""Where the frames of a video come from: kept in memory where they are few, else decoded anew.

A video of any length is read block by block, several times over if several metrics ask, and never
lies in memory as a whole: what scoring holds does not grow with its length.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import UInt8
from torch import Tensor

from avatar_v.faces.face_track import centre_windows

Frame = UInt8[Tensor, "3 h w"]
Frames = UInt8[Tensor, "f 3 h w"]

KEPT_BYTES = 32 * 2**20
"""A video up to this is decoded once: 10 s at 200 x 200."""
BLOCK_FRAMES = 50
BLOCK_BYTES = 4 * 2**20


@runtime_checkable
class FrameSource(Protocol):
    """Frames that can be read again and again."""

    @property
    def num_frames(self) -> int: ...
    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        ...

    def frames(self) -> Iterator[Frame]:
        """All of them, from the first on."""
        ...


@dataclass(frozen=True)
class FramesInMemory:
    """Frames in memory."""

    tensor: Frames

    @property
    def num_frames(self) -> int:
        return len(self.tensor)

    @property
    def size(self) -> tuple[int, int]:
        return self.tensor.shape[2], self.tensor.shape[3]

    def frames(self) -> Iterator[Frame]:
        return iter(self.tensor)


@dataclass(frozen=True)
class FramesOfFile:
    """Frames of a file, of which a decoder's few are in memory."""

    path: Path
    num_frames: int
    size: tuple[int, int]

    def frames(self) -> Iterator[Frame]:
        from avatar_v.media.reading import iter_video  # PyAV, which pictures in memory do without

        return iter_video(self.path)


@dataclass(frozen=True)
class CentreSquares:
    """The centre squares of other pictures."""

    whole: FrameSource

    @property
    def num_frames(self) -> int:
        return self.whole.num_frames

    @property
    def size(self) -> tuple[int, int]:
        side = min(self.whole.size)
        return side, side

    def frames(self) -> Iterator[Frame]:
        left, top, right, bottom = centre_windows(1, *self.whole.size)[0].long().tolist()
        return (frame[:, top:bottom, left:right] for frame in self.whole.frames())


def open_pictures(path: Path) -> FrameSource:
    """Reads a video once, to count its frames and to see that all can be read.

    ValueError for a damaged file and for a picture that changes its size.
    """
    from avatar_v.media.reading import iter_video

    kept: list[Frame] = []
    num_frames, size = 0, None
    for frame in iter_video(path):
        found = (frame.shape[1], frame.shape[2])
        if size not in (None, found):
            raise ValueError(
                f"{path}: the picture changes size within the video, {size} to {found}"
            )
        num_frames, size = num_frames + 1, found
        if num_frames * frame.nbytes <= KEPT_BYTES:
            kept.append(frame)
        else:
            kept.clear()
    assert size is not None  # iter_video gives a frame or an error
    return FramesInMemory(torch.stack(kept)) if kept else FramesOfFile(path, num_frames, size)


def in_blocks(
    pictures: FrameSource, chosen: Sequence[int] | None = None, overlap: int = 0
) -> Iterator[tuple[list[int], Frames]]:
    """Frame numbers and their frames, a block at a time; ``chosen`` in rising order, None is all.

    Each block begins with the last ``overlap`` frames of the one before.
    """
    height, width = pictures.size
    limit = max(overlap + 1, min(BLOCK_FRAMES, BLOCK_BYTES // (3 * height * width)))
    wanted = set(range(pictures.num_frames) if chosen is None else chosen)
    numbers: list[int] = []
    frames: list[Frame] = []
    fresh = False
    for number, frame in enumerate(islice(pictures.frames(), max(wanted, default=-1) + 1)):
        if number not in wanted:
            continue
        numbers.append(number)
        frames.append(frame)
        fresh = True
        if len(frames) == limit:
            yield numbers, torch.stack(frames)
            keep = len(frames) - overlap
            numbers, frames, fresh = numbers[keep:], frames[keep:], False
    if fresh:
        yield numbers, torch.stack(frames)
