"""A script: text, from the command line or a file, and the English sentences that the drawn voice
says of it.

Torch is not imported: a text that cannot be said is an error before any heavy work.
"""

import os
import re
import unicodedata
from collections.abc import Iterator, Mapping

from avatar_v.base.words import listed
from avatar_v.engines.pronunciation import spoken_words
from avatar_v.world.lexicon import Sentence, Word

MAX_SCRIPT = 10_000
"""Characters: about ten minutes of speech."""
SPOKEN_PER_S = 12.0
"""Characters that are said in a second, to guess how long a script lasts."""
FILE = ".txt"
"""A script that ends so is the name of a file."""

_PIECE = re.compile(r"(\W*)(.*?)(\W*)")  # signs, a core, signs
_JOINT = re.compile(r"[-\u2010-\u2015/]+")  # between the parts of a compound
_WORD = re.compile(r"[a-z]+(?:'[a-z]+)*")
_PARAGRAPH = re.compile(r"\n\s*\n")
_ENDS, _PAUSES = ".!?;:", ",()-\u2010\u2011\u2012\u2013\u2014\u2015"
_SILENT = frozenset(_ENDS + _PAUSES + "'\"\u2018\u201c\u201d\u201e\u00ab\u00bb*_#[]/")


def read_script(script: str) -> str:
    """The text of a script, or of the file that it names (UTF-8). ValueError for a file that cannot
    be read, and as `checked_text`."""
    if script.endswith(FILE):
        return checked_text(_file_text(script), where=script)
    return checked_text(script)


def read_words(words: str) -> str:
    """A scene in words, or those in the file that it names; errors as in `read_script`."""
    return read_script(words).strip() if words.endswith(FILE) else words


def checked_text(text: str, *, where: str = "--script", most: int = MAX_SCRIPT) -> str:
    """The text. ValueError for one without a letter or digit, and for more than ``most``
    characters."""
    if not any(sign.isalnum() for sign in text):
        raise ValueError(f"{where}: the script has no words")
    if len(text) > most:
        raise ValueError(f"{where}: a script has at most {most:,} characters, got {len(text):,}")
    return text


def split_sentences(text: str) -> tuple[Sentence, ...]:
    """English sentences with the pauses that their punctuation asks for.

    ValueError that lists what is no word of letters (numbers, signs, other alphabets), or the words
    whose pronunciation is not known.
    """
    paragraphs = [_pieces(part) for part in _PARAGRAPH.split(_plain(text))]
    words = [word for pieces in paragraphs for word, _ in pieces if word]
    if odd := [word for word in words if not _WORD.fullmatch(word)]:
        raise ValueError(
            f"--script: the drawn voice says English words, and not {listed(odd)}; write them as "
            "they are spoken"
        )
    known = spoken_words(words)
    return tuple(said for pieces in paragraphs for said in _sentences(pieces, known))


def _plain(text: str) -> str:
    """Lower case, with straight apostrophes."""
    return unicodedata.normalize("NFKC", text).lower().replace("\u2019", "'")


def _pieces(paragraph: str) -> list[tuple[str, str]]:
    """Each word with the signs behind it. A compound is several words; of a piece with a sign that
    is said ("%", "+") all is the word, which is none."""
    pieces = []
    for piece in paragraph.split():
        found = _PIECE.fullmatch(piece)
        assert found is not None, "anything is signs, a core and signs"
        before, core, behind = found.groups()
        if not _SILENT.issuperset(before + behind):
            pieces.append((piece, ""))
            continue
        *parts, last = _JOINT.split(core)
        pieces += [*((part, "") for part in parts), (last, before + behind if not core else behind)]
    return pieces


def _sentences(pieces: list[tuple[str, str]], known: Mapping[str, Word]) -> Iterator[Sentence]:
    words, breaks = [], []
    for word, signs in [*pieces, ("", ".")]:  # a paragraph ends its last sentence
        words += [known[word]] if word else []
        if words and any(sign in _ENDS for sign in signs):
            yield Sentence(tuple(words), tuple(breaks), "?" in signs)
            words, breaks = [], []
        elif words and any(sign in _PAUSES for sign in signs):
            breaks.append(len(words) - 1)


def _file_text(path: str) -> str:
    from avatar_v.media import containers

    with open(containers.regular_file(path, expected="expected a text"), "rb") as file:
        data = file.read(4 * MAX_SCRIPT + 1)  # a character has 4 bytes at most
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if os.path.getsize(path) > len(data):  # cut within a character
            raise ValueError(f"{path}: a script has at most {MAX_SCRIPT:,} characters") from None
        raise ValueError(f"{path}: expected text in UTF-8 ({error.reason})") from None
