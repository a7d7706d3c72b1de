"""Skin: the parts of a face that do not move on it, drawn once per clip as a map of the head.

The map is azimuthal (equal area) about the nose and reaches well behind the ears. Channels: albedo
RGB, slope of the relief along u and v, occlusion. Per frame it is sampled through the turned head,
the nose is added in its own parallax, and the result is shaded from its normals.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.world.geometry import NOSE_LIFT, Pose, Surface, half_width, lift
from avatar_v.world.person import Person
from avatar_v.world.scene import Scene
from avatar_v.world.shapes import bump, plane, ramp, seeded, smooth_noise

MAP_REACH = 1.35
_TONES = (
    (0.98, 0.81, 0.71),
    (0.93, 0.73, 0.61),
    (0.82, 0.60, 0.46),
    (0.62, 0.42, 0.31),
    (0.42, 0.275, 0.205),
)


@dataclass(frozen=True)
class Grid:
    """Points of the head's map: planes "1 1 n n"."""

    n: Tensor
    u: Tensor
    v: Tensor
    z: Tensor


def map_grid(person: Person, resolution: int) -> Grid:
    """Where each texel of a square map lies on the head."""
    axis = (torch.arange(resolution) + 0.5) / resolution * 2 - 1
    y, x = torch.meshgrid(axis * MAP_REACH, axis * MAP_REACH, indexing="ij")
    square = x * x + y * y
    scale = (2.0 - square).clamp(min=0).sqrt()
    n, v, z = (x * scale, y * scale, (1.0 - square).clamp(min=-1.0))
    n, v, z = (value[None, None] for value in (n, v, z))
    return Grid(n=n, u=n * half_width(person, v), v=v, z=z)


def sample_map(texture: Tensor, n: Tensor, v: Tensor, z: Tensor) -> Tensor:
    """Look the map "1 c n n" up at head points "f 1 h w": "f c h w"."""
    scale = torch.rsqrt((1.0 + z).clamp(min=0.05)) * (1.0 / MAP_REACH)
    grid = torch.cat([n * scale, v * scale], dim=1).permute(0, 2, 3, 1)
    return F.grid_sample(
        texture.expand(len(n), -1, -1, -1),
        grid,
        mode="bilinear",
        padding_mode="border",
        align_corners=False,
    )


def skin_color(person: Person) -> Tensor:
    """Albedo "1 3 1 1" of bare skin."""
    position = person.skin_tone * (len(_TONES) - 1)
    low = min(int(position), len(_TONES) - 2)
    warm = (1 + 0.012 * person.skin_warmth, 1.0, 1 - 0.035 * person.skin_warmth)
    color = [
        (a + (b - a) * (position - low)) * w
        for a, b, w in zip(_TONES[low], _TONES[low + 1], warm, strict=True)
    ]
    return plane(color)


def hair_color(person: Person) -> Tensor:
    """Colour "1 3 1 1" of hair, brows and beard."""
    dark, light = torch.tensor([0.085, 0.065, 0.06]), torch.tensor([0.80, 0.64, 0.42])
    color = dark + (light - dark) * person.hair_shade**1.3
    red = torch.tensor([0.16, -0.01, -0.06]) * person.hair_red * (1 - person.hair_shade)
    grey = torch.tensor([0.70, 0.69, 0.68])
    color = (color + red * min(1.0, 3 * person.hair_shade)).clamp(min=0.04)
    return plane(color.lerp(grey, 0.85 * person.hair_grey).tolist())


def face_map(person: Person, resolution: int) -> Tensor:
    """The map "1 6 n n" of this person's skin, beard and relief."""
    grid = map_grid(person, resolution)
    height = relief(person, grid)
    texel = 2 * MAP_REACH / resolution
    slope_v, slope_u = torch.gradient(height, spacing=texel, dim=(2, 3))
    albedo = skin_albedo(person, grid, resolution)
    return torch.cat([albedo, -slope_u, -slope_v, occlusion(person, grid)], dim=1)


def relief(person: Person, grid: Grid) -> Tensor:
    """Height of the face above the smooth head: brow ridge, sockets, cheeks, folds, chin."""
    side, v = grid.u.abs(), grid.v

    def hill(u0: float, v0: float, ru: float, rv: float) -> Tensor:
        return bump((((side - u0) / ru).square() + ((v - v0) / rv).square()).sqrt())

    age = person.age
    fold_v = ((v - 0.33) / 0.24).clamp(0, 1)
    fold = bump((side - (0.185 + 0.165 * fold_v.sqrt())) / 0.06) * bump((v - 0.47) / 0.20)
    lines = bump((torch.remainder(v + 0.62 + 0.02 * side, 0.105) - 0.05) / 0.05)
    forehead = ramp(v, -0.66, -0.55) * (1 - ramp(v, -0.34, -0.28)) * (1 - ramp(side, 0.25, 0.45))
    eye = person.eye_distance
    return (
        0.055 * hill(eye, -0.16, 0.30, 0.12)
        - 0.060 * hill(eye, person.eye_y - 0.01, 0.22, 0.15)
        - 0.020 * hill(eye * 0.45, person.eye_y, 0.10, 0.14)
        + 0.050 * hill(0.42, 0.26, 0.30, 0.26)
        - 0.018 * hill(0.52, 0.58, 0.22, 0.24)
        - (0.007 + 0.020 * age) * fold
        - (0.006 + 0.022 * person.eye_bag) * hill(eye - 0.02, 0.15, 0.15, 0.045)
        + 0.060 * hill(0.0, 0.87, 0.26, 0.16)
        - 0.032 * hill(0.0, 0.725, 0.24, 0.06)
        - 0.016 * hill(0.0, 0.42, 0.045, 0.07)
        + 0.030 * hill(0.0, person.mouth_y, 0.40, 0.18)
        - 0.045 * hill(0.62, -0.22, 0.20, 0.36)
        - 0.008 * max(0.0, age - 0.35) * lines * forehead
    )


def occlusion(person: Person, grid: Grid) -> Tensor:
    """Share of ambient light that reaches the skin: less in sockets, under the lip, by the hair."""
    side, v = grid.u.abs(), grid.v
    eye = person.eye_distance

    def pit(u0: float, v0: float, ru: float, rv: float) -> Tensor:
        return bump((((side - u0) / ru).square() + ((v - v0) / rv).square()).sqrt())

    shade = (
        0.16 * pit(eye - 0.06, person.eye_y - 0.07, 0.20, 0.12)
        + 0.16 * pit(eye * 0.5, person.eye_y - 0.02, 0.10, 0.12)
        + (0.05 + 0.12 * person.eye_bag) * pit(eye - 0.03, person.eye_y + 0.11, 0.15, 0.07)
        + 0.12 * pit(0.0, person.mouth_y + person.lower_lip + 0.07, 0.20, 0.06)
        + 0.04 * pit(person.mouth_width + 0.02, person.mouth_y, 0.07, 0.08)
        + 0.16 * ramp(v, 0.80, 1.02)
        + 0.12 * (1 - ramp(grid.z, 0.0, 0.5))
    )
    return (1.0 - shade).clamp(min=0.3)


def skin_albedo(person: Person, grid: Grid, resolution: int) -> Tensor:
    """Colour of the skin with blush, blotches, freckles and beard."""
    generator = seeded(0x5C14, person.id)
    side, v = grid.u.abs(), grid.v
    color = skin_color(person)
    size = (resolution, resolution)
    blotch = smooth_noise(generator, 1, (18, 18), size)
    speckle = smooth_noise(generator, 1, (90, 90), size)
    cheek = bump((((side - 0.40) / 0.30).square() + ((v - 0.30) / 0.24).square()).sqrt())
    nose = bump(((side / 0.16).square() + ((v - person.nose_y) / 0.14).square()).sqrt())
    red = person.blush * (0.11 * cheek + 0.09 * nose) + 0.010 * blotch
    albedo = color * (1.0 + red * plane([0.35, -0.75, -0.65]) + 0.012 * blotch)
    face = bump((((side) / 0.6).square() + ((v - 0.22) / 0.34).square()).sqrt())
    spots = person.freckles * face * ramp(speckle, 0.7, 1.5)
    albedo = albedo * (1.0 - spots * plane([0.16, 0.27, 0.34]))
    under_eye = bump(
        (((side - person.eye_distance) / 0.18).square() + ((v - 0.11) / 0.08).square()).sqrt()
    )
    albedo = albedo * (1.0 - 0.12 * person.eye_bag * under_eye * plane([0.8, 1.1, 0.7]))
    alpha = beard_alpha(person, grid, blotch, speckle)
    shaded = hair_color(person) * (1.0 + 0.22 * speckle)
    return albedo.lerp(shaded.clamp(0.02, 1.0), alpha)


def beard_alpha(person: Person, grid: Grid, blotch: Tensor, speckle: Tensor) -> Tensor:
    """How much of the skin is covered by beard, "1 1 n n"."""
    side, v = grid.u.abs(), grid.v
    zero = torch.zeros_like(v)
    if person.beard == "none":
        return zero
    rough = 0.025 * blotch + 0.012 * speckle
    top = person.mouth_y - person.upper_lip
    mustache = (
        ramp(v + rough, top - 0.10, top - 0.05)
        * (1 - ramp(side + rough, 0.25, 0.34))
        * (1 - ramp(v, person.mouth_y + 0.05, person.mouth_y + 0.12))
    )
    jawline = 0.60 - 0.95 * (side - 0.40).clamp(min=0) - 0.25 * (0.40 - side).clamp(min=0)
    cheeks = ramp(v + rough - jawline, -0.05, 0.06) * ramp(grid.z, -0.35, -0.15)
    chin = ramp(v + rough, 0.66, 0.72) * (1 - ramp(side + rough, 0.24, 0.33))
    shapes = {
        "stubble": 0.34 * torch.maximum(mustache, cheeks),
        "moustache": 0.94 * mustache,
        "goatee": 0.92 * torch.maximum(mustache, chin),
        "full": 0.95 * torch.maximum(mustache, cheeks),
    }
    return (shapes[person.beard] * (0.94 + 0.10 * speckle)).clamp(0.0, 0.97)


@dataclass(frozen=True)
class Light:
    """A key light and ambient, colours "1 3 1 1"; ``direction`` points to the key light."""

    direction: tuple[float, float, float]
    key: Tensor
    ambient: Tensor


def scene_light(scene: Scene) -> Light:
    warm = scene.warmth
    return Light(
        direction=(scene.light_x, scene.light_y, scene.light_z),
        key=scene.key * plane([1.01 + 0.04 * warm, 1.0, 0.99 - 0.06 * warm]),
        ambient=scene.ambient * plane([0.99, 0.99, 1.01]),
    )


def shade(light: Light, nx: Tensor, ny: Tensor, nz: Tensor, occluded: Tensor) -> Tensor:
    """Light "f 3 h w" that leaves white skin with these normals (of any length)."""
    lx, ly, lz = light.direction
    length = torch.rsqrt(nx * nx + ny * ny + nz * nz + 1e-4)
    facing = ((lx * nx + ly * ny + lz * nz) * length).mul_(0.85).add_(0.15).clamp_(min=0.0)
    soft = (0.72 + 0.28 * nz * length) * occluded
    return light.key * facing + 0.74 * light.ambient * soft


def add_nose(
    person: Person, pose: Pose, surface: Surface, light: Light, slopes: tuple[Tensor, Tensor]
) -> Tensor:
    """Add the nose's relief to ``slopes`` (in place); returns its colour factor "f 1 h w"."""
    du, dv = lift(pose, NOSE_LIFT, person.head_width)
    tip = person.nose_y
    along = ramp(surface.v, -0.10, tip)
    x = surface.u - du * along
    y = surface.v - dv * along
    body = ramp(y, -0.16, 0.05) * (1 - ramp(y, tip + 0.02, tip + 0.09))
    wide = 0.062 + (0.80 * person.nose_width - 0.062) * ramp(y, 0.0, tip)
    q = x / wide
    slopes[0].add_((0.55 + 0.45 * person.nose_bridge) * body * q * bump(q / 1.75) * 1.3)
    ball = 0.075 + 0.03 * person.nose_tip
    bx, by = x / ball, (y - tip + 0.02) / ball
    round_tip = bump((bx * bx + by * by).sqrt() / 1.15)
    slopes[0].add_(0.7 * bx * round_tip)
    slopes[1].add_(0.8 * by * round_tip)
    wing_x = (x.abs() - 0.72 * person.nose_width) / (0.36 * person.nose_width)
    wing_y = (y - tip - 0.015) / 0.062
    wing = bump((wing_x * wing_x + wing_y * wing_y).sqrt() / 1.1)
    slopes[0].add_(0.55 * wing * wing_x * torch.sign(x))
    slopes[1].add_(0.35 * wing * wing_y)
    return _nose_shadows(person, x, y, light)


def _nose_shadows(person: Person, x: Tensor, y: Tensor, light: Light) -> Tensor:
    tip, width = person.nose_y, person.nose_width
    nostril_x = (x.abs() - 0.43 * width) / (0.30 * width)
    nostril_y = (y - tip - 0.052 + 0.10 * (x.abs() - 0.4 * width)) / 0.030
    nostril = bump((nostril_x * nostril_x + nostril_y * nostril_y).sqrt() / 1.3)
    below = bump(((x / (1.15 * width)).square() + ((y - tip - 0.085) / 0.060).square()).sqrt())
    rim_x = (x.abs() - 1.06 * width) / 0.035
    rim = bump(rim_x) * bump((y - tip - 0.01) / 0.075)
    cast_x = x + 1.05 * width * light.direction[0] / 0.6
    cast = bump(((cast_x / (0.9 * width)).square() + ((y - tip + 0.05) / 0.22).square()).sqrt())
    cast = cast * min(1.0, abs(light.direction[0]) / 0.5) * (x * light.direction[0] < 0)
    return (1 - 0.72 * nostril) * (1 - 0.26 * below) * (1 - 0.24 * rim) * (1 - 0.20 * cast)
