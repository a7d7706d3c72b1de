"""Hair and ears: a shell above the skull, what hangs behind the head, what falls in front.

The shell is the head's sphere grown by the style's volume; a map drawn once per clip holds where
hair grows and how its strands are shaded.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from avatar_v.world.geometry import Pose, Surface, half_width, project, turn_back, unroll
from avatar_v.world.person import Person
from avatar_v.world.shapes import (
    Window,
    bump,
    coverage,
    over,
    plane,
    ramp,
    seeded,
    smooth_noise,
    window_around,
)
from avatar_v.world.skin import Light, map_grid, sample_map, shade, skin_color


@dataclass(frozen=True)
class Cut:
    """Geometry of a hair style, in head units."""

    top: float  # height of the shell above the skull
    sides: float  # growth of the shell's width
    line: float  # shift of the hair line, positive lower
    droop: float  # how far the hair line falls towards the temples
    front: float  # depth z up to which the sides reach forward
    nape: float  # lowest height of the shell's hair
    back_length: float  # lower end of hair behind the head; below -1 none
    back_width: float
    locks: float  # lower end of locks in front of the shoulders; below -1 none
    opacity: float


CUTS: dict[str, Cut] = {
    "bald": Cut(0.0, 0.0, -9.0, 0.0, -9.0, 0.0, -9.0, 0.0, -9.0, 0.0),
    "buzz": Cut(0.02, 0.02, 0.0, 0.30, 0.26, 0.42, -9.0, 0.0, -9.0, 0.78),
    "short": Cut(0.16, 0.07, 0.02, 0.26, 0.30, 0.45, -9.0, 0.0, -9.0, 0.98),
    "parted": Cut(0.20, 0.10, 0.02, 0.30, 0.34, 0.50, -9.0, 0.0, -9.0, 0.98),
    "fringe": Cut(0.16, 0.10, 0.27, 0.10, 0.36, 0.50, -9.0, 0.0, -9.0, 0.99),
    "curly": Cut(0.24, 0.24, 0.05, 0.22, 0.32, 0.60, 0.72, 0.84, -9.0, 0.99),
    "bob": Cut(0.16, 0.17, 0.06, 0.30, 0.46, 1.05, 0.92, 0.88, 0.72, 0.99),
    "long": Cut(0.15, 0.15, 0.02, 0.32, 0.46, 1.10, 1.60, 0.90, 1.25, 0.99),
    "bun": Cut(0.05, 0.04, 0.0, 0.32, 0.30, 0.45, -9.0, 0.0, -9.0, 0.98),
}


def hair_cut(person: Person) -> Cut:
    """The style's cut with this person's volume and length."""
    cut = CUTS[person.hair_style]
    volume = 0.55 + 0.9 * person.hair_volume
    longer = 0.35 * (person.hair_length - 0.5)
    return replace(
        cut,
        top=cut.top * volume,
        sides=cut.sides * volume,
        back_length=cut.back_length + longer,
        back_width=cut.back_width * (0.92 + 0.14 * person.hair_volume),
        locks=cut.locks + longer,
    )


def hair_map(person: Person, resolution: int) -> Tensor:
    """The shell's map "1 2 n n": cover of hair, and brightness of its strands."""
    grid = map_grid(person, resolution)
    cut = hair_cut(person)
    generator = seeded(0x4A12, person.id)
    size = (resolution, resolution)
    rough = smooth_noise(generator, 1, (24, 24), size) * 0.018
    part = 0.30 * person.hair_part
    line = person.hairline + cut.line + cut.droop * (grid.n.abs() / 0.8).clamp(max=1.0) ** 2.2
    if person.hair_style == "parted":
        line = line + 0.16 * part * grid.n + 0.05 * bump((grid.n - part) / 0.25) * -1
    crown = line - grid.v + rough
    if cut.nape < 0.9:
        reach = cut.front + 1.3 * cut.sides - 0.65 * ramp(grid.v, -0.08, 0.24)
    else:
        reach = cut.front - 0.75 * ramp(grid.v, 0.15, 0.65)
    sides = torch.minimum(reach - grid.z + rough, 0.8 * (cut.nape - grid.v))
    inside = torch.maximum(crown, sides)
    soft = 0.5 if person.hair_style == "buzz" else 1.0
    alpha = ((inside * soft / 0.035) + 0.5).clamp(0, 1) * cut.opacity
    return torch.cat([alpha, _strands(person, grid.n, grid.v, part, generator, size)], dim=1)


def _strands(
    person: Person,
    n: Tensor,
    v: Tensor,
    part: float,
    generator: torch.Generator,
    size: tuple[int, int],
) -> Tensor:
    """Brightness of hair around 1: fine strands away from the parting, or curls."""
    phases = torch.rand(5, generator=generator).tolist()
    if person.hair_style in ("curly", "buzz"):
        cells = 44 if person.hair_style == "curly" else 80
        strength = 0.30 if person.hair_style == "curly" else 0.10
        return 1.0 + strength * smooth_noise(generator, 1, (cells, cells), size).clamp(-1.5, 1.5)
    angle = torch.atan2(n - part, v + 1.25)
    strands = sum(
        (1.0 / k**0.25) * torch.sin(k * angle + 2 * math.pi * p + 1.5 * torch.sin(3 * v + k))
        for k, p in zip((9, 17, 31, 53, 79), phases, strict=True)
    )
    wave = smooth_noise(generator, 1, (12, 12), size)
    parting = 1.0 - 0.35 * bump((n - part) / 0.05) * ramp(-v, 0.4, 0.7)
    return (1.0 + 0.095 * strands + 0.06 * wave) * parting


def paint_shell(
    canvas: Tensor,
    person: Person,
    pose: Pose,
    surface: Surface,
    texture: Tensor,
    color: Tensor,
    light: Light,
) -> None:
    """The hair that sits on the skull over ``canvas`` "f 3 h w"."""
    cut = hair_cut(person)
    if cut.opacity == 0.0:
        return
    grown = 1.0 + cut.top * ramp(-surface.y, -0.25, 0.5)
    low, high = (-1.1, -0.35) if cut.nape > 0.55 else (-0.12, 0.25)
    wider = 1.0 + cut.sides * ramp(-surface.y, low, high)
    s = surface.s / wider
    t = surface.t / grown
    square = s * s + t * t
    c = (1.0 - square).clamp_(min=0.0).sqrt_()
    n, v, z = turn_back(pose, s, t, c)
    # beside the skull, where the front of the shell is bare, one sees the hair behind it
    bare = (surface.radius > 1.0) & (z > 0.2) & (v > person.hairline + cut.line - 0.1)
    n, v, z = turn_back(pose, s, t, torch.where(bare, -c, c))
    alpha, strands = sample_map(texture, n, v, z).split(1, dim=1)
    edge = coverage(1.0 - square.sqrt_(), 0.6 * pose.px)
    lit = shade(light, s, t, c + 0.15, 0.62 + 0.5 * c)
    gloss = bump((t + 0.62) / 0.30) * bump((s - 0.45 * light.direction[0]) / 0.75)
    paint = color * strands * lit + 0.10 * gloss * strands * light.key * (0.25 + color)
    over(canvas, paint.clamp_(0.0, 1.0), alpha * edge)


def paint_back(
    canvas: Tensor, person: Person, pose: Pose, window: Window, color: Tensor, light: Light
) -> None:
    """Hair behind the head and neck over the part ``window`` of the canvas."""
    cut = hair_cut(person)
    x, y = unroll(pose, window)
    x = x + 0.14 * pose.sin_yaw
    lit = 0.55 * light.key * 0.5 + 0.42 * light.ambient
    if person.hair_style == "bun":
        bun = coverage(0.30 - (x * x + ((y + 1.05) / 0.85).square()).sqrt(), pose.px)
        over(canvas, color * lit * (1.75 - 0.6 * bump((y + 0.92) / 0.2)), bun)
        return
    if cut.back_length < -1.0:
        return
    wave = 0.025 * torch.sin(7 * y + 3 * person.hair_part) + 0.05 * ramp(y, 0.2, 1.2)
    width = cut.back_width + wave - 0.5 * (0.25 - y).clamp(min=0).square()
    width = width - 0.30 * (y - cut.back_length + 0.15).clamp(min=0)
    if person.hair_style == "curly":
        width = width + 0.03 * torch.sin(19 * y) - 0.25 * ramp(y, 0.2, 0.7)
    inside = coverage(width - x.abs(), pose.px) * coverage(cut.back_length - y, 0.3 * pose.px)
    inside = inside * coverage(y + 0.35, 0.2 * pose.px)
    strand = 0.80 + 0.14 * torch.sin(38 * x + 2 * torch.sin(3 * y)) + 0.08 * torch.sin(71 * x)
    over(canvas, color * lit * strand, inside)


def paint_locks(
    canvas: Tensor, person: Person, pose: Pose, window: Window, color: Tensor, light: Light
) -> None:
    """Locks beside the face, in front of neck and shoulders."""
    cut = hair_cut(person)
    if cut.locks < -1.0:
        return
    x, y = unroll(pose, window)
    x = x + 0.06 * pose.sin_yaw
    a = x.abs()
    edge = half_width(person, y) * (1.0 - (y * y).clamp(max=1.0)).sqrt()
    inner = torch.maximum(0.965 * edge, 0.60 + 0.03 * torch.sin(4 * y + person.hair_part))
    outer = cut.back_width + 0.02 * torch.sin(6 * y + 1) - 0.7 * (0.30 - y).clamp(min=0).square()
    inside = coverage(a - inner, pose.px) * coverage(outer - a, pose.px)
    inside = inside * coverage(cut.locks - y + 0.15 * a, 0.25 * pose.px)
    inside = inside * coverage(y + 0.15, 0.12 * pose.px)
    across = (a - inner) / (outer - inner).clamp(min=0.05)
    lx = light.direction[0]
    facing = 0.55 + 0.35 * bump((across - 0.45) / 0.8) + 0.18 * lx * torch.sign(x)
    strand = 1.0 + 0.12 * torch.sin(44 * a + 2.5 * torch.sin(2.5 * y)) + 0.07 * torch.sin(83 * a)
    lit = light.key * facing + 0.45 * light.ambient
    over(canvas, (color * lit * strand).clamp(0, 1), inside)


def ear_centers(person: Person, pose: Pose) -> tuple[Tensor, Tensor]:
    """Pixels "f 2 2" of both ears and their depth "f 2" (positive: in front of the rim)."""
    frames = len(pose.center_x)
    edge = half_width(person, torch.tensor(0.08)).item()
    u = torch.tensor([-0.992 * edge, 0.992 * edge], device=pose.center_x.device)
    v = torch.full((frames, 2), 0.10, device=u.device)
    center = project(person, pose, u.expand(frames, 2), v)
    depth = torch.cat([pose.sin_yaw, -pose.sin_yaw], dim=1).view(frames, 2)
    return center, depth


def paint_ears(canvas: Tensor, person: Person, pose: Pose, light: Light) -> None:
    """Both ears over the whole canvas, behind the head; each in its own window."""
    whole = Window(0, canvas.shape[-2], 0, canvas.shape[-1])
    centers, depths = ear_centers(person, pose)
    size = person.ear_size
    for k, side in ((0, -1.0), (1, 1.0)):
        points = centers[:, k : k + 1]
        window = window_around(points, 1.7 * size * pose.px, whole)
        if window.empty:
            continue
        x, y = unroll(pose, window)
        cx, cy = _unroll_points(pose, points)
        x, y = (x - cx) * side, y - cy
        turned = 0.62 + 0.45 * depths[:, k].view(-1, 1, 1, 1).clamp(-0.5, 1.0)
        q = ((x - 0.045 * turned) / (0.62 * turned)).square() + ((y + 0.1 * x) / 1.12).square()
        r = q.sqrt() / size
        rim = 1.0 - 0.30 * bump((r - 0.62) / 0.28) - 0.22 * bump(r / 0.55)
        facing = 0.60 + 0.55 * max(0.0, side * light.direction[0])
        lit = light.key * 0.75 * facing + 0.55 * light.ambient
        warm = plane([1.02, 0.92, 0.90])
        over(
            window.of(canvas),
            skin_color(person) * warm * lit * rim,
            coverage((1 - r) * size, pose.px),
        )


def _unroll_points(pose: Pose, points: Tensor) -> tuple[Tensor, Tensor]:
    """Head axes (x, y), "f 1 1 1", of pixels "f 1 2"; for points above the jaw."""
    dx = (points[..., 0].view(-1, 1, 1, 1) - pose.center_x) / pose.px
    dy = (points[..., 1].view(-1, 1, 1, 1) - pose.center_y) / pose.px
    return pose.cos_roll * dx + pose.sin_roll * dy, pose.cos_roll * dy - pose.sin_roll * dx
