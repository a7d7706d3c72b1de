"""Clips that are the same video twice: uploaded again, cut or compressed anew.

A copy shows the same picture and, for most of it, the same loudness over time. Two clips of one
interview show the same picture, too, but other words; two people who read one text have the same
words in other pictures.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.fft import next_fast_len

from avatar_v.types import FRAME_RATE_HZ
from avatar_v_data.curation.index import Pairs

SHORTEST_S = 1.5  # that must be the same
AT_ONCE = 512
"""Pairs whose sounds are compared together."""
SILENT = 1e-6
"""Variance below which loudness does not change."""
Loudness = Float[np.ndarray, " _f"]
"""Of a clip, one value a frame."""
Curves = Float[np.ndarray, "_f _c"]


def same_sound(pairs: Pairs, loudness: Sequence[Loudness], least: float) -> Pairs:
    """Those pairs whose loudness has a correlation of ``least`` where it fits best."""
    lengths = np.array([len(curve) for curve in loudness])
    found = np.full(len(pairs), -1.0)
    by_length = np.argsort(lengths[pairs.left] + lengths[pairs.right], kind="stable")
    for part in np.split(by_length, range(AT_ONCE, len(by_length), AT_ONCE)):
        ends = pairs.left[part].tolist(), pairs.right[part].tolist()
        ones, others = ([loudness[n][:, None] for n in end] for end in ends)
        found[part], _ = best_fits(ones, others, round(SHORTEST_S * FRAME_RATE_HZ), SILENT)
    return pairs.where(found >= least)


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


def best_fits(
    ones: Sequence[Curves], others: Sequence[Curves], shortest: int, silent: float
) -> tuple[Float[np.ndarray, " p"], Int[np.ndarray, " p"]]:
    """Of each pair of curves, or of sets of curves, the largest correlation over all shifts that
    let them overlap by ``shortest`` values or half of the shorter one, and that shift: where in the
    longer one the shorter begins. -1 where the variance of one is below ``silent`` there."""
    ordered = [sorted(pair, key=len) for pair in zip(ones, others, strict=True)]
    if not ordered:
        return np.zeros(0), np.zeros(0, np.int64)
    (short, short_len), (long, long_len) = (_padded(side) for side in zip(*ordered, strict=True))
    least = np.maximum(np.minimum(shortest, short_len), short_len // 2)
    shifts = np.arange(1 - short.shape[1], long.shape[1])
    size = next_fast_len(short.shape[1] + long.shape[1], real=True)
    waves = np.fft.rfft(long, size, 1) * np.fft.rfft(short, size, 1).conj()
    products = np.fft.irfft(waves.sum(2), size, 1)[:, shifts % size]
    ends = np.minimum(short_len, long_len - shifts), np.minimum(long_len, short_len + shifts)
    num = np.maximum(ends[1] - np.maximum(shifts, 0), 1)
    means, variances = [], []
    for values, starts, stops in ((short, -shifts, ends[0]), (long, shifts, ends[1])):
        starts = np.broadcast_to(np.clip(starts, 0, values.shape[1]), stops.shape)
        stops = np.maximum(stops, 0)
        squares = _between(np.square(values).sum(2, keepdims=True), starts, stops)[..., 0]
        means.append(_between(values, starts, stops) / num[..., None])
        variances.append(squares / num - np.square(means[-1]).sum(2))
    fits = (num >= np.maximum(least, 1)) & (np.minimum(*variances) > silent)
    spread = np.sqrt(np.where(fits, variances[0] * variances[1], 1))
    found = np.where(fits, (products / num - np.einsum("psc,psc->ps", *means)) / spread, -1)
    best = found.argmax(1)
    return found[np.arange(len(best)), best], shifts[best]


def _padded(curves: Sequence[Curves]) -> tuple[np.ndarray, np.ndarray]:
    """In rows, their means taken off, and their lengths as a column."""
    lengths = np.array([len(curve) for curve in curves])
    rows = np.zeros((len(curves), max(1, lengths.max()), curves[0].shape[1]))
    for row, curve in zip(rows, curves, strict=True):
        row[: len(curve)] = curve - curve.mean(0) if len(curve) else 0
    return rows, lengths[:, None]


def _between(values: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """The sums of each row's values from each start to its stop."""
    sums = np.pad(np.cumsum(values, 1), ((0, 0), (1, 0), (0, 0)))
    rows = np.arange(len(values))[:, None]
    return sums[rows, stops] - sums[rows, starts]
