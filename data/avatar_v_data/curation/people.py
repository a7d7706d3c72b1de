"""Who is who across recordings, and where: persons and scenes of clips (Avatar V §5.4).

Faces are compared as templates, one a clip. Complete linkage groups them: all faces of a person are
as near to each other as asked, so that a chain of look-alikes does not become one person. A
person's clips are one scene where their backgrounds are alike. Training draws its reference from
another scene of the same person.
"""

from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import squareform

BLOCK = 1024
"""Faces that are compared with all others at a time."""

Cells = Sequence[Sequence[float | int] | None]


def group_faces(faces: np.ndarray, same: float) -> list[int]:
    """A person's number for each unit vector, by first appearance; ``same``: the largest distance
    of two faces of one person.

    Memory grows with the number of faces and the square of the largest group of look-alikes.
    """
    labels, num_found = np.zeros(len(faces), int), 0
    for members in _chains(faces, same):
        if len(members) == 1:
            found = np.ones(1, int)
        else:
            found = fcluster(linkage(faces[members], "complete"), same, "distance")
        labels[members] = found + num_found
        num_found += found.max()
    return _by_appearance(labels)


def _chains(faces: np.ndarray, same: float) -> list[np.ndarray]:
    """The faces in groups between which all distances are larger than ``same``."""
    rows, columns = [], []
    for start in range(0, len(faces), BLOCK):
        near = faces[start : start + BLOCK] @ faces.T >= 1 - same**2 / 2  # of unit vectors
        row, column = np.nonzero(near)
        rows.append(row + start)
        columns.append(column)
    if not rows:
        return []
    row, column = np.concatenate(rows), np.concatenate(columns)
    graph = coo_array((np.ones(len(row), bool), (row, column)), shape=(len(faces), len(faces)))
    num, group = connected_components(graph, directed=False)
    return [np.nonzero(group == n)[0] for n in range(num)]


def group_backgrounds(backgrounds: Sequence[Cells], same: float) -> list[int]:
    """A scene's number for each clip of one person; ``same``: the largest mean difference of the
    colours (0 to 255) that two pictures show beside the head."""
    num = len(backgrounds)
    if num < 2:
        return [0] * num
    table = np.zeros((num, num))
    for i in range(num):
        for j in range(i):
            table[i, j] = table[j, i] = background_distance(backgrounds[i], backgrounds[j])
    return _by_appearance(fcluster(linkage(squareform(table), "complete"), same, "distance"))


def background_distance(one: Cells, other: Cells) -> float:
    """Mean absolute difference of the cells that both show, 255 where there is none."""
    pairs = [(a, b) for a, b in zip(one, other, strict=True) if a is not None and b is not None]
    if not pairs:
        return 255.0
    left, right = (np.array(side, float) for side in zip(*pairs, strict=True))
    return float(np.abs(left - right).mean())


def _by_appearance(labels: np.ndarray) -> list[int]:
    numbers: dict[int, int] = {}
    return [numbers.setdefault(int(label), len(numbers)) for label in labels]
