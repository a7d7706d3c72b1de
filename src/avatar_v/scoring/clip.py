"""What every score sees: one `ScoredClip` a video, whose frames come in blocks (pictures.py)."""

import dataclasses
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.critics.sync import joined
from avatar_v.faces.face_track import FaceTrack, follow_faces
from avatar_v.scoring.pictures import (
    CentreSquares,
    Frames,
    FramesInMemory,
    FrameSource,
    in_blocks,
)

Waveform = Float[Tensor, " s"]


@dataclass(frozen=True)
class Footage:
    """A video with its sound: frames a block at a time, the sound as a whole."""

    pictures: FrameSource
    audio: Waveform
    name: str = "the video"  # in reasons
    motion: Float[Tensor, "f m"] | None = None  # of a drawn video, where it is known

    @classmethod
    def of(
        cls,
        frames: Frames,
        audio: Waveform,
        name: str = "the video",
        motion: Float[Tensor, "f m"] | None = None,
    ) -> "Footage":
        """Of frames in memory."""
        return cls(FramesInMemory(frames), audio, name, motion)

    @property
    def num_frames(self) -> int:
        return self.pictures.num_frames

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.pictures.size

    @property
    def squares(self) -> "Footage":
        """The centre square, which critics of drawn faces take."""
        height, width = self.size
        return (
            self
            if height == width
            else dataclasses.replace(self, pictures=CentreSquares(self.pictures))
        )

    def blocks(
        self, chosen: Sequence[int] | None = None, *, overlap: int = 0
    ) -> Iterator[tuple[list[int], Frames]]:
        """Frame numbers and frames, some at a time (`pictures.in_blocks`); decoded anew each time
        where the video is long."""
        return in_blocks(self.pictures, chosen, overlap)

    def each(
        self,
        judge: Callable[[Frames], Tensor],
        chosen: Sequence[int] | None = None,
        *,
        overlap: int = 0,
    ) -> Tensor:
        """The rows that ``judge`` gives for every block, joined: at most one row for each frame."""
        return joined(
            (judge(frames) for _, frames in self.blocks(chosen, overlap=overlap)),
            self.num_frames if chosen is None else len(chosen),
        )

    def windows(self, num_frames: int) -> Iterator[Frames]:
        """Runs of ``num_frames``, one after the other; a rest that fills none is left out."""
        held = []
        for frame in self.pictures.frames():
            held.append(frame)
            if len(held) == num_frames:
                yield torch.stack(held)
                held = []

    @cached_property
    def track(self) -> FaceTrack:
        """The largest real face. ValueError where no frame shows one."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # several faces: told by num_faces
            track = follow_faces(self.pictures.frames)
        if not bool(track.found.any()):
            raise ValueError(f"no face was found in any frame of {self.name}")
        return track


@dataclass(frozen=True)
class ScoredClip:
    """One delivered video with the inputs of its case; ``truth`` where the case has one."""

    video: Footage
    reference: Footage
    image: UInt8[Tensor, "3 h w"]
    truth: Footage | None = None
    timing: Path | None = None  # what the system reports (timing.py)

    @property
    def true(self) -> Footage:
        """The truth. ValueError where the case has none."""
        if self.truth is None:
            raise ValueError("the case has no truth to compare with")
        return self.truth
