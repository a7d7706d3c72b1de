"""Recipe files as mappings, read within bounds: a small file never becomes a large structure.

YAML lets a file name a part of itself again (an alias), so that a kilobyte can stand for more
lists than any memory holds. Files are limited in size, and their content in the number of values
that it has with all aliases written out.
"""

import os
import stat
from typing import Any

import yaml

from avatar_v.words import no_key

MAX_BYTES = 1_000_000
MAX_VALUES = 20_000
SECTIONS = ("trainer", "stages")
"""Top-level keys whose value is a mapping, if they are there."""
KEYS = ("model", "data", "trainer", "stages", "seed_everything", "ckpt_path", "verbose")
"""All top-level keys. The parser refuses another one, but not where its value is empty."""


def read_recipe(path: str) -> dict[str, Any]:
    """The mapping in ``path``. ValueError, with the path, for all that is no recipe; OSError."""
    value = read_yaml(path)
    check_sections(path, value)
    return value


def read_yaml(path: str, what: str = "recipe") -> Any:
    """What is in a file of YAML that should be a ``what``. ValueError, with the path, for a pipe,
    what is no YAML, and more than the bounds allow; OSError."""
    if stat.S_ISFIFO(os.stat(path).st_mode):  # it would be waited for
        raise ValueError(f"{path} is no {what}: it is a pipe, expected a file")
    with open(path, "rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path} is no {what}: it has more than {MAX_BYTES:,} bytes")
    try:
        return _parsed(content.decode("utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not YAML: it is not text in UTF-8") from error
    except RecursionError as error:
        raise ValueError(f"{path} is no {what}: its values are nested too deeply") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


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


def _parsed(text: str) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _num_values(root, {}) > MAX_VALUES:
            raise ValueError(f"aliases (*name) make more than {MAX_VALUES:,} values of it")
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _num_values(node: yaml.Node, known: dict[int, int]) -> int:
    """Values below ``node``, itself included, each alias counted like what it stands for; too
    many for a node that holds itself."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = MAX_VALUES + 1  # while its parts are counted
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        children = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    known[id(node)] = 1 + sum(_num_values(child, known) for child in children)
    return known[id(node)]


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__
