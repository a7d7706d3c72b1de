"""Numbers with 95 % intervals, from values of independent units.

Means over persons: Student's t. Statistics that pool many values of each person: the jackknife
(Tukey 1958), of which the t interval of a mean is the special case. Rates: Wilson's score interval
(Wilson 1927). The correlation of independent pairs: Fisher's z (Fisher 1921). Of repeated timings,
and of what is no sample of units, the interval is the lowest and the highest.

The bootstrap's percentiles are not used: they are too narrow for few units, since what is drawn
with replacement has the spread of n units, not of n - 1, and the tails of a small n are longer. At
n = 3, 6, 8 and 16 they hold the true mean .70, .84, .89 and .91 of the time, not .95.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float
from scipy.stats import binomtest, norm, sem
from scipy.stats import t as student

from avatar_v.scoring.sampling import pearson
from avatar_v_eval.records import Number

_Z95 = float(norm.ppf(0.975))


def mean_interval(values: Float[np.ndarray, " n"]) -> Number:
    """Mean over independent units (persons), with Student's t interval."""
    values = np.asarray(values, dtype=np.float64)
    _check_units(len(values))
    return around(float(values.mean()), len(values), float(sem(values)), len(values) - 1)


def pooled_mean(sums: Float[np.ndarray, " n"], counts: Float[np.ndarray, " n"]) -> Number:
    """The mean of many values per unit, from each unit's sum and count; ``n`` counts units.

    Units without values have no part in it.
    """
    sums, counts = np.asarray(sums, dtype=np.float64), np.asarray(counts, dtype=np.float64)
    sums, counts = sums[counts > 0], counts[counts > 0]
    return jackknife(lambda index: float(sums[index].sum() / counts[index].sum()), len(counts))


def jackknife(statistic: Callable[[np.ndarray], float], num_units: int) -> Number:
    """``statistic`` of unit indices; the interval is from the statistic without each unit in turn.

    Use it where a statistic pools many dependent values per unit: frames of one person. It must be
    smooth in the units' values: the jackknife is wrong for quantiles.
    """
    _check_units(num_units)
    every = np.arange(num_units)
    without = np.array([statistic(np.delete(every, unit)) for unit in every])
    return interval_without(statistic(every), without)


def interval_without(value: float, without: Float[np.ndarray, " n"]) -> Number:
    """A statistic of ``n`` units with its interval, from its values without each unit in turn."""
    return around(value, len(without), math.sqrt(jackknife_variance(without)), len(without) - 1)


def jackknife_variance(without: Float[np.ndarray, " n"]) -> float:
    """The jackknife's variance of a statistic, from its values without each unit in turn."""
    return float((len(without) - 1) * np.var(without))


def around(value: float, n: int, error: float, degrees: float) -> Number:
    """A value with the t interval of its standard error."""
    half = float(student.ppf(0.975, degrees)) * error
    return Number(value, n, value - half, value + half)


def within_unit(number: Number) -> Number:
    """The interval of a share, cut to [0, 1]."""
    assert number.low is not None
    assert number.high is not None
    return dataclasses.replace(number, low=max(number.low, 0.0), high=min(number.high, 1.0))


def rate(successes: int, n: int) -> Number:
    """A proportion with Wilson's 95 % interval."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"a rate needs 0 <= successes <= n and n >= 1, got {successes} of {n}")
    found = binomtest(successes, n).proportion_ci(method="wilson")
    return Number(successes / n, n, float(found.low), float(found.high))


def correlation(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> Number:
    """Pearson's r of *independent* pairs with Fisher's z interval. Frames of a video are none."""
    n = len(x)
    if n < 4:
        raise ValueError(f"an interval of r needs at least 4 pairs, got {n}")
    return fisher(pearson(x, y), n)


def fisher(r: float, n: int) -> Number:
    """A correlation of ``n`` independent pairs, with Fisher's z interval."""
    z, half = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r))), _Z95 / math.sqrt(n - 3)
    return Number(r, n, math.tanh(z - half), math.tanh(z + half))


def r_squared(predicted: Float[np.ndarray, "n *k"], truth: Float[np.ndarray, "n *k"]) -> Number:
    """R² over all values of all units, with the jackknife's interval over the units."""

    def statistic(index: np.ndarray) -> float:
        x, y = predicted[index], truth[index]
        return float(1 - np.square(x - y).sum() / np.square(y - y.mean()).sum())

    return jackknife(statistic, len(truth))


def median_of_repeats(values: Sequence[float]) -> Number:
    """The median of repeated timings; ``low`` and ``high`` are the smallest and the largest."""
    if not values:
        raise ValueError("a median needs at least one repeat, got none")
    return Number(float(np.median(values)), len(values), min(values), max(values))


def mean_in_range(values: Sequence[float]) -> Number:
    """The mean of values that are no sample of independent units: frames of one video, a few people
    who were at hand. ``low`` and ``high`` are the smallest and the largest."""
    if not values:
        raise ValueError("a mean needs at least one value, got none")
    return Number(float(np.mean(values)), len(values), min(values), max(values))


def _check_units(num: int) -> None:
    if num < 2:
        raise ValueError(f"an interval needs at least 2 units, got {num}")
