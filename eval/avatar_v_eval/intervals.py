"""Numbers with 95 % intervals, from values of independent units.

Over persons by percentile bootstrap (Efron 1979), for rates Wilson's score interval (Wilson 1927),
for the correlation of independent pairs Fisher's z (Fisher 1921). Of repeated timings the interval
is the lowest and the highest.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from avatar_v_eval.records import Number

NUM_RESAMPLES = 10_000
_Z95 = 1.959963984540054


def bootstrap_mean(
    values: Float[np.ndarray, " n"], *, seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> Number:
    """Mean over independent units (persons) with its percentile bootstrap interval."""
    values = np.asarray(values, dtype=np.float64)
    return bootstrap(lambda index: float(values[index].mean()), len(values), seed, num_resamples)


def bootstrap(
    statistic: Callable[[np.ndarray], float],
    num_units: int,
    seed: int = 0,
    num_resamples: int = NUM_RESAMPLES,
) -> Number:
    """``statistic`` of unit indices, with the interval from units drawn with replacement.

    Use it where a statistic pools many dependent values per unit: frames of one person.
    """
    if num_units < 2:
        raise ValueError(f"a bootstrap needs at least 2 units, got {num_units}")
    generator = np.random.default_rng(seed)
    draws = generator.integers(0, num_units, size=(num_resamples, num_units))
    samples = np.array([statistic(index) for index in draws])
    low, high = np.percentile(samples, [2.5, 97.5])
    return Number(statistic(np.arange(num_units)), num_units, float(low), float(high))


def rate(successes: int, n: int) -> Number:
    """A proportion with Wilson's 95 % interval."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"a rate needs 0 <= successes <= n and n >= 1, got {successes} of {n}")
    p, z2 = successes / n, _Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    low = max(0.0, centre - half) if successes else 0.0  # exactly, without rounding
    high = min(1.0, centre + half) if successes < n else 1.0
    return Number(p, n, low, high)


def correlation(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> Number:
    """Pearson's r of *independent* pairs with Fisher's z interval.

    Frames of a video are not independent: bootstrap over persons instead.
    """
    n = len(x)
    if n < 4:
        raise ValueError(f"an interval of r needs at least 4 pairs, got {n}")
    return fisher(pearson(x, y), n)


def fisher(r: float, n: int) -> Number:
    """A correlation of ``n`` independent pairs, with Fisher's z interval."""
    z, half = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r))), _Z95 / math.sqrt(n - 3)
    return Number(r, n, math.tanh(z - half), math.tanh(z + half))


def pearson(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """Pearson's r in fp64; 0 where one side is constant, since it then tells nothing."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"r needs two vectors of equal length, got {x.shape} and {y.shape}")
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 1e-12 else 0.0


def r_squared(
    predicted: Float[np.ndarray, "n *k"], truth: Float[np.ndarray, "n *k"], *, num_resamples: int
) -> Number:
    """R² over all values of all units, with the interval bootstrapped over the units."""

    def statistic(index: np.ndarray) -> float:
        x, y = predicted[index], truth[index]
        return float(1 - np.square(x - y).sum() / np.square(y - y.mean()).sum())

    return bootstrap(statistic, len(truth), 0, num_resamples)


def median_of_repeats(values: Sequence[float]) -> Number:
    """The median of repeated timings; ``low`` and ``high`` are the smallest and the largest."""
    if not values:
        raise ValueError("a median needs at least one repeat, got none")
    return Number(float(np.median(values)), len(values), min(values), max(values))
