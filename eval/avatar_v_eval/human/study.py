"""A rating study: systems, cases, questions, rules (Avatar V §7.3, §5.3), read from one YAML file.

``STUDY/study.yaml`` names folders of videos, one mp4 per case: ``SYSTEM_FOLDER/CASE.mp4``. A folder
of clips for training is such a system, too. It is read and checked in `study_file`.
The lines of a question are in `questions`; what a rater is shown, in `items`; who is shown what, in
`assign`.
"""

import dataclasses
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

from avatar_v.base.paths import below
from avatar_v.base.stored import MAX_SIZE, Within
from avatar_v_eval.human.questions import (
    ATTRIBUTES,
    FAULTS,
    Attribute,
    Dimension,
    Fault,
)

Kind = Literal["mos", "pair", "turing", "ranges", "attributes", "score"]
CheckRole = Literal["qualification", "calibration", "gold", "trap"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PAIRED: tuple[Kind, ...] = ("pair", "turing")

Seed = Annotated[int, Within(-(2**63), 2**63 - 1)]
Seconds = Annotated[float, Within(0, MAX_SIZE)]
Share = Annotated[float, Within(0, 1)]
Money = Annotated[float, Within(0, MAX_SIZE)]

VIDEO_SUFFIX = ".mp4"
"""One container for every system, else the content type would tell systems apart."""


@dataclass(frozen=True)
class StudySystem:
    """A method under test: a folder of ``CASE.mp4``. The real footage is a system too."""

    name: str
    folder: Path


@dataclass(frozen=True)
class RatedCase:
    """One input of the systems. Raters see the clip ``reference`` of the person beside a result."""

    name: str
    condition: str  # same, cross, generated, …: tables are split by it
    reference: Path | None = None


@dataclass(frozen=True)
class StudyTask:
    """One kind of question about systems: two systems a question (`PAIRED`), or one.

    In a Turing pair the second system is the real footage.
    """

    kind: Kind
    compared: tuple[tuple[str, ...], ...]
    raters_per_item: int  # every video or pair gets at least so many
    items_per_rater: int  # every rater gets exactly so many, or all if there are fewer
    pay: Money = 0.0  # for an item, in whatever currency
    trusted: bool = False  # only for raters whose audits are good: better paid work


@dataclass(frozen=True)
class CheckQuestion:
    """A question with a known answer; raters cannot tell it from the others, unless ``note`` does.

    ``expected`` is for mos and score "low-high", asked of every line; for pair and turing the place
    in ``videos`` of the right one, "first" or "second", or "tie". In turing the real one is right.
    For ranges it is as `ranges` has it, for attributes "emotion=happy gaze=camera".
    """

    name: str
    kind: Kind
    role: CheckRole
    videos: tuple[Path, ...]
    expected: str
    reference: Path | None = None
    why: str = ""  # shown after an answer of the qualification or calibration
    note: str = ""  # shown with the item: the text of an instructed trap


@dataclass(frozen=True)
class Rules:
    """When a rater's votes do not count. All limits are inclusive."""

    min_seconds: Seconds  # median time a rater needs for an item; below is too fast
    max_wrong_qualification: int  # and of a round of calibration
    max_wrong_golds: int
    max_wrong_traps: int
    count_unfinished: bool = False


@dataclass(frozen=True)
class Audits:
    """How reviewers look after raters (Avatar V §5.3). Nobody is audited at a ``share`` of 0."""

    share: Share = 0.0  # of answers, drawn at random
    min_agreement: Share = 0.85  # of audited answers; below it comes a round of calibration
    min_audited: Annotated[int, Within(1, MAX_SIZE)] = 10  # answers, before anybody is judged
    calibration_items: Annotated[int, Within(1, MAX_SIZE)] = 3  # of a round
    bonus: Share = 0.0  # of the pay, at full agreement; none at ``min_agreement``
    batches: bool = False  # who is done may take more, while items lack raters


@dataclass(frozen=True)
class Study:
    """All of a study. ``refused`` are (system, case) pairs that have no video, by intent."""

    name: str
    title: str
    seed: Seed
    root: Path
    dimensions: tuple[Dimension, ...]
    systems: tuple[StudySystem, ...]
    cases: tuple[RatedCase, ...]
    tasks: tuple[StudyTask, ...]
    rules: Rules
    faults: tuple[Fault, ...] = FAULTS
    attributes: tuple[Attribute, ...] = ATTRIBUTES
    checks: tuple[CheckQuestion, ...] = ()
    audits: Audits = Audits()
    guidelines: tuple[tuple[Kind, Path], ...] = ()  # Markdown, in place of what ships
    refused: tuple[tuple[str, str], ...] = ()

    def video(self, system: str, case: str) -> Path:
        """Where the video of a case is."""
        folder = next(s.folder for s in self.systems if s.name == system)
        return self.path(folder / f"{case}{VIDEO_SUFFIX}")

    def path(self, name: Path) -> Path:
        """Of a file that the study names; ValueError where it is outside of the study's folder."""
        return below(self.root, name, where=f"study {self.name}")

    def task(self, kind: str) -> StudyTask | None:
        """The task of a kind; None where the study does not ask it."""
        return next((task for task in self.tasks if task.kind == kind), None)

    @property
    def fingerprint(self) -> str:
        """Changes with what is asked, so that votes of another study are not mixed in."""
        tasks = tuple(dataclasses.replace(task, pay=0.0, trusted=False) for task in self.tasks)
        known = dataclasses.replace(
            self, root=Path(), title="", rules=Rules(0, 0, 0, 0), audits=Audits(), guidelines=(),
            tasks=tasks,
        )  # fmt: skip
        return hashlib.sha256(repr(known).encode()).hexdigest()[:16]
