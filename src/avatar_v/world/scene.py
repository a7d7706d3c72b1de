"""Scenes of the world: background, light, clothing, framing, camera, what may cover the face.

A scene knows nothing of the person in it. Its categorical parts are words, from which prompts are
made. When a face is covered or turned away is told by the motion track, not by the scene.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch

from avatar_v.world.shapes import seeded

Background = Literal["wall", "office", "window", "lights", "shelf", "garden", "curtain"]
Clothing = Literal["t-shirt", "shirt", "sweater", "hoodie", "suit"]
Cover = Literal["hand", "cup", "sheet"]
Light = Literal["left", "right", "front"]

BACKGROUNDS: tuple[Background, ...] = (
    "wall",
    "office",
    "window",
    "lights",
    "shelf",
    "garden",
    "curtain",
)
CLOTHINGS: tuple[Clothing, ...] = ("t-shirt", "shirt", "sweater", "hoodie", "suit")
COVERS: tuple[Cover, ...] = ("hand", "cup", "sheet")
COLORS: dict[str, tuple[float, float, float]] = {
    "red": (0.66, 0.18, 0.17),
    "orange": (0.83, 0.48, 0.20),
    "yellow": (0.86, 0.74, 0.34),
    "green": (0.25, 0.47, 0.30),
    "teal": (0.20, 0.50, 0.52),
    "blue": (0.22, 0.36, 0.66),
    "purple": (0.44, 0.28, 0.55),
    "pink": (0.83, 0.55, 0.62),
    "white": (0.90, 0.89, 0.87),
    "grey": (0.52, 0.53, 0.55),
    "black": (0.13, 0.13, 0.15),
    "brown": (0.45, 0.32, 0.23),
}
"""Colour words of prompts and their sRGB values."""


@dataclass(frozen=True)
class Scene:
    """One place, one set of clothes, one light, one camera. Lengths are shares of the picture."""

    id: int
    background: Background
    background_color: str
    clothing: Clothing
    clothing_color: str
    light: Light
    light_x: float  # direction towards the key light, picture axes (right, down, to the camera)
    light_y: float
    light_z: float
    key: float
    ambient: float
    warmth: float  # -1 cold … 1 warm key light
    head_height: float  # crown to chin
    center_x: float
    center_y: float
    sway: float  # amplitude of the camera's drift
    sway_hz: float
    sway_phase: float
    grain: float  # standard deviation in levels of 255
    cover: Cover
    cover_color: str
    cover_side: int  # from where it comes: -1 the picture's left, 1 right


def sample_scene(scene_id: int) -> Scene:
    """The scene of this id, the same in every process; ValueError for a negative id."""
    if scene_id < 0:
        raise ValueError(f"a scene id is >= 0, got {scene_id}")
    generator = seeded(0x5CE2E, scene_id)
    u = torch.rand(24, generator=generator).tolist()
    lights: tuple[Light, ...] = ("left", "right", "front")
    light = lights[int(3 * u[4])]
    azimuth = {"left": -0.75, "right": 0.75, "front": 0.0}[light] + 0.4 * (u[5] - 0.5)
    elevation = 0.35 + 0.35 * u[6]
    key = 0.55 + 0.20 * u[7]
    return Scene(
        id=scene_id,
        background=BACKGROUNDS[int(len(BACKGROUNDS) * u[0])],
        background_color=list(COLORS)[int(len(COLORS) * u[1])],
        clothing=CLOTHINGS[int(len(CLOTHINGS) * u[2])],
        clothing_color=list(COLORS)[int(len(COLORS) * u[3])],
        light=light,
        light_x=math.sin(azimuth) * math.cos(elevation),
        light_y=-math.sin(elevation),
        light_z=math.cos(azimuth) * math.cos(elevation),
        key=key,
        ambient=1.17 - key + 0.1 * (u[8] - 0.5),
        warmth=2 * u[9] - 1,
        head_height=0.72 + 0.06 * u[10],
        center_x=0.5 + 0.05 * (u[11] - 0.5),
        center_y=0.485 + 0.03 * (u[12] - 0.5),
        sway=0.006 * u[13] ** 2,
        sway_hz=0.08 + 0.2 * u[14],
        sway_phase=2 * math.pi * u[15],
        grain=0.3 + 0.7 * u[16],
        cover=COVERS[int(len(COVERS) * u[17])],
        cover_color=list(COLORS)[int(len(COLORS) * u[18])],
        cover_side=_sample_cover_side(generator),
    )


def _sample_cover_side(generator: torch.Generator) -> int:
    """Mostly the right; one scene in ten has what covers the face come from the left."""
    u = torch.rand(8, generator=generator).tolist()
    for happens, toss in ((u[0] < 0.12, u[3]), (u[4] < 0.08, u[7])):
        if happens:
            return 1 if toss < 0.5 else -1
    return 1
