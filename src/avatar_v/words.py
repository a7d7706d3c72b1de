"""Words of messages to a user."""

MAX_WORD = 300
"""Characters of one word of an error that are shown."""


def counted(num: int, noun: str) -> str:
    """``1 frame``, ``2 frames``, ``3,000 frames``, for nouns whose plural ends in s."""
    return f"{num:,} {noun}" + ("" if num == 1 else "s")


def readable(error: ValueError | OSError) -> str:
    """An error in one line; those of the system about a file without their numbers."""
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{_short(str(error.filename) or repr(''))}: {error.strerror.lower()}"
    words = [_short(word) for word in str(error).split()]
    return " ".join(words) or type(error).__name__


def _short(word: str) -> str:
    """A word that no path of a sane system fills, without its middle."""
    return word if len(word) <= MAX_WORD else f"{word[:80]}…{word[-40:]}"
