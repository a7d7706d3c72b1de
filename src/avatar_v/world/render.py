"""Pictures of the world: a person in a scene, moved by a motion track, with exact ground truth.

Drawn back to front with anti-aliased shapes at ``supersample`` times the size, then averaged.
Static parts are drawn once per clip; moving ones only inside their window. Few frames are drawn at
a time, so that planes stay in the processor's cache. The same arguments give the same bytes in any
process on one machine and device.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES
from avatar_v.world import backdrop, eyes, hair, mouth, skin
from avatar_v.world.geometry import (
    NOSE_LIFT,
    MotionComponents,
    Pose,
    Surface,
    lift,
    look,
    place,
    project,
    split_motion,
)
from avatar_v.world.landmarks import find_landmarks, landmark_boxes
from avatar_v.world.person import Person
from avatar_v.world.scene import Scene
from avatar_v.world.shapes import Window, coverage, over, seeded, window_around

Size = int | tuple[int, int]
"""Of a picture in pixels: of a square, or height and width."""
MIN_SIZE = 32
SIZE_STEP = 8
MAX_YAW = 0.85
MAX_COVER = 0.35
_FRAMES_AT_ONCE = 8


@dataclass(frozen=True)
class Rendered:
    """Frames with their ground truth; boxes and points are shares of the picture."""

    video: UInt8[Tensor, "f 3 h w"]
    face_box: Float[Tensor, "f 4"]
    mouth_box: Float[Tensor, "f 4"]
    landmarks: Float[Tensor, "f k 2"]  # in the order of landmarks.LANDMARK_NAMES
    valid: Bool[Tensor, "f"]  # the face is seen: neither covered nor turned away


@dataclass(frozen=True)
class _Still:
    """What is drawn once per clip."""

    background: Tensor
    body: Tensor
    skin_map: Tensor
    hair_map: Tensor
    hair_color: Tensor
    light: skin.Light


def render(
    person: Person,
    scene: Scene,
    motion: Float[Tensor, "f m"],
    *,
    size: Size,
    seed: int,
    supersample: int = 2,
    device: torch.device | str = "cpu",
    frame_rate_hz: int = FRAME_RATE_HZ,
) -> Rendered:
    """Draw every frame of ``motion`` (components of types.MOTION_NAMES) in pictures of ``size``.
    The square in their middle is framed as the scene says; beside it, or above and below, there is
    more of the scene.

    ``seed`` fixes the grain. Values of ``motion`` outside their range are clamped. ValueError for
    an empty track, a wrong number of components, non-finite values, a size that is not a multiple
    of 8 of at least 32, or a supersample below 1.
    """
    height, width = sides(size)
    _check(motion, (height, width), supersample)
    canvas, short = max(height, width) * supersample, min(height, width) * supersample
    top, left = (canvas - height * supersample) // 2, (canvas - width * supersample) // 2
    scene = scene if short == canvas else _further(scene, short / canvas)
    motion = motion.to(device=device, dtype=torch.float32)
    moves = split_motion(motion)
    pose = place(scene, moves, canvas, frame_rate_hz)
    still = _draw_still(person, scene, canvas, device)
    video = torch.empty(len(motion), 3, height, width, dtype=torch.uint8, device=device)
    generator = seeded(0x62A1, person.id, scene.id, seed)
    for start in range(0, len(motion), _FRAMES_AT_ONCE):
        part = slice(start, start + _FRAMES_AT_ONCE)
        some = MotionComponents(**{name: value[part] for name, value in vars(moves).items()})
        with _on(device):
            image = _draw(person, scene, some, pose.frames(part), still, canvas)
        image = image[..., top : canvas - top, left : canvas - left]
        image = F.avg_pool2d(image, supersample) if supersample > 1 else image
        grain = torch.randn(image.shape, generator=generator).to(device)
        video[part] = (image * 255 + scene.grain * grain + 0.5).clamp_(0, 255).to(torch.uint8)
    with _on(device):
        landmarks = find_landmarks(person, moves, pose) / canvas
        face_box, mouth_box = landmark_boxes(person, pose, landmarks, canvas)
    if short < canvas:  # of the drawn square to those of the picture
        corner, part = landmarks.new_tensor([left, top]), landmarks.new_tensor([width, height])
        landmarks, face_box, mouth_box = (
            ((x.unflatten(-1, (-1, 2)) * canvas - corner) / (part * supersample)).view_as(x)
            for x in (landmarks, face_box, mouth_box)
        )
        face_box, mouth_box = face_box.clamp(0, 1), mouth_box.clamp(0, 1)
    return Rendered(video, face_box, mouth_box, landmarks, visible(motion))


def sides(size: Size) -> tuple[int, int]:
    """Height and width."""
    return (size, size) if isinstance(size, int) else size


def _further(scene: Scene, share: float) -> Scene:
    """The scene from further away, so that its square is that ``share`` in the middle."""
    return replace(
        scene,
        head_height=share * scene.head_height,
        center_x=0.5 + share * (scene.center_x - 0.5),
        center_y=0.5 + share * (scene.center_y - 0.5),
        sway=share * scene.sway,
    )


def visible(motion: Float[Tensor, "f m"]) -> Bool[Tensor, " f"]:
    """Frames that show the face: neither covered nor turned away."""
    turned = motion[:, MOTION_NAMES.index("yaw")].abs() >= MAX_YAW
    return ~turned & (motion[:, MOTION_NAMES.index("cover")] < MAX_COVER)


def _on(device: torch.device | str) -> AbstractContextManager:
    """Makes colour constants on ``device``; nothing on the CPU, where the context is slow."""
    return nullcontext() if torch.device(device).type == "cpu" else torch.device(device)


def _check(motion: Tensor, size: tuple[int, int], supersample: int) -> None:
    if motion.shape[0] < 1 or motion.shape[1] != len(MOTION_NAMES):
        raise ValueError(
            f"motion is (frames >= 1, {len(MOTION_NAMES)} components), got {tuple(motion.shape)}"
        )
    if not bool(torch.isfinite(motion).all()):
        raise ValueError("motion is finite, got NaN or infinity")
    for side in size:
        if side < MIN_SIZE or side % SIZE_STEP:
            raise ValueError(f"size is a multiple of {SIZE_STEP}, at least {MIN_SIZE}, got {side}")
    if supersample < 1:
        raise ValueError(f"supersample is at least 1, got {supersample}")


def _draw_still(person: Person, scene: Scene, canvas: int, device: torch.device | str) -> _Still:
    light = skin.scene_light(scene)
    resolution = max(96, int(1.25 * canvas))
    return _Still(
        background=backdrop.background(scene, canvas).to(device),
        body=backdrop.body(scene, person, light, canvas).to(device),
        skin_map=skin.face_map(person, resolution).to(device),
        hair_map=hair.hair_map(person, resolution).to(device),
        hair_color=skin.hair_color(person).to(device),
        light=skin.Light(light.direction, light.key.to(device), light.ambient.to(device)),
    )


def _draw(
    person: Person, scene: Scene, motion: MotionComponents, pose: Pose, still: _Still, canvas: int
) -> Tensor:
    """Frames "f 3 n n" in [0, 1] before averaging and grain."""
    whole = Window(0, canvas, 0, canvas)
    light, color = still.light, still.hair_color
    image = backdrop.follow_camera(still.background, pose, whole, canvas)
    around = _head_window(pose, 1.35, 1.15, 1.30, whole)
    hair.paint_back(
        _below(around, whole).of(image), person, pose, _below(around, whole), color, light
    )
    rest = _rows(scene, pose, 0.45, whole)
    neck = Window(rest.y0, rest.y1, around.x0, around.x1)
    backdrop.paint_neck(neck.of(image), scene, person, pose, light, neck, canvas)
    shoulders = _rows(scene, pose, 0.95, whole)
    clothes = backdrop.follow_camera(still.body, pose, shoulders, canvas)
    over(shoulders.of(image), clothes[:, :3], clothes[:, 3:])
    hair.paint_ears(image, person, pose, light)
    surface = look(person, pose, around)
    face, lit = _shade_skin(person, pose, surface, still, around)
    _paint_features(face, person, motion, pose, surface, lit, around)
    over(around.of(image), face, coverage(1.0 - surface.radius, 0.8 * pose.px))
    hair.paint_shell(around.of(image), person, pose, surface, still.hair_map, color, light)
    hair.paint_locks(
        _below(around, whole).of(image), person, pose, _below(around, whole), color, light
    )
    backdrop.paint_cover(image, scene, person, motion, pose, light)
    return image


def _shade_skin(
    person: Person, pose: Pose, surface: Surface, still: _Still, head: Window
) -> tuple[Tensor, Tensor]:
    """The bare face, and the light on it for what is drawn on top; both "f 3 h w"."""
    texture = skin.sample_map(still.skin_map, surface.n, surface.v, surface.z)
    albedo, slope_u, slope_v, open_share = texture.split((3, 1, 1, 1), dim=1)
    middle = window_around(_nose_points(person, pose), 0.46 * pose.px, head)
    if not middle.empty:
        part = surface.crop(middle, head)
        slopes = middle.inside(head, slope_u), middle.inside(head, slope_v)
        middle.inside(head, albedo).mul_(skin.add_nose(person, pose, part, still.light, slopes))
    nx = (surface.s * surface.s).mul_(0.5).add_(0.50).mul_(surface.s).add_(slope_u)
    ny = (surface.t * surface.t).mul_(0.5).add_(0.35).mul_(surface.t).add_(slope_v)
    lit = skin.shade(still.light, nx, ny, surface.c * 0.9 + 0.1, open_share)
    return (albedo * lit).clamp_(0.0, 1.0), lit


def _nose_points(person: Person, pose: Pose) -> Tensor:
    """Pixels "f 2 2" of the nose's bridge and tip."""
    du, dv = lift(pose, NOSE_LIFT, person.head_width)
    u = torch.cat([torch.zeros_like(du), du], dim=1).view(-1, 2)
    v = torch.cat([torch.zeros_like(dv), person.nose_y + dv], dim=1).view(-1, 2)
    return project(person, pose, u, v)


def _paint_features(
    face: Tensor,
    person: Person,
    motion: MotionComponents,
    pose: Pose,
    surface: Surface,
    lit: Tensor,
    head: Window,
) -> None:
    """Mouth, eyes, brows and glasses, each inside the window that holds it on every frame."""
    points = find_landmarks(person, motion, pose)
    lips = window_around(points[:, :14], 0.20 * pose.px, head)
    if not lips.empty:
        part, light = surface.crop(lips, head), lips.inside(head, lit)
        mouth.paint_mouth(lips.inside(head, face), person, motion, part, light, pose.px)
    band = window_around(points[:, 14:22], 0.36 * pose.px, head)
    if not band.empty:
        part, light = surface.crop(band, head), band.inside(head, lit)
        eyes.paint_eyes(band.inside(head, face), person, motion, part, light, pose.px)
        eyes.paint_brows(band.inside(head, face), person, motion, part, light, pose.px)
        eyes.paint_glasses(band.inside(head, face), person, pose, part, light, pose.px)


def _head_window(pose: Pose, up: float, side: float, down: float, bounds: Window) -> Window:
    center = torch.cat([pose.center_x, pose.center_y], dim=1).view(-1, 1, 2)
    reach = pose.px * torch.tensor([[[-side, -up], [side, down]]], device=center.device)
    return window_around(center + reach, 0.0, bounds)


def _rows(scene: Scene, pose: Pose, top: float, whole: Window) -> Window:
    """The rows from ``top`` head units under the resting head's centre to the bottom."""
    y0 = scene.center_y * whole.y1 + pose.px * top + float(pose.shift_y.min())
    return Window(min(max(0, int(y0)), whole.y1 - 1), whole.y1, 0, whole.x1)


def _below(window: Window, whole: Window) -> Window:
    return Window(window.y0, whole.y1, window.x0, window.x1)
