"""Who is who across recordings, and where: persons and scenes of clips (Avatar V §5.4).

Faces are compared as templates, one a clip. Complete linkage groups them: all faces of a person are
as near to each other as asked, so that a chain of look-alikes does not become one person. A
person's clips are one scene where their backgrounds are alike, or alike to others between them: two
clips from two scenes never have like backgrounds. Training draws its reference from another scene
of the same person.
"""

import heapq
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Bool, Float32, Int

from avatar_v_data.curation.index import Pairs, connected

Cells = Sequence[Sequence[float | int] | None]
Labels = Int[np.ndarray, " n"]
"""A number for each clip, equal where they belong together."""
Backgrounds = Float32[np.ndarray, "n k c"]
"""The colours of a picture's cells, 0 to 255, NaN where the head is."""
NOTHING = 255.0
"""The distance of backgrounds that have no cell in common."""


def group_persons(pairs: Pairs, num: int) -> Labels:
    """Complete linkage of ``num`` clips: a person's clips are all pairs. What must not be one
    person is no pair, and nothing that holds it becomes one.

    Only in groups that are connected and not complete is there anything to decide: there the two
    nearest join first, as long as all of theirs are pairs.
    """
    group, is_whole = connected(pairs.left, pairs.right, num)
    labels = group.astype(np.int64)
    members = np.flatnonzero(~is_whole[group])
    labels[members] = num + members
    open_ones = np.flatnonzero(~is_whole[group[pairs.left]])
    open_ones = open_ones[np.argsort(group[pairs.left[open_ones]], kind="stable")]
    ends = np.flatnonzero(np.diff(group[pairs.left[open_ones]])) + 1
    for own_pairs in map(pairs.where, np.split(open_ones, ends)):
        rows = zip(*(x.tolist() for x in vars(own_pairs).values()), strict=True)
        for leader, own in _linked(rows).items():
            labels[own] = num + leader
    return labels


def group_scenes(
    pairs: Pairs, apart: Float32[np.ndarray, " p"], persons: Labels, same: float
) -> Labels:
    """``apart``: how far the backgrounds of the pairs lie apart; ``same``: at most so far they are
    alike."""
    alike = (persons[pairs.left] == persons[pairs.right]) & (apart <= same)
    return connected(pairs.left[alike], pairs.right[alike], len(persons))[0]


def shared_frames(
    pairs: Pairs, files: Labels, starts: Int[np.ndarray, " n"], stops: Int[np.ndarray, " n"]
) -> Bool[np.ndarray, " p"]:
    """Which pairs are seen in one frame, and so are two people: clips of one file that overlap."""
    left, right = pairs.left, pairs.right
    overlap = (starts[left] < stops[right]) & (starts[right] < stops[left])
    return (files[left] == files[right]) & overlap


def backgrounds(pictures: Sequence[Cells]) -> Backgrounds:
    """As an array."""
    empty = [np.nan] * 3
    rows = [[empty if cell is None else cell for cell in picture] for picture in pictures]
    return np.array(rows, np.float32)


def background_distances(pictures: Backgrounds, pairs: Pairs) -> Float32[np.ndarray, " p"]:
    """Mean absolute difference of the cells that both of a pair show, `NOTHING` without any."""
    found = np.full(len(pairs), NOTHING, np.float32)
    for start in range(0, len(pairs), 1 << 14):
        part = slice(start, start + (1 << 14))
        apart = np.abs(pictures[pairs.left[part]] - pictures[pairs.right[part]])
        is_seen = ~np.isnan(apart)
        num = is_seen.sum((1, 2))
        total = np.where(is_seen, apart, 0).sum((1, 2), np.float64)
        found[part][num > 0] = total[num > 0] / num[num > 0]
    return found


def _linked(pairs: Iterable[tuple[int, int, float]]) -> dict[int, list[int]]:
    """The members of each group, under the first of them.

    A group keeps its distance to the groups all of whose members are pairs with all of its own: the
    largest of theirs. Of two that join, only what both had stays.
    """
    apart: dict[int, dict[int, float]] = {}
    queue = []
    for left, right, distance in pairs:
        apart.setdefault(left, {})[right] = distance
        apart.setdefault(right, {})[left] = distance
        queue.append((distance, left, right))
    members = {clip: [clip] for clip in apart}
    heapq.heapify(queue)
    while queue:
        distance, one, other = heapq.heappop(queue)
        if apart.get(one, {}).get(other) != distance:
            continue  # one of them has joined another since
        members[one] += members.pop(other)
        first, second = apart.pop(one), apart.pop(other)
        both = {x: max(first[x], second[x]) for x in first.keys() & second.keys()}
        for x in (first.keys() | second.keys()) - {one, other}:
            apart[x].pop(one, None)
            apart[x].pop(other, None)
            if x in both:
                apart[x][one] = both[x]
                heapq.heappush(queue, (both[x], min(one, x), max(one, x)))
        apart[one] = both
    return members
