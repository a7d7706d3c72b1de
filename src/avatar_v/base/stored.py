"""Values from files and callers, checked against the types of the fields that take them.

The types are those of a dataclass or constructor, so a new field is checked without further code.
Folders of weights hold such values beside their tensors (states.py), requests consist of them, and
torch is not needed to read either.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from avatar_v.base.outside import parse_json as parse_json
from avatar_v.base.outside import read_json as read_json

MAX_SIZE = 1 << 16
"""No width, depth or count of a network is larger; what claims to be would fill the memory."""
MAX_ENTRIES = 4096
"""Of a list in a file of settings."""
LARGEST = 1e30
"""Of a number without a range."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Within:
    """In ``Annotated[int, Within(1, 8)]``: the range of a number, both ends included."""

    low: int | float
    high: int | float


Count = Annotated[int, Within(1, 1000)]
"""Of layers, heads and the like."""
Size = Annotated[int, Within(1, MAX_SIZE)]


Guidance = Annotated[float, Within(0, 100)]
"""A weight of guidance; 1 is none."""


def built(
    make: Callable[..., _T],
    values: Mapping[str, Any],
    *,
    where: str | Path,
    **given: Any,
) -> _T:
    """``make(**values, **given)``, where ``values`` are those of a file.

    ValueError, which begins with ``where``, for missing or unknown fields, a value of another type
    than ``make``'s annotation or out of its range, and whatever ``make`` itself refuses. Whole
    numbers without a range are from 0 to `MAX_SIZE`.
    """
    hints = {name: hint for name, hint in accepted_fields(make).items() if name not in given}
    unknown, missing = sorted(set(values) - set(hints)), sorted(set(hints) - set(values))
    if unknown or missing:
        raise ValueError(f"{where}: unknown keys {unknown}, missing keys {missing}")
    found = checked(values, hints, where=where)
    try:
        return make(**found, **given)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def checked(
    values: Mapping[str, Any], hints: Mapping[str, Any], *, where: str | Path
) -> dict[str, Any]:
    """Those of ``values`` that ``hints`` names, `converted`; others stay out."""
    return {
        name: converted(values[name], hint, where=f"{where}: {name}")
        for name, hint in hints.items()
        if name in values
    }


def accepted_fields(make: Callable[..., Any]) -> dict[str, Any]:
    """Name → annotation of what a dataclass or constructor takes by name."""
    call = make.__init__ if inspect.isclass(make) else make
    hints = get_type_hints(call, include_extras=True)
    names = [name for name in inspect.signature(make).parameters if name in hints]
    return {name: hints[name] for name in names}


def converted(value: Any, hint: Any, *, where: str) -> Any:
    """``value``, as JSON or a caller gives it, in the type of an annotation: whole numbers pass as
    floats, objects become dataclasses, lists tuples where these are meant. Nothing else changes.

    ValueError, which begins with ``where``, for another type, a range (`Within`) or size exceeded,
    and for numbers that are not finite.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        limits = next((part for part in parts[1:] if isinstance(part, Within)), None)
        return _number(value, parts[0], limits, where)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in parts:
            return None
        kinds = [part for part in parts if part is not type(None)]
        if len(kinds) == 1:
            return converted(value, kinds[0], where=where)
    if hint in (int, float):
        return _number(value, hint, Within(0, MAX_SIZE) if hint is int else None, where)
    if origin in (list, tuple):
        if not isinstance(value, (list, tuple)) or len(value) > MAX_ENTRIES:
            raise ValueError(f"{where} is a list of at most {MAX_ENTRIES}, got {shown(value)}")
        return origin(
            converted(each, parts[0], where=f"{where}[{i}]") for i, each in enumerate(value)
        )
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, dict):
            raise ValueError(f"{where} is an object, got {shown(value)}")
        return built(hint, value, where=where)
    if origin is Literal:
        if not isinstance(value, str) or value not in parts:
            raise ValueError(f"{where} is one of {', '.join(map(str, parts))}, got {shown(value)}")
        return value
    if hint in (str, bool):
        if type(value) is not hint:
            words = "text" if hint is str else "true or false"
            raise ValueError(f"{where} is {words}, got {shown(value)}")
        if "\0" in str(value):
            raise ValueError(f"{where} is text without NUL characters, got {shown(value)}")
        return value
    raise TypeError(f"{where}: no rule for values of {hint}")


def shown(value: object) -> str:
    """A value in an error message: at most some 60 characters."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 60 else f"{text[:57]}…"


def _number(value: Any, kind: type, limits: Within | None, where: str) -> Any:
    """``value`` as ``kind``, int or float; True is no number, and 2.0 no whole one."""
    limits = limits or Within(-LARGEST, LARGEST)
    if (type(value) is int or type(value) is kind) and limits.low <= value <= limits.high:
        return kind(value)
    words = "a whole number" if kind is int else "a finite number"
    span = "" if limits.high == LARGEST else f" from {limits.low:,} to {limits.high:,}"
    raise ValueError(f"{where} is {words}{span}, got {shown(value)}")
