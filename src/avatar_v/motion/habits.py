"""Habits that are counted in tracks of motion: blinks, and how far a component moves.

The style code (style.py) reads the same of moments; here are the plain measures, in their units.
"""

import numpy as np
import scipy
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES

BLINK_DEPTH = 0.3
"""A blink lets the reading of eye openness fall by so much between two of its maxima."""
LEAST_EXCURSION = 1e-3
"""Mean excursions below count as this much in ratios, in the unit of the component."""


def blink_rate_hz(eye_open: Float[np.ndarray, " f"]) -> float:
    """Dips of eye openness by at least ``BLINK_DEPTH``, a second."""
    dips, _ = scipy.signal.find_peaks(-eye_open, prominence=BLINK_DEPTH)
    return len(dips) * FRAME_RATE_HZ / len(eye_open)


def blink_rates_hz(motion: Float[Tensor, "b f m"]) -> Float[Tensor, " b"]:
    """`blink_rate_hz` of every track."""
    eyes = motion[..., MOTION_NAMES.index("eye_open")].double().cpu().numpy()
    return torch.tensor([blink_rate_hz(row) for row in eyes], device=motion.device)


def spread(x: Float[np.ndarray, " f"]) -> float:
    """The standard deviation that the quartiles suggest: a rare turn away does not count."""
    low, high = np.quantile(x, [0.25, 0.75])
    return float(high - low) / 1.349


def slope(x: Float[Tensor, "*b f"], y: Float[Tensor, "*b f"]) -> Float[Tensor, "*b"]:
    """Of the least-squares line of y on x over the last axis; NaN where x does not move."""
    x, y = (track - track.mean(-1, keepdim=True) for track in (x, y))
    return (x * y).sum(-1) / x.square().sum(-1)


def excursion(motion: Float[Tensor, "b f m"]) -> Float[Tensor, "b f m"]:
    """How far each component is from its mean over the track."""
    return (motion - motion.mean(1, keepdim=True)).abs()


def visible_runs(
    motion: Float[Tensor, "b f m"], valid: Bool[Tensor, "b f"], num_frames: int
) -> list[Float[Tensor, "n num m"]]:
    """Of every track its runs of ``num_frames``, one behind the other, in which a face is seen all
    the time; of a shorter track the whole.

    Rates and spreads depend on the length of what they are measured in: a run of two seconds cuts
    blinks off at its ends. Habits of a person are therefore measured in runs as long as those that
    they are compared with.
    """
    num = min(num_frames, motion.shape[1])
    tracks = motion.unfold(1, num, num).movedim(-1, 2)
    seen = valid.unfold(1, num, num).all(-1)
    return [track[kept] for track, kept in zip(tracks, seen, strict=True)]
