"""What is behind and below the head: background, clothes, neck; and what passes in front of it.

Background and clothes are drawn once per clip and follow the camera's drift; the neck bends with
the head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.world.geometry import MotionComponents, Pose
from avatar_v.world.person import Person
from avatar_v.world.scene import COLORS, Scene
from avatar_v.world.shapes import Window, bump, coverage, over, plane, ramp, seeded, smooth_noise
from avatar_v.world.skin import Light, shade, skin_color

_MARGIN = 1.06  # backdrops reach this far past the picture, for the camera's drift


def _axes(scene: Scene, canvas: int) -> tuple[Tensor, Tensor]:
    """Texel centres "1 1 n n" of a backdrop as shares of the picture, (x, y)."""
    axis = ((torch.arange(canvas) + 0.5) / canvas - 0.5) * _MARGIN + 0.5
    return axis.view(1, 1, 1, -1).expand(1, 1, canvas, -1), axis.view(1, 1, -1, 1).expand(
        1, 1, -1, canvas
    )


def background(scene: Scene, canvas: int) -> Tensor:
    """The background "1 3 n n", blurred as behind a portrait."""
    x, y = _axes(scene, canvas)
    generator = seeded(0xBAC4, scene.id)
    draws = torch.rand(40, generator=generator).tolist()
    tint = plane(COLORS[scene.background_color]) * 0.62 + 0.17
    image = tint * (1.12 - 0.30 * y - 0.20 * (x - 0.5 + 0.4 * scene.light_x).abs())
    image = image.contiguous()
    soft = canvas / 7.0
    match scene.background:
        case "office":
            _office(image, x, y, tint, soft, draws)
        case "window":
            _window(image, x, y, tint, soft, draws)
        case "lights":
            image.mul_(0.45)
            _lights(image, x, y, soft, draws)
        case "shelf":
            _shelf(image, x, y, soft, draws)
        case "garden":
            _garden(image, y, smooth_noise(generator, 1, (9, 9), (canvas, canvas)))
        case "curtain":
            folds = torch.sin(2 * torch.pi * (x * (6 + 6 * draws[0]) + 0.15 * torch.sin(3 * y)))
            image.mul_(1.0 + 0.13 * folds)
        case "wall":
            pass  # the plain tint
    return image.clamp(0.0, 1.0).contiguous()


def _office(
    image: Tensor, x: Tensor, y: Tensor, tint: Tensor, soft: float, draws: list[float]
) -> None:
    over(image, 0.55 * tint, coverage(y - 0.62 - 0.1 * draws[0], soft))
    board = _box(x, y, 0.15 + draws[1] * 0.2, 0.25, 0.14, 0.16, soft)
    over(image, plane([0.85, 0.87, 0.88]), 0.8 * board)
    over(image, 0.4 * tint + 0.1, _box(x, y, 0.85, 0.35 + 0.2 * draws[2], 0.10, 0.35, soft))


def _window(
    image: Tensor, x: Tensor, y: Tensor, tint: Tensor, soft: float, draws: list[float]
) -> None:
    sky = plane([0.82, 0.90, 0.98]) * (1.05 - 0.25 * y)
    left = 0.08 + 0.5 * draws[0]
    over(image, sky, _box(x, y, left + 0.2, 0.35, 0.26, 0.36, soft))
    over(image, 0.7 * tint, _box(x, y, left + 0.2, 0.35, 0.012, 0.38, soft))
    over(image, 0.7 * tint, _box(x, y, left + 0.2, 0.36, 0.28, 0.012, soft))


def _lights(image: Tensor, x: Tensor, y: Tensor, soft: float, draws: list[float]) -> None:
    for k in range(8):
        dx, dy = x - draws[4 * k], y - draws[4 * k + 1]
        spot = coverage(0.05 + 0.05 * draws[4 * k + 2] - (dx * dx + dy * dy).sqrt(), soft)
        over(image, plane([1.0, 0.80, 0.55]) * (0.6 + 0.4 * draws[4 * k + 3]), 0.55 * spot)


def _shelf(image: Tensor, x: Tensor, y: Tensor, soft: float, draws: list[float]) -> None:
    books = list(COLORS.values())
    for k in range(14):
        color = plane(books[int(12 * draws[k])]) * 0.7
        row = 0.28 + 0.36 * (k % 3)
        over(image, color, 0.9 * _box(x, y, draws[k + 14], row, 0.035, 0.11, 2 * soft))
    for k in range(3):
        board = _box(x, y, 0.5, 0.41 + 0.36 * k, 0.7, 0.014, 2 * soft)
        over(image, plane([0.30, 0.21, 0.14]), board)


def _garden(image: Tensor, y: Tensor, leaves: Tensor) -> None:
    green = plane([0.30, 0.46, 0.22]) * (0.95 + 0.26 * leaves)
    green = green + plane([0.25, 0.25, 0.08]) * (leaves.clamp(min=0) * 0.4)
    over(image, green.clamp(0, 1), ramp(y + 0.07 * leaves, 0.12, 0.34))
    over(image, plane([0.75, 0.85, 0.95]), 0.6 * (1 - ramp(y + 0.07 * leaves, 0.05, 0.25)))


def _box(
    x: Tensor, y: Tensor, cx: float, cy: float, half_x: float, half_y: float, soft: float
) -> Tensor:
    return coverage(half_x - (x - cx).abs(), soft) * coverage(half_y - (y - cy).abs(), soft)


def body(scene: Scene, person: Person, light: Light, canvas: int) -> Tensor:
    """Shoulders and clothes "1 4 n n": RGB and cover, for a head at rest."""
    px, py = _axes(scene, canvas)
    unit = scene.head_height / 2
    x, y = (px - scene.center_x) / unit, (py - scene.center_y) / unit
    pixels = unit * canvas
    a = x.abs()
    neck = person.neck_width
    slope = 1.08 + 0.21 * ((a - neck) / 0.75).clamp(min=0) ** 1.5 + 0.05 * (a - neck).clamp(max=0)
    shape = coverage(y - slope, pixels) * coverage(1.72 - a, pixels)
    cloth = plane(COLORS[scene.clothing_color])
    if scene.clothing == "suit":
        cloth = cloth * 0.42 + 0.03
    generator = seeded(0xC107, scene.id)
    folds = smooth_noise(generator, 1, (9, 6), (canvas, canvas))
    nx, ny = 0.75 * x + 0.10 * folds, -0.55 + 0.9 * (y - slope).clamp(0, 0.6)
    lit = shade(light, nx, ny, torch.full_like(nx, 0.75), torch.ones_like(nx))
    image = (cloth * lit).contiguous()
    image = _collar(scene, image, cloth, lit, a, x, y, neck, pixels)
    shape, image = _neckline(scene, shape, image, cloth * lit, a, y, neck, pixels)
    return torch.cat([image.clamp(0, 1), shape], dim=1)


def _neckline(
    scene: Scene,
    shape: Tensor,
    image: Tensor,
    paint: Tensor,
    a: Tensor,
    y: Tensor,
    neck: float,
    pixels: float,
) -> tuple[Tensor, Tensor]:
    """Cut the opening for the neck, with the band around it."""
    depth, rise = {
        "t-shirt": (0.22, 0.92),
        "shirt": (0.40, 0.55),
        "sweater": (0.10, 0.94),
        "hoodie": (0.18, 0.9),
        "suit": (0.44, 0.62),
    }[scene.clothing]
    if scene.clothing in ("shirt", "suit"):
        distance = 1.06 + depth - 1.15 * a - y
    else:
        width = rise * (neck + 0.06)
        distance = (
            1.0 - ((a / width).square() + ((y - 1.04) / (depth + 0.05)).square()).sqrt()
        ) * depth
    band = coverage(0.045 - (distance + 0.045).abs(), pixels) * coverage(0.75 - a, pixels)
    over(image, 0.80 * paint, 0.8 * band)
    return shape * (1.0 - coverage(distance, pixels)), image


def _collar(
    scene: Scene,
    image: Tensor,
    cloth: Tensor,
    lit: Tensor,
    a: Tensor,
    x: Tensor,
    y: Tensor,
    neck: float,
    pixels: float,
) -> Tensor:
    """Flaps, lapels, hood or turtleneck over the plain cloth."""
    if scene.clothing == "shirt":
        flap = coverage(0.16 - (1.52 - 1.0 * a - y).abs(), pixels) * coverage(0.62 - a, pixels)
        over(image, (cloth * 1.12 + 0.05).clamp(max=1) * lit, flap)
        over(image, 0.72 * cloth * lit, coverage(0.012 - (x - 0.02).abs(), pixels))
    elif scene.clothing == "suit":
        white = coverage(1.78 - 1.15 * a - y, pixels)
        over(image, plane([0.92, 0.92, 0.93]) * lit, white)
        tie = plane(list(COLORS.values())[(scene.id * 7 + 3) % len(COLORS)])
        over(image, 0.8 * tie * lit, coverage(0.075 + 0.03 * (y - 1.4) - a, pixels))
        over(image, (0.7 * cloth) * lit, coverage(0.02 - (1.80 - 1.15 * a - y).abs(), pixels))
    elif scene.clothing == "hoodie":
        hood = coverage(0.15 - (a - neck - 0.12 - 0.25 * (y - 1.1)).abs(), pixels)
        over(image, 0.84 * cloth * lit, hood * coverage(1.30 - y, pixels))
        cords = coverage(0.02 - (a - 0.24).abs(), pixels) * coverage(y - 1.2, pixels)
        over(image, plane([0.88, 0.88, 0.86]) * lit, cords)
    return image


def follow_camera(texture: Tensor, pose: Pose, window: Window, canvas: int) -> Tensor:
    """The part ``window`` of a backdrop as each frame's camera sees it, "f c h w"."""
    device = texture.device
    rows = torch.arange(window.y0, window.y1, device=device).view(1, -1, 1) + 0.5
    columns = torch.arange(window.x0, window.x1, device=device).view(1, 1, -1) + 0.5
    frames = len(pose.shift_x)
    x = ((columns - pose.shift_x.view(-1, 1, 1)) / canvas - 0.5) * (2 / _MARGIN)
    y = ((rows - pose.shift_y.view(-1, 1, 1)) / canvas - 0.5) * (2 / _MARGIN)
    shape = (frames, rows.shape[1], columns.shape[2])
    grid = torch.stack([x.expand(shape), y.expand(shape)], dim=-1)
    return F.grid_sample(
        texture.expand(frames, -1, -1, -1),
        grid,
        mode="bilinear",
        padding_mode="border",
        align_corners=False,
    )


def paint_neck(
    canvas: Tensor,
    scene: Scene,
    person: Person,
    pose: Pose,
    light: Light,
    window: Window,
    size: int,
) -> None:
    """The neck between head and shoulders over the part ``window`` of the canvas."""
    device = canvas.device
    rows = torch.arange(window.y0, window.y1, device=device).view(1, 1, -1, 1) + 0.5
    columns = torch.arange(window.x0, window.x1, device=device).view(1, 1, 1, -1) + 0.5
    rest_x = scene.center_x * size + pose.shift_x
    rest_y = scene.center_y * size + pose.shift_y
    y = (rows - rest_y) / pose.px
    low = ramp(y, 0.5, 1.35)
    head_x = pose.center_x - pose.px * 0.75 * pose.sin_roll
    x = (columns - head_x - (rest_x - head_x) * low) / pose.px
    width = person.neck_width * (1.0 + 0.20 * ramp(y, 1.0, 1.5))
    inside = coverage(width - x.abs(), pose.px)
    q = (x / width).clamp(-1, 1)
    nz = (1.0 - 0.92 * q * q).sqrt()
    chin = (pose.center_y - rest_y) / pose.px + 1.0 + 0.12 * pose.jaw
    under = (
        1.0 - 0.50 * (1 - ramp(y - chin + 0.16 * q * q, 0.0, 0.30)) - 0.1 * bump((y - 1.3) / 0.2)
    )
    cords = 1.0 - 0.10 * bump((x.abs() - 0.20 - 0.18 * (1.2 - y)) / 0.07)
    lit = shade(light, q, torch.full_like(q, 0.12), nz, under) * (0.35 + 0.65 * under) * cords
    over(canvas, 0.97 * skin_color(person) * lit, inside)


def paint_cover(
    canvas: Tensor, scene: Scene, person: Person, motion: MotionComponents, pose: Pose, light: Light
) -> None:
    """A hand, a cup or a sheet that hides the face as ``motion.cover`` goes to 1."""
    if bool((motion.cover <= 0.0).all()):
        return
    height, width = canvas.shape[-2:]
    rows = torch.arange(height, device=canvas.device).view(1, 1, -1, 1) + 0.5
    columns = torch.arange(width, device=canvas.device).view(1, 1, 1, -1) + 0.5
    side = scene.cover_side
    away = 1.0 - motion.cover
    x = (columns - pose.center_x) / pose.px - 2.4 * side * away
    y = (rows - pose.center_y) / pose.px - 0.25 - 0.6 * away
    x = x * side
    if scene.cover == "hand":
        inside, relief = _hand(x, y, pose.px)
        color = skin_color(person) * 0.96
    elif scene.cover == "cup":
        inside = coverage(0.55 - x.abs(), pose.px) * coverage(0.62 - y.abs(), pose.px)
        ring = ((x - 0.60).square() + y.square()).sqrt()
        inside = torch.maximum(inside, coverage(0.07 - (ring - 0.28).abs(), pose.px))
        relief, color = 1.0 - 0.5 * (x / 0.7).square(), plane(COLORS[scene.cover_color])
    else:
        inside = coverage(0.78 - x.abs() - 0.04 * y, pose.px) * coverage(0.92 - y.abs(), pose.px)
        relief = 1.0 - 0.12 * bump((torch.remainder(y, 0.14) - 0.07) / 0.02) * (x.abs() < 0.6)
        color = plane([0.93, 0.93, 0.91])
    lit = 0.75 * light.key + 0.5 * light.ambient
    over(canvas, (color * lit * relief).clamp(0, 1), inside)


def _hand(x: Tensor, y: Tensor, px: float) -> tuple[Tensor, Tensor]:
    """Cover and shading of an open hand whose fingers point up."""
    palm = (1.0 - ((x / 0.56).abs() ** 3 + ((y - 0.25) / 0.55).abs() ** 3) ** (1 / 3)) * 0.5
    shape = coverage(palm, px)
    relief = 0.82 + 0.22 * bump(((x / 0.6).square() + ((y - 0.25) / 0.6).square()).sqrt())
    for k, length in enumerate((0.62, 0.78, 0.74, 0.55)):
        center = -0.42 + 0.28 * k
        tip = (y + length - 0.02).clamp(max=0)
        distance = 0.125 - ((x - center - 0.12 * (center) * -y).square() + tip.square()).sqrt()
        finger = coverage(distance, px) * coverage(0.25 - y, px)
        relief = torch.where(finger > 0.5, 0.72 + 0.32 * bump((distance - 0.125) / 0.13), relief)
        shape = torch.maximum(shape, finger)
    arm = coverage(0.36 - x.abs(), px) * coverage(y - 0.5, px)
    return torch.maximum(shape, arm), relief
