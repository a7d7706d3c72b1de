"""Who may be trained on: id ranges of persons, scenes and speeches.

Speech ids carry their split into the words: a sentence belongs to one split alone (lexicon.py).
Reserved ids exist for a judgement from outside; nothing here trains, tunes or selects on them.
"""

from typing import Literal

Split = Literal["train", "validation", "test", "reserved"]

TRAIN = range(0, 1_000_000)
VALIDATION = range(1_000_000, 2_000_000)
TEST = range(2_000_000, 3_000_000)
RESERVED = range(9_000_000, 10_000_000)

RANGES: dict[Split, range] = {
    "train": TRAIN,
    "validation": VALIDATION,
    "test": TEST,
    "reserved": RESERVED,
}


def split_of(item_id: int) -> Split:
    """The split of a person, scene or speech id; ValueError for an id of none."""
    for name, ids in RANGES.items():
        if item_id in ids:
            return name
    raise ValueError(f"id {item_id} is in no split; ranges are {RANGES}")


def persons(split: str, num: int, start: int = 0) -> list[int]:
    """``num`` person ids of a split, from its ``start``-th on."""
    return _take(split, num, start)


def scenes(split: str, num: int, start: int = 0) -> list[int]:
    """``num`` scene ids of a split, from its ``start``-th on."""
    return _take(split, num, start)


def sentences(split: str, num: int, start: int = 0) -> list[int]:
    """``num`` speech ids (each says several sentences) of a split, from its ``start``-th on."""
    return _take(split, num, start)


def _take(split: str, num: int, start: int) -> list[int]:
    known = {str(name): ids for name, ids in RANGES.items()}
    if split not in known:
        raise ValueError(f"split is one of {tuple(known)}, got {split!r}")
    ids = known[split]
    if num < 0 or start < 0 or start + num > len(ids):
        raise ValueError(f"{split} has ids 0 … {len(ids) - 1}, got start {start} and num {num}")
    return list(ids[start : start + num])
