"""How a script is to be said: `[de]` or `[sad]` before what is said so, until another such mark."""

import re
from collections.abc import Iterator
from typing import NamedTuple

from avatar_v.voices.phonemes import EMOTIONS, LANGUAGES

_MARK = re.compile(r"\[(\w+)\]")


class Manner(NamedTuple):
    """What a part of a script asks for."""

    language: str = LANGUAGES[0]
    emotion: str = EMOTIONS[0]


def has_marks(text: str) -> bool:
    return any(mark in (*LANGUAGES, *EMOTIONS) for mark in _MARK.findall(text))


def split_manners(text: str) -> Iterator[tuple[Manner, str]]:
    """The parts of a text, without marks. ValueError for a mark that is not known."""
    manner, parts = Manner(), _MARK.split(text)
    for at, part in enumerate(parts):
        if at % 2 == 0:
            if any(map(str.isalnum, part)):
                yield manner, part.strip()
        elif part in LANGUAGES:
            manner = manner._replace(language=part)
        elif part in EMOTIONS:
            manner = manner._replace(emotion=part)
        else:
            known = ", ".join((*LANGUAGES, *EMOTIONS))
            raise ValueError(f"--script: [{part}] is no mark; known are {known}")
