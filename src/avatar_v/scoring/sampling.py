"""Which frames count, and how they become one number (Avatar V §7.2)."""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from scipy.stats import trim_mean

from avatar_v.types import FRAME_RATE_HZ

SAMPLES_PER_S = 2
TRIMMED_SHARE = 0.1
"""Cut at each end, the lowest and the highest values alike."""


def sampled(num_frames: int) -> list[int]:
    """Indices of 2 frames a second, from the first on."""
    step = FRAME_RATE_HZ / SAMPLES_PER_S
    return [int(i * step) for i in range(math.ceil(num_frames / step))]


def trimmed_mean(values: Sequence[float] | Float[np.ndarray, " n"]) -> float:
    """The mean without the lowest and the highest tenth (scipy); ValueError of nothing."""
    if len(values) == 0:
        raise ValueError("a mean needs at least one frame, got none")
    return float(trim_mean(np.asarray(values, dtype=np.float64), TRIMMED_SHARE))


def first_minus_last(values: Sequence[float] | Float[np.ndarray, " n"]) -> float:
    """Mean of the first quarter less that of the last: what is lost over time.

    ValueError below two values; below eight a quarter is one value.
    """
    if len(values) < 2:
        raise ValueError(f"a change over time needs 2 sampled frames (0.5 s), got {len(values)}")
    array = np.asarray(values, dtype=np.float64)
    quarter = max(1, len(array) // 4)
    return float(array[:quarter].mean() - array[-quarter:].mean())


def pearson(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """Pearson's r in fp64; 0 where one side is constant, since it then tells nothing."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 1e-12 else 0.0
