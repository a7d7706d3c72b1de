"""Persons of the world: what one looks like, and nothing of how one speaks or is dressed.

Continuous looks come from a few shared hidden factors plus private noise, so that looks are
correlated and neighbours in look are hard to tell apart. Style of motion is in style.py; light,
clothing and framing belong to the scene.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from avatar_v.world.shapes import seeded

HairStyle = Literal["bald", "buzz", "short", "parted", "fringe", "curly", "bob", "long", "bun"]
Glasses = Literal["none", "round", "square", "half"]
Beard = Literal["none", "stubble", "moustache", "goatee", "full"]

# name: (mean, standard deviation, low, high), in head units (half a head height) unless a share
_LOOKS = {
    "head_width": (0.700, 0.030, 0.625, 0.78),
    "cheek_width": (0.0, 0.03, -0.07, 0.08),
    "jaw_width": (0.0, 0.06, -0.13, 0.13),
    "chin_width": (0.0, 0.07, -0.15, 0.15),
    "skin_tone": (0.36, 0.27, 0.0, 1.0),
    "skin_warmth": (0.0, 0.5, -1.0, 1.0),
    "blush": (0.5, 0.25, 0.0, 1.0),
    "freckles": (0.0, 0.35, 0.0, 1.0),
    "age": (0.35, 0.25, 0.0, 1.0),
    "shine": (0.5, 0.2, 0.0, 1.0),
    "eye_y": (0.0, 0.025, -0.05, 0.05),
    "eye_distance": (0.288, 0.016, 0.25, 0.33),
    "eye_width": (0.146, 0.010, 0.122, 0.17),
    "eye_height": (0.074, 0.011, 0.05, 0.1),
    "eye_tilt": (0.08, 0.08, -0.12, 0.28),
    "iris_size": (0.068, 0.004, 0.058, 0.078),
    "iris_shade": (0.45, 0.3, 0.0, 1.0),
    "iris_hue": (0.5, 0.3, 0.0, 1.0),
    "lid_crease": (0.5, 0.25, 0.0, 1.0),
    "lash": (0.55, 0.25, 0.1, 1.0),
    "eye_bag": (0.35, 0.22, 0.0, 1.0),
    "brow_y": (-0.205, 0.022, -0.26, -0.155),
    "brow_thickness": (0.038, 0.009, 0.018, 0.060),
    "brow_length": (0.185, 0.015, 0.15, 0.22),
    "brow_arch": (0.035, 0.018, 0.0, 0.08),
    "brow_tilt": (0.0, 0.09, -0.2, 0.2),
    "nose_y": (0.29, 0.025, 0.23, 0.35),
    "nose_width": (0.138, 0.018, 0.092, 0.18),
    "nose_bridge": (0.5, 0.2, 0.05, 1.0),
    "nose_tip": (0.5, 0.22, 0.0, 1.0),
    "mouth_y": (0.53, 0.018, 0.485, 0.575),
    "mouth_width": (0.325, 0.017, 0.285, 0.365),
    "upper_lip": (0.068, 0.013, 0.04, 0.105),
    "lower_lip": (0.094, 0.014, 0.062, 0.135),
    "cupid_bow": (0.32, 0.15, 0.0, 0.65),
    "lip_color": (0.5, 0.22, 0.0, 1.0),
    "lip_curve": (0.022, 0.012, -0.006, 0.05),
    "teeth_width": (0.092, 0.008, 0.07, 0.115),
    "teeth_height": (0.105, 0.012, 0.075, 0.135),
    "teeth_shade": (0.3, 0.2, 0.0, 1.0),
    "teeth_gap": (-0.25, 0.4, 0.0, 1.0),
    "ear_size": (0.17, 0.018, 0.13, 0.21),
    "neck_width": (0.47, 0.04, 0.38, 0.57),
    "hair_shade": (0.38, 0.28, 0.0, 1.0),
    "hair_red": (0.35, 0.25, 0.0, 1.0),
    "hairline": (-0.60, 0.06, -0.74, -0.46),
    "hair_volume": (0.5, 0.22, 0.05, 1.0),
    "hair_length": (0.5, 0.25, 0.0, 1.0),
    "hair_part": (0.0, 0.6, -1.0, 1.0),
    "beard_length": (0.5, 0.25, 0.0, 1.0),
}
_NUM_FACTORS = 9
_SHARED = 0.72  # part of a look's standard deviation that comes from the shared factors


@dataclass(frozen=True)
class Person:
    """Looks of one person. Lengths are in head units: half the height from crown to chin."""

    id: int
    hair_style: HairStyle
    glasses: Glasses
    beard: Beard
    glasses_shade: float  # 0 dark … 1 light frame
    hair_grey: float  # 0 … 1
    head_width: float
    cheek_width: float
    jaw_width: float
    chin_width: float
    skin_tone: float  # 0 palest … 1 darkest
    skin_warmth: float
    blush: float
    freckles: float
    age: float  # 0 … 1: depth of wrinkles
    shine: float
    eye_y: float
    eye_distance: float  # from the middle line to an eye's centre
    eye_width: float  # half
    eye_height: float  # half, wide open
    eye_tilt: float
    iris_size: float
    iris_shade: float  # 0 dark brown … 1 light
    iris_hue: float  # 0 blue … 1 green
    lid_crease: float
    lash: float
    eye_bag: float
    brow_y: float
    brow_thickness: float
    brow_length: float
    brow_arch: float
    brow_tilt: float
    nose_y: float  # of the tip
    nose_width: float  # half
    nose_bridge: float
    nose_tip: float
    mouth_y: float
    mouth_width: float  # half, at rest
    upper_lip: float
    lower_lip: float
    cupid_bow: float
    lip_color: float
    lip_curve: float
    teeth_width: float
    teeth_height: float
    teeth_shade: float
    teeth_gap: float
    ear_size: float
    neck_width: float  # half
    hair_shade: float  # 0 black … 1 blond
    hair_red: float
    hairline: float
    hair_volume: float
    hair_length: float
    hair_part: float
    beard_length: float


def sample_person(person_id: int) -> Person:
    """The person of this id, the same in every process; ValueError for a negative id."""
    if person_id < 0:
        raise ValueError(f"a person id is >= 0, got {person_id}")
    generator = seeded(0x9E75, person_id)
    looks = _sample_looks(generator)
    looks["hair_shade"] *= 1.0 - 0.85 * min(1.0, max(0.0, (looks["skin_tone"] - 0.25) / 0.45))
    looks["iris_shade"] *= 1.0 - 0.85 * min(1.0, max(0.0, (looks["skin_tone"] - 0.3) / 0.4))
    looks["freckles"] *= max(0.0, 1.0 - 1.8 * looks["skin_tone"])
    masculine = looks["jaw_width"] / 0.06 + 2.0 * (looks["brow_thickness"] - 0.038) / 0.009
    chances = torch.rand(5, generator=generator).tolist()
    male = chances[0] < 1.0 / (1.0 + 2.718281828 ** (-0.9 * masculine))
    return Person(
        id=person_id,
        hair_style=_pick_hair(chances[1], male, looks["age"]),
        glasses=_pick_glasses(chances[2], looks["age"]),
        beard=_pick_beard(chances[3]) if male else "none",
        glasses_shade=chances[4],
        hair_grey=min(1.0, max(0.0, 2.6 * looks["age"] - 1.3)),
        **looks,
    )


def _sample_looks(generator: torch.Generator) -> dict[str, float]:
    mixing = torch.randn(len(_LOOKS), _NUM_FACTORS, generator=seeded(0x10AD))
    mixing = mixing / mixing.norm(dim=1, keepdim=True)
    factors = torch.randn(_NUM_FACTORS, generator=generator)
    private = torch.randn(len(_LOOKS), generator=generator)
    z = _SHARED * (mixing @ factors) + (1.0 - _SHARED**2) ** 0.5 * private
    return {
        name: min(high, max(low, mean + std * value))
        for (name, (mean, std, low, high)), value in zip(_LOOKS.items(), z.tolist(), strict=True)
    }


def _pick_hair(chance: float, male: bool, age: float) -> HairStyle:
    if male:
        styles: list[tuple[float, HairStyle]] = [
            (0.06 + 0.16 * age, "bald"),
            (0.16, "buzz"),
            (0.34, "short"),
            (0.18, "parted"),
            (0.06, "fringe"),
            (0.14, "curly"),
            (0.06, "long"),
        ]
    else:
        styles = [
            (0.12, "short"),
            (0.10, "parted"),
            (0.14, "curly"),
            (0.22, "bob"),
            (0.30, "long"),
            (0.12, "bun"),
        ]
    position = chance * sum(weight for weight, _ in styles)
    for weight, style in styles:
        position -= weight
        if position < 0:
            return style
    return styles[-1][1]


def _pick_glasses(chance: float, age: float) -> Glasses:
    share = 0.18 + 0.2 * age
    if chance >= share:
        return "none"
    kinds: tuple[Glasses, ...] = ("round", "square", "half")
    return kinds[int(3 * chance / share)]


def _pick_beard(chance: float) -> Beard:
    kinds: tuple[tuple[float, Beard], ...] = (
        (0.5, "none"),
        (0.68, "stubble"),
        (0.76, "moustache"),
        (0.84, "goatee"),
    )
    for limit, kind in kinds:
        if chance < limit:
            return kind
    return "full"
