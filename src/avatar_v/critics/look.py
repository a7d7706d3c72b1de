"""Where critics look: squares cut out of frames around a face, with gradients through them.

A critic that is a loss or a reward has ``look``, from whole frames to what it takes. Where the face
is, its clip says (box and landmarks of the true frames): no detector has to find it in a frame that
is only predicted, and the gradient reaches pixels alone. Critics of drawn faces take whole frames.
"""

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from avatar_v.types import Batch

Video = Float[Tensor, "b f 3 h w"]
NUM_LANDMARKS = 68


@dataclass(frozen=True)
class Faces:
    """The face in each frame, in [0, 1] of the frame."""

    box: Float[Tensor, "b f 4"]  # crown to chin, jaw to jaw
    landmarks: Float[Tensor, "b f 68 2"] | None  # of iBUG; None: not known
    valid: Bool[Tensor, "b f"]  # a face is visible

    @classmethod
    def of(cls, clips: Batch) -> "Faces":
        return cls(clips.face_box, clips.landmarks, clips.valid)

    def at(self, clip: Int[Tensor, "n 1"], frame: Int[Tensor, "#n f"]) -> "Faces":
        """Of some clips some frames."""
        clip, frame = (x.to(self.box.device, non_blocking=True) for x in (clip, frame))
        points = None if self.landmarks is None else self.landmarks[clip, frame]
        return Faces(self.box[clip, frame], points, self.valid[clip, frame])


@runtime_checkable
class FaceJudge(Protocol):
    """A frozen network that looks at faces; everything is differentiable, in fp32."""

    name: str
    by_face: bool  # it must be told where the face is; False: it takes whole frames

    def look(self, video: Video, faces: Faces | None) -> Float[Tensor, "b f *crop"]:
        """What it takes of frames in [-1, 1]."""
        ...

    def hash(self) -> str: ...


@runtime_checkable
class FaceReading(FaceJudge, Protocol):
    """A row of numbers of each crop: whose face it is, or how it moves."""

    def read(self, crops: Float[Tensor, "n *crop"]) -> Float[Tensor, "n d"]: ...


@runtime_checkable
class MotionReading(FaceReading, Protocol):
    """How faces move, in the units of types.MOTION_NAMES."""

    reads: tuple[str, ...]  # the components


@runtime_checkable
class FeatureReading(FaceJudge, Protocol):
    """Maps of features, from fine to coarse or from early to late."""

    def features(self, crops: Float[Tensor, "n *crop"]) -> list[Float[Tensor, "n _c _h _w"]]: ...


@dataclass(frozen=True)
class Square:
    """A square in each of n pictures, in pixels; the middle of the first pixel is 0."""

    middle: Float[Tensor, "n 2"]
    across: Float[Tensor, "n 2"]  # from the middle to the middle of its right side
    down: Float[Tensor, "n 2"]  # and of its lower side

    def repeated(self, num: int) -> "Square":
        """Each ``num`` times, for the frames of a clip."""
        parts = (self.middle, self.across, self.down)
        return Square(*(x.repeat_interleave(num, 0) for x in parts))

    def grid(self, size: int, height: int, width: int) -> Float[Tensor, "n size size 2"]:
        """The places of ``size`` x ``size`` pixels, as `torch.nn.functional.grid_sample` has them
        (align_corners False)."""
        steps = (torch.arange(size, device=self.middle.device) + 0.5) / size * 2 - 1
        places = (
            self.middle[:, None, None]
            + (steps[None, None, :, None] * self.across[:, None, None])
            + (steps[None, :, None, None] * self.down[:, None, None])
        )
        x, y = places.unbind(-1)
        return torch.stack([(x + 0.5) / width * 2 - 1, (y + 0.5) / height * 2 - 1], dim=-1)


def cut(pictures: Float[Tensor, "n c h w"], square: Square, size: int) -> Float[Tensor, "n c s s"]:
    """The squares, ``size`` pixels wide; beyond the edge the border repeats.

    Where a picture is finer than its square it is averaged first: halved as often as that takes,
    and between two halvings both are blended (a mip map), so that nothing waits for the device to
    say how large a face is.
    """
    most = math.ceil(math.log2(max(min(pictures.shape[2:]) / size, 1)))
    rest = [-side % 2**most for side in pictures.shape[2:]]
    pictures = F.pad(pictures, (0, rest[1], 0, rest[0]), mode="replicate")
    grid = square.grid(size, pictures.shape[2], pictures.shape[3])
    finer = (2 * square.across.norm(dim=1) / size).clamp(1, 2**most).log2()[:, None, None, None]
    seen = torch.zeros((), device=pictures.device)
    for level in range(most + 1):
        pictures = F.avg_pool2d(pictures, 2) if level else pictures
        found = F.grid_sample(pictures, grid, padding_mode="border", align_corners=False)
        seen = seen + (1 - (finer - level).abs()).clamp_min(0) * found
    return seen


def upright(
    low: Float[Tensor, "n 2"], high: Float[Tensor, "n 2"], reach: Float[Tensor, " n"]
) -> Square:
    """The upright square around the middle of boxes from ``low`` to ``high``, in pixels; ``reach``
    is half its side."""
    across = torch.stack([reach, torch.zeros_like(reach)], dim=1)
    return Square((low + high) / 2, across, across.flip(1))


def in_pixels(points: Float[Tensor, "*n 2"], height: int, width: int) -> Float[Tensor, "*n 2"]:
    """Points in [0, 1] of a picture as pixels."""
    return torch.stack([points[..., 0] * width, points[..., 1] * height], dim=-1)
