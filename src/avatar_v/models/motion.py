"""The motion stream's vectors: what a face does, free of who it is and how it is framed.

Per video frame a vector of types.MOTION_NAMES, from the world's ground truth or from landmarks
(critics/landmark_motion.py); per latent frame the four of its video frames, normalised. The first
latent holds one video frame, four times. Pure functions, no parameters.
"""

import math
from collections.abc import Collection

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
RARE = ("eye_open", "gaze_x", "gaze_y", "corner_raise")
"""Components that tell of blinks, looks away and smiles."""

# Mean and standard deviation over the visible frames of 480 clips of the world's TRAIN persons.
# "cover" was 0 in all of them, so its scale is that of its range.
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
# How far people differ, 16 s of 320 TRAIN persons read twice: standard deviation of each number of
# `style_statistics`, not below 0.05. Blinks change theirs by a tenth, a head's sway by a whole.
_STYLE_SPREADS = {
    "mouth_open": (0.20, 0.15, 0.10, 0.05),
    "mouth_width": (0.10, 0.18, 0.09, 0.05),
    "mouth_round": (0.14, 0.18, 0.09, 0.05),
    "corner_raise": (0.16, 0.29, 0.05, 0.05),
    "corner_asymmetry": (0.60, 0.48, 0.09, 0.18),
    "teeth": (0.10, 0.05, 0.05, 0.05),
    "tongue": (0.09, 0.06, 0.05, 0.05),
    "jaw": (0.22, 0.15, 0.08, 0.05),
    "yaw": (0.38, 0.91, 0.13, 0.17),
    "pitch": (0.32, 0.29, 0.13, 0.10),
    "roll": (0.07, 0.39, 0.05, 0.18),
    "eye_open": (0.07, 0.14, 0.09, 0.05),
    "gaze_x": (0.18, 0.19, 0.06, 0.05),
    "gaze_y": (0.23, 0.20, 0.07, 0.05),
    "brow": (0.52, 0.32, 0.11, 0.11),
    "cover": (0.05, 0.09, 0.05, 0.09),
}
# The average person: the means over 320 TRAIN persons (16 s, read twice) of what
# `style_statistics` would be without its shrinking. avatar_v_eval.habit_units measures both.
_AVERAGE = {
    "mouth_open": (0.014, -0.046, 0.580, -0.021),
    "mouth_width": (-0.013, -0.034, 0.471, -0.077),
    "mouth_round": (-0.019, -0.030, 0.464, -0.069),
    "corner_raise": (0.011, -0.263, 0.083, -0.266),
    "corner_asymmetry": (-0.066, -0.418, 0.145, -0.298),
    "teeth": (-0.024, -0.013, 0.494, 0.055),
    "tongue": (-0.032, -0.012, 0.556, 0.036),
    "jaw": (0.013, -0.053, 0.499, -0.037),
    "yaw": (0.006, 0.412, 0.138, -0.054),
    "pitch": (0.029, -0.104, 0.208, -0.031),
    "roll": (0.000, -0.144, 0.062, -0.100),
    "eye_open": (0.007, -0.061, 0.560, -0.350),
    "gaze_x": (-0.051, -0.102, 0.241, -0.266),
    "gaze_y": (-0.005, -0.149, 0.202, -0.152),
    "brow": (-0.061, -0.302, 0.183, 0.006),
    "cover": (0.010, -0.960, 0.008, -0.677),
}
AVERAGE_STYLE = torch.tensor([_AVERAGE[name] for name in MOTION_NAMES]).T.flatten()
STYLE_SCALE = torch.tensor([_STYLE_SPREADS[name] for name in MOTION_NAMES]).T.flatten()


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
    packed: Float[Tensor, "b l md"],
    valid: Bool[Tensor, "b l"],
    known: Bool[Tensor, "#b m"] | None = None,
) -> Float[Tensor, "b k"]:
    """Of the valid frames of a clip: their number, and of each component of normalised motion the
    sum, the sum of squares, that of squares cut off at 1, and that of squared changes from frame to
    frame within a latent. The moments of several clips add up.

    Components that are not ``known`` (None: all are) count as an average person's: who reads a
    motion may not tell all of it, and zeros or guesses would be habits of their own.
    """
    frames = rearrange(packed.float(), "b l (k m) -> b l k m", k=TEMPORAL_FACTOR)
    frames = torch.where(valid[:, :, None, None], frames, 0)
    count = valid.sum(1, keepdim=True) * TEMPORAL_FACTOR
    squares = frames.square()
    changes = frames.diff(dim=2).square()
    sums = [part.sum((1, 2)) for part in (frames, squares, changes, squares.clamp(max=1))]
    found = torch.cat(sums, dim=1)
    if known is not None:
        average = count * _moments_of_average().to(found)
        found = torch.where(known.repeat(1, len(sums)).to(found.device), found, average)
    return torch.cat([count.to(frames), found], dim=1)


def _moments_of_average() -> Float[Tensor, " k"]:
    """What a frame of a person with ``AVERAGE_STYLE`` adds to the sums of `motion_moments`."""
    mean, spread, change, calm = AVERAGE_STYLE.split(len(MOTION_NAMES))
    changes = change.square() * (TEMPORAL_FACTOR - 1) / TEMPORAL_FACTOR
    return torch.cat([mean, (1 + spread).square() + mean.square(), changes, (CALM + calm).square()])


def known_mask(names: Collection[str]) -> Bool[Tensor, "1 m"]:
    """Which components these are."""
    return torch.tensor([[name in names for name in MOTION_NAMES]])


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
    return torch.cat([mean, spread, change, calm], dim=1) * style_shrinking(count)


def style_shrinking(count: Float[Tensor, "b 1"] | int) -> Float[Tensor, "*b s"]:
    """By how much so many frames shrink each number of `style_statistics`, in [0, 1)."""
    prior = [RARE_PRIOR_FRAMES if name in RARE else STYLE_PRIOR_FRAMES for name in MOTION_NAMES]
    frames = torch.tensor(prior).repeat(4)
    return count / (count + (frames if isinstance(count, int) else frames.to(count)))


def style_features(moments: Float[Tensor, "b k"]) -> Float[Tensor, "b s"]:
    """`style_statistics` in units of how far people differ, for a network to read.

    As they stand those of a swaying head are ten times as large as those of blinks, and what is
    learned of a blink rate is lost among the steps of the weights that read the head (a stream that
    had learned from them blinked by the head: r = 0.8 over 64 persons, where people have 0).
    """
    return style_statistics(moments) / STYLE_SCALE.to(moments.device)


def motion_frames(packed: Float[Tensor, "b l md"]) -> Float[Tensor, "b l4 m"]:
    """Four vectors of each latent frame, in the units of MOTION_NAMES."""
    normal = rearrange(packed.float(), "b l (k m) -> b (l k) m", k=TEMPORAL_FACTOR)
    return normal * SCALE.to(packed.device) + CENTER.to(packed.device)
