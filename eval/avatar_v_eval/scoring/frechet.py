"""Fréchet distance between two sets of feature rows, as FID and FVD have it, and its interval.

Heusel et al. 2017, eq. 6: |μ₁ - μ₂|² + tr(S₁ + S₂ - 2 (S₁ S₂)^½). With S = LᵀL the last trace is
the nuclear norm of L₁L₂ᵀ, so no matrix root is taken and nothing is added to a singular one.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from avatar_v_eval.intervals import interval_without
from avatar_v_eval.records import Number

Rows = Float[np.ndarray, "n d"]

JACKKNIFE_GROUPS = 20


def frechet_distance(a: Rows, b: Rows) -> float:
    """Of the Gaussians that fit two sets of rows, in fp64; 0 for the same rows.

    ValueError below two rows, and for another number of features.
    """
    if a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(
            f"a Fréchet distance needs 2 rows or more of as many features, got {a.shape}, {b.shape}"
        )
    a, b = a.astype(np.float64), b.astype(np.float64)
    roots = [_root(x) for x in (a, b)]
    both = np.linalg.svd(roots[0] @ roots[1].T, compute_uv=False).sum()
    apart = float(np.square(a.mean(0) - b.mean(0)).sum())
    return max(0.0, apart + sum(float(np.square(x).sum()) for x in roots) - 2 * float(both))


def frechet_number(true: Sequence[Rows], shown: Sequence[Rows], persons: Sequence[str]) -> Number:
    """The distance of two sets of videos, in the same order of cases, with its 95 % interval.

    The interval is a delete-a-group jackknife over ``persons``, whose cases stay together, in at
    most `JACKKNIFE_GROUPS` groups. Fewer than three persons have none, nor has what is left
    without one of the groups if it is fewer than two rows.
    """
    num = len(true)
    value = frechet_distance(np.concatenate(true), np.concatenate(shown))
    number_of = {name: n for n, name in enumerate(dict.fromkeys(persons))}
    groups = min(len(number_of), JACKKNIFE_GROUPS)
    if groups < 3:
        return Number(value, num)
    without = []
    for group in range(groups):
        kept = [i for i, name in enumerate(persons) if number_of[name] % groups != group]
        if min(sum(len(rows[i]) for i in kept) for rows in (true, shown)) < 2:
            return Number(value, num)
        parts = (np.concatenate([rows[i] for i in kept]) for rows in (true, shown))
        without.append(frechet_distance(*parts))
    found = interval_without(value, np.array(without))
    assert found.low is not None
    return dataclasses.replace(found, n=num, low=max(0.0, found.low))


def _root(rows: Rows) -> Float[np.ndarray, "r d"]:
    """L with LᵀL the covariance; r is the smaller of rows and features."""
    centred = (rows - rows.mean(0)) / math.sqrt(len(rows) - 1)
    return np.linalg.qr(centred)[1] if len(rows) > rows.shape[1] else centred
