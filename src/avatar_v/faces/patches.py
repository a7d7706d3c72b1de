"""Upright squares of the eyes and the mouth, cut out of a face by its landmarks.

Size, place and roll of the head drop out, and drawn and filmed eyes look more alike than their
faces do. Points are in pixels; left and right are the picture's.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.look import Square

SIZE = 48  # pixels of a patch's side
EYE_HALF, MOUTH_HALF = 0.30, 0.55  # half a side, in distances of the outer eye corners
EYE_RISE = 0.08  # of the patch's centre above the eye, same unit: the brow is in it
SHIFT, STRETCH, TURN = 0.035, 0.1, 0.08  # standard deviations of `Jitter`: same unit, log, radians


@dataclass(frozen=True)
class FacePoints:
    """Where the eyes and the mouth are: outer and inner corner of the left eye, inner and outer
    of the right one, and the middle of the lips."""

    eyes: Float[Tensor, "f 4 2"]
    mouth: Float[Tensor, "f 2"]


def from_68(landmarks: Float[Tensor, "f 68 2"]) -> FacePoints:
    """Of the 68 iBUG landmarks."""
    return FacePoints(landmarks[:, [36, 39, 42, 45]], landmarks[:, 48:60].mean(1))


def face_patches(
    frames: Float[Tensor, "f 3 h w"], points: FacePoints, jitter: torch.Generator | None = None
) -> tuple[Float[Tensor, "f 2 3 s s"], Float[Tensor, "f 3 s s"]]:
    """Both eyes, the right one mirrored, and the mouth. With ``jitter`` each patch is moved,
    stretched and turned a little, as landmarks that are found are off."""
    left, right, mouth = (_averaged_cut(frames, s) for s in patch_squares(points, jitter))
    return torch.stack([left, right.flip(3)], dim=1), mouth


def patch_squares(
    points: FacePoints, jitter: torch.Generator | None = None
) -> tuple[Square, Square, Square]:
    """Where the left eye, the right one and the mouth are, as `face_patches` has them."""
    left, right = points.eyes[:, 0], points.eyes[:, 3]
    across = right - left
    unit = across.norm(dim=1, keepdim=True).clamp_min(1e-3)
    right_hand = across / unit
    down = torch.stack([-right_hand[:, 1], right_hand[:, 0]], dim=1)
    axes = (unit, right_hand, down)
    first, second = (
        _square(
            points.eyes[:, at : at + 2].mean(1) - EYE_RISE * unit * down, axes, EYE_HALF, jitter
        )
        for at in (0, 2)
    )
    return first, second, _square(points.mouth, axes, MOUTH_HALF, jitter)


def _square(
    middle: Float[Tensor, "f 2"],
    axes: tuple[Tensor, Tensor, Tensor],
    half: float,
    jitter: torch.Generator | None,
) -> Square:
    unit, right, down = axes
    reach = half * unit
    if jitter is not None:
        moved, stretched, turned = torch.randn(3, len(unit), 2, generator=jitter)
        middle = middle + SHIFT * unit * moved
        reach = reach * torch.exp(STRETCH * stretched[:, :1])
        cos, sin = (TURN * turned[:, :1]).cos(), (TURN * turned[:, :1]).sin()
        right, down = cos * right + sin * down, cos * down - sin * right
    return Square(middle, reach * right, reach * down)


def _averaged_cut(frames: Float[Tensor, "f 3 h w"], square: Square) -> Float[Tensor, "f 3 s s"]:
    """Where the pictures are finer than the patches they are averaged first, all alike."""
    height, width = frames.shape[2:]
    grid = square.grid(SIZE, height, width)
    fineness = round(float(square.across.norm(dim=1).mean()) * 2 / SIZE)
    if fineness > 1:
        rest = (-height % fineness, -width % fineness)
        whole = F.pad(frames, (0, rest[1], 0, rest[0]), mode="replicate")
        frames = F.avg_pool2d(whole, fineness)
        padded = torch.tensor([width + rest[1], height + rest[0]])
        grid = (grid + 1) * torch.tensor([width, height]) / padded - 1
    return F.grid_sample(frames, grid, padding_mode="border", align_corners=False)
