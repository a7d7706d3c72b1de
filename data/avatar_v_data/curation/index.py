"""Which of many vectors are near each other: exact for small sets, FAISS for large ones.

Up to `EXACT` comparisons (all new: 50,000 vectors) the new vectors are multiplied with all. Beyond
that FAISS sorts the vectors into 4 √n cells around centres of k-means (IVF), and a new one is
compared with those of the `PROBED` cells whose centres are nearest: time grows as n √n. It sees the
vectors along their leading principal axes alone, where they are as near or nearer. A pair whose
cells lie apart is missed there; so all that are connected by what was found are compared in full,
and what is missed in the end is connected by nothing. Whatever was found is measured once more,
whole and in float64, so that a pair has one distance whichever way it was found.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float32, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

EXACT = 50_000**2
"""Comparisons that are made one by one."""
BLOCK = 1024
"""Vectors that are compared at a time."""
PROBED = 8
"""Cells in which neighbours of a vector are looked for."""
VARIANCE = 0.8
"""Of the vectors, along the axes that FAISS sees."""
ROUNDS = 5
"""Of k-means."""
PER_CELL = 40
"""Vectors that k-means takes; FAISS asks for 39."""
MOST_PAIRS = 300_000_000
"""That are held, at 20 bytes each."""
MARGIN = 1e-3
"""By which more is looked for, since float32 rounds."""
NO_FAISS = "are compared with FAISS: pip install 'avatar_v[index]'"


@dataclass(frozen=True)
class Pairs:
    """Positions of two vectors, the left one first in order, and how far they lie apart."""

    left: Int[np.ndarray, " p"]
    right: Int[np.ndarray, " p"]
    distance: Float32[np.ndarray, " p"]

    @classmethod
    def of(cls, one: np.ndarray, other: np.ndarray, distance: np.ndarray) -> "Pairs":
        """Of two ends in any order."""
        return cls(np.minimum(one, other), np.maximum(one, other), distance)

    @classmethod
    def none(cls) -> "Pairs":
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32))

    def __len__(self) -> int:
        return len(self.left)

    def where(self, chosen: np.ndarray) -> "Pairs":
        """Some of them: truth values, or places."""
        return Pairs(self.left[chosen], self.right[chosen], self.distance[chosen])

    def joined(self, other: "Pairs") -> "Pairs":
        columns = zip(vars(self).values(), vars(other).values(), strict=True)
        return Pairs(*map(np.concatenate, columns))


def near_pairs(
    vectors: Float32[np.ndarray, "n d"],
    most: float,
    is_new: Bool[np.ndarray, " n"],
    known: Pairs,
) -> Pairs:
    """All pairs at an Euclidean distance of at most ``most`` of which one is new, each once.

    ``known``: those of vectors that are not new. ValueError for more than `MOST_PAIRS`, and without
    FAISS where it is needed.
    """
    new = np.flatnonzero(is_new)
    is_small = len(new) * len(vectors) <= EXACT
    search = (_exact if is_small else _by_cells)(vectors, most * (1 + MARGIN), new)
    pairs = _measured(search, vectors, most, len(known))
    if is_small:
        return pairs
    in_full = _in_full(vectors, most * (1 + MARGIN), is_new, pairs.joined(known))
    search = itertools.chain([(pairs.left, pairs.right)], in_full)
    return _measured(search, vectors, most, len(known))


def distances(
    vectors: Float[np.ndarray, "n d"], left: Int[np.ndarray, " p"], right: Int[np.ndarray, " p"]
) -> Float32[np.ndarray, " p"]:
    """Euclidean, of each pair by itself: no other pair changes the last digit."""
    found = np.empty(len(left), np.float32)
    for start in range(0, len(left), 1 << 16):
        part = slice(start, start + (1 << 16))
        apart = vectors[left[part]].astype(np.float64) - vectors[right[part]]
        found[part] = np.sqrt(np.einsum("pd,pd->p", apart, apart))
    return found


def connected(
    left: Int[np.ndarray, " p"], right: Int[np.ndarray, " p"], num: int
) -> tuple[Int[np.ndarray, " n"], Bool[np.ndarray, " g"]]:
    """The group of each vector that pairs connect, and whether all of a group are pairs."""
    graph = coo_array((np.ones(len(left), bool), (left, right)), shape=(num, num))
    group = connected_components(graph, directed=False)[1]
    sizes = np.bincount(group, minlength=1)
    return group, np.bincount(group[left], minlength=len(sizes)) == sizes * (sizes - 1) // 2


_Found = Iterable[tuple[np.ndarray, np.ndarray]]


def _exact(vectors: np.ndarray, most: float, new: np.ndarray) -> _Found:
    squares = np.einsum("nd,nd->n", vectors, vectors)
    for start in range(0, len(new), BLOCK):
        rows = new[start : start + BLOCK]
        products = vectors[rows] @ vectors.T
        products *= -2
        products += squares
        limit = most**2 - squares[rows]
        row, column = np.divmod(np.flatnonzero(products <= limit[:, None]), len(vectors))
        yield rows[row], column


def _by_cells(vectors: np.ndarray, most: float, new: np.ndarray) -> _Found:
    num = len(vectors)
    try:
        import faiss  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(f"{num:,} clips {NO_FAISS}") from error
    vectors = leading(vectors)
    cells, width = round(4 * num**0.5), vectors.shape[1]
    index = faiss.IndexIVFFlat(faiss.IndexFlatL2(width), width, cells)
    index.cp.niter = ROUNDS
    index.train(vectors[_some(num, PER_CELL * cells)])
    for start in range(0, num, 1 << 16):
        index.add(vectors[start : start + (1 << 16)])
    index.nprobe = PROBED
    for start in range(0, len(new), 1 << 14):
        rows = new[start : start + (1 << 14)]
        ends, _, column = index.range_search(vectors[rows], most**2)
        yield np.repeat(rows, np.diff(ends.astype(np.int64))), column


def leading(vectors: np.ndarray) -> np.ndarray:
    """Along the axes that hold `VARIANCE`."""
    values, axes = np.linalg.eigh(np.cov(vectors[_some(len(vectors), 20_000)].T))
    share = np.cumsum(values[::-1]) / values.sum()
    width = 1 + int(np.searchsorted(share, VARIANCE))
    return np.ascontiguousarray(vectors @ axes[:, ::-1][:, :width].astype(np.float32))


def _some(num: int, most: int) -> np.ndarray:
    return np.sort(np.random.default_rng(0).choice(num, min(num, most), replace=False))


def _in_full(vectors: np.ndarray, most: float, is_new: np.ndarray, pairs: Pairs) -> _Found:
    """New ones with all others, in groups that are connected and not complete."""
    group, is_whole = connected(pairs.left, pairs.right, len(vectors))
    open_ones = np.flatnonzero(~is_whole[group])
    open_ones = open_ones[np.argsort(group[open_ones], kind="stable")]
    for members in np.split(open_ones, np.flatnonzero(np.diff(group[open_ones])) + 1):
        new = np.flatnonzero(is_new[members])
        if 0 < len(new) * len(members) <= EXACT:
            for row, column in _exact(vectors[members], most, new):
                yield members[row], members[column]


def _measured(search: _Found, vectors: np.ndarray, most: float, num_known: int) -> Pairs:
    """What was found, each pair once and with its distance."""
    num, total, found = len(vectors), num_known, [np.zeros(0, np.int64)]
    for row, column in search:
        other = row != column
        found.append(_keys(row[other], column[other], num))
        total += len(found[-1])
        if total > MOST_PAIRS:
            raise ValueError(
                f"more than {MOST_PAIRS:,} pairs of {num:,} clips lie within {most:g} of each "
                "other: ask for a smaller distance in the plan's grouping"
            )
    keys = np.unique(np.concatenate(found))
    left, right = keys // num, keys % num
    pairs = Pairs(left, right, distances(vectors, left, right))
    return pairs.where(pairs.distance <= np.float32(most))


def _keys(one: np.ndarray, other: np.ndarray, num: int) -> np.ndarray:
    """A number for each pair, whichever comes first."""
    return np.minimum(one, other).astype(np.int64) * num + np.maximum(one, other)
