"""Votes and raters as records: what was asked, what was answered, by whom, when.

One vote is one answer: an item with lines (`BY_LINE`) makes one vote for each, others one.
Answers name systems' places (first, second), never screen sides, so votes need no further key.
A reviewer's blind answer has the role "audit", what he or she decides then the role "label". What
pages send is in `answers`, storage in `store`, files in `exchange`.
"""

from dataclasses import dataclass, fields
from typing import Literal, get_args

from avatar_v.base import checks
from avatar_v.shards.pairs import MAX_WORDS
from avatar_v_eval.human.questions import KEY
from avatar_v_eval.human.ranges import LEAST_OVERLAP, is_met, overlap, read_ranges
from avatar_v_eval.human.study import KINDS, Kind

ENDED = "ended"
"""Among the pages that a rater has read: a round of the study was answered to its end."""
Role = Literal["study", "qualification", "calibration", "gold", "trap", "audit", "label"]
ROLES: tuple[Role, ...] = get_args(Role)
State = Literal["invited", "qualifying", "rating", "recalibrating", "done", "failed", "withdrawn"]
STATES: tuple[State, ...] = get_args(State)
UNFINISHED: tuple[State, ...] = ("qualifying", "rating", "recalibrating")
"""States with questions that are open."""

SCALES: dict[Kind, range] = {"mos": range(1, 6), "score": range(101)}
"""The points of kinds with numbers; answers agree within a tenth of the scale, or one point."""
CHOICES: dict[Kind, tuple[str, ...]] = {
    **{kind: tuple(map(str, points)) for kind, points in SCALES.items()},
    "pair": ("first", "second", "tie"),
    "turing": ("first", "second"),  # the one that the rater takes for real; the second is
}
BY_LINE = ("mos", "attributes", "score")
"""Kinds with a vote for each line of the page."""


@dataclass(frozen=True)
class Vote:
    """One answer. The key of a vote is (rater, role, kind, case, first, second, dimension)."""

    rater: str
    role: Role
    kind: Kind
    case: str
    condition: str
    first: str  # the system, or "" in a check
    second: str  # the other system of a pair, else ""
    dimension: str  # of kinds with lines, else ""
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
        if self.kind == "ranges":
            read_ranges(self.answer)
        elif self.kind == "attributes" and not KEY.fullmatch(self.answer):
            raise ValueError(f"an attribute's value has a-z, 0-9 and _, got {self.answer!r:.60}")
        elif self.answer not in CHOICES.get(self.kind, (self.answer,)):
            raise ValueError(
                f"an answer of kind {self.kind} is one of {CHOICES[self.kind]}, got {self.answer!r}"
            )
        if not self.rater or not self.case or (self.kind in BY_LINE) != bool(self.dimension):
            raise ValueError(
                f"a vote names rater and case, and with lines its dimension, got {self}"
            )

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
        if self.kind in SCALES:
            low, high = self.expected.split("-")
            return int(low) <= int(self.answer) <= int(high)
        return (
            is_met(self.answer, self.expected)
            if self.kind == "ranges"
            else (self.answer == self.expected)
        )

    @property
    def wrong(self) -> bool:
        """Whether there is a known answer, and it is another."""
        return bool(self.expected) and not self.right

    def agrees(self, answer: str) -> bool:
        """Whether another answer to the same question is as good as equal: points near
        each other (`SCALES`), ranges that overlap by `LEAST_OVERLAP`, the same choice."""
        if self.kind in SCALES:
            return abs(self.score - int(answer)) <= max(1, len(SCALES[self.kind]) // 10)
        if self.kind == "ranges":
            return overlap(read_ranges(self.answer), read_ranges(answer)) >= LEAST_OVERLAP
        return self.answer == answer

    @property
    def asked(self) -> tuple[str, ...]:
        """Equal for all votes on one question: of raters, of audits and labels."""
        return self.question[1:]

    @property
    def score(self) -> int:
        """The number of an answer on a scale."""
        assert self.kind in SCALES
        return int(self.answer)


@dataclass(frozen=True)
class Rater:
    """One rater, known by a pseudonym alone. ``token`` opens the page and leaves no file."""

    name: str
    token: str
    state: State
    num_assigned: int = 0
    num_answered: int = 0
    tier: int = 1  # 2: a reviewer
    calibrated: str = ""  # when last (`Vote.time`)
    read: str = ""  # pages that were confirmed, and `ENDED`

    @property
    def standing(self) -> State:
        """The state that says whether votes count. Who has answered a round to its end and leaves
        a further one has done what was asked for."""
        has_ended = ENDED in self.read.split()
        return "done" if has_ended and self.state in UNFINISHED else self.state
