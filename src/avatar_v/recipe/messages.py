"""Errors of jsonargparse and of constructors in one line: where, what is expected, what was given.

jsonargparse lists everything that it tried, and dumps the whole configuration behind it.
"""

import re
from collections.abc import Iterator
from typing import Any

from avatar_v.base.trust import not_named

NOISE = re.compile(
    r"NoneType|Union subtypes|Subtypes: |Subclass types expect one of:|^a class path \(str\)|"
    r"^a dict with|^a dict without|Not a valid subclass of \w+$|"
    r"Expected a path but .* either not accessible or invalid"
)
DENIED = re.compile(r"Importing '([\w.]+)' is not allowed, denied by .*? to allow it\.")
MAX_VALUE = 80
"""Characters of a given value that are repeated."""


def readable(message: str) -> str:
    """The cause in an error of jsonargparse, behind the key that it is about."""
    keys = list(dict.fromkeys(re.findall(r'Parser key "([^"]+)"', message)))
    text = re.sub(r'Parser key "[^"]+":?', "", message)
    text = DENIED.sub(lambda found: not_named(found[1]), text)
    value = None
    if "Errors:" in text:
        text, _, rest = text.split("Errors:", 1)[1].rpartition("Given value type:")
        value = rest.partition("Given value: ")[2].strip()
    lines = [line.strip(" -") for line in text.splitlines()]
    causes = list(dict.fromkeys(line for line in lines if line and not NOISE.search(line)))
    if len(keys) > 1:
        causes = [cause for cause in causes if not cause.startswith("Problem with given class_")]
    said = _plain(causes)
    loaded = re.search(r"Unable to load config ['\"](.*?)['\"]", said)
    if loaded:
        said = f"expected a mapping or a file of one, got {loaded.group(1)}"
    elif (
        value
        and "expected" in said
        and "got" not in said
        and len(value) <= MAX_VALUE
        and "(" not in value
    ):
        said += f", got {value}"
    return f"{_dotted(keys)}: {said}" if keys else said


def located(message: str, config: dict[str, Any]) -> str:
    """``message``, which begins with the name of a setting, with the whole path of that setting in
    ``config``; unchanged where several settings fit."""
    begin = re.match(r"([a-z_]+)[\[ ]", message)
    if begin is None:
        return message
    found = [(path, v) for path, v in _settings(config) if path.endswith(f".{begin.group(1)}")]
    if len(found) > 1:
        found = [(path, v) for path, v in found if message.endswith(f"got {v}")]
    return found[0][0] + message[begin.end(1) :] if len(found) == 1 else message


def _dotted(keys: list[str]) -> str:
    if len(keys) > 1 and keys[0] in ("model", "data"):
        return ".".join([keys[0], "init_args", *keys[1:]])
    return ": ".join(keys)


def _plain(causes: list[str]) -> str:
    text = " or ".join(cause for cause in causes if cause.startswith("Expected"))
    rest = [cause for cause in causes if not cause.startswith("Expected")]
    text = " ".join([*rest, text]).strip()
    text = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)
    text = re.sub(r"typing\.Literal\[([^\]]*)\]", r"\1", text)
    text = re.sub(r"\bor Expected an? ", "or ", text)
    text = re.sub(r"\bExpected an? ", "expected ", text)
    return re.sub(r"\. Got value: ", ", got ", text)


def _settings(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if path:
        yield path, value
    if isinstance(value, dict):
        for key, part in value.items():
            yield from _settings(part, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from _settings(part, f"{path}[{index}]")
