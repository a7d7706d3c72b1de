"""The words of messages."""

from avatar_v.words import counted


def test_one_is_singular() -> None:
    assert [counted(num, "frame") for num in (0, 1, 2, 3000)] == [
        "0 frames", "1 frame", "2 frames", "3,000 frames",
    ]  # fmt: skip
