"""Words of messages to a user."""

import difflib
import sys
import textwrap
import unicodedata
from collections.abc import Collection, Iterable

MAX_WORD = 300
"""Characters of one word of an error that are shown."""
NUM_NEAR = 3
LIKENESS = 0.5
"""Of difflib, from 0 to 1: names less alike are not called near."""
NUM_LISTED = 12
HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode whose characters show nothing."""
MAX_LISTED = 120
"""Characters of the names that are listed where none is near."""


def counted(num: int, noun: str) -> str:
    """``1 frame``, ``2 frames``, ``3,000 frames``, for nouns whose plural ends in s."""
    return f"{num:,} {noun}" + ("" if num == 1 else "s")


def listed(names: Iterable[str]) -> str:
    """Each name once and in quotes, the first `NUM_LISTED` of them."""
    once = list(dict.fromkeys(names))
    rest = len(once) - NUM_LISTED
    return ", ".join(map(repr, once[:NUM_LISTED])) + (f" and {rest} more" if rest > 0 else "")


def near(name: str, known: Iterable[str]) -> list[str]:
    """Those of the ``known`` names that a misspelt one may stand for, the most alike first."""
    return difflib.get_close_matches(name, list(known), NUM_NEAR, LIKENESS)


def no_key(place: str, key: str, known: Collection[str]) -> str:
    """That ``place`` has no such key, and which of the ``known`` ones are near, or all of them."""
    alike = near(key, known)
    said = f"nearest: {', '.join(alike)}"
    if not alike:
        said = f"it has {textwrap.shorten(', '.join(known), MAX_LISTED, placeholder=' …')}"
    return f"{place} has no key {key}; {said}"


def printable(text: str) -> str:
    """A text as it may go to a terminal: characters that control it (but for line ends and tabs),
    turn the direction of writing or show nothing are written as Python escapes them."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_escaped(c) if is_hidden(c) and c not in "\n\t" else c for c in text)


def notice(text: str) -> None:
    """A line on stderr, `printable`."""
    print(printable(text), file=sys.stderr, flush=True)


def is_hidden(character: str) -> bool:
    """Whether a character shows nothing: controls, formats, halves of pairs and line separators."""
    return unicodedata.category(character) in HIDDEN


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()


def readable(error: ValueError | OSError) -> str:
    """An error in one line; those of the system about a file without their numbers."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{_short(printable(str(error.filename)) or repr(''))}: {error.strerror.lower()}"
    words = [_short(word) for word in printable(str(error)).split()]
    return " ".join(words) or type(error).__name__


def _short(word: str) -> str:
    """A word that no path of a sane system fills, without its middle."""
    return word if len(word) <= MAX_WORD else f"{word[:80]}…{word[-40:]}"
