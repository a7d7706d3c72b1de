"""Values from files and callers, checked by pydantic against the types of what takes them.

The types are those of a dataclass or constructor, so a new field is checked without further code.
Numbers, text and truth are taken as they are, never converted: 2.0 is no whole number, "2" is no
number. Folders of weights hold such values beside their tensors (states.py), requests consist of
them, and torch is not needed to read either.
"""

import dataclasses
import inspect
import itertools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, NotRequired, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    Field,
    GetCoreSchemaHandler,
    StrictBool,
    StrictStr,
    TypeAdapter,
    ValidationError,
    with_config,
)
from pydantic_core import PydanticCustomError, core_schema
from typing_extensions import TypedDict

from avatar_v.base.words import near

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

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        schema: Any = {**handler(source), "strict": True, "ge": self.low, "le": self.high}
        words = "a whole number" if source is int else "a finite number"
        words += "" if self.high == LARGEST else f" from {self.low:,} to {self.high:,}"
        return core_schema.custom_error_schema(schema, "number", custom_error_message=words)


Count = Annotated[int, Within(1, 1000)]
"""Of layers, heads and the like."""
Size = Annotated[int, Within(1, MAX_SIZE)]
Guidance = Annotated[float, Within(0, 100)]
"""A weight of guidance; 1 is none."""


def built(
    make: Callable[..., _T], values: Any, *, where: str | Path, sparse: bool = False, **given: Any
) -> _T:
    """``make(**values, **given)``, where ``values`` are those of a file; with ``sparse`` it may
    leave out what has a default.

    ValueError, which begins with ``where``, for missing or unknown fields, a value of another type
    than ``make``'s annotation or out of its range, and whatever ``make`` itself refuses. Whole
    numbers without a range are from 0 to `MAX_SIZE`.
    """
    found = _read(_arguments_of(make, sparse, frozenset(given)), values, where, make)
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


def converted(value: Any, hint: Any, *, where: str | Path) -> Any:
    """``value``, as JSON or a caller gives it, in the type of an annotation: whole numbers pass as
    floats, objects become dataclasses, lists tuples where these are meant. Nothing else changes.

    ValueError, which begins with ``where``, for another type, a range (`Within`) or size exceeded,
    and for numbers that are not finite.
    """
    return _read(_value_of(hint), value, where, hint)


def shown(value: object) -> str:
    """A value in an error message: at most some 60 characters."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 60 else f"{text[:57]}…"


def _read(adapter: TypeAdapter, value: Any, where: str | Path, hint: Any) -> Any:
    """ValueError for the first fault: the place, what is expected there, and what is there.
    ``hint``: what the adapter reads, for keys that are meant instead of unknown ones."""
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        faults = error.errors(include_url=False)
        fault = next((f for f in faults if f["type"] in _KEYS), faults[0])
        place, kind, more = fault["loc"], fault["type"], fault.get("ctx", {})
        if kind in _KEYS:
            beside = [f for f in faults if f["loc"][:-1] == place[:-1]]
            keys = ((n, sorted(f["loc"][-1] for f in beside if f["type"] == n)) for n in _KEYS)
            words = (f"{_KEYS[n]} {names}" for n, names in keys if names)
            said, place = ": " + ", ".join(words), place[:-1]
            unknown = [f["loc"][-1] for f in beside if f["type"] == "extra_forbidden"]
            meant = [near(str(name), _keys_at(hint, place)) for name in unknown]
            said += f"; nearest: {', '.join(itertools.chain(*meant))}" if any(meant) else ""
        elif "error" in more:  # of a dataclass
            said = f": {more['error']}"
        else:
            names = f"one of {more.get('expected')}"
            expected = names if kind == "literal_error" else _WORDS.get(kind, fault["msg"])
            said = f" is {expected}, got {shown(fault['input'])}"
        at = "".join(f"[{part}]" if isinstance(part, int) else f": {part}" for part in place)
        raise ValueError(f"{where}{at}{said}") from error


def _keys_at(hint: Any, place: Sequence[int | str]) -> Iterable[str]:
    """The keys of the object at a place of what a type describes; none where it cannot be told."""
    kinds = [kind for kind in get_args(hint) if kind is not ...]
    if get_origin(hint) in _UNIONS:
        return _keys_at(next(filter(dataclasses.is_dataclass, kinds), None), place)
    if get_origin(hint) in _CONTAINERS:
        return _keys_at(kinds[-1], place[1:]) if place else ()
    known = accepted_fields(hint) if callable(hint) else {}
    return _keys_at(known.get(str(place[0])), place[1:]) if place else known


def _no_nul(text: str) -> str:
    if "\0" in text:
        raise PydanticCustomError("nul", "text without NUL characters")
    return text


_KEYS = {"extra_forbidden": "unknown keys", "missing": "missing keys"}
_WORDS = {
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "too_long": f"a list of at most {MAX_ENTRIES}",
}
_UNIONS = (Union, types.UnionType)
_CONTAINERS = (list, tuple, dict, Mapping)
_STRICT: dict[Any, Any] = {
    int: Annotated[int, Within(0, MAX_SIZE)],
    float: Annotated[float, Within(-LARGEST, LARGEST)],
    bool: StrictBool,
    str: Annotated[StrictStr, AfterValidator(_no_nul)],
}


@cache
def _value_of(hint: Any) -> TypeAdapter:
    return TypeAdapter(_strict(hint, False))


@cache
def _arguments_of(make: Callable[..., Any], sparse: bool, given: frozenset[str]) -> TypeAdapter:
    return TypeAdapter(_arguments(make, sparse, given))


def _arguments(make: Callable[..., Any], sparse: bool, given: frozenset[str] = frozenset()) -> Any:
    """A dictionary with the arguments of ``make``, but for those that are ``given``."""
    hints = {
        k: _strict(hint, sparse) for k, hint in accepted_fields(make).items() if k not in given
    }
    for name, parameter in inspect.signature(make).parameters.items():
        if sparse and name in hints and parameter.default is not inspect.Parameter.empty:
            hints[name] = NotRequired[hints[name]]
    return with_config(extra="forbid")(TypedDict("Arguments", hints))  # pyright: ignore


def _strict(hint: Any, sparse: bool) -> Any:
    """A type as pydantic is to read it."""
    origin = get_origin(hint)
    container: Any = origin
    if hint in _STRICT:
        return _STRICT[hint]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return Annotated[_arguments(hint, sparse), AfterValidator(lambda found: hint(**found))]
    if origin not in (*_UNIONS, *_CONTAINERS):
        return hint
    parts = tuple(part if part is ... else _strict(part, sparse) for part in get_args(hint))
    if origin in (list, tuple):
        return Annotated[container[parts], Field(max_length=MAX_ENTRIES)]
    return dict[parts] if origin in (dict, Mapping) else Union[parts]  # noqa: UP007  # pyright: ignore
