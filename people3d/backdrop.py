"""What is behind three-dimensional people: the drawn world's backgrounds or rooms, patterns and
streets with edges, brighter and sharper than a portrait lens would leave them; linear light."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.world.backdrop import background
from avatar_v.world.scene import COLORS, Scene
from avatar_v.world.shapes import seeded
from people3d.noise import layered, noise, step

_KINDS = ("drawn", "wall", "blinds", "panels", "patches", "columns", "frames", "shelves", "leaves")
_SHARES = (0.16, 0.18, 0.11, 0.12, 0.07, 0.07, 0.13, 0.09, 0.07)


def backdrop(scene: Scene, canvas: int) -> Tensor:
    """Of this scene, "n n 3"."""
    g = seeded(0xB00F, scene.id)
    u = torch.rand(48, generator=g).tolist()
    kind = _KINDS[int(torch.multinomial(torch.tensor(_SHARES), 1, generator=g))]
    axis = torch.arange(canvas) / canvas
    x, y = axis.view(1, -1).expand(canvas, -1), axis.view(-1, 1).expand(-1, canvas)
    lean = 0.12 * (u[0] - 0.5)
    x, y = x + lean * (y - 0.5), y - 0.5 * lean * (x - 0.5)
    at = torch.stack([x.reshape(-1) * 3 + 9 * u[1], y.reshape(-1) * 3 + 7 * u[2]], 1)
    at = torch.cat([at, torch.full((len(at), 1), 20 * u[3])], 1)
    if kind == "drawn":
        image = background(scene, canvas)[0].permute(1, 2, 0) * 0.8 + 0.2
    else:
        image = _room(kind, scene, x, y, at, u[8:], 1.5 / canvas).clamp(0.01, 1.0)
    image = blurred(image.permute(2, 0, 1)[None], canvas * (0.003 + 0.014 * u[4] ** 2))
    light = 1 + 0.5 * noise(at * 0.6).view(canvas, canvas)
    grainy = layered(at * (8 + 30 * u[5]), 2, 1).view(canvas, canvas)
    texture = 1 + 0.10 * u[6] * grainy
    image = image[0].permute(1, 2, 0) ** 2.2 * (light * texture)[..., None]
    return image * (0.90 + 0.85 * u[7])


def _room(kind: str, scene: Scene, x: Tensor, y: Tensor, at: Tensor, u: list, soft: float):
    """One of the kinds, "n n 3" as the eye sees it (not linear)."""
    tint = torch.tensor(COLORS[scene.background_color])
    pale = 0.30 + 0.5 * u[0]
    wall = tint * (1 - pale) * 0.9 + pale * (0.55 + 0.4 * u[1])
    n = len(x)
    image = wall.expand(n, n, 3).clone()
    dark = wall * (0.25 + 0.4 * u[2])
    light = (wall * 1.35 + 0.12).clamp(max=1.0)

    def paint(color: Tensor, cover: Tensor, strength: float = 1.0) -> None:
        image.add_((strength * cover)[..., None] * (color - image))

    if kind == "wall":
        if u[3] < 0.5:  # a rail with another colour below
            paint(dark, step(y, 0.35 + 0.5 * u[4], 0.35 + 0.5 * u[4] + soft))
        if u[5] < 0.6:
            edge = 0.1 + 0.8 * u[6]
            paint(light if u[7] < 0.5 else dark, step(x, edge, edge + soft), 0.8)
    elif kind == "blinds":
        count = 9 + 22 * u[3]
        slats = ((y * count) % 1 - 0.5).abs()
        paint(dark, step(slats, 0.5 - 0.22 * u[4], 0.5 - 0.18 * u[4] + soft * count))
        paint(light, step(slats, 0.18, 0.05), 0.7)
        for k in range(2):
            paint(dark * 0.8, _box(x, y, u[5 + k], 0.5, 0.012 + 0.03 * u[7], 2.0, soft))
    elif kind == "panels":
        count_x, count_y = 3 + 5 * u[3], 2 + 9 * u[4]
        row = (y * count_y).floor()
        px = (x * count_x + 0.5 * (row % 2) * (u[5] < 0.6)) % 1
        py = (y * count_y) % 1
        seam = torch.minimum(0.5 - (px - 0.5).abs(), (0.5 - (py - 0.5).abs()) * count_x / count_y)
        tone = noise(
            torch.stack([(x * count_x).floor() * 3.3 + 1, row * 5.7, row * 0], -1).view(-1, 3)
        )
        image.mul_((1 + 0.3 * tone.view(n, n))[..., None])
        paint(dark, step(seam, 0.05, 0.02))
    elif kind == "patches":
        field = layered(at * (0.7 + 1.2 * u[3]), 3).view(n, n)
        colors = list(COLORS.values())
        for k in range(5):
            low = -0.55 + 0.25 * k
            color = torch.tensor(colors[int(12 * u[4 + k]) % len(colors)]) * 0.4
            color = color + 0.35 * wall + 0.2
            paint(color, step(field, low, low + 0.03))
            paint(dark, step((field - low).abs(), 0.03, 0.01), 0.3)
        marks = noise(at * 14, 1).view(n, n)
        paint(dark, step(marks, 0.45, 0.55), 0.7)
    elif kind == "columns":
        count = 2 + 4 * u[3]
        px = (x * count + u[4]) % 1
        round_ = torch.cos((px - 0.5).clamp(-0.22, 0.22) * 6.5)
        column = step((px - 0.5).abs(), 0.23, 0.21)
        paint(dark * 0.7, torch.ones_like(x))
        paint(light, column * (0.35 + 0.65 * round_))
        flutes = torch.sin(px * 120) * column
        image.mul_((1 + 0.10 * flutes)[..., None])
        top = 0.10 + 0.2 * u[5]
        paint(light * 0.95, step(y, top + soft, top))
        for k in range(3):
            paint(dark, _box(x, y, 0.5, top - 0.03 * k, 1.0, 0.004, soft))
        teeth = step(((x * 26) % 1 - 0.5).abs(), 0.30, 0.22) * _box(
            x, y, 0.5, top - 0.05, 1, 0.014, soft
        )
        paint(dark, teeth)
    elif kind == "frames":
        for k in range(4):
            cx, cy = u[3 + 2 * k], 0.1 + 0.6 * u[4 + 2 * k]
            w, h = 0.07 + 0.11 * u[12 + k], 0.08 + 0.14 * u[16 + k]
            paint(dark * 0.6, _box(x, y, cx + 0.008, cy + 0.012, w, h, 4 * soft), 0.5)
            paint(
                dark if u[20] < 0.6 else torch.tensor([0.7, 0.55, 0.25]),
                _box(x, y, cx, cy, w, h, soft),
            )
            paint(torch.tensor([0.93, 0.92, 0.88]), _box(x, y, cx, cy, w - 0.014, h - 0.014, soft))
            inner = _box(x, y, cx, cy, w - 0.035, h - 0.035, soft)
            picture = 0.5 + 0.6 * layered(at * 3 + 7 * k, 3, k % 2).view(n, n)
            hue = torch.tensor(list(COLORS.values())[int(12 * u[21 + k % 4]) % len(COLORS)])
            image.add_(inner[..., None] * (picture[..., None] * hue - image))
    elif kind == "shelves":
        books = list(COLORS.values())
        count, rows = 18 + 16 * u[3], 3 + 2 * u[4]
        row = (y * rows + u[5]).floor()
        index = (x * count + row * 3.7).floor()
        tone = noise(torch.stack([index * 3.1 + 0.5, row * 7.7, row * 0], -1).view(-1, 3)).view(
            n, n
        )
        other = noise(torch.stack([index * 5.3, row * 2.9, row * 0 + 4], -1).view(-1, 3)).view(n, n)
        which = ((tone + 1) * 0.5 * len(books)).long().clamp(0, len(books) - 1)
        image = torch.tensor(books)[which] * (0.75 + 0.5 * other)[..., None] + 0.12
        height = 0.72 + 0.2 * tone
        py = 1 - (y * rows + u[5]) % 1
        gap = (py > height).float()
        image = image + gap[..., None] * (dark * 0.5 - image)
        px = (x * count + row * 3.7) % 1
        image = image * (1 - 0.4 * step((px - 0.5).abs(), 0.40, 0.5))[..., None]
        board = (py < 0.07).float()[..., None]
        image = image + board * (torch.tensor([0.55, 0.40, 0.26]) * (0.6 + 0.8 * u[6]) - image)
    elif kind == "leaves":
        leaves = layered(at * 4, 4).view(n, n)
        green = torch.tensor([0.34, 0.48, 0.22]) * (1.0 + 0.5 * leaves)[..., None]
        horizon = 0.2 + 0.5 * u[3]
        paint(torch.tensor([0.80, 0.88, 0.96]), torch.ones_like(x))
        cover = step(y + 0.25 * leaves, horizon, horizon + 0.03)
        image = image + cover[..., None] * (green + 0.08 - image)
        bright = step(noise(at * 9, 1).view(n, n), 0.42, 0.55) * cover
        image = image + (0.6 * bright)[..., None] * (torch.tensor([0.85, 0.92, 0.70]) - image)
    shade = 1.08 - 0.25 * y
    return image * shade[..., None]


def _box(
    x: Tensor, y: Tensor, cx: float, cy: float, half_x: float, half_y: float, soft: float
) -> Tensor:
    return step((x - cx).abs(), half_x + soft, half_x) * step((y - cy).abs(), half_y + soft, half_y)


def blurred(image: Tensor, sigma: float) -> Tensor:
    """Blurred, of "1 c h w"; the border repeats."""
    radius = max(1, math.ceil(2.5 * sigma))
    at = torch.arange(-radius, radius + 1).float()
    kernel = torch.exp(-0.5 * (at / sigma) ** 2)
    kernel = (kernel / kernel.sum()).view(1, 1, 1, -1)
    c = image.shape[1]
    out = F.pad(image, (radius, radius, radius, radius), mode="replicate")
    out = F.conv2d(out, kernel.expand(c, -1, -1, -1), groups=c)
    return F.conv2d(out, kernel.transpose(2, 3).expand(c, -1, -1, -1), groups=c)
