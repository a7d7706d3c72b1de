"""The names of the drawn voices. Nothing heavy is imported."""

from avatar_v.world.splits import TRAIN

DRAWN = "drawn"
"""The voice that ships; "drawn:7" is that of number 7."""


def is_drawn(voice: str) -> bool:
    """Whether this is a voice of the world."""
    return voice.partition(":")[0] == DRAWN


def drawn_number(voice: str) -> int | None:
    """The number of "drawn:7"; None of "drawn". ValueError for anything else behind the colon."""
    _, colon, number = voice.partition(":")
    if not colon:
        return None
    if not (number.isascii() and number.isdigit() and len(number) < 10 and int(number) in TRAIN):
        raise ValueError(f"--voice {DRAWN}:N has a number from 0 to {TRAIN[-1]:,}, got {voice!r}")
    return int(number)
