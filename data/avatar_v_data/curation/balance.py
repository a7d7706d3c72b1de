"""An even share of a tier's clips: no group of clips and no person takes the place of others.

Groups are those of values, such as resolution and length, or of kinds (Avatar V §5.4, kinds.py).
Each clip is taken from the group that has fewest so far, there from the person who has fewest in
all, and of that person from the scene that has fewest: a clip counts the less, the more of its kind
there are. What is taken first of a person are two clips of different scenes, so that each clip has
a reference in its own group. Of one scene the sharper clips go first. Nothing is drawn by chance.
"""

import heapq
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from avatar_v_data.curation.plan import Balance
from avatar_v_data.curation.table import clip_name, shows_background

Clip = Mapping[str, Any]


def balanced(clips: Sequence[Clip], balance: Balance) -> list[Clip]:
    """At most ``balance.clips`` of the clips, in the order given; those of a person who has a
    single scene in a group are left out, and those that show a head alone."""
    queues = _queues(clips, balance)
    taken: Counter[Any] = Counter()
    persons = {group: [(0, person) for person in sorted(own)] for group, own in queues.items()}
    groups = [(0, group) for group in sorted(queues)]
    chosen: set[str] = set()
    while groups:
        num, group = heapq.heappop(groups)
        own = persons[group]
        while own and own[0][0] != taken[own[0][1]]:  # who has got some elsewhere since
            person = own[0][1]
            heapq.heapreplace(own, (taken[person], person))
        if not own:
            continue
        person = own[0][1]
        queue = queues[group][person]
        next_ones = 1 if taken[group, person] else 2
        if len(chosen) + next_ones > balance.clips:
            heapq.heappop(own)  # no room for a pair; perhaps for one more of another person
            heapq.heappush(groups, (num, group))
            continue
        chosen.update(clip_name(queue.pop()) for _ in range(next_ones))
        taken[person] += next_ones
        taken[group, person] += next_ones
        if queue:
            heapq.heapreplace(own, (taken[person], person))
        else:
            heapq.heappop(own)
        heapq.heappush(groups, (num + next_ones, group))
    return [clip for clip in clips if clip_name(clip) in chosen]


def group_of(clip: Clip, groups: Mapping[str, Sequence[float]]) -> tuple[int | str, ...]:
    """Between which ends each column's value lies, or the value where there are none."""
    return tuple(
        bisect_right(sorted(ends), clip[column]) if ends else str(clip[column])
        for column, ends in groups.items()
    )


def largest_share(clips: Sequence[Clip], balance: Balance) -> tuple[float, float]:
    """Of the clips, what the largest group and the person with most clips have."""
    counts = (
        Counter(group_of(clip, balance.groups) for clip in clips),
        Counter(clip["person"] for clip in clips),
    )
    group, person = (max(count.values(), default=0) / max(len(clips), 1) for count in counts)
    return group, person


def _queues(clips: Sequence[Clip], balance: Balance) -> dict[Any, dict[str, list[Clip]]]:
    """Group → person → clips, last first: the best of each scene in turns, then the second best."""
    scenes: dict[Any, dict[str, list[Clip]]] = defaultdict(lambda: defaultdict(list))
    for clip in filter(shows_background, clips):
        scenes[group_of(clip, balance.groups), clip["person"]][clip["scene"]].append(clip)
    queues: dict[Any, dict[str, list[Clip]]] = defaultdict(dict)
    for (group, person), of_scene in scenes.items():
        if len(of_scene) < 2:
            continue
        ranked = [
            (rank, -clip["sharpness"], clip_name(clip), clip)
            for own in of_scene.values()
            for rank, clip in enumerate(sorted(own, key=_quality))
        ]
        queues[group][person] = [row[-1] for row in sorted(ranked, key=lambda r: r[:3])[::-1]]
    return queues


def _quality(clip: Clip) -> tuple[float, str]:
    return -clip["sharpness"], clip_name(clip)
