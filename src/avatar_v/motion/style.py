"""A person's style: statistics of how each component of their motion moves, free of what is said.

Attention could average a style out of a hundred frames, but a linear map of its statistics learns
it in minutes. `motion_moments` are sums over frames, so those of several clips add up; the style
statistics are made of them, and the style code is what a network reads. Pure functions.
"""

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.motion.stats import NUM_KINDS, MotionStats
from avatar_v.types import MOTION_NAMES, TEMPORAL_FACTOR

STYLE_DIM = NUM_KINDS * len(MOTION_NAMES)
STYLE_PRIOR_FRAMES = 25
RARE_PRIOR_FRAMES = 400
"""So many frames of an average person are mixed into the statistics of a style: what goes on all
the time shows in a second, what comes a few times a minute needs a clip of 16 s to say half of it
(blink rates between 0.15 and 0.7 Hz, counted over T seconds, deserve the weight T / (T + 17))."""
CALM = 0.7185
"""sqrt(E[min(z^2, 1)]) of a standard normal z."""
RARE = ("eye_open", "gaze_x", "gaze_y", "corner_raise")
"""Components that tell of blinks, looks away and smiles."""


def motion_moments(
    packed: Float[Tensor, "b l md"],
    valid: Bool[Tensor, "b l"],
    stats: MotionStats,
    known: Bool[Tensor, "#b m"] | None = None,
) -> Float[Tensor, "b k"]:
    """Of the valid frames of a clip: their number, and of each component of normalised motion the
    sum, the sum of squares, that of squared changes from frame to frame within a latent, and that
    of squares cut off at 1. The moments of several clips add up.

    Components that are not ``known`` (None: all are) count as those of an average person: an
    extractor may not read all of a motion, and zeros in their place would be a style, too.
    """
    frames = rearrange(packed.float(), "b l (k m) -> b l k m", k=TEMPORAL_FACTOR)
    frames = torch.where(valid[:, :, None, None], frames, 0)
    count = valid.sum(1, keepdim=True) * TEMPORAL_FACTOR
    squares = frames.square()
    changes = frames.diff(dim=2).square()
    sums = [part.sum((1, 2)) for part in (frames, squares, changes, squares.clamp(max=1))]
    found = torch.cat(sums, dim=1)
    if known is not None:
        average = count * _moments_of_average(stats).to(found)
        found = torch.where(known.repeat(1, len(sums)).to(found.device), found, average)
    return torch.cat([count.to(frames), found], dim=1)


def _moments_of_average(stats: MotionStats) -> Float[Tensor, " k"]:
    """What a frame of the average person adds to the sums of `motion_moments`."""
    mean, spread, change, calm = stats.style_average.split(len(MOTION_NAMES))
    changes = change.square() * (TEMPORAL_FACTOR - 1) / TEMPORAL_FACTOR
    return torch.cat([mean, (1 + spread).square() + mean.square(), changes, (CALM + calm).square()])


def moment_means(moments: Float[Tensor, "b k"]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The number of frames "b 1", and their means "b m" of the values, the squares, the squared
    changes and the squares cut off at 1; without a frame zeros."""
    count, *sums = moments.split([1] + [len(MOTION_NAMES)] * NUM_KINDS, dim=1)
    mean, square, change, cut = (total / count.clamp_min(1) for total in sums)
    return count, mean, square, change, cut


def style_statistics(moments: Float[Tensor, "b k"]) -> Float[Tensor, "b s"]:
    """How a person moves: of each component of normalised motion the mean, the standard deviation,
    the change from frame to frame and the calm spread (root mean squares; those of the last are cut
    off at 1, which tells a head that sways all the time from one that turns away once a minute and
    spreads as far).

    They shrink towards (0, 1, 0, 0.72) by n / (n + 25), n the number of frames, those of ``RARE``
    components by n / (n + 400): a short clip says little of a style, one frame next to nothing.
    Both spreads count from there, which is that of normal numbers; no frame gives zeros.
    """
    count, mean, square, change, cut = moment_means(moments)
    spread = (square - mean.square()).clamp_min(0).sqrt() - 1
    change = (change * TEMPORAL_FACTOR / (TEMPORAL_FACTOR - 1)).sqrt()
    calm = cut.sqrt() - CALM
    return torch.cat([mean, spread, change, calm], dim=1) * style_shrinking(count)


def style_shrinking(count: Float[Tensor, "b 1"] | int) -> Float[Tensor, "*b s"]:
    """By how much so many frames shrink each number of `style_statistics`, in [0, 1)."""
    prior = [RARE_PRIOR_FRAMES if name in RARE else STYLE_PRIOR_FRAMES for name in MOTION_NAMES]
    frames = torch.tensor(prior).repeat(4)
    return count / (count + (frames if isinstance(count, int) else frames.to(count)))


def style_code(moments: Float[Tensor, "b k"], stats: MotionStats) -> Float[Tensor, "b s"]:
    """`style_statistics` in units of how far people differ, for a network to read.

    As they stand those of a swaying head are ten times as large as those of blinks, and what is
    learned of a blink rate is lost among the steps of the weights that read the head (a stream that
    had learned from them blinked by the head: r = 0.8 over 64 persons, where people have 0).
    """
    return style_statistics(moments) / stats.style_deviation.to(moments.device)
