"""Head geometry: from picture to head surface and back, landmarks, boxes.

Head axes: x to the picture's right, y down, z to the camera; unit = half the head's height, the
crown at y = -1, the chin at y = 1. The surface is a unit sphere whose width is the profile
``half_width(y)``: a surface point is named (u, v), its x and y seen from straight ahead. The head
turns by yaw, pitch and roll about the neck; the jaw stretches what lies under the nose.
Drawing goes from picture to surface (``look``), landmarks from surface to picture (``project``),
with the same formulas.
"""

import dataclasses
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from avatar_v.types import FRAME_RATE_HZ
from avatar_v.world.person import Person
from avatar_v.world.scene import Scene
from avatar_v.world.shapes import Window, bump

JAW_TOP = 0.38
_BEHIND = 9.0  # u of points on the back of the head, so that no feature lies there
JAW_STRETCH = 0.17
NOSE_LIFT = 0.30
"""How far the nose tip stands out of the head, in head units."""


@dataclass(frozen=True)
class MotionComponents:
    """The motion vector by component, each "f 1 1 1" so that it broadcasts over planes."""

    mouth_open: Tensor
    mouth_width: Tensor
    mouth_round: Tensor
    corner_raise: Tensor
    corner_asymmetry: Tensor
    teeth: Tensor
    tongue: Tensor
    jaw: Tensor
    yaw: Tensor
    pitch: Tensor
    roll: Tensor
    eye_open: Tensor
    gaze_x: Tensor
    gaze_y: Tensor
    brow: Tensor
    cover: Tensor


@dataclass(frozen=True)
class Pose:
    """Placement of the head in the picture per frame; tensors are "f 1 1 1"."""

    center_x: Tensor  # pixels
    center_y: Tensor
    px: float  # pixels per head unit
    cos_roll: Tensor
    sin_roll: Tensor
    cos_yaw: Tensor
    sin_yaw: Tensor
    cos_pitch: Tensor
    sin_pitch: Tensor
    jaw: Tensor
    shift_x: Tensor  # the camera's drift, pixels; background and body follow it
    shift_y: Tensor

    def frames(self, part: slice) -> "Pose":
        tensors = {k: v[part] for k, v in vars(self).items() if isinstance(v, Tensor)}
        return dataclasses.replace(self, **tensors)


@dataclass(frozen=True)
class Surface:
    """What each pixel of a window sees; planes "f 1 h w" in head units."""

    x: Tensor  # picture axes after roll, head at the origin
    y: Tensor  # with the jaw's stretch taken out
    s: Tensor  # on the unit sphere, seen from the camera
    t: Tensor
    c: Tensor
    radius: Tensor  # of (s, t); above 1 the pixel misses the head
    n: Tensor  # on the unit sphere, in the head's axes
    u: Tensor  # n times the half width: head units
    v: Tensor
    z: Tensor

    def crop(self, inner: Window, outer: Window) -> "Surface":
        return Surface(**{name: inner.inside(outer, value) for name, value in vars(self).items()})


def half_width(person: Person, y: Tensor) -> Tensor:
    """Half width of the head's sphere at height y, before the sphere's own narrowing."""
    shape = (
        1.0
        + 0.15 * bump((y + 0.70) / 0.75)
        - 0.12 * bump((y - 0.74) / 0.60)
        + person.cheek_width * bump((y - 0.22) / 0.5)
        + person.jaw_width * bump((y - 0.68) / 0.42)
        + person.chin_width * bump((y - 0.95) / 0.3)
    )
    return person.head_width * shape


def split_motion(motion: Tensor) -> MotionComponents:
    """Clamp every component of "f m" to its documented range and name it."""
    columns = motion.float().T[:, :, None, None, None]
    unit, signed = (0.0, 1.0), (-1.0, 1.0)
    mouth = (unit, signed, unit, signed, signed, unit, unit, unit)
    turns = ((-1.5, 1.5), (-0.8, 0.8), (-0.8, 0.8))
    limits = (*mouth, *turns, unit, signed, signed, signed, unit)
    clamped = [x.clamp(*limit) for x, limit in zip(columns, limits, strict=True)]
    return MotionComponents(*clamped)


def place(
    scene: Scene, motion: MotionComponents, canvas: int, frame_rate_hz: int = FRAME_RATE_HZ
) -> Pose:
    """Where the head is on a canvas of ``canvas`` pixels a side."""
    px = scene.head_height * canvas / 2
    frame = torch.arange(len(motion.yaw), device=motion.yaw.device).view(-1, 1, 1, 1)
    angle = 2 * math.pi * scene.sway_hz * frame / frame_rate_hz + scene.sway_phase
    shift_x = scene.sway * canvas * torch.sin(angle)
    shift_y = 0.6 * scene.sway * canvas * torch.sin(1.31 * angle + 1.0)
    dx = 0.9 * torch.sin(motion.roll) + 0.07 * torch.sin(motion.yaw)
    dy = 0.9 * (1 - torch.cos(motion.roll)) - 0.10 * torch.sin(motion.pitch)
    return Pose(
        center_x=scene.center_x * canvas + px * dx + shift_x,
        center_y=scene.center_y * canvas + px * dy + shift_y,
        px=px,
        cos_roll=torch.cos(motion.roll),
        sin_roll=torch.sin(motion.roll),
        cos_yaw=torch.cos(motion.yaw),
        sin_yaw=torch.sin(motion.yaw),
        cos_pitch=torch.cos(motion.pitch),
        sin_pitch=torch.sin(motion.pitch),
        jaw=motion.jaw,
        shift_x=shift_x,
        shift_y=shift_y,
    )


def unroll(pose: Pose, window: Window) -> tuple[Tensor, Tensor]:
    """Pixel centres of ``window`` in head axes after roll, jaw's stretch taken out, "f 1 h w"."""
    device = pose.center_x.device
    rows = torch.arange(window.y0, window.y1, device=device).view(1, 1, -1, 1) + 0.5
    columns = torch.arange(window.x0, window.x1, device=device).view(1, 1, 1, -1) + 0.5
    dx, dy = (columns - pose.center_x) / pose.px, (rows - pose.center_y) / pose.px
    x = pose.cos_roll * dx + pose.sin_roll * dy
    y = pose.cos_roll * dy - pose.sin_roll * dx
    y = torch.minimum(y, JAW_TOP + (y - JAW_TOP) / (1 + JAW_STRETCH * pose.jaw))
    return x, y


def look(person: Person, pose: Pose, window: Window) -> Surface:
    """Which point of the head's surface each pixel of ``window`` sees."""
    x, y = unroll(pose, window)
    width = half_width(person, y)
    s, t = x / width, y
    square = s * s + t * t
    c = (1.0 - square).clamp_(min=0.0).sqrt_()
    n, v, z = turn_back(pose, s, t, c)
    u = torch.where(z < 0, _BEHIND, n * width)
    return Surface(x=x, y=y, s=s, t=t, c=c, radius=square.sqrt_(), n=n, u=u, v=v, z=z)


def turn_back(pose: Pose, s: Tensor, t: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Camera axes to head axes: the inverse of yaw after pitch."""
    forward = pose.sin_yaw * s + pose.cos_yaw * c
    u = pose.cos_yaw * s - pose.sin_yaw * c
    v = pose.cos_pitch * t + pose.sin_pitch * forward
    z = pose.cos_pitch * forward - pose.sin_pitch * t
    return u, v, z


def project(person: Person, pose: Pose, u: Tensor, v: Tensor) -> Tensor:
    """Pixels "f k 2" of the surface points (u, v), each "f k", seen through ``pose``."""
    cos_yaw, sin_yaw, cos_pitch, sin_pitch, cos_roll, sin_roll, jaw, cx, cy = (
        value.view(-1, 1)
        for value in (
            pose.cos_yaw,
            pose.sin_yaw,
            pose.cos_pitch,
            pose.sin_pitch,
            pose.cos_roll,
            pose.sin_roll,
            pose.jaw,
            pose.center_x,
            pose.center_y,
        )
    )
    t = v.clone()
    width = half_width(person, t)
    s = u / width
    for _ in range(4):  # the width depends on the height after the turn: a fixed point
        width = half_width(person, t)
        n = u / width
        z = (1 - n * n - v * v).clamp(min=0).sqrt()
        t = cos_pitch * v - sin_pitch * z
        s = cos_yaw * n + sin_yaw * (sin_pitch * v + cos_pitch * z)
    x, y = s * half_width(person, t), t
    y = torch.maximum(y, JAW_TOP + (y - JAW_TOP) * (1 + JAW_STRETCH * jaw))
    px_x = cx + pose.px * (cos_roll * x - sin_roll * y)
    px_y = cy + pose.px * (sin_roll * x + cos_roll * y)
    return torch.stack([px_x, px_y], dim=-1)


def lift(pose: Pose, height: float, width: float) -> tuple[Tensor, Tensor]:
    """Parallax (du, dv), "f 1 1 1", of a point ``height`` in front of the surface's middle."""
    return height * width * pose.sin_yaw, -height * pose.sin_pitch
