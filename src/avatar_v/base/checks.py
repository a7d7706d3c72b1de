"""Checks of the numbers that a recipe or a caller sets, made where an object is constructed.

Each function raises one ValueError that names the key, what is expected and the value. NaN and
infinity fit no range. Checks of shapes are models/checks.py's.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

MOST = 1e6
"""Weights, factors and counts above this are mistakes of the unit or of the exponent."""
AT_ONCE = 64
"""Processes or threads that a machine of few cores may still be asked for."""

Number = int | float
Check = Callable[[str, object], None]


def number(
    key: str,
    value: object,
    *,
    least: Number = -math.inf,
    most: Number = math.inf,
    above: Number = -math.inf,
    below: Number = math.inf,
) -> None:
    """ValueError unless ``value`` is a finite number with least <= value <= most and
    above < value < below."""
    is_truth = isinstance(value, bool)
    found = float(value) if isinstance(value, int | float) and not is_truth else math.nan
    if not (math.isfinite(found) and least <= found <= most and above < found < below):
        raise ValueError(f"{key} is {_range(least, most, above, below)}, got {value}")


def finite(key: str, value: object) -> None:
    """Any number but NaN and infinity."""
    number(key, value)


def positive(key: str, value: object, most: Number = MOST) -> None:
    """Above 0 and at most ``most``."""
    number(key, value, above=0, most=most)


def weight(key: str, value: object) -> None:
    """At least 0 and at most ``MOST``: the factor of a term, or what is added to one."""
    number(key, value, least=0, most=MOST)


def share(key: str, value: object) -> None:
    """In [0, 1]."""
    number(key, value, least=0, most=1)


def decay(key: str, value: object) -> None:
    """At least 0 and below 1: what a running mean keeps of itself."""
    number(key, value, least=0, below=1)


def count(key: str, value: object, least: int = 1, most: Number = MOST) -> None:
    """A whole number from ``least`` to ``most``."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{key} is a whole number from {least} to {most:,.0f}, got {value}")


def at_once(key: str, value: object, least: int = 1) -> None:
    """Processes or threads of this machine: at most `AT_ONCE`, or four for each of its cores."""
    count(key, value, least=least, most=max(AT_ONCE, 4 * (os.cpu_count() or 1)))


def seed(key: str, value: object) -> None:
    """A whole number of at most 63 bits, as generators of random numbers take it."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{key} is a whole number from 0 to 2^63 - 1, got {value}")


def folder(key: str, value: str) -> None:
    """A folder that is there, or can be made, and that may be written to."""
    path = Path(value)
    there = next((part for part in (path, *path.parents) if part.exists()), path)
    if not there.is_dir():
        raise ValueError(f"{key} is a folder, but {there} is a file, got {value}")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(f"{key} is a folder to write to, but {there} is not, got {value}")


def each(check: Check, values: object, names: Iterable[str]) -> None:
    """``check`` for the attributes ``names`` of the object ``values``."""
    for name in names:
        check(name, getattr(values, name))


def entries(check: Check, key: str, values: Mapping[Any, Any] | Sequence[Any]) -> None:
    """``check`` for every entry of a mapping or a sequence."""
    pairs = values.items() if isinstance(values, Mapping) else enumerate(values)
    for name, value in pairs:
        check(f"{key}[{name}]", value)


def by_step(check: Check, key: str, schedule: Mapping[int, Any]) -> None:
    """``check`` for every value of a schedule {step: value from that step on}, which begins at
    step 0 and knows no step before it."""
    if 0 not in schedule:
        raise ValueError(f"{key} needs an entry for step 0, got {dict(schedule)}")
    for step, value in schedule.items():
        count(f"a step of {key}", step, least=0, most=1e12)
        check(f"{key}[{step}]", value)


def _range(least: Number, most: Number, above: Number, below: Number) -> str:
    if (least, most) == (0, 1):
        return "in [0, 1]"
    limits = [
        (f"at least {least:g}", least > -math.inf),
        (f"above {above:g}", above > -math.inf),
        (f"at most {most:g}", most < math.inf),
        (f"below {below:g}", below < math.inf),
    ]
    said = [text for text, holds in limits if holds]
    return " and ".join(said) or "a finite number"
