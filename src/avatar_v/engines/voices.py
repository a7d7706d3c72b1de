"""The names of voices. Nothing heavy is imported."""

from pathlib import Path

from avatar_v.world.splits import TRAIN

DRAWN = "drawn"
"""The voice that ships; "drawn:7" is that of number 7."""
VOICE_FILE = ".voice"
"""The suffix of a voice that `avatar-v voice` has made (voice_file.py)."""


def is_drawn(voice: str) -> bool:
    """Whether this is a voice of the world."""
    return voice.partition(":")[0] == DRAWN


def is_voice_file(voice: str) -> bool:
    """Whether this is a voice that was recorded, by its name."""
    return Path(voice).suffix.lower() == VOICE_FILE


def drawn_number(voice: str) -> int | None:
    """The number of "drawn:7"; None of "drawn". ValueError for anything else behind the colon."""
    _, colon, number = voice.partition(":")
    if not colon:
        return None
    if not (number.isascii() and number.isdigit() and len(number) < 10 and int(number) in TRAIN):
        raise ValueError(f"--voice {DRAWN}:N has a number from 0 to {TRAIN[-1]:,}, got {voice!r}")
    return int(number)
