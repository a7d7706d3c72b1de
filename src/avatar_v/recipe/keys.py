"""Misspelt keys of a recipe or an option: where, and which known key is near.

jsonargparse refuses a key without a word about the file it is in or the keys that there are. This
is asked behind its refusal alone: constructors say which keys they take, as the parser reads them.
"""

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import UnionType
from typing import Any, get_args

from avatar_v.base.trust import may_build
from avatar_v.base.words import no_key
from avatar_v.recipe.file import OF_OVERLAYS, read_recipe

OF_OBJECTS = ("class_path", "init_args", "dict_kwargs")
Keys = tuple[str, ...]
"""The way to a value; an object in a list goes by its class_path."""
Misspelt = Callable[[Iterable[str]], str | None]
"""`misspelt` of a recipe; it is given the options of the parser."""


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A key that nothing takes, and those that its place knows."""

    keys: Keys
    known: tuple[str, ...]

    def __str__(self) -> str:
        *place, key = self.keys
        return no_key(".".join(place) or "a recipe", key, self.known)


def misspelt(
    recipe: Mapping[str, Any],
    words: Sequence[str],
    files: Sequence[str],
    stage: str,
    options: Iterable[str],
) -> str | None:
    """One line about the first unknown key of the merged ``recipe`` or of the options in ``words``.

    Args:
        files: what the recipe was merged from, the last to be taken first.
        stage: the name of its part in overlays.
        options: the dotted names that the parser itself knows (trainer.max_steps, ckpt_path).
    """
    known = _tree(options)
    found = unknown_key(recipe, known)
    if found is not None:
        return f"{_find_file(found.keys, files, stage)}: {found}"
    for word in words:
        if not word.startswith("--"):
            continue
        found = _unknown_option(word[2:].partition("=")[0].rstrip("+"), recipe, known)
        if found is not None:
            return f"{word.partition('=')[0]}: {found}"
    return None


def unknown_key(value: Any, known: Any, keys: Keys = ()) -> Unknown | None:
    """The first unknown key in ``value``. ``known`` maps the keys of a place to what is below: such
    a mapping, or the type of the value; None takes any."""
    if isinstance(value, list):
        objects = [item for item in value if isinstance(item, Mapping) and "class_path" in item]
        found = (unknown_key(item, known, (*keys, str(item["class_path"]))) for item in objects)
        return next(filter(None, found), None)
    if not isinstance(value, Mapping):
        return None
    if "class_path" in value:
        return _unknown_of_object(value, keys)
    below = known if isinstance(known, Mapping) else _fields(known)
    if below is None:
        return None
    for key, part in value.items():
        if key not in below:
            return Unknown((*keys, str(key)), tuple(below))
        found = unknown_key(part, below[key], (*keys, key))
        if found is not None:
            return found
    return None


def _unknown_of_object(value: Mapping[str, Any], keys: Keys) -> Unknown | None:
    arguments = _arguments(str(value["class_path"]))
    if arguments is None:
        return None
    beside = {key: part for key, part in value.items() if key not in OF_OBJECTS}
    known = {**dict.fromkeys(OF_OBJECTS[:2]), **arguments}  # init_args may be left out
    found = unknown_key(beside, known, keys)
    return found or unknown_key(value.get("init_args"), arguments, (*keys, "init_args"))


def _unknown_option(
    name: str, recipe: Mapping[str, Any], known: Mapping[str, Any]
) -> Unknown | None:
    """The same of one dotted option, whose objects are those of the recipe."""
    content: Any = recipe
    keys = name.split(".")
    value: Any = {keys[-1]: None}
    classes: list[Any] = []
    for key in keys[:-1]:
        content = content.get(key) if isinstance(content, Mapping) else None
        classes.append(content.get("class_path") if isinstance(content, Mapping) else None)
    for key, class_path in zip(reversed(keys[:-1]), reversed(classes), strict=True):
        value = {key: value if class_path is None else {"class_path": class_path, **value}}
    return unknown_key(value, known)


def _tree(options: Iterable[str]) -> dict[str, Any]:
    """Dotted names as nested mappings, with what a recipe may hold besides."""
    tree: dict[str, Any] = dict.fromkeys(OF_OVERLAYS)
    for option in options:
        below = tree
        *place, last = option.split(".")
        for key in place:
            below[key] = below.get(key) or {}
            below = below[key]
        below.setdefault(last, None)
    return tree


def _arguments(class_path: str) -> dict[str, Any] | None:
    """Names and types that a constructor takes; None where it takes any, or is not there."""
    if not may_build(class_path):
        return None
    module, _, name = class_path.rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
        found = inspect.signature(kind, eval_str=True).parameters.values()
    except (ImportError, AttributeError, ValueError, TypeError, NameError):
        return None
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in found):
        return None
    return {one.name: one.annotation for one in found}


def _fields(hint: Any) -> dict[str, Any] | None:
    """Those of the dataclass that ``hint`` is or allows; None where there is none."""
    for kind in (hint, *(get_args(hint) if isinstance(hint, UnionType) else ())):
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            found = inspect.signature(kind, eval_str=True).parameters.values()
            return {one.name: one.annotation for one in found}
    return None


def _find_file(keys: Keys, files: Sequence[str], stage: str) -> str:
    """The last of ``files`` that holds a value at ``keys``."""
    for path in reversed(files):
        content = read_recipe(path)
        every, parts, _ = (content.pop(key, None) or {} for key in OF_OVERLAYS)
        if any(_holds(one, keys) for one in (parts.get(stage), content, every)):
            return path
    return " ".join(files)


def _holds(value: Any, keys: Keys) -> bool:
    if not keys:
        return True
    if isinstance(value, list):
        return any(_holds(item, keys) for item in value)
    if not isinstance(value, Mapping):
        return False
    if value.get("class_path") == keys[0]:
        return _holds(value, keys[1:])
    return keys[0] in value and _holds(value[keys[0]], keys[1:])
