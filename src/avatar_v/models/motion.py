"""The motion stream's vectors: what a face does, free of who it is and how it is framed.

Per video frame a vector of types.MOTION_NAMES, from the world's ground truth or from landmarks
(critics/landmark_motion.py); per latent frame the four of its video frames, normalised. The first
latent holds one video frame, four times. Pure functions, no parameters (ALGORITHMS §1.3).
"""

import math
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.types import MOTION_NAMES, TEMPORAL_FACTOR, num_latents

MOTION_DIM = TEMPORAL_FACTOR * len(MOTION_NAMES)
STYLE_DIM = 4 * len(MOTION_NAMES)
STYLE_PRIOR_FRAMES = 25
RARE_PRIOR_FRAMES = 400
"""So many frames of an average person are mixed into the statistics of a style: what goes on all
the time shows in a second, what comes a few times a minute needs a clip of 16 s to say half of it
(blink rates between 0.15 and 0.7 Hz, counted over T seconds, deserve the weight T / (T + 17))."""
CALM = 0.7185
"""sqrt(E[min(z^2, 1)]) of a standard normal z."""
HEAD = ("yaw", "pitch", "roll")
MOUTH = ("mouth_open", "mouth_width", "mouth_round", "jaw")
"""Components that every person moves on a scale of their own."""
SCALED = torch.tensor([name in (*MOUTH, *HEAD) for name in MOTION_NAMES]).repeat(TEMPORAL_FACTOR)
"""Which of the numbers of a packed vector are theirs."""
HEAD_PRIOR_FRAMES = 200
MOUTH_PRIOR_FRAMES = 50
"""The same for those scales, from what 1, 4 and 16 s of 300 TRAIN persons said of them: a head
turns slowly, so a second hardly tells how far it sways."""
RARE = ("eye_open", "gaze_x", "gaze_y", "corner_raise")
"""Components that tell of blinks, looks away and smiles."""

# Mean and standard deviation over the visible frames of 480 clips of the world's TRAIN persons.
# "cover" is 0 in all of them, so its scale is that of its range.
_STATISTICS = {
    "mouth_open": (0.229, 0.198),
    "mouth_width": (0.039, 0.240),
    "mouth_round": (0.114, 0.185),
    "corner_raise": (0.061, 0.183),
    "corner_asymmetry": (0.0, 0.077),
    "teeth": (0.344, 0.249),
    "tongue": (0.221, 0.204),
    "jaw": (0.243, 0.188),
    "yaw": (0.0, 0.105),
    "pitch": (-0.021, 0.053),
    "roll": (0.0, 0.049),
    "eye_open": (0.948, 0.194),
    "gaze_x": (0.0, 0.254),
    "gaze_y": (0.0, 0.082),
    "brow": (0.199, 0.251),
    "cover": (0.0, 1.0),
}
CENTER = torch.tensor([_STATISTICS[name][0] for name in MOTION_NAMES])
SCALE = torch.tensor([_STATISTICS[name][1] for name in MOTION_NAMES])


def component_weights(weights: dict[str, float]) -> Float[Tensor, " m"]:
    """Weights of the components by name, those that are not named having 1, scaled to a mean of 1.

    ValueError for a component that motion does not have, a weight that is negative or not finite,
    or none above 0.
    """
    raw = torch.tensor([float(weights.get(name, 1.0)) for name in MOTION_NAMES])
    fit = bool((raw >= 0).all()) and 0 < float(raw.sum()) < math.inf
    if set(weights) - set(MOTION_NAMES) or not fit:
        raise ValueError(
            "component weights are not negative, one of them above 0, and of "
            f"{', '.join(MOTION_NAMES)}; got {weights}"
        )
    return raw / raw.mean()


def pack_motion(motion: Float[Tensor, "b f m"]) -> Float[Tensor, "b l md"]:
    """Vectors of f = 4k + 1 video frames to normalised vectors of latent frames."""
    num = num_latents(motion.shape[1])
    normal = (motion.float() - CENTER.to(motion.device)) / SCALE.to(motion.device)
    first = normal[:, :1].repeat_interleave(TEMPORAL_FACTOR, dim=1)
    return rearrange(torch.cat([first, normal[:, 1:]], dim=1), "b (l k) m -> b l (k m)", l=num)


def unpack_motion(packed: Float[Tensor, "b l md"]) -> Float[Tensor, "b f m"]:
    """The inverse of `pack_motion`; the first frame is the mean of its four copies."""
    motion = motion_frames(packed)
    first = motion[:, :TEMPORAL_FACTOR].mean(1, keepdim=True)
    return torch.cat([first, motion[:, TEMPORAL_FACTOR:]], dim=1)


def motion_moments(
    packed: Float[Tensor, "b l md"], valid: Bool[Tensor, "b l"]
) -> Float[Tensor, "b k"]:
    """Of the valid frames of a clip: their number, and of each component of normalised motion the
    sum, the sum of squares, that of squares cut off at 1, and that of squared changes from frame to
    frame within a latent. The moments of several clips add up."""
    frames = rearrange(packed.float(), "b l (k m) -> b l k m", k=TEMPORAL_FACTOR)
    frames = torch.where(valid[:, :, None, None], frames, 0)
    count = valid.sum(1, keepdim=True) * TEMPORAL_FACTOR
    squares = frames.square()
    changes = frames.diff(dim=2).square()
    sums = [part.sum((1, 2)) for part in (frames, squares, changes, squares.clamp(max=1))]
    return torch.cat([count.to(frames), *sums], dim=1)


def style_statistics(moments: Float[Tensor, "b k"]) -> Float[Tensor, "b s"]:
    """How a person moves: of each component of normalised motion the mean, the standard deviation,
    the change from frame to frame and the calm spread (root mean squares; those of the last are cut
    off at 1, which tells a head that sways all the time from one that turns away once a minute and
    spreads as far).

    They shrink towards (0, 1, 0, 0.72) by n / (n + 25), n the number of frames, those of ``RARE``
    components by n / (n + 400): a short clip says little of a habit, one frame next to nothing.
    Both spreads count from there, which is that of normal numbers; no frame gives zeros.
    """
    count, *sums = moments.split([1] + [len(MOTION_NAMES)] * 4, dim=1)
    mean, square, change, cut = (total / count.clamp_min(1) for total in sums)
    spread = (square - mean.square()).clamp_min(0).sqrt() - 1
    change = (change * TEMPORAL_FACTOR / (TEMPORAL_FACTOR - 1)).sqrt()
    calm = cut.sqrt() - CALM
    prior = [RARE_PRIOR_FRAMES if name in RARE else STYLE_PRIOR_FRAMES for name in MOTION_NAMES]
    known = count / (count + torch.tensor(prior).to(count))
    return torch.cat([part * known for part in (mean, spread, change, calm)], dim=1)


def own_scale(moments: Float[Tensor, "b k"]) -> Float[Tensor, "b m"]:
    """How far a person moves each component, 1 being as far as an average person.

    Of the ``MOUTH`` the standard deviation; of the ``HEAD`` that of the normal numbers which have
    the same calm spread, because a head that turns away once a minute sways no further for it; of
    all else 1. Shrunk to 1 like `style_statistics`, in [1/4, 4]; no frame gives ones.
    """
    count, mean, square, _, cut = moments.split([1] + [len(MOTION_NAMES)] * 4, dim=1)
    mean, square, cut = (total / count.clamp_min(1) for total in (mean, square, cut))
    spread = (square - mean.square()).clamp_min(0).sqrt()
    table = _CUT_SQUARES.to(cut)
    sway = _SPREADS.to(cut)[torch.searchsorted(table, cut).clamp(max=len(table) - 1)]
    scale = torch.ones_like(spread)
    kinds = ((MOUTH, spread, MOUTH_PRIOR_FRAMES), (HEAD, sway, HEAD_PRIOR_FRAMES))
    for names, value, prior in kinds:
        index = [MOTION_NAMES.index(name) for name in names]
        scale[:, index] += (value[:, index] - 1) * count / (count + prior)
    return scale.clamp(0.25, 4)


_SPREADS = torch.linspace(0.02, 4, 200)
_CUT_SQUARES = _SPREADS.square() * (
    torch.erf(0.5**0.5 / _SPREADS)
    - math.sqrt(2 / math.pi) / _SPREADS * torch.exp(-0.5 / _SPREADS.square())
) + torch.erfc(0.5**0.5 / _SPREADS)
"""E[min((s z)^2, 1)] of a standard normal z, for each of those spreads s."""


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
    moments: Float[Tensor, "b k"] | None,
) -> OwnUnits:
    """Motion as it would be if its person moved as far as others (`own_scale`).

    A face at rest is 0 before normalisation, so a person of scale s has ``s m - r`` where another
    has m, with ``r = (s - 1) rest``. ``x_t = (1 - t) (s m - r) + t ε`` becomes the state of m at a
    time of its own, ``u = (x_t + (1 - t) r) / ((1 - t) s + t)``, and if the network predicts
    ``v = ε - m`` of it, x_t has the velocity ``(1 - s) u + s / ((1 - t) s + t) v + r``. So how far
    a person moves need not be learned, and what knows nothing of a person keeps it. Exact for
    every s and t; without moments s is 1 and nothing changes.
    """
    motion_t = motion_t.float()
    if moments is None:
        one, zero = torch.ones_like(motion_t), torch.zeros_like(motion_t)
        return OwnUnits(motion_t, one, zero, one)
    own = own_scale(moments)
    rest = (1 - own) * (CENTER / SCALE).to(own)
    scale, rest = (of.repeat(1, TEMPORAL_FACTOR)[:, None] for of in (own, rest))
    clean = 1 - t[:, :, None]
    size = clean * scale + t[:, :, None]
    return OwnUnits((motion_t + clean * rest) / size, scale, rest, size)


def motion_frames(packed: Float[Tensor, "b l md"]) -> Float[Tensor, "b l4 m"]:
    """Four vectors of each latent frame, in the units of MOTION_NAMES."""
    normal = rearrange(packed.float(), "b l (k m) -> b (l k) m", k=TEMPORAL_FACTOR)
    return normal * SCALE.to(packed.device) + CENTER.to(packed.device)
