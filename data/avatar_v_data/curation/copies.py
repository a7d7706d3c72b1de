"""Clips that are the same video twice: uploaded again, cut or compressed anew.

A copy shows the same picture and, for most of it, the same loudness over time. Two clips of one
interview show the same picture, too, but other words; two people who read one text have the same
words in other pictures.
"""

from collections.abc import Sequence

import numpy as np

from avatar_v.types import FRAME_RATE_HZ

SHORTEST_S = 1.5  # that must be the same


def copies(
    pictures: np.ndarray,
    loudness: Sequence[np.ndarray],
    quality: Sequence[float],
    *,
    same_picture: float,
    same_sound: float,
) -> dict[int, int]:
    """Each clip that is a copy, and which better one it is a copy of.

    Args:
        pictures: thumbnails, a row for each clip, 0 to 255.
        loudness: of each clip, one value a frame.
        quality: of two copies the one with the higher value stays; of equal ones the first.
        same_picture: largest mean difference of two thumbnails of one video.
        same_sound: smallest correlation of their loudness where they overlap best.
    """
    order = sorted(range(len(pictures)), key=lambda n: (-quality[n], n))
    found: dict[int, int] = {}
    kept: list[int] = []
    for n in order:
        distances = np.abs(pictures[kept] - pictures[n]).mean(1) if kept else np.zeros(0)
        near = [k for k, d in zip(kept, distances, strict=True) if d <= same_picture]
        best = next(
            (k for k in near if same_loudness(loudness[k], loudness[n]) >= same_sound), None
        )
        if best is None:
            kept.append(n)
        else:
            found[n] = best
    return found


def same_loudness(one: np.ndarray, other: np.ndarray) -> float:
    """The largest correlation of two loudness curves over all shifts that let them overlap by
    `SHORTEST_S` seconds or half of the shorter one."""
    shorter, longer = sorted((one, other), key=len)
    least = max(min(round(SHORTEST_S * FRAME_RATE_HZ), len(shorter)), len(shorter) // 2)
    best = -1.0
    for shift in range(least - len(shorter), len(longer) - least + 1):
        a = shorter[max(-shift, 0) : len(longer) - shift]
        b = longer[max(shift, 0) : shift + len(shorter)]
        if a.std() > 0 and b.std() > 0:
            best = max(best, float(np.corrcoef(a, b)[0, 1]))
    return best
