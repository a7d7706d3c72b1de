"""The outputs of a metric by name, and its measured values. Imports nothing heavy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Output:
    """One number of a metric. ``better``: which way is good, "" where neither is."""

    key: str
    label: str
    better: Literal["higher", "lower", "zero", ""]
    unit: str = ""


@dataclass(frozen=True)
class Measured:
    """Of one clip: a number for each output, some of them also per frame: (frame, value).

    ``rows`` "n d" are features that a metric of whole sets goes on with (set_metric.py).
    """

    values: Mapping[str, float]
    frames: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    rows: "Tensor | None" = None
