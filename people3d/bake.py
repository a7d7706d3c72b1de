"""A person's skin, brows, beard, scalp and clothes as maps over the body's UV, made once a clip.

Every texel knows its place on the body at rest, so that all masks are soft functions of places in
metres; which texel belongs to which triangle is the same for all persons.
"""

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.world.scene import COLORS, Scene
from people3d.body import LASH, SIDE, SKIN, Body, Frame, load_body
from people3d.noise import layered, noise, step
from people3d.person import Looks
from people3d.rasterise import Fragments, rasterise

_SPREAD = 2  # texels that are filled beyond each island's edge

ALBEDO, BUMP, GLOSS, SHADE, HAIR, STRAND, CLOTH, BEARD = (
    slice(0, 3),
    slice(3, 6),
    6,
    7,
    8,
    9,
    10,
    11,
)
CHANNELS = 12


@dataclass(frozen=True)
class Maps:
    """Texels "n c" in the order above, row by row of ``SIDE`` x ``SIDE``."""

    texels: Tensor


def to_head(points: Tensor, frame: Frame) -> Tensor:
    """Places at rest "n 3" from between the eyes, scaled so that heads are of one size."""
    q = points - frame.middle
    up = (frame.crown - float(frame.middle[2])) / 0.112
    down = (float(frame.middle[2]) - frame.chin) / 0.104
    q[:, 2] = torch.where(q[:, 2] > 0, q[:, 2] / up, q[:, 2] / down)
    q[:, 0] = q[:, 0] * (0.0610 / frame.interocular) ** 0.7
    return q


def along(x: Tensor, table: tuple[tuple[float, float], ...]) -> Tensor:
    """Straight lines between the (x, y) of a table."""
    out = torch.full_like(x, table[0][1])
    for (x0, y0), (x1, y1) in pairwise(table):
        out += (y1 - y0) * ((x - x0) / (x1 - x0)).clamp(0, 1)
    return out


def hairline(q: Tensor, looks: Looks) -> Tensor:
    """Metres above the line where scalp hair begins; ``q`` as `to_head` gives it."""
    x, y, z = q.unbind(1)
    line = along(
        y,
        (
            (-0.02, 0.073),
            (0.010, 0.066),
            (0.032, 0.040),
            (0.046, 0.004),
            (0.058, -0.016),
            (0.066, -0.016),
            (0.086, -0.004),
            (0.100, -0.030),
            (0.125, -0.082),
            (0.18, -0.088),
        ),
    )
    front = step(y, 0.045, 0.015)
    temples = front * step(x.abs(), 0.018, 0.05)
    line = line + front * looks.hairline + temples * max(0.0, looks.hairline) * 0.9
    if looks.hair_style.startswith("fringe"):
        line = line - front * 0.030 * step(x.abs(), 0.062, 0.045)
    if looks.hair_style == "crop":
        line = line - front * 0.008
    if looks.hair_style in ("side", "pixie"):
        sign = 1.0 if looks.part > 0 else -1.0
        low = 0.010 if looks.hair_style == "side" else 0.026
        line = line - low * front * step(x * sign, 0.025, -0.035)
    if looks.hair_style == "bald":
        line = line + along(y, ((0.05, 0.0), (0.09, 0.025), (0.18, 0.055)))
        return torch.minimum(z - line, 0.018 - z)
    return z - line


def beard_amount(q: Tensor, looks: Looks, lips: Tensor) -> Tensor:
    """How densely a beard grows, 0 … 1."""
    x, y, z = q.unbind(1)
    x = x.abs()
    upper = along(x, ((0.0, -0.049), (0.018, -0.052), (0.032, -0.064), (0.05, -0.052)))
    upper = torch.where(x > 0.05, upper + along(x, ((0.05, 0.0), (0.075, 0.052))), upper)
    grown = step(upper - z, -0.002, 0.010) * step(y, 0.075, 0.055)
    grown = grown * step(z, -0.136, -0.118) * step(y - z * 0.6, 0.155, 0.125)
    moustache = step(x, 0.031, 0.024) * step(z, -0.076, -0.066)
    goatee = step(x, 0.031, 0.013) * step(z, -0.062, -0.074)
    share = {
        "none": torch.zeros_like(x),
        "stubble": torch.ones_like(x),
        "full": torch.ones_like(x),
        "moustache": moustache,
        "goatee": torch.maximum(goatee, moustache * step(x, 0.034, 0.03)),
    }[looks.beard]
    bare = 0.35 + 0.65 * step(
        (x**2 + ((z + 0.094) / 0.7) ** 2).sqrt(), 0.006, 0.010
    )  # under the lower lip
    if looks.beard == "full":
        bare = torch.ones_like(x)
    return grown * share * bare * (1 - step(lips, 0.1, 0.5))


@cache
def _texel_fragments() -> tuple[Fragments, Tensor]:
    """What each texel shows, and its place in the plane, with islands' edges spread outwards."""
    body = load_body()
    chosen = ((body.material == SKIN) | (body.material == LASH)).nonzero().squeeze(1)
    flat = body.uv[chosen].reshape(-1, 2) * SIDE - 0.5
    points = torch.cat([flat, torch.ones(len(flat), 1)], 1)
    corners = torch.arange(len(flat)).view(-1, 3)
    f = rasterise(points, corners, SIDE, SIDE)
    owner = torch.full((1, 1, SIDE, SIDE), -1.0, dtype=torch.float64)
    owner.view(-1)[f.pixel] = torch.arange(len(f.pixel), dtype=torch.float64)
    for _ in range(_SPREAD):
        grown = F.max_pool2d(owner, 3, 1, 1)
        owner = torch.where(owner < 0, grown, owner)
    place = (owner.view(-1) >= 0).nonzero().squeeze(1)
    at = owner.view(-1)[place].long()
    fragments = Fragments(f.pixel[at], chosen[f.triangle[at]], f.weight[at], f.depth[at])
    return fragments, place


def texel_index(uv: Tensor) -> Tensor:
    """Of the texel nearest to "n 2"."""
    at = (uv * SIDE).long().clamp(0, SIDE - 1)
    return at[:, 1] * SIDE + at[:, 0]


def bake(body: Body, frame: Frame, looks: Looks, scene: Scene) -> Maps:
    """The maps of a person dressed for a scene."""
    fragments, place = _texel_fragments()
    rest = fragments.gather(body.neutral[looks.shape], body.triangles)
    q = to_head(rest, frame)
    lips, lids, inner, ears, _ = body.masks.flatten(1)[:, fragments.pixel]
    out = torch.zeros(len(place), CHANNELS)
    shift = torch.tensor([looks.seed % 31, looks.seed % 17, looks.seed % 23]).float()
    out[:, ALBEDO], out[:, GLOSS] = _skin(q, looks, lips, lids, inner, ears, shift)
    out[:, SHADE] = _occlusion(q, inner)
    fine = layered(q * 700 + shift, 2)
    out[:, BUMP] = _bumps(q, looks, shift, lips) * (1.0 if looks.male else 0.65)
    brow = _brows(q, looks, shift)
    dark = torch.tensor(looks.hair) * 0.65
    dark = torch.minimum(dark, 0.45 * torch.tensor(looks.skin))
    out[:, ALBEDO] += brow[:, None] * (dark - out[:, ALBEDO])
    beard = beard_amount(q, looks, lips)
    shadow = {"stubble": 0.55, "none": 0.16 * looks.male}.get(looks.beard, 0.8)
    grown = beard if looks.beard != "none" else _shaved(q, looks, lips)
    grown = grown * (0.75 + 0.5 * fine).clamp(0, 1)
    out[:, ALBEDO] += shadow * grown[:, None] * (torch.tensor(looks.hair) - out[:, ALBEDO])
    line = hairline(q, looks) + 0.004 * layered(q * 200 + shift, 2)
    scalp = step(line, -0.008, 0.012) * (1 - step(ears, 0.2, 0.6))
    if looks.hair_style in ("bald", "buzz"):
        scalp = scalp * 0.8
    out[:, ALBEDO] += scalp[:, None] * (torch.tensor(looks.hair) * 0.7 - out[:, ALBEDO])
    out[:, GLOSS] *= 1 - scalp
    out[:, HAIR] = scalp
    out[:, BEARD] = beard
    bristles = layered(q * torch.tensor([420.0, 420.0, 160.0]) + shift, 2)
    out[:, STRAND] = torch.where(beard > 0.05, bristles, _strands(q, looks, shift))
    cloth, color, bumps = _clothes(q, scene, shift)
    out[:, ALBEDO] += cloth[:, None] * (color - out[:, ALBEDO])
    out[:, BUMP] += cloth[:, None] * (bumps - out[:, BUMP])
    out[:, GLOSS] *= 1 - cloth
    out[:, CLOTH] = cloth
    texels = torch.zeros(SIDE * SIDE, CHANNELS)
    texels[place] = out
    return Maps(texels)


def _skin(
    q: Tensor, looks: Looks, lips: Tensor, lids: Tensor, inner: Tensor, ears: Tensor, shift: Tensor
) -> tuple[Tensor, Tensor]:
    x, y, z = q.unbind(1)
    skin = torch.tensor(looks.skin)
    blotch = layered(q * 55 + shift, 3)
    redness = layered(q * 28 + shift + 9, 2, 1)
    pores = noise(q * 1100 + shift) * 0.5 + noise(q * 520 + shift, 1) * 0.5
    a = skin * (1 + looks.blotches * (0.10 * blotch + 0.10 * pores))[:, None]
    blood = torch.tensor([0.10, -0.16, -0.10])
    cheek = torch.exp(-(((x.abs() - 0.043) / 0.020) ** 2) - ((z + 0.042) / 0.018) ** 2)
    nose = torch.exp(-((x / 0.014) ** 2) - ((z + 0.040) / 0.014) ** 2) * step(y, -0.02, -0.035)
    pale = 1 - 0.75 * looks.tone
    flush = (0.55 * cheek + 0.5 * nose + 0.5 * ears + 0.30 * redness * looks.blotches) * pale
    a = a * (1 + blood * flush[:, None])
    socket = torch.exp(-(((x.abs() - 0.030) / 0.020) ** 2) - ((z + 0.012) / 0.009) ** 2)
    a = a * (1 - socket[:, None] * (0.06 + 0.16 * looks.age) * torch.tensor([0.8, 1.0, 0.75]))
    if looks.freckles > 0.05:
        spots = step(noise(q * 330 + shift, 1), 0.38, 0.62) * step(z.abs(), 0.07, 0.03)
        a = a * (1 - looks.freckles * spots[:, None] * torch.tensor([0.25, 0.42, 0.5]))
    if looks.age > 0.5:
        spots = step(noise(q * 120 + shift, 1), 0.55, 0.75)
        a = a * (1 - 0.25 * (looks.age - 0.5) * spots[:, None])
    lid = step(lids, 0.2, 0.7) * (0.12 + 0.45 * max(0.0, looks.make_up - 0.5))
    a = a * (1 - lid[:, None] * torch.tensor([0.55, 0.75, 0.7]))
    border = step(lips, 0.03, 0.22) * step(lips, 0.60, 0.35)
    a = a * (1 - border[:, None] * torch.tensor([0.30, 0.42, 0.38]))
    red = step(lips, 0.28, 0.6)[:, None]
    creases = 0.85 + 0.22 * noise(q * torch.tensor([900.0, 300.0, 160.0]) + shift)
    a = a + red * (torch.tensor(looks.lips) * creases[:, None] - a)
    deep = step(inner, 0.3, 0.7)[:, None]
    a = a + deep * (torch.tensor([0.10, 0.018, 0.018]) - a)
    zone = torch.exp(-((x / 0.03) ** 2)) * step(z, -0.06, -0.04) + 0.5 * cheek
    gloss = looks.shine * (0.45 + 0.55 * zone) * (1 + 0.5 * pores)
    gloss = gloss + red[:, 0] * (0.5 + looks.make_up - gloss) + deep[:, 0] * 0.6
    return a.clamp(0.002, 0.95), gloss.clamp_min(0)


def _occlusion(q: Tensor, inner: Tensor) -> Tensor:
    """Light that reaches a place from all around: less in sockets, nostrils, under the chin."""
    x, y, z = q.unbind(1)
    near = x.abs()
    socket = torch.exp(-(((near - 0.026) / 0.017) ** 2) - ((z - 0.006) / 0.010) ** 2)
    inner_corner = torch.exp(-(((near - 0.014) / 0.006) ** 2) - ((z + 0.001) / 0.010) ** 2)
    wings = torch.exp(-(((near - 0.019) / 0.004) ** 2) - ((z + 0.047) / 0.007) ** 2)
    under = torch.exp(-((near / 0.017) ** 2) - ((z + 0.094) / 0.004) ** 2)
    throat = step(z, -0.100, -0.125) * step(y - 0.0, -0.03, 0.02)
    dark = 0.20 * socket + 0.20 * inner_corner + 0.25 * wings + 0.18 * under + 0.45 * throat
    deep = step(inner, 0.3, 0.7)
    depth = step(y, -0.030, 0.010)
    return (1 - dark).clamp(0.3, 1) * (1 - deep * (0.60 + 0.38 * depth))


def _bumps(q: Tensor, looks: Looks, shift: Tensor, lips: Tensor) -> Tensor:
    """Tilts of the normal: slopes of pores and of wrinkles."""
    pores = torch.stack([noise(q * 640 + shift + 11 * k, k % 2) for k in range(3)], 1) * 0.07
    lumps = torch.stack([layered(q * 95 + shift + 5 * k, 2, k % 2) for k in range(3)], 1)
    out = pores + 0.05 * looks.blotches * lumps
    x, _, z = q.unbind(1)
    lines = step(z, 0.034, 0.045) * step(z, 0.074, 0.06)
    wave = torch.sin(z * 1050 + 3 * noise(q * 30 + shift)) * lines
    crow = torch.sin((z + 0.4 * (x.abs() - 0.05)) * 1700) * torch.exp(
        -(((x.abs() - 0.056) / 0.007) ** 2) - ((z + 0.002) / 0.012) ** 2
    )
    fold = x.abs() - along(z, ((-0.085, 0.034), (-0.050, 0.024), (-0.035, 0.019)))
    crease = -fold / 0.004 * torch.exp(-((fold / 0.0045) ** 2))
    crease = crease * step(z, -0.08, -0.068) * step(z, -0.036, -0.048)
    deep = 0.15 + 0.85 * looks.age
    out[:, 2] += deep * looks.age * 0.30 * (wave + crow)
    out[:, 0] += -deep * 0.32 * crease * torch.sign(x)
    ridges = noise(q * torch.tensor([1500.0, 300.0, 150.0]) + shift)
    out[:, 0] += 0.3 * ridges * step(lips, 0.3, 0.6)
    return out


def _brows(q: Tensor, looks: Looks, shift: Tensor) -> Tensor:
    x, y, z = q.unbind(1)
    along_x = ((x.abs() - 0.012) / 0.040).clamp(-0.3, 1.3)
    middle = (
        0.0185
        + looks.brow_height
        + looks.brow_arch * torch.sin((along_x * 1.15).clamp(0, 1.2) * 2.6)
        - 0.004 * along_x.clamp_min(0) ** 2
    )
    thick = looks.brow_thickness * along(along_x, ((-0.1, 0.6), (0.2, 1.0), (0.6, 0.9), (1.1, 0.2)))
    hairs = noise(torch.stack([x.abs() * 500 - z * 900, z * 260, x.sign() * 4], 1) + shift)
    inside = step((z - middle).abs() / thick, 1.25, 0.45)
    ends = step(along_x, -0.10, 0.10) * step(along_x, 1.08, 0.85) * step(y, 0.03, 0.0)
    return (inside * ends * (0.72 + 0.55 * hairs)).clamp(0, 0.92)


def _shaved(q: Tensor, looks: Looks, lips: Tensor) -> Tensor:
    if not looks.male:
        return torch.zeros(len(q))
    full = Looks(**{**vars(looks), "beard": "stubble"})
    return beard_amount(q, full, lips)


def _strands(q: Tensor, looks: Looks, shift: Tensor) -> Tensor:
    """Noise drawn out along the hair, in [-1, 1]."""
    x, y, z = q.unbind(1)
    if looks.hair_style in ("curly", "afro"):
        return 1.3 * layered(q * 150 + shift, 3)
    if looks.hair_style in ("side", "pixie"):
        across, length = z * 0.6 + 0.8 * y, x
    elif looks.hair_style.startswith("fringe") or looks.hair_style == "crop":
        across, length = torch.where(z > 0.09, y + x, x * 1.0), z - y
    elif looks.hair_style in ("swept", "bun"):
        across, length = x + 0.15 * y, y - z
    else:
        turn = torch.atan2(x - looks.part * 0.4, 0.07 - y)
        across, length = turn * 0.06, z
    at = torch.stack([across * 380, length * 22, across * 0], 1) + shift
    wide = torch.stack([across * 150, length * 11, across * 0 + 5], 1) + shift
    return 0.9 * noise(at) + 0.7 * noise(wide, 1)


def _clothes(q: Tensor, scene: Scene, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    x, y, z = q.unbind(1)
    base = torch.tensor(COLORS[scene.clothing_color]) ** 2.2
    if scene.clothing == "suit":
        base = base * 0.25
    deep = {"t-shirt": 0.0, "shirt": 0.03, "sweater": -0.006, "hoodie": -0.012, "suit": 0.07}
    neck = along(y, ((0.0, -0.176), (0.05, -0.160), (0.13, -0.112), (0.18, -0.098)))
    drop = deep[scene.clothing]
    v = max(drop, 0.0) * step(x.abs(), 0.045, 0.0) * step(y, 0.10, 0.05)
    edge = neck - v - 0.15 * min(drop, 0.0) - z
    cloth = step(edge, -0.0012, 0.0012)
    weave = noise(q * 900 + shift) * 0.5 + noise(q * 300 + shift, 1) * 0.5
    folds = layered(q * torch.tensor([26.0, 26.0, 14.0]) + shift, 2)
    color = base * (1 + 0.12 * weave + 0.22 * folds)[:, None]
    band = step((edge - 0.006).abs(), 0.0075, 0.005)
    if scene.clothing in ("sweater", "t-shirt", "hoodie"):
        color = color * (1 - 0.25 * band)[:, None]
    if scene.clothing == "shirt":
        color = color * (1 + 0.5 * band)[:, None]
    if scene.clothing == "suit":
        white = torch.tensor([0.62, 0.62, 0.64])
        shirt = step(neck - z, -0.0012, 0.0012) * (1 - cloth)
        color = color + (shirt * (1 - cloth))[:, None] * (white - color)
        tie = shirt * step(x.abs(), 0.016, 0.012)
        stripe = torch.tensor(COLORS[scene.background_color]) ** 2.2 * 0.4
        color = color + tie[:, None] * (stripe - color)
        cloth = torch.maximum(cloth, shirt)
    bumps = (
        torch.stack([layered(q * 22 + shift + 5 * k, 2, k % 2) for k in range(3)], 1) * 0.5
        + 0.15 * weave[:, None]
    )
    return cloth, color.clamp(0.004, 0.9), bumps
