"""Hair as geometry: how thick the short hair stands on the scalp, and the curtain of long hair."""

import math

import torch
from torch import Tensor

from people3d.bake import along, beard_amount, hairline
from people3d.noise import layered, step
from people3d.person import Looks

_AROUND, _DOWN = 48, 18


def thickness(q: Tensor, looks: Looks) -> Tensor:
    """Metres that hair stands off the skin at places "n 3" (as `to_head` gives them)."""
    y, z = q[:, 1], q[:, 2]
    line = hairline(q, looks)
    grown = step(line, -0.006, 0.014)
    top = step(z, 0.0, 0.07)
    front = step(y, 0.05, 0.0) * top
    wavy = layered(q * 40 + looks.seed % 13, 2)
    length = looks.hair_length
    thick = {
        "bald": 0.0015 + 0 * z,
        "buzz": 0.0035 + 0 * z,
        "short": length * (0.30 + 0.70 * top),
        "swept": length * (0.30 + 0.80 * top + 0.45 * front),
        "curly": (0.8 * length + 0.008) * (0.75 + 0.35 * top) * (1 + 0.45 * wavy),
        "crop": length * (0.25 + 0.55 * top) * (1 + 0.5 * wavy),
        "side": length * (0.22 + 0.85 * top + 0.30 * front),
        "pixie": length * (0.40 + 0.55 * top),
        "afro": (0.9 * length + 0.020) * (0.8 + 0.2 * top),
        "wavy": (length * 0.7 + 0.005) * (0.85 + 0.3 * top),
        "fringe bob": (length * 0.6 + 0.004) * (0.85 + 0.3 * top),
        "fringe long": (length * 0.5 + 0.004) * (0.85 + 0.3 * top),
        "bob": 0.003 + length * 0.75 * (0.85 + 0.3 * top),
        "long": 0.003 + length * 0.7 * (0.85 + 0.3 * top),
        "bun": 0.006 * (1 + 0.5 * top),
    }[looks.hair_style]
    out = grown * thick * (1 + 0.15 * wavy)
    if looks.beard in ("full", "goatee", "moustache"):
        amount = beard_amount(q, looks, torch.zeros(len(q)))
        out = torch.maximum(out, amount * (0.006 if looks.beard == "full" else 0.0022))
    return out


def curtain(looks: Looks, width: float, depth: float, middle_y: float) -> tuple[Tensor, Tensor]:
    """Vertices (from between the eyes; with how far round and how far down, "n 5") and triangles
    of hair that hangs down behind and beside the head. ``width`` and ``depth`` are half the head's.
    """
    turn = torch.linspace(-1, 1, _AROUND)
    down = torch.linspace(0, 1, _DOWN)
    t, d = torch.meshgrid(turn, down, indexing="ij")
    t, d = t.reshape(-1), d.reshape(-1)
    top, bottom = 0.085, -looks.fall
    z = top + (bottom - top) * d
    round_top = (1 - (z.clamp_min(0) / 0.135) ** 2).clamp_min(0.02).sqrt()
    bob, wavy = looks.hair_style.endswith("bob"), looks.hair_style == "wavy"
    flare = 1 + (0.6 if bob else 0.8 if wavy else 0.25) * (-z).clamp_min(0)
    open_at = math.radians(118 + looks.seed % 13) + math.radians(8) * step(z, -0.12, -0.02)
    angle = t * open_at
    off = 0.65 * looks.hair_length + 0.006
    wave = 1 + 0.03 * torch.sin(14 * t + 3 * d + looks.seed) * d + 0.012 * torch.sin(41 * t) * d
    if wavy:
        ripple = torch.sin(17 * d + 0.5 * torch.sin(9 * t) + looks.seed)
        wave = wave + (0.03 + 0.035 * ripple) * step(d, 0.2, 0.5)
    inward = 1 - (0.35 if bob else 0.06) * step(d, 0.75, 1.0)
    x = (width + off) * round_top * flare * wave * inward * torch.sin(angle)
    y = middle_y + (depth + off) * round_top * wave * torch.cos(angle)
    vertices = torch.stack([x, y, z, t, d], 1)
    i = torch.arange((_AROUND - 1) * _DOWN).view(-1, _DOWN)[:, :-1].reshape(-1)
    a, b, c, e = i, i + 1, i + _DOWN, i + _DOWN + 1
    triangles = torch.cat([torch.stack([a, b, c], 1), torch.stack([b, e, c], 1)])
    return vertices, triangles


def ball(center: tuple[float, float, float], radius: float) -> tuple[Tensor, Tensor]:
    """A sphere: vertices and triangles."""
    rows, columns = 10, 16
    phi = torch.linspace(0.05, math.pi - 0.05, rows)
    theta = torch.arange(columns + 1) * (2 * math.pi / columns)
    p, t = torch.meshgrid(phi, theta, indexing="ij")
    v = torch.stack([p.sin() * t.cos(), p.sin() * t.sin(), p.cos()], -1).view(-1, 3)
    v = v * radius * torch.tensor([1.1, 0.95, 0.95]) + torch.tensor(center)
    i = torch.arange((rows - 1) * (columns + 1)).view(rows - 1, -1)[:, :-1].reshape(-1)
    a, b, c, e = i, i + 1, i + columns + 1, i + columns + 2
    return v, torch.cat([torch.stack([a, c, b], 1), torch.stack([b, c, e], 1)])


def tube(path: Tensor, radius: float, closed: bool) -> tuple[Tensor, Tensor]:
    """A pipe of six sides along points "n 3": vertices and triangles."""
    n = len(path)
    ahead = path.roll(-1, 0) - path.roll(1, 0)
    if not closed:
        ahead[0], ahead[-1] = path[1] - path[0], path[-1] - path[-2]
    ahead = torch.nn.functional.normalize(ahead, dim=1)
    side = torch.linalg.cross(ahead, torch.tensor([0.02, 1.0, 0.3]).expand(n, 3))
    side = torch.nn.functional.normalize(side, dim=1)
    up = torch.linalg.cross(ahead, side)
    angle = torch.arange(6) * (math.pi / 3)
    ring = side[:, None] * angle.cos()[None, :, None] + up[:, None] * angle.sin()[None, :, None]
    v = (path[:, None] + radius * ring).reshape(-1, 3)
    rows = torch.arange(n if closed else n - 1)
    a = (rows[:, None] * 6 + torch.arange(6)).reshape(-1)
    b = (rows[:, None] * 6 + (torch.arange(6) + 1) % 6).reshape(-1)
    c = (((rows[:, None] + 1) % n) * 6 + torch.arange(6)).reshape(-1)
    e = (((rows[:, None] + 1) % n) * 6 + (torch.arange(6) + 1) % 6).reshape(-1)
    return v, torch.cat([torch.stack([a, b, c], 1), torch.stack([b, e, c], 1)])


def glasses(looks: Looks, front_y: float, temple_x: float, half: float) -> list:
    """(vertices, triangles) of rims, bridge and temples; ``half`` the interocular distance."""
    turn = torch.arange(28) * (2 * math.pi / 28)
    if looks.glasses == "round":
        wide, high, power = 0.0225, 0.0215, 1.0
    else:
        wide, high, power = 0.0255, 0.0185, 0.45
    cx = max(half, wide + 0.0065)
    sx = turn.cos().sign() * turn.cos().abs() ** power * wide
    sz = turn.sin().sign() * turn.sin().abs() ** power * high
    parts = []
    for sign in (-1.0, 1.0):
        x = sign * cx + sx
        y = front_y + 2.2 * (x.abs() - 0.02).clamp_min(0) ** 2 * 6
        rim = torch.stack([x, y, sz - 0.002], 1)
        parts.append(tube(rim, looks.frame_width, True))
        end = cx + wide
        yf = front_y + 13 * (end - 0.02) ** 2
        arm = torch.tensor(
            [
                [sign * end, yf, 0.004],
                [sign * (0.5 * end + 0.5 * temple_x + 0.001), yf + 0.012, 0.005],
                [sign * temple_x, yf + 0.035, 0.005],
                [sign * (temple_x + 0.002), 0.065, 0.002],
            ]
        )
        parts.append(tube(arm, looks.frame_width * 0.9, False))
    bridge = torch.linspace(-1, 1, 6)
    x = bridge * (cx - wide)
    z = 0.004 + 0.003 * (1 - bridge**2)
    y = front_y - 0.001 * (1 - bridge**2)
    parts.append(tube(torch.stack([x, y, z], 1), looks.frame_width, False))
    return parts


def hang(t: Tensor, d: Tensor, strands: Tensor, looks: Looks) -> Tensor:
    """How much of the curtain is hair: soft at its ends and at the sides, "n"."""
    side = step(t.abs() + 0.05 * strands, 1.0, 0.93)
    end = step(d + 0.09 * strands, 1.0, 0.90)
    top = step(d, 0.0, 0.10)
    thin = 1.0 + 0.25 * strands
    return (side * end * top * thin.clamp(0.9, 1)).clamp(0, 1)


def curtain_strands(t: Tensor, d: Tensor, seed: int) -> Tensor:
    """Noise drawn out along hair that hangs."""
    at = torch.stack([t * 75 + 1.5 * d, d * 2.2 + seed % 19, t * 0], 1)
    wide = torch.stack([t * 24 + 0.8 * d, d * 1.5, t * 0 + seed % 7], 1)
    return 0.9 * layered(at, 2) + 0.6 * layered(wide, 1, 1)


__all__ = [
    "along",
    "ball",
    "curtain",
    "curtain_strands",
    "glasses",
    "hang",
    "thickness",
    "tube",
]
