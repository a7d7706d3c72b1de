"""The mouth: one set of lip contours, used by drawing and by landmarks alike.

Contours are heights over q = x / half width in [-1, 1], in head units, y down. The upper lip hangs
on the head, the lower lip on the jaw; opening moves the lower lip about three times as far.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from avatar_v.world.geometry import MotionComponents, Surface
from avatar_v.world.person import Person
from avatar_v.world.shapes import between, bump, coverage, over, plane, ramp

UPPER_TRAVEL = 0.085
LOWER_TRAVEL = 0.235


@dataclass(frozen=True)
class Lips:
    """Contour heights at some q."""

    upper_outer: Tensor
    upper_inner: Tensor
    lower_inner: Tensor
    lower_outer: Tensor


def mouth_half_width(person: Person, motion: MotionComponents) -> Tensor:
    """Half width of the lips, corner to corner."""
    spread = 1.0 + 0.16 * motion.mouth_width + 0.05 * motion.corner_raise.clamp(min=0)
    return person.mouth_width * spread * (1.0 - 0.42 * motion.mouth_round)


def lip_contours(person: Person, motion: MotionComponents, q: Tensor) -> Lips:
    """The four lip contours at q in [-1, 1] (outside they meet at the corner's height)."""
    q2 = (q * q).clamp(max=1.0)
    arc = (1.0 - q2) ** 0.72
    corner = motion.corner_raise + motion.corner_asymmetry * 0.8 * torch.where(q < 0, 1.0, -1.0)
    base = person.mouth_y - (0.075 * corner + person.lip_curve) * q2
    base = base - 0.02 * motion.corner_raise.clamp(min=0) * q2
    upper_inner = base - UPPER_TRAVEL * motion.mouth_open * arc
    lower_inner = base + LOWER_TRAVEL * motion.mouth_open * arc
    full = 1.0 + 0.35 * motion.mouth_round - 0.15 * motion.corner_raise.clamp(min=0)
    thin = 1.0 - 0.25 * motion.mouth_open
    bow = 1.0 - person.cupid_bow * bump(q / 0.34) * (1.0 - 0.5 * motion.mouth_round)
    upper = person.upper_lip * full * thin * (1.0 - q2) ** 0.62 * bow
    lower = person.lower_lip * full * thin * (1.0 - q2) ** 0.75 * (1.0 + 0.15 * q2)
    return Lips(upper_inner - upper, upper_inner, lower_inner, lower_inner + lower)


def paint_mouth(
    canvas: Tensor,
    person: Person,
    motion: MotionComponents,
    surface: Surface,
    light: Tensor,
    px: float,
) -> None:
    """Lips, cavity, teeth and tongue over ``canvas`` "f 3 h w"; ``light`` multiplies colours."""
    half = mouth_half_width(person, motion)
    q = surface.u / half
    lips = lip_contours(person, motion, q)
    y = surface.v
    ends = coverage(half - surface.u.abs(), px)
    outer = between(coverage(y - lips.upper_outer, px), coverage(lips.lower_outer - y, px)) * ends
    color = lip_color(person, y, q, lips, motion)
    over(canvas, color * light, outer)
    seam = coverage(0.012 + 0.010 * (1 - q * q).clamp(min=0) - (y - lips.upper_inner).abs(), px)
    over(canvas, 0.42 * color * light, 0.85 * seam * ends)
    hole = between(coverage(y - lips.upper_inner, px), coverage(lips.lower_inner - y, px)) * ends
    over(canvas, paint_cavity(person, motion, q, half, y, lips, px) * (0.38 + 0.62 * light), hole)


def lip_color(person: Person, y: Tensor, q: Tensor, lips: Lips, motion: MotionComponents) -> Tensor:
    """Colour "f 3 h w": darker upper lip, brighter lower lip with a highlight."""
    base = lip_base(person)
    depth = (y - lips.upper_outer) / (lips.upper_inner - lips.upper_outer).clamp(min=1e-3)
    below = (y - lips.lower_inner) / (lips.lower_outer - lips.lower_inner).clamp(min=1e-3)
    upper_shade = 0.98 - 0.24 * depth.clamp(0, 1)
    roll = bump((below - 0.42) / 0.75)
    lower_shade = 0.80 + 0.30 * roll
    is_lower = y > 0.5 * (lips.upper_inner + lips.lower_inner)
    shade = torch.where(is_lower, lower_shade, upper_shade)
    gloss = bump((below - 0.40) / 0.34) * bump(q / 0.62) * is_lower
    return base * shade + (0.08 + 0.14 * person.shine) * gloss


def lip_base(person: Person) -> Tensor:
    """Lip colour "1 3 1 1": from the skin's tone towards red by ``lip_color``."""
    light = torch.tensor([0.80, 0.47, 0.45]) + person.lip_color * torch.tensor([0.0, -0.14, -0.10])
    dark = torch.tensor([0.42, 0.22, 0.21]) + person.lip_color * torch.tensor([0.10, -0.01, 0.0])
    mixed = light + (dark - light) * person.skin_tone
    return plane(mixed.tolist())


def paint_cavity(
    person: Person,
    motion: MotionComponents,
    q: Tensor,
    half: Tensor,
    y: Tensor,
    lips: Lips,
    px: float,
) -> Tensor:
    """The inside of the mouth "f 3 h w": dark, then tongue, then both rows of teeth."""
    x = q * half
    zero = torch.zeros_like(y)
    inside = plane([0.20, 0.055, 0.055]).expand(len(y), 3, *y.shape[2:]).clone()
    floor = person.mouth_y + LOWER_TRAVEL * motion.mouth_open
    top = floor - 0.035 - 0.13 * motion.tongue * (0.4 + 0.6 * motion.mouth_open)
    tongue = coverage(y - top - 0.45 * (x * x) / (0.3 * half + 1e-3), px)
    pink = plane([0.74, 0.34, 0.35]) * (0.62 + 0.38 * bump((y - top - 0.05) / 0.16))
    over(inside, pink, tongue * (0.55 + 0.45 * motion.tongue))
    shade = 0.98 - 0.15 * person.teeth_shade
    enamel = plane([shade, shade * 0.965, shade * (0.93 - 0.12 * person.teeth_shade)])
    edge = 1.0 - 0.5 * (q * q)
    gaps = tooth_gaps(person, x, px)
    upper_line = person.mouth_y - UPPER_TRAVEL * motion.mouth_open
    upper = coverage(upper_line + person.teeth_height * motion.teeth - y, px)
    upper = upper * coverage(0.30 - x.abs(), px)
    over(inside, enamel * edge * gaps, upper * (motion.teeth * 4).clamp(max=1.0))
    lower_line = floor - 0.62 * person.teeth_height * (motion.teeth - 0.25).clamp(min=0) / 0.75
    lower = coverage(y - lower_line - 0.25 * x * x, px) * ramp(motion.teeth, 0.25, 0.5)
    over(inside, 0.86 * enamel * edge * gaps, lower + zero)
    return inside


def tooth_gaps(person: Person, x: Tensor, px: float) -> Tensor:
    """Darkening "f 1 h w" between neighbouring teeth, deepest at a gap in the middle."""
    tooth = person.teeth_width
    offset = x / tooth - torch.round(x / tooth)
    lines = 1.0 - 0.22 * coverage(0.008 - offset.abs() * tooth, px)
    gap = person.teeth_gap * coverage(0.016 - x.abs(), px)
    return lines * (1.0 - 0.8 * gap)
