"""The motion components that 68 face landmarks can tell, on the scales of MOTION_NAMES.

Landmarks are measured in the frame of the face (origin between the eyes, unit the distance of the
outer eye corners), so size, place and roll of the head drop out. What differs between persons at
rest (the width of a mouth, the height of brows) is relative to the clip's own median or range.
Teeth, tongue, pursing, gaze and covering are not told by landmarks and stay 0.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.types import MOTION_NAMES

KNOWN = (
    "mouth_open",
    "mouth_width",
    "corner_raise",
    "corner_asymmetry",
    "jaw",
    "yaw",
    "pitch",
    "roll",
    "eye_open",
    "brow",
)
"""Components filled from landmarks."""
HABITS = ("mouth_open", "jaw", "yaw", "pitch", "roll", "eye_open")
"""Those on a scale of their own, so that a clip's statistics tell how a person moves; the others
are about the clip's median, which a person's own mean and asymmetry are lost in."""

# Spans, in distances between the outer eye corners, that map to the whole scale of a component.
OPEN_SPAN, WIDTH_SPAN, CORNER_SPAN, JAW_SPAN, BROW_SPAN = 0.40, 0.20, 0.12, 0.30, 0.12

# A mean face, same unit, x to the picture's right, y down, z towards the camera (our choice).
RIGID_POINTS = {
    36: (-0.50, 0.00, -0.10),
    39: (-0.18, 0.01, 0.00),
    42: (0.18, 0.01, 0.00),
    45: (0.50, 0.00, -0.10),
    27: (0.00, -0.01, 0.12),
    30: (0.00, 0.34, 0.34),
    31: (-0.14, 0.43, 0.14),
    35: (0.14, 0.43, 0.14),
}


def motion_from_landmarks(
    landmarks: Float[Tensor, "f 68 2"], found: Bool[Tensor, " f"], aspect: float = 1.0
) -> Float[Tensor, "f m"]:
    """Motion per frame; 0 where ``found`` is False, and in the components outside ``KNOWN``.

    ``aspect`` is width / height of the picture that landmarks are fractions of.
    """
    motion = torch.zeros(landmarks.shape[0], len(MOTION_NAMES))
    if not found.any():
        return motion
    points = landmarks[found] * torch.tensor([aspect, 1.0])
    yaw, pitch, roll = head_pose(points).unbind(1)
    face = _face_frame(points)
    corners = (face[:, 48] + face[:, 54]) / 2
    middle = (face[:, 51] + face[:, 57]) / 2
    lift = middle[:, 1] - corners[:, 1]  # positive: corners above the middle of the lips
    columns = {
        "mouth_open": ((face[:, 66, 1] - face[:, 62, 1]) / OPEN_SPAN).clamp(0, 1),
        "mouth_width": _about_median(face[:, 54, 0] - face[:, 48, 0], WIDTH_SPAN),
        "corner_raise": _about_median(lift, CORNER_SPAN),
        "corner_asymmetry": _about_median(face[:, 54, 1] - face[:, 48, 1], CORNER_SPAN),
        "jaw": _above_rest(face[:, 8, 1] - face[:, 33, 1], JAW_SPAN),
        "yaw": yaw,
        "pitch": pitch,
        "roll": roll,
        "eye_open": _eye_open(face),
        "brow": _about_median(-face[:, 17:27, 1].mean(1), BROW_SPAN),
    }
    for name, values in columns.items():
        motion[found, MOTION_NAMES.index(name)] = values
    return motion


def head_pose(points: Float[Tensor, "f 68 2"]) -> Float[Tensor, "f 3"]:
    """Yaw, pitch and roll in radians by weak perspective: points ≈ s R₂ₓ₃ model + t, least squares.

    ``points`` have square units (not fractions of an oblong picture). Signs as in MOTION_NAMES. The
    mean face is nobody's, so the level is good to some degrees; changes are better than that.
    """
    model = torch.tensor(list(RIGID_POINTS.values()))
    seen = points[:, list(RIGID_POINTS)]
    model = model - model.mean(0)
    seen = seen - seen.mean(1, keepdim=True)
    affine = torch.einsum("fkd,nk->fdn", seen, torch.linalg.pinv(model))  # s R, two rows
    u, _, v = torch.linalg.svd(affine, full_matrices=False)
    right, down = (u @ v).unbind(1)
    front = torch.linalg.cross(right, down)  # third row of R = R_roll R_yaw R_pitch
    yaw = -torch.asin(front[:, 0].clamp(-1, 1))
    pitch = torch.atan2(front[:, 1], front[:, 2])
    roll = torch.atan2(down[:, 0], right[:, 0])
    return torch.stack([yaw, pitch, roll], dim=1)


def _face_frame(points: Tensor) -> Tensor:
    """Landmarks turned upright, centred between the eyes, in distances of the outer eye corners."""
    left, right = points[:, 36], points[:, 45]
    across = right - left
    unit = across.norm(dim=1, keepdim=True).clamp(min=1e-6)
    cos, sin = (across / unit).unbind(1)
    centred = (points - (left + right)[:, None] / 2) / unit[:, None]
    x = centred[..., 0] * cos[:, None] + centred[..., 1] * sin[:, None]
    y = centred[..., 1] * cos[:, None] - centred[..., 0] * sin[:, None]
    return torch.stack([x, y], dim=-1)


def _eye_open(face: Tensor) -> Tensor:
    """Height over width of both eyes, 1 at the clip's 90th percentile, 0 at a fifth of that."""
    ratios = []
    for first in (36, 42):
        heights = face[:, [first + 5, first + 4], 1] - face[:, [first + 1, first + 2], 1]
        ratios.append(heights.mean(1) / (face[:, first + 3, 0] - face[:, first, 0]))
    ratio = torch.stack(ratios).mean(0)
    wide = ratio.quantile(0.9).clamp(min=1e-3)
    return ((ratio / wide - 0.2) / 0.8).clamp(0, 1)


def _about_median(values: Tensor, span: float) -> Tensor:
    return ((values - values.median()) / span).clamp(-1, 1)


def _above_rest(values: Tensor, span: float) -> Tensor:
    return ((values - values.quantile(0.1)) / span).clamp(0, 1)
