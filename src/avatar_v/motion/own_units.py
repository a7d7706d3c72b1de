"""Motion in units of the person's own, in which everybody moves as far as an average person.

How far somebody opens their mouth or sways their head is a factor on what they do. A network that
sees motion alone in those units need not learn the factor, and what it makes has it by
construction. Pure functions of the moments of a reference's motion (style.py), no
parameters.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.motion.stats import MotionStats
from avatar_v.motion.style import moment_means, style_code
from avatar_v.types import MOTION_NAMES, TEMPORAL_FACTOR, Style

HEAD = ("yaw", "pitch", "roll")
MOUTH = ("mouth_open", "mouth_width", "mouth_round", "jaw")
"""Components that every person moves on a scale of their own."""
SCALED = torch.tensor([name in (*MOUTH, *HEAD) for name in MOTION_NAMES]).repeat(TEMPORAL_FACTOR)
"""Which of the numbers of a packed vector are theirs."""
HEAD_PRIOR_FRAMES = 200
MOUTH_PRIOR_FRAMES = 50
"""So many frames of an average person are mixed into those scales, from what 1, 4 and 16 s of 300
TRAIN persons said of them: a head turns slowly, so a second hardly tells how far it sways."""
_SPREADS = torch.linspace(0.02, 4, 200)
_CUT_SQUARES = _SPREADS.square() * (
    torch.erf(0.5**0.5 / _SPREADS)
    - math.sqrt(2 / math.pi) / _SPREADS * torch.exp(-0.5 / _SPREADS.square())
) + torch.erfc(0.5**0.5 / _SPREADS)
"""E[min((s z)^2, 1)] of a standard normal z, for each of those spreads s."""


def own_scale(moments: Float[Tensor, "b k"]) -> Float[Tensor, "b m"]:
    """How far a person moves each component, 1 being as far as an average person.

    Of the ``MOUTH`` the standard deviation; of the ``HEAD`` that of the normal numbers which have
    the same calm spread, because a head that turns away once a minute sways no further for it; of
    all else 1. Shrunk to 1 like `style_statistics`, in [1/4, 4]; no frame gives ones.
    """
    count, mean, square, _, cut = moment_means(moments)
    spread = (square - mean.square()).clamp_min(0).sqrt()
    table = _CUT_SQUARES.to(cut)
    sway = _SPREADS.to(cut)[torch.searchsorted(table, cut).clamp(max=len(table) - 1)]
    scale = torch.ones_like(spread)
    kinds = ((MOUTH, spread, MOUTH_PRIOR_FRAMES), (HEAD, sway, HEAD_PRIOR_FRAMES))
    for names, value, prior in kinds:
        index = [MOTION_NAMES.index(name) for name in names]
        scale[:, index] += (value[:, index] - 1) * count / (count + prior)
    return scale.clamp(0.25, 4)


def build_style(moments: Float[Tensor, "b k"], stats: MotionStats) -> Style:
    """The style of people whose motion has these moments."""
    scale = own_scale(moments)
    rest = (1 - scale) * (stats.mean / stats.deviation).to(scale)
    return Style(style_code(moments, stats), scale, rest)


@dataclass(frozen=True)
class OwnUnits:
    """A state of motion for a network to which all persons move equally far, and the way back."""

    motion_t: Float[Tensor, "b l md"]
    scale: Float[Tensor, "b #l md"]  # s of the person
    rest: Float[Tensor, "b #l md"]  # (s - 1) times what a face at rest has
    size: Float[Tensor, "b l md"]  # (1 - t) s + t

    def velocity(self, v: Float[Tensor, "b l md"]) -> Float[Tensor, "b l md"]:
        """Of the state in the units of all, from the network's."""
        return (1 - self.scale) * self.motion_t + self.scale / self.size * v.float() + self.rest


def in_own_units(
    motion_t: Float[Tensor, "b l md"],
    t: Float[Tensor, "b l"],
    style: Style | None,
) -> OwnUnits:
    """Motion as it would be if its person moved as far as others (`own_scale`).

    A face at rest is 0 before normalisation, so a person of scale s has ``s m - r`` where another
    has m, with ``r = (s - 1) rest``. ``x_t = (1 - t) (s m - r) + t ε`` becomes the state of m at a
    time of its own, ``u = (x_t + (1 - t) r) / ((1 - t) s + t)``, and if the network predicts
    ``v = ε - m`` of it, x_t has the velocity ``(1 - s) u + s / ((1 - t) s + t) v + r``. So how far
    a person moves need not be learned, and what knows nothing of a person keeps it. Exact for
    every s and t; without a style s is 1 and nothing changes.
    """
    motion_t = motion_t.float()
    if style is None:
        one, zero = torch.ones_like(motion_t), torch.zeros_like(motion_t)
        return OwnUnits(motion_t, one, zero, one)
    both = (style.scale, style.rest)
    scale, rest = (of.repeat(1, TEMPORAL_FACTOR)[:, None] for of in both)
    clean = 1 - t[:, :, None]
    size = clean * scale + t[:, :, None]
    return OwnUnits((motion_t + clean * rest) / size, scale, rest, size)
