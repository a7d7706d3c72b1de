"""What a metric gives: its outputs by name, and what it measured. Imports nothing heavy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Output:
    """One number of a metric. ``better``: which way is good, "" where neither is."""

    key: str
    label: str
    better: Literal["higher", "lower", "zero", ""]
    unit: str = ""


@dataclass(frozen=True)
class Measured:
    """Of one clip: a number for each output, some of them also per frame: (frame, value)."""

    values: Mapping[str, float]
    frames: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
