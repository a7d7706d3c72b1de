"""Votes and raters as records: what was asked, what was answered, by whom, when.

One vote is one answer: a MOS item makes one vote per dimension, a pair or a Turing item one.
Answers name systems' places (first, second), never screen sides, so votes need no further key.
Storage is in `store`, files in `exchange`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Literal, get_args

from avatar_v.base import checks
from avatar_v.shards.pairs import MAX_WORDS
from avatar_v_eval.human.study import KINDS, Dimension, Kind

Role = Literal["study", "qualification", "gold", "trap"]
ROLES: tuple[Role, ...] = get_args(Role)
State = Literal["invited", "qualifying", "rating", "done", "failed", "withdrawn"]
STATES: tuple[State, ...] = get_args(State)

SCORES = ("1", "2", "3", "4", "5")
CHOICES: dict[Kind, tuple[str, ...]] = {
    "mos": SCORES,
    "pair": ("first", "second", "tie"),
    "turing": ("first", "second"),  # the one that the rater takes for real; the second is
}


@dataclass(frozen=True)
class Vote:
    """One answer. The key of a vote is (rater, role, kind, case, first, second, dimension)."""

    rater: str
    role: Role
    kind: Kind
    case: str
    condition: str
    first: str  # the system, or "" in a check
    second: str  # the other system of a pair, "" in mos
    dimension: str  # of mos, else ""
    answer: str
    expected: str = ""  # of a check
    second_on_left: bool = False  # which side the first system was shown on
    duration_s: float = 0.0  # from first showing the item to its answer
    time: str = ""  # ISO 8601, UTC

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "duration_s":
                checks.number("duration_s of a vote", value, least=0)
            elif field.name != "second_on_left" and not isinstance(value, str):
                raise ValueError(f"{field.name} of a vote is text, got {value!r:.60}")
        if len(self.rater) > MAX_WORDS:
            raise ValueError(
                f"rater of a vote has at most {MAX_WORDS} characters, got {self.rater[:60]!r}"
            )
        if self.kind not in KINDS or self.role not in ROLES:
            raise ValueError(f"a vote has kind {KINDS} and role {ROLES}, got {self}")
        if self.answer not in CHOICES[self.kind]:
            raise ValueError(
                f"an answer of kind {self.kind} is one of {CHOICES[self.kind]}, got {self.answer!r}"
            )
        if not self.rater or not self.case or (self.kind == "mos") != bool(self.dimension):
            raise ValueError(f"a vote names rater and case, and in mos its dimension, got {self}")

    @property
    def key(self) -> tuple[str, ...]:
        """Equal for two votes of one rater on one question."""
        return (self.rater, *self.question)

    @property
    def question(self) -> tuple[str, ...]:
        """Equal for votes of several raters on one question."""
        return (self.role, self.kind, self.case, self.first, self.second, self.dimension)

    @property
    def right(self) -> bool:
        """Whether a check was answered as expected; ValueError for a vote that is no check."""
        if not self.expected:
            raise ValueError(f"a vote of the study has no right answer: {self}")
        if self.kind == "mos":
            low, high = self.expected.split("-")
            return int(low) <= int(self.answer) <= int(high)
        return self.answer == self.expected

    @property
    def score(self) -> int:
        """The number of a MOS answer, 1 to 5."""
        assert self.kind == "mos"
        return int(self.answer)


@dataclass(frozen=True)
class Rater:
    """One rater, known by a pseudonym alone. ``token`` opens the page and leaves no file."""

    name: str
    token: str
    state: State
    num_assigned: int = 0
    num_answered: int = 0


def read_answer(
    kind: Kind, answer: object, dimensions: tuple[Dimension, ...], second_on_left: bool
) -> dict[str, str]:
    """The answers that a page sent, as ``dimension → answer`` (``"" → answer`` for pairs).

    The page sends {"identity": 4, …} with all dimensions for mos and {"choice": "left"} for pairs;
    sides become places here. Raises ValueError saying what is wrong.
    """
    if not isinstance(answer, Mapping):
        raise ValueError(f"an answer is a mapping, got {type(answer).__name__}")
    if kind == "mos":
        keys = [dimension.key for dimension in dimensions]
        if sorted(map(str, answer)) != sorted(keys):
            raise ValueError(f"expected a score for each of {keys}, got {sorted(map(str, answer))}")
        wrong = {key: value for key, value in answer.items() if not _is_score(value)}
        if wrong:
            raise ValueError(f"a score is a whole number from 1 to 5, got {wrong}")
        return {key: str(answer[key]) for key in keys}
    choice = answer.get("choice")
    sides = ("left", "right", "tie")[: len(CHOICES[kind])]
    if set(answer) != {"choice"} or choice not in sides:
        raise ValueError(f"a choice is one of {sides}, got {dict(answer)}")
    if choice == "tie":
        return {"": "tie"}
    return {"": "second" if (choice == "left") == second_on_left else "first"}


def _is_score(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 5
