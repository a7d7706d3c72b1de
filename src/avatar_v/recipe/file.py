"""Recipe files as mappings of sections; base/outside.py bounds what they hold."""

from typing import Any

from avatar_v.base.outside import read_yaml
from avatar_v.base.words import no_key

SECTIONS = ("trainer", "every", "stages")
"""Top-level keys whose value is a mapping, if they are there."""
OF_OVERLAYS = ("every", "stages", "runs")
KEYS = ("model", "data", "trainer", *OF_OVERLAYS, "seed_everything", "ckpt_path", "verbose")
"""All top-level keys. The parser refuses another one, but not where its value is empty."""

TRL = "trl"
"""The key that such a recipe has besides its own."""


def read_recipe(path: str) -> dict[str, Any]:
    """The mapping in ``path``. ValueError, with the path, for all that is no recipe."""
    value = read_yaml(path, "recipe")
    check_sections(path, value)
    return value


def is_of_trl(path: str) -> bool:
    """Whether one of trl's trainers runs it (voices/recipes.py), and not LightningCLI."""
    value = read_yaml(path, "recipe")
    return isinstance(value, dict) and TRL in value


def check_sections(path: str, value: Any) -> None:
    """ValueError unless ``value`` is a mapping by the keys of a recipe, and so are its sections."""
    if not isinstance(value, dict):
        raise ValueError(f"{path} is not a recipe: expected a mapping, got {_kind(value)}")
    for key, part in value.items():
        if not isinstance(key, str):
            raise ValueError(f"{path}: keys of a recipe are words, got {key!r}")
        if key not in KEYS:
            raise ValueError(f"{path}: {no_key('a recipe', key, KEYS)}")
        if key in SECTIONS and not isinstance(part, dict):
            raise ValueError(f"{path}: {key} is a mapping, got {_kind(part)} ({part!r:.60})")


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
