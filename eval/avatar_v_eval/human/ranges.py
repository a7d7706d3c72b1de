"""Marked ranges of a clip: which fault from when to when, as text of a vote, and how they overlap.

The text is "teeth:0.40-1.20 teeth:2.00-2.52", sorted, ranges of one fault apart; "none" for a clip
without faults. A known answer may add the least overlap that is right: "teeth:0.40-1.20 iou>=0.6".
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAX_RANGES = 50
NONE = "none"
LEAST_OVERLAP = 0.5
"""Intersection over union from which two answers agree, and a known one is met."""
_RANGE = re.compile(r"([a-z0-9][a-z0-9_]{0,39}):(\d{1,6}\.\d\d)-(\d{1,6}\.\d\d)")
_LEAST = re.compile(r"(.*) iou>=(0?\.\d+|1(?:\.0+)?)")


@dataclass(frozen=True, order=True)
class Marked:
    """A fault from ``start`` to ``stop``, in seconds."""

    fault: str
    start: float
    stop: float


def as_text(marked: Iterable[Marked]) -> str:
    """What is stored: to a hundredth of a second, ranges of one fault that touch made one."""
    joined: list[Marked] = []
    for one in sorted(marked):
        last = joined[-1] if joined else None
        if last and last.fault == one.fault and one.start <= last.stop:
            joined[-1] = Marked(last.fault, last.start, max(last.stop, one.stop))
        else:
            joined.append(one)
    return " ".join(f"{m.fault}:{m.start:.2f}-{m.stop:.2f}" for m in joined) or NONE


def read_ranges(text: str) -> tuple[Marked, ...]:
    """Of ``as_text``; ValueError for other text."""
    found = [_RANGE.fullmatch(part) for part in text.split(" ")] if text != NONE else []
    if len(found) > MAX_RANGES:
        raise ValueError(f"at most {MAX_RANGES} ranges are marked, got {len(found)}")
    marked = tuple(Marked(m[1], float(m[2]), float(m[3])) for m in found if m)
    if (
        len(marked) < len(found)
        or as_text(marked) != text
        or any(m.start >= m.stop for m in marked)
    ):
        raise ValueError(f"expected ranges like 'teeth:0.40-1.20', or '{NONE}', got {text!r:.60}")
    return marked


def overlap(one: Sequence[Marked], other: Sequence[Marked]) -> float:
    """Intersection over union, 0 to 1, of the marked time; other faults do not overlap."""
    shared = sum(
        max(0.0, min(a.stop, b.stop) - max(a.start, b.start))
        for a in one
        for b in other
        if a.fault == b.fault
    )
    whole = sum(m.stop - m.start for m in (*one, *other)) - shared
    return shared / whole if whole else 1.0


def known_ranges(expected: str) -> tuple[tuple[Marked, ...], float]:
    """A known answer, and the least overlap with it that is right."""
    least = _LEAST.fullmatch(expected)
    return read_ranges(least[1] if least else expected), float(least[2]) if least else LEAST_OVERLAP


def is_met(answer: str, expected: str) -> bool:
    """Whether an answer overlaps a known one enough; a clean clip has none marked."""
    known, least = known_ranges(expected)
    return overlap(read_ranges(answer), known) >= least


def majority(answers: Sequence[str]) -> str:
    """The ranges that more than half of the answers mark, fault by fault."""
    edges: dict[str, list[tuple[float, int]]] = {}
    for marked in (m for answer in answers for m in read_ranges(answer)):
        edges.setdefault(marked.fault, []).extend([(marked.start, 1), (marked.stop, -1)])
    kept = []
    for fault, places in edges.items():
        depth, start = 0, 0.0
        for time, step in sorted(places):
            if 2 * depth <= len(answers) < 2 * (depth + step):
                start = time
            elif 2 * (depth + step) <= len(answers) < 2 * depth and time > start:
                kept.append(Marked(fault, start, time))
            depth += step
    return as_text(kept)
