"""Where a recipe may write: into the folder of its run, and that lies below the working folder.

Words that the user typed on the command line are the user's own and may lead anywhere. What classes
that are trusted write (base/trust.py) is not known here.
"""

import importlib
import inspect
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from avatar_v.base import trust
from avatar_v.base.paths import below

FOLDERS = ("dirpath", "save_dir", "export", "kept")
"""Arguments that name a folder to write to: one inside the folder of the run."""
PLAIN = ("name", "version", "sub_dir", "filename")
"""Arguments of Lightning's classes that become names in such a folder."""
SHARED = ("tracking_uri", "artifact_location", "save_dir")
"""MLflow's, which runs share: below the working folder."""
SQLITE = "sqlite:///"
ELSEWHERE = re.compile(r"^~|://|::|[$\0]")
"""Home folders, addresses and variables, which Lightning follows behind a harmless beginning."""
NAME = re.compile(r"(?:[\w=+ -]|\.(?!\.)|\{[\w/ -]+(?::0?\d*(?:\.\d+)?[dfeg]?)?\})*")
"""A template of a file's name: no folder, and no format that could fill in one."""


def check_outputs(settings: Mapping[str, Any], words: Sequence[str]) -> None:
    """ValueError for the first place outside that the values of a recipe write to, and for objects
    that no recipe may have.

    Args:
        settings: all values, as they will be built.
        words: the command line.
    """
    typed = {part for word in words for part in re.split(r"""[\s=,{}\[\]'"]+""", word)}
    root = str(settings["trainer"]["default_root_dir"] or "")
    if root and root not in typed:
        _below_here("trainer.default_root_dir", root)
    for where, class_path, arguments in _objects(settings, ""):
        if not trust.is_trusted(class_path):
            module, _, name = class_path.rpartition(".")
            trust.check_kind(getattr(importlib.import_module(module), name), class_path, where)
            _check_object(where, class_path, arguments, root, typed)


def _check_object(
    where: str, class_path: str, arguments: Mapping[str, Any], root: str, typed: Collection[str]
) -> None:
    foreign = class_path.startswith("lightning.")
    shared = SHARED if class_path.endswith("MLFlowLogger") else ()
    for name, value in arguments.items():
        key = f"{where}.{name}"
        if foreign and name in trust.HOOKS and value:
            raise ValueError(f"{key} is not for recipes: it would call or write what is not known")
        if value is None or str(value) in typed:
            continue
        if name in shared:
            _shared(key, str(value))
        elif name in FOLDERS:
            _inside_run(key, str(value), root)
        elif foreign and name in PLAIN and not NAME.fullmatch(str(value)):
            raise ValueError(f"{key} is the name of a file or folder, without /, got {value}")


def _objects(value: Any, where: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Every object: where it stands, its class, and its arguments. ValueError for a function or a
    class itself, and for what was read of another file."""
    if isinstance(value, Mapping):
        if "__path__" in value:
            raise ValueError(f"{where}: a recipe reads no other files, got {value['__path__']}; "
                             "pass it as an overlay")  # fmt: skip
        path = value.get("class_path")
        if isinstance(path, str):
            more = {"dict_kwargs": value["dict_kwargs"]} if value.get("dict_kwargs") else {}
            arguments = value.get("init_args") or {}
            yield where, path, {**arguments, **more}
        for key, part in value.items():
            yield from _objects(part, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            yield from _objects(part, f"{where}[{i}]")
    elif inspect.isroutine(value) or inspect.isclass(value):
        path = f"{value.__module__}.{value.__qualname__}"
        if not trust.is_trusted(path):
            raise trust.refusal(path, where)


def _inside_run(key: str, value: str, root: str) -> None:
    real, run = os.path.realpath(value), os.path.realpath(root or ".")
    if ELSEWHERE.search(value) or not Path(real).is_relative_to(run):
        raise ValueError(
            f"{key}: a recipe writes into the folder of its run ({root}), got {value}; another "
            "place is given on the command line"
        )


def _shared(key: str, value: str) -> None:
    path = value
    if key.endswith(".tracking_uri"):
        path = value.removeprefix(SQLITE) if value.startswith(SQLITE) else ":"
    if set(path) & set(":?"):  # another scheme of MLflow's, or an option of sqlite's
        raise ValueError(_NOT_HERE.format(key, value))
    _below_here(key, path)


def _below_here(key: str, value: str) -> None:
    """A link of the working folder is the user's own, so that it may lead out."""
    if ELSEWHERE.search(value):
        raise ValueError(_NOT_HERE.format(key, value))
    try:
        below(".", value, where=key, links_out=True)
    except ValueError as error:
        raise ValueError(_NOT_HERE.format(key, value)) from error


_NOT_HERE = (
    "{}: a recipe writes below the working folder, got {}; another place is given on the command "
    "line"
)
