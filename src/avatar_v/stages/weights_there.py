"""Whether the folders of weights that a recipe begins with are there. Torch is not imported."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

WEIGHTS_KEYS = ("init_from", "vae", "dit")
"""Settings of a stage that name a folder of weights, which another recipe may make."""
MadeBy = Callable[[str], str | None]
"""The command that makes a folder of weights, or None where no recipe here does."""


def check_weights(settings: Mapping[str, Any], made_by: MadeBy) -> None:
    """ValueError for the first folder of weights in ``settings`` that does not exist, with the
    command that makes it. A name without a slash may be one that ships."""
    for path, folder in _folders(settings):
        if "/" not in folder or Path(folder).exists():
            continue
        command = made_by(folder)
        first = "" if command is None else f"; first run: {command}"
        raise ValueError(f"{path}: there are no weights in {folder}{first}")


def _folders(settings: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, str]]:
    for name, value in settings.items():
        where = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping):
            yield from _folders(value, where)
        elif name in WEIGHTS_KEYS and isinstance(value, str):
            yield where, value
