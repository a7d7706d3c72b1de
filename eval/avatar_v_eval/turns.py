"""The protocol of speed: ways x turns give ratios with their spread.

The ways of a comparison take turns in one process, so that a machine that is slow for a while is
slow for all of them; a ratio is taken within each turn. The first turn warms up. A value is the
median of the turns, its interval the lowest and the highest.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.records import Number

Times = Mapping[str, Sequence[float]]
"""Way → seconds of each turn."""


def seconds(
    function: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Time of one call by ``clock``."""
    start_s = clock()
    function()
    return clock() - start_s


def in_turns(
    ways: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each way in ``repeats`` turns, behind a turn that warms up; the order of the ways
    alternates. A ``clock`` of the process's own time is one that others on the machine do not
    hold up."""
    names = list(ways)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats + 1):
        for name in names if turn % 2 else reversed(names):
            took = seconds(ways[name], clock)
            if turn:
                times[name].append(took)
    return times


def ratio(times: Times, way: str, other: str) -> Number:
    """Seconds of ``way`` over those of ``other``, within each turn."""
    return median_of_repeats([a / b for a, b in zip(times[way], times[other], strict=True)])


def turns_note(repeats: int, what: str = "turns") -> str:
    """The spread in words, for the notes of a result."""
    return f"median of {repeats} {what}, with the lowest and the highest"
