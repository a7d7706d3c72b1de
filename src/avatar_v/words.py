"""Words of messages to a user."""


def counted(num: int, noun: str) -> str:
    """``1 frame``, ``2 frames``, ``3,000 frames``, for nouns whose plural ends in s."""
    return f"{num:,} {noun}" + ("" if num == 1 else "s")
