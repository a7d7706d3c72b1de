"""What a three-dimensional person looks like: skin, hair, eyes, glasses. Shape is the asset's."""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from avatar_v.world.shapes import seeded

HairStyle = Literal[
    "bald",
    "buzz",
    "short",
    "swept",
    "curly",
    "bob",
    "long",
    "bun",
    "crop",
    "side",
    "afro",
    "pixie",
    "wavy",
    "fringe bob",
    "fringe long",
]
HANGING_STYLES = ("bob", "long", "wavy", "fringe bob", "fringe long")
Beard = Literal["none", "stubble", "moustache", "goatee", "full"]
Color = tuple[float, float, float]

# linear light, from pale to dark
_SKINS: tuple[Color, ...] = (
    (0.68, 0.395, 0.29),
    (0.61, 0.325, 0.215),
    (0.49, 0.245, 0.15),
    (0.35, 0.165, 0.092),
    (0.21, 0.095, 0.053),
    (0.105, 0.047, 0.028),
)
_HAIRS: tuple[Color, ...] = (
    (0.012, 0.010, 0.009),
    (0.026, 0.015, 0.010),
    (0.065, 0.034, 0.018),
    (0.14, 0.078, 0.036),
    (0.32, 0.21, 0.10),
    (0.20, 0.070, 0.025),
)
_IRISES: tuple[Color, ...] = (
    (0.045, 0.020, 0.010),
    (0.10, 0.050, 0.022),
    (0.10, 0.20, 0.30),
    (0.10, 0.17, 0.09),
    (0.20, 0.24, 0.26),
)


@dataclass(frozen=True)
class Looks:
    """Lengths in metres, colours in linear light."""

    id: int
    shape: int  # row of the asset
    male: bool
    skin: Color
    tone: float  # 0 palest … 1 darkest
    age: float  # 0 … 1
    blotches: float
    freckles: float
    shine: float
    lips: Color
    make_up: float  # 0 … 1: of lips and lids
    iris: Color
    iris_radius: float  # of the eyeball's radius
    hair: Color
    hair_style: HairStyle
    hair_length: float  # thickness of the short hair
    hairline: float  # how far it is receded
    part: float  # side of the parting
    fall: float  # how far long hair comes down, from the eyes
    brow_thickness: float
    brow_height: float
    brow_arch: float
    beard: Beard
    glasses: Literal["none", "round", "square"]
    frame: Color
    frame_width: float
    seed: int


def sample_looks(person_id: int, num_shapes: int) -> Looks:
    """The looks of this id, the same in every process."""
    g = seeded(0x3D9E, person_id)
    u = torch.rand(40, generator=g).tolist()
    n = torch.randn(8, generator=g).tolist()
    shape = int(num_shapes * u[0])
    male = shape % 2 == 0  # the asset's gender 0 is male
    tone = min(1.0, u[1] ** 1.35)
    skin = _between(_SKINS, tone * (len(_SKINS) - 1))
    skin = tuple(c * (1 + 0.05 * n[k]) for k, c in enumerate(skin))
    age = u[2]
    hair = _hair(u[3], u[4], tone, age)
    dark = tone > 0.55
    iris = _IRISES[int(2 * u[5])] if dark or u[6] < 0.45 else _IRISES[int(5 * u[5])]
    make_up = 0.0 if male or u[7] < 0.4 else u[7]
    lips = _lips(skin, tone, make_up, u[8])
    if male:
        lips = tuple(0.8 * a + 0.2 * b for a, b in zip(lips, skin, strict=True))
    style = _style(male, u[9], age)
    glasses = "none"
    if u[10] < 0.2 + 0.15 * age:
        glasses = "round" if u[11] < 0.5 else "square"
    return Looks(
        id=person_id,
        shape=shape,
        male=male,
        skin=skin,
        tone=tone,
        age=age,
        blotches=0.4 + 0.9 * u[12],
        freckles=max(0.0, u[13] * 2 - 1) * (1 - tone),
        shine=0.5 + 0.8 * u[14],
        lips=lips,
        make_up=make_up,
        iris=tuple(c * (0.8 + 0.5 * u[15]) for c in iris),
        iris_radius=0.46 + 0.04 * u[16],
        hair=hair,
        hair_style=style,
        hair_length=0.010 + 0.016 * u[17],
        hairline=(u[18] - 0.75) * 0.020 + (0.016 * age * u[19] if male else 0.0),
        part=(2 * u[20] - 1) * 0.035,
        fall=0.13 + 0.12 * u[21]
        if style in ("long", "wavy", "fringe long")
        else 0.06 + 0.06 * u[21],
        brow_thickness=(0.0046 if male else 0.0034) * (0.75 + 0.55 * u[22]),
        brow_height=0.0015 * n[3],
        brow_arch=(0.002 if male else 0.0038) * (0.5 + u[23]),
        beard=_beard(u[24]) if male else "none",
        glasses=glasses,
        frame=(0.02, 0.02, 0.022) if u[25] < 0.55 else (0.12 * u[26], 0.07 * u[27], 0.05),
        frame_width=0.0011 + 0.0016 * u[28],
        seed=int(1e6 * u[29]),
    )


def _between(table: tuple[Color, ...], at: float) -> Color:
    low = min(math.floor(at), len(table) - 2)
    part = at - low
    a, b = table[low], table[low + 1]
    return (
        a[0] + part * (b[0] - a[0]),
        a[1] + part * (b[1] - a[1]),
        a[2] + part * (b[2] - a[2]),
    )


def _hair(u: float, v: float, tone: float, age: float) -> Color:
    fair = u * max(0.15, 1.05 - 1.5 * tone)
    color = _between(_HAIRS[:5], fair * 4)
    if tone < 0.3 and v < 0.08:
        color = _HAIRS[5]
    grey = min(1.0, max(0.0, 3.2 * age - 2.85 + 0.5 * v))
    white = (0.30, 0.29, 0.28)
    return tuple(c + grey * (w - c) for c, w in zip(color, white, strict=True))


def _lips(skin: Color, tone: float, make_up: float, u: float) -> Color:
    plain = (skin[0] * 0.78 + 0.03, skin[1] * 0.42 + 0.008, skin[2] * 0.52 + 0.012)
    painted = (0.45 - 0.2 * u, 0.07 + 0.06 * u, 0.09 + 0.06 * u)
    k = 0.75 * max(0.0, make_up - 0.25)
    return tuple(p + k * (q - p) for p, q in zip(plain, painted, strict=True))


def _style(male: bool, u: float, age: float) -> HairStyle:
    table: tuple[tuple[float, HairStyle], ...] = (
        (
            (0.05 + 0.13 * age, "bald"),
            (0.13, "buzz"),
            (0.17, "short"),
            (0.17, "swept"),
            (0.20, "side"),
            (0.12, "crop"),
            (0.10, "curly"),
            (0.03, "afro"),
            (0.03, "long"),
        )
        if male
        else (
            (0.03, "swept"),
            (0.08, "pixie"),
            (0.07, "curly"),
            (0.04, "afro"),
            (0.16, "bob"),
            (0.22, "long"),
            (0.15, "wavy"),
            (0.08, "fringe bob"),
            (0.09, "fringe long"),
            (0.10, "bun"),
        )
    )
    at = u * sum(weight for weight, _ in table)
    for weight, style in table:
        at -= weight
        if at < 0:
            return style
    return table[-1][1]


def _beard(u: float) -> Beard:
    kinds: tuple[tuple[float, Beard], ...] = (
        (0.42, "none"),
        (0.68, "stubble"),
        (0.76, "moustache"),
        (0.84, "goatee"),
        (1.01, "full"),
    )
    return next(kind for limit, kind in kinds if u < limit)
