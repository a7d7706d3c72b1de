"""Clips that are the same video twice: uploaded again, cut or compressed anew.

A copy shows the same picture and, for most of it, the same loudness over time. Two clips of one
interview show the same picture, too, but other words; two people who read one text have the same
words in other pictures.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.index import Pairs

SHORTEST_S = 1.5  # that must be the same
SILENT = 1e-6
"""Variance below which loudness does not change."""
Loudness = Float[np.ndarray, " _f"]
"""Of a clip, one value a frame."""


def same_sound(pairs: Pairs, loudness: Sequence[Loudness], least: float) -> Pairs:
    """Those pairs whose loudness has a correlation of ``least`` where it fits best."""
    sounds = (
        same_loudness(loudness[left], loudness[right])
        for left, right in zip(pairs.left.tolist(), pairs.right.tolist(), strict=True)
    )
    return pairs.where(np.fromiter(sounds, float, len(pairs)) >= least)


def copies(twins: Pairs, quality: Sequence[float]) -> dict[int, int]:
    """Each clip that is a copy, and which better one it is a copy of: of twins the one of higher
    ``quality`` stays; of equal ones the first."""
    order = sorted(range(len(quality)), key=lambda n: (-quality[n], n))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    better = np.minimum(place[twins.left], place[twins.right])
    worse = np.maximum(place[twins.left], place[twins.right])
    found: dict[int, int] = {}
    for which in np.lexsort((better, worse)).tolist():
        original, copy = order[better[which]], order[worse[which]]
        if original not in found:
            found.setdefault(copy, original)
    return found


def same_loudness(one: Loudness, other: Loudness) -> float:
    """The largest correlation of two loudness curves over all shifts that let them overlap by
    `SHORTEST_S` seconds or half of the shorter one."""
    shorter, longer = sorted((one.astype(np.float64), other.astype(np.float64)), key=len)
    least = max(min(round(SHORTEST_S * FRAME_RATE_HZ), len(shorter)), len(shorter) // 2)
    shifts = np.arange(least - len(shorter), len(longer) - least + 1)
    if not len(shorter) or not len(shifts):
        return -1.0
    shorter, longer = shorter - shorter.mean(), longer - longer.mean()
    num = np.minimum(len(longer), shifts + len(shorter)) - np.maximum(shifts, 0)
    ends = shifts + len(shorter)
    a = _window_sums(
        shorter, np.maximum(-shifts, 0), np.minimum(len(shorter), len(longer) - shifts)
    )
    b = _window_sums(longer, np.maximum(shifts, 0), np.minimum(ends, len(longer)))
    products = np.correlate(longer, shorter, "full")[shifts + len(shorter) - 1]
    covariance = products / num - a[0] * b[0] / num**2
    variances = [square / num - (total / num) ** 2 for total, square in (a, b)]
    changes = (variances[0] > SILENT) & (variances[1] > SILENT)
    if not changes.any():
        return -1.0
    return float((covariance[changes] / np.sqrt(variances[0] * variances[1])[changes]).max())


def _window_sums(values: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The sums of the values from each start to its stop, and of their squares."""
    sums = np.cumsum(np.stack([values, values**2]), 1)
    sums = np.pad(sums, ((0, 0), (1, 0)))
    return sums[:, stops] - sums[:, starts]
