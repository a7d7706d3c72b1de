"""Upright squares of the eyes and the mouth, cut out of a face by its landmarks.

Size, place and roll of the head drop out, and drawn and filmed eyes look more alike than their
faces do. Points are in pixels; left and right are the picture's.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

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
    left, right = points.eyes[:, 0], points.eyes[:, 3]
    across = right - left
    unit = across.norm(dim=1, keepdim=True).clamp_min(1e-3)
    right_hand = across / unit
    down = torch.stack([-right_hand[:, 1], right_hand[:, 0]], dim=1)
    axes = (unit, right_hand, down)
    eyes = []
    for first, mirrored in ((0, False), (2, True)):
        middle = points.eyes[:, first : first + 2].mean(1) - EYE_RISE * unit * down
        patch = _cut(frames, middle, axes, EYE_HALF, jitter)
        eyes.append(patch.flip(3) if mirrored else patch)
    return torch.stack(eyes, dim=1), _cut(frames, points.mouth, axes, MOUTH_HALF, jitter)


def _cut(
    frames: Float[Tensor, "f 3 h w"],
    middle: Float[Tensor, "f 2"],
    axes: tuple[Tensor, Tensor, Tensor],
    half: float,
    jitter: torch.Generator | None,
) -> Float[Tensor, "f 3 s s"]:
    """Squares around ``middle``; where the picture is finer than the patch it is averaged first."""
    unit, right, down = axes
    reach = half * unit
    if jitter is not None:
        moved, stretched, turned = torch.randn(3, len(unit), 2, generator=jitter)
        middle = middle + SHIFT * unit * moved
        reach = reach * torch.exp(STRETCH * stretched[:, :1])
        cos, sin = (TURN * turned[:, :1]).cos(), (TURN * turned[:, :1]).sin()
        right, down = cos * right + sin * down, cos * down - sin * right
    height, width = frames.shape[2:]
    steps = (torch.arange(SIZE) + 0.5) / SIZE * 2 - 1
    places = (
        middle[:, None, None]
        + (steps[None, None, :, None] * (reach * right)[:, None, None])
        + (steps[None, :, None, None] * (reach * down)[:, None, None])
    )
    grid = (places + 0.5) / torch.tensor([width, height]) * 2 - 1
    fineness = round(float(reach.mean()) * 2 / SIZE)
    if fineness > 1:
        rest = (-height % fineness, -width % fineness)
        whole = F.pad(frames, (0, rest[1], 0, rest[0]), mode="replicate")
        coarse = F.avg_pool2d(whole, fineness)
        padded = torch.tensor([width + rest[1], height + rest[0]])
        grid = (grid + 1) * torch.tensor([width, height]) / padded - 1
        return F.grid_sample(coarse, grid, padding_mode="border", align_corners=False)
    return F.grid_sample(frames, grid, padding_mode="border", align_corners=False)
