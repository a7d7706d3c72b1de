"""Eyes, brows and glasses, drawn per frame on the turned head; both sides in one pass.

The plane is folded at the middle line: ``a`` grows outwards from it, ``side`` tells left from
right.
"""

import torch
from torch import Tensor

from avatar_v.world.geometry import MotionComponents, Pose, Surface, lift
from avatar_v.world.person import Person
from avatar_v.world.shapes import between, bump, coverage, over, plane
from avatar_v.world.skin import hair_color, skin_color

LENS_LIFT = 0.10


def lid_heights(person: Person, motion: MotionComponents, q: Tensor) -> tuple[Tensor, Tensor]:
    """Heights (upper lid, lower lid) over q = offset from the eye's centre / half width."""
    arc = (1.0 - (q * q).clamp(max=1.0)) ** 0.75
    skew = 1.0 - 0.18 * q
    tilt = -person.eye_tilt * 0.45 * person.eye_width * q
    raised = 1.0 + 0.10 * motion.brow.clamp(min=0)
    upper_open = -1.10 * person.eye_height * raised * arc * skew
    lower = 0.62 * person.eye_height * arc * (1 + 0.15 * q)
    lower = lower - 0.012 * motion.corner_raise.clamp(min=0) * arc
    shut = 0.48 * person.eye_height * arc
    upper = shut + (upper_open - shut) * motion.eye_open
    lower = torch.maximum(lower, upper)
    return person.eye_y + tilt + upper, person.eye_y + tilt + lower


def brow_height(person: Person, motion: MotionComponents, r: Tensor) -> Tensor:
    """Height of the brow's middle over r = (a - inner end) / length in [0, 1]."""
    arch = person.brow_arch * (1.0 - (1.6 * r - 1.1).square())
    frown = motion.brow.clamp(max=0)
    inner = (1.0 - r).clamp(0, 1)
    lifted = 0.085 * motion.brow.clamp(min=0) * (0.7 + 0.3 * bump(r - 0.5)) - 0.055 * frown * inner
    return person.brow_y - arch + person.brow_tilt * 0.16 * (0.5 - r) - lifted + 0.01 * -frown


def brow_inner(person: Person) -> float:
    """Distance of a brow's inner end from the middle line."""
    return person.eye_distance - 0.88 * person.brow_length


def paint_eyes(
    canvas: Tensor,
    person: Person,
    motion: MotionComponents,
    surface: Surface,
    light: Tensor,
    px: float,
) -> None:
    """Lids, eyeballs and lashes over ``canvas`` "f 3 h w"."""
    side = torch.where(surface.u < 0, -1.0, 1.0)
    offset = surface.u.abs() - person.eye_distance
    q, y = offset / person.eye_width, surface.v
    upper, lower = lid_heights(person, motion, q)
    ends = coverage(person.eye_width - offset.abs(), px)
    skin = skin_color(person)
    shut = 1.0 - motion.eye_open
    crease_y = upper - 0.030 - 0.026 * motion.eye_open * (0.4 + person.lid_crease)
    crease_y = crease_y - 0.85 * person.eye_height * shut * (1.0 - q * q).clamp(min=0)
    near = coverage(1.12 * person.eye_width - offset.abs(), px)
    crease = bump((y - crease_y) / 0.022) * near * bump(q / 1.25)
    over(
        canvas,
        0.62 * skin * light,
        (0.30 + 0.45 * person.lid_crease) * (0.25 + 0.75 * motion.eye_open) * crease,
    )
    lid = between(coverage(y - crease_y, px), coverage(upper - y, px)) * ends
    over(canvas, (0.90 + 0.14 * shut) * skin * light, (0.40 + 0.25 * shut) * lid)
    opening = between(coverage(y - upper, px), coverage(lower - y, px)) * ends
    over(canvas, _eyeball(person, motion, offset, side, y, upper, light, px), opening)
    thick = 0.012 + 0.014 * person.lash
    lash = coverage(thick * (1.2 - 0.5 * q * q + 0.35 * q) - (y - upper + 0.004).abs(), px)
    lash_end = coverage(1.10 * person.eye_width - offset.abs(), px)
    lash_color = (0.30 * hair_color(person)).clamp(max=0.12) + 0.06 * skin
    over(canvas, lash_color * (0.5 + 0.5 * light), lash * lash_end * (0.72 + 0.28 * person.lash))
    rim = bump((y - lower - 0.006) / 0.022) * ends
    over(canvas, 0.58 * skin * light, 0.45 * rim)


def _eyeball(
    person: Person,
    motion: MotionComponents,
    offset: Tensor,
    side: Tensor,
    y: Tensor,
    upper: Tensor,
    light: Tensor,
    px: float,
) -> Tensor:
    """Sclera, iris, pupil and highlight "f 3 h w"."""
    gaze = side * motion.gaze_x * 0.46 * (person.eye_width - 0.4 * person.iris_size)
    ix = (offset - gaze) * side
    iy = y - person.eye_y + 0.008 - 0.30 * person.eye_height * motion.gaze_y
    radius = (ix * ix + iy * iy).sqrt()
    white = plane([0.93, 0.91, 0.895]) * (1.0 - 0.16 * (offset / person.eye_width).square())
    ball = (white * (0.33 + 0.58 * light)).clamp(max=1.0)
    brown = torch.tensor([0.23, 0.125, 0.07])
    pale = torch.tensor([0.38, 0.52, 0.66]).lerp(torch.tensor([0.42, 0.52, 0.34]), person.iris_hue)
    iris = brown.lerp(pale, person.iris_shade).view(1, 3, 1, 1)
    ring = 0.72 + 0.55 * bump((radius - 0.55 * person.iris_size) / (0.45 * person.iris_size))
    over(ball, iris * ring * (0.45 + 0.55 * light), coverage(person.iris_size - radius, px))
    over(ball, plane([0.03, 0.025, 0.025]), coverage(0.44 * person.iris_size - radius, px))
    hx, hy = ix + 0.022, iy + 0.026
    over(ball, plane([1.0, 1.0, 1.0]), 0.9 * coverage(0.019 - (hx * hx + hy * hy).sqrt(), px))
    shadow = 1.0 - 0.38 * bump((y - upper) / 0.06)
    return ball * shadow


def paint_brows(
    canvas: Tensor,
    person: Person,
    motion: MotionComponents,
    surface: Surface,
    light: Tensor,
    px: float,
) -> None:
    """Both brows, tapering outwards, rougher at the inner end."""
    a = surface.u.abs()
    length = 2 * 0.9 * person.brow_length
    r = (a - brow_inner(person)) / length
    middle = brow_height(person, motion, r)
    taper = (1.05 - 0.62 * r.clamp(0, 1)) * (0.55 + 0.45 * (r / 0.2).clamp(0, 1))
    across = coverage(person.brow_thickness * taper - (surface.v - middle).abs(), 0.6 * px)
    along = coverage(r * length + 0.01, 0.5 * px) * coverage((1 - r) * length, 0.6 * px)
    color = 0.85 * hair_color(person) + 0.10 * skin_color(person)
    over(canvas, color * (0.25 + 0.75 * light), 0.86 * across * along)


def paint_glasses(
    canvas: Tensor, person: Person, pose: Pose, surface: Surface, light: Tensor, px: float
) -> None:
    """Frames, bridge and temples in front of the eyes, with a faint reflection."""
    if person.glasses == "none":
        return
    du, dv = lift(pose, LENS_LIFT, person.head_width)
    x, y = surface.u - du, surface.v - dv - person.eye_y - 0.02
    a = x.abs() - person.eye_distance - 0.005
    wide, tall, power = {
        "round": (0.215, 0.185, 2.0),
        "square": (0.235, 0.155, 5.0),
        "half": (0.230, 0.150, 3.5),
    }[person.glasses]
    norm = ((a / wide).abs() ** power + (y / tall).abs() ** power) ** (1.0 / power)
    distance = (1.0 - norm) * tall
    rim = coverage(0.013 - distance.abs(), px)
    if person.glasses == "half":
        rim = rim * coverage(0.03 - y, px)
    bridge = coverage(0.013 - (y + 0.045 - 0.6 * x * x).abs(), px)
    bridge = bridge * coverage(person.eye_distance - wide + 0.01 - x.abs(), px)
    temple = coverage(0.016 - (y + 0.035).abs(), px) * coverage(a - wide + 0.01, px)
    frame = torch.maximum(torch.maximum(rim, bridge), temple)
    front = coverage(surface.z - 0.05, px) * coverage(1.01 - surface.radius, px)
    glare = coverage(distance, px) * bump((a + 0.7 * y + 0.06) / 0.045)
    over(canvas, plane([0.95, 0.97, 1.0]), 0.16 * glare * front)
    shade = person.glasses_shade
    color = plane([0.09 + 0.42 * shade**2, 0.08 + 0.30 * shade**2, 0.09 + 0.18 * shade**2])
    over(canvas, color * (0.4 + 0.6 * light), 0.93 * frame * front)
