"""Ground-truth landmarks and boxes of the drawn face.

Left and right are the picture's. The points follow the same contours as the drawing.
"""

import torch
from torch import Tensor

from avatar_v.world.eyes import brow_height, brow_inner
from avatar_v.world.geometry import NOSE_LIFT, MotionComponents, Pose, lift, project
from avatar_v.world.mouth import lip_contours, mouth_half_width
from avatar_v.world.person import Person

LANDMARK_NAMES = (
    "lip_corner_left",
    "lip_upper_left_outer",
    "lip_upper_left",
    "lip_upper_middle",
    "lip_upper_right",
    "lip_upper_right_outer",
    "lip_corner_right",
    "lip_lower_right_outer",
    "lip_lower_right",
    "lip_lower_middle",
    "lip_lower_left",
    "lip_lower_left_outer",
    "lip_inner_upper",
    "lip_inner_lower",
    "eye_left_outer",
    "eye_left_inner",
    "eye_right_inner",
    "eye_right_outer",
    "brow_left_outer",
    "brow_left_inner",
    "brow_right_inner",
    "brow_right_outer",
    "nose_tip",
    "chin",
    "jaw_left",
    "jaw_right",
)
"""Order of Rendered.landmarks; the first twelve go round the outer lips."""
NUM_LIP_POINTS = 12
_LIP_Q = (-1.0, -0.66, -0.33, 0.0, 0.33, 0.66, 1.0, 0.66, 0.33, 0.0, -0.33, -0.66, 0.0, 0.0)


def find_landmarks(person: Person, motion: MotionComponents, pose: Pose) -> Tensor:
    """Pixels "f k 2" of every landmark; points on the far side of the head lie at its rim."""
    frames = len(pose.center_x)
    device = pose.center_x.device
    lips_u, lips_v = _lips(person, motion)
    eye, half = person.eye_distance, person.eye_width
    tilt = 0.45 * person.eye_tilt * half
    outer, inner = person.eye_y - tilt, person.eye_y + tilt
    eyes_u = torch.tensor([-eye - half, -eye + half, eye - half, eye + half], device=device)
    eyes_v = torch.tensor([outer, inner, inner, outer], device=device)
    ends = brow_height(person, motion, torch.tensor([1.0, 0.0], device=device))
    ends = ends.expand(frames, 1, 1, 2).reshape(frames, 2)
    near = brow_inner(person)
    far = near + 1.8 * person.brow_length
    brows_u = torch.tensor([-far, -near, near, far], device=device)
    brows_v = ends[:, [0, 1, 1, 0]]
    du, dv = lift(pose, NOSE_LIFT, person.head_width)
    rest_u = torch.tensor([0.0, 0.0, -0.64, 0.64], device=device).expand(frames, 4).clone()
    rest_v = (
        torch.tensor([person.nose_y, 0.985, 0.45, 0.45], device=device).expand(frames, 4).clone()
    )
    rest_u[:, 0] += du.view(-1)
    rest_v[:, 0] += dv.view(-1)
    rest_u[:, 2:] *= person.head_width / 0.70
    u = torch.cat([lips_u, eyes_u.expand(frames, 4), brows_u.expand(frames, 4), rest_u], dim=1)
    v = torch.cat([lips_v, eyes_v.expand(frames, 4), brows_v, rest_v], dim=1)
    return project(person, pose, u, v)


def _lips(person: Person, motion: MotionComponents) -> tuple[Tensor, Tensor]:
    """Surface coordinates "f 14" of the lip points."""
    q = torch.tensor(_LIP_Q, device=motion.yaw.device).view(1, 1, 1, -1)
    half = mouth_half_width(person, motion)
    lips = lip_contours(person, motion, q)
    upper, lower = lips.upper_outer, lips.lower_outer
    v = torch.cat(
        [
            upper[..., :7],
            lower[..., 7:12],
            lips.upper_inner[..., 12:13],
            lips.lower_inner[..., 13:],
        ],
        dim=-1,
    )
    frames = len(motion.yaw)
    return (q * half).expand(frames, 1, 1, -1).reshape(frames, -1), v.reshape(frames, -1)


def landmark_boxes(
    person: Person, pose: Pose, landmarks: Tensor, canvas: int
) -> tuple[Tensor, Tensor]:
    """Face box and mouth box "f 4" as shares of the picture, cut at its border."""
    lips = landmarks[:, :NUM_LIP_POINTS]
    mouth = torch.cat([lips.amin(dim=1), lips.amax(dim=1)], dim=1)
    center = torch.cat([pose.center_x, pose.center_y], dim=1).view(-1, 2)
    half = pose.px * torch.tensor([person.head_width, 1.0], device=center.device)
    face = torch.cat([center - half, center + half], dim=1) / canvas
    chin = landmarks[:, 23, 1]
    face[:, 3] = torch.maximum(face[:, 3], chin)
    return face.clamp(0.0, 1.0), mouth.clamp(0.0, 1.0)
