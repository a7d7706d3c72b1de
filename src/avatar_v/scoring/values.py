"""The outputs of a score by name, and its values. Imports nothing heavy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Faces = Literal["drawn", "real"]
"""People of the world, or real people. Each kind has critics of its own."""


@dataclass(frozen=True)
class ScoreOutput:
    """One number of a score. ``better``: which way is good, "" where neither is."""

    key: str
    label: str
    better: Literal["higher", "lower", "zero", ""]
    unit: str = ""


@dataclass(frozen=True)
class Values:
    """Of one clip: a number for each output, some of them also per frame: (frame, value).

    ``rows`` "n d" are features of which a set of clips is judged (scorers/sets.py).
    """

    values: Mapping[str, float]
    frames: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rows: "Tensor | None" = None
