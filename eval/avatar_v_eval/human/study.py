"""A rating study: systems, cases, questions, rules (Avatar V §7.3, §5.3), read from one YAML file.

``STUDY/study.yaml`` names folders of videos, one mp4 per case: ``SYSTEM_FOLDER/CASE.mp4``. All is
checked here before a server starts: a missing video is one error that names it. What a rater is
shown is in `items`; who is shown what, in `assign`.
"""

import dataclasses
import hashlib
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError
from pydantic.dataclasses import dataclass

from avatar_v.base.outside import read_yaml
from avatar_v.base.paths import below

Kind = Literal["mos", "pair", "turing"]
CheckRole = Literal["qualification", "gold", "trap"]
KINDS: tuple[Kind, ...] = get_args(Kind)

Limit = Annotated[StrictInt, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
_OWN = ConfigDict(extra="forbid")
"""A key that a study does not know is a mistake."""

VIDEO_SUFFIX = ".mp4"
"""One container for every system, else the content type would tell systems apart."""


@dataclass(frozen=True, config=_OWN)
class Dimension:
    """One line of the five-point scale. ``key`` goes to files, ``title`` and ``hint`` to raters."""

    key: StrictStr
    title: StrictStr
    hint: StrictStr


SIX_DIMENSIONS = (
    Dimension("identity", "Identity", "The same person as in the reference clip"),
    Dimension("lip_sync", "Lip sync", "The mouth fits the words, in shape and in time"),
    Dimension("motion_naturalness", "Natural motion", "Head, face and body move as people do"),
    Dimension("motion_consistency", "Own motion", "Moves like this person does in the reference"),
    Dimension("artifacts", "Clean picture", "No flicker, melting teeth, warped hands or edges"),
    Dimension("visual", "Visual quality", "Sharp, well lit, pleasant to look at"),
)
"""The six dimensions of Avatar V §7.3.1 (table 2), in its order."""


@dataclass(frozen=True, config=_OWN)
class StudySystem:
    """A method under test: a folder of ``CASE.mp4``. The real footage is a system too."""

    name: StrictStr
    folder: Path


@dataclass(frozen=True, config=_OWN)
class RatedCase:
    """One input of the systems. Raters see the clip ``reference`` of the person beside a result."""

    name: StrictStr
    condition: StrictStr  # same, cross, generated, …: tables are split by it
    reference: Path | None = None


@dataclass(frozen=True, config=_OWN)
class StudyTask:
    """One kind of question about systems: one system a question (mos) or two (pair, turing).

    In a Turing pair the second system is the real footage.
    """

    kind: Kind
    compared: tuple[tuple[StrictStr, ...], ...]
    raters_per_item: StrictInt  # every video or pair gets at least so many
    items_per_rater: StrictInt  # every rater gets exactly so many, or all if there are fewer


@dataclass(frozen=True, config=_OWN)
class CheckQuestion:
    """A question with a known answer; raters cannot tell it from the others, unless ``note`` does.

    ``expected`` is for mos "low-high", asked of every dimension; for pair and turing the place in
    ``videos`` of the right one, "first" or "second", or "tie". In turing the real one is right.
    """

    name: StrictStr
    kind: Kind
    role: CheckRole
    videos: tuple[Path, ...]
    expected: StrictStr
    reference: Path | None = None
    why: StrictStr = ""  # shown after a qualification answer
    note: StrictStr = ""  # shown with the item: the text of an instructed trap


@dataclass(frozen=True, config=_OWN)
class Rules:
    """When a rater's votes do not count. All limits are inclusive."""

    min_seconds: Seconds  # median time a rater needs for an item; below is too fast
    max_wrong_qualification: Limit
    max_wrong_golds: Limit
    max_wrong_traps: Limit
    count_unfinished: StrictBool = False


@dataclass(frozen=True, config=_OWN)
class Study:
    """All of a study. ``refused`` are (system, case) pairs that have no video, by intent."""

    name: StrictStr
    title: StrictStr
    seed: StrictInt
    root: Path
    dimensions: tuple[Dimension, ...]
    systems: tuple[StudySystem, ...]
    cases: tuple[RatedCase, ...]
    tasks: tuple[StudyTask, ...]
    rules: Rules
    checks: tuple[CheckQuestion, ...] = ()
    refused: tuple[tuple[StrictStr, StrictStr], ...] = ()

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
        known = dataclasses.replace(self, root=Path(), title="", rules=Rules(0, 0, 0, 0))
        return hashlib.sha256(repr(known).encode()).hexdigest()[:16]


def load_study(path: Path | str) -> Study:
    """Reads and checks ``study.yaml`` or the folder that holds it.

    Raises ValueError for unknown or missing keys, names used twice, unknown systems and videos
    that are not there; the message names the file and the first fault.
    """
    path = Path(path)
    file = path / "study.yaml" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"no study at {path}: expected a study.yaml or a folder that holds one")
    raw = read_yaml(file, "study")
    try:
        study = _study(raw, file.parent.resolve())
        check_study(study)
    except ValidationError as error:
        raise ValueError(f"{file}: {_first(error)}") from error
    except KeyError as error:
        raise ValueError(f"{file}: the key {error} is missing") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{file}: {error}") from error
    return study


def check_study(study: Study) -> None:
    """Raises ValueError for the first fault of a study, the missing video named."""
    _no_twins("system", [system.name for system in study.systems])
    _no_twins("case", [case.name for case in study.cases])
    _no_twins("check", [check.name for check in study.checks])
    _no_twins("dimension", [dimension.key for dimension in study.dimensions])
    _no_twins("task of a kind", [task.kind for task in study.tasks])
    if not study.tasks:
        raise ValueError("a study needs at least one task, got none")
    for task in study.tasks:
        _check_task(task, [system.name for system in study.systems])
    for check in study.checks:
        _check_check(check, study)
    _check_nothing_empty(study)
    for path in _needed_files(study):
        if not path.is_file() or not path.stat().st_size:
            raise ValueError(f"video {path} is missing or empty; list it under refused, or add it")
    _check_references(study)


def _needed_files(study: Study) -> list[Path]:
    names = dict.fromkeys(name for task in study.tasks for pair in task.compared for name in pair)
    files = [
        study.video(name, case.name)
        for case in study.cases
        for name in names
        if (name, case.name) not in study.refused
    ]
    files += [study.path(case.reference) for case in study.cases if case.reference]
    for check in study.checks:
        files += [study.path(video) for video in check.videos]
        files += [study.path(check.reference)] if check.reference else []
    return files


def _check_task(task: StudyTask, systems: Sequence[str]) -> None:
    width = 1 if task.kind == "mos" else 2
    for names in task.compared:
        if len(names) != width or len(set(names)) != width:
            raise ValueError(
                f"a {task.kind} task compares {width} systems, got {_SHORT.repr(names)}"
            )
        if unknown := sorted(set(names) - set(systems)):
            raise ValueError(f"task {task.kind} names unknown systems {unknown}, not in {systems}")
    if not task.compared or task.raters_per_item < 1 or task.items_per_rater < 1:
        raise ValueError(f"task {task.kind} needs systems, raters and items, got {task}")


def _check_references(study: Study) -> None:
    """Identity and own motion are judged against a clip; a check without one would stand out."""
    lacking = [case.name for case in study.cases if not case.reference]
    if study.task("mos") and study.dimensions == SIX_DIMENSIONS and lacking:
        raise ValueError(f"mos on the six dimensions needs a reference clip, none for {lacking}")
    plain = [c.name for c in study.checks if c.kind != "turing" and not c.reference]
    if plain and not lacking:
        raise ValueError(f"raters would know checks by their missing reference clip: {plain}")


def _check_nothing_empty(study: Study) -> None:
    for task in study.tasks:
        pairs = [(names, case.name) for names in task.compared for case in study.cases]
        if all(any((n, case) in study.refused for n in names) for names, case in pairs):
            raise ValueError(f"task {task.kind} has no case with all its videos")


def _check_check(check: CheckQuestion, study: Study) -> None:
    where = f"check {check.name!r}"
    if study.task(check.kind) is None:
        raise ValueError(f"{where} is of kind {check.kind}, which the study does not ask")
    if len(check.videos) != (1 if check.kind == "mos" else 2):
        raise ValueError(f"{where} of kind {check.kind} has {len(check.videos)} videos")
    ranges = [f"{low}-{high}" for low in range(1, 6) for high in range(low, 6)]
    choices = ["first", "second"] + (["tie"] if check.kind == "pair" else [])
    if check.expected not in (ranges if check.kind == "mos" else choices):
        raise ValueError(f"{where} expects {check.expected!r}: mos takes low-high, pairs {choices}")


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2  # aliases of YAML let a kilobyte stand for more text than fits anywhere


def _first(error: ValidationError) -> str:
    """The first fault in one line: where, what, and what was given."""
    fault = error.errors(include_url=False)[0]
    where = ".".join([error.title.lower(), *map(str, fault["loc"])])
    return f"{where}: {fault['msg'].lower()}, got {_SHORT.repr(fault['input'])}"


def _no_twins(what: str, names: Sequence[str]) -> None:
    if twins := sorted({name for name in names if list(names).count(name) > 1}):
        raise ValueError(f"{what} named twice: {twins}")


def _study(raw: Any, root: Path) -> Study:
    """The study of a file: systems and refused videos are mappings there, tasks name systems or
    pairs."""
    if not isinstance(raw, dict):
        raise ValueError(f"a study is a mapping, got {_SHORT.repr(raw)}")
    raw = dict(raw)
    for key in ("systems", "rules", "refused"):
        if not isinstance(raw.get(key, {}), dict):
            raise ValueError(f"{key} is a mapping, got {_SHORT.repr(raw[key])}")
    return Study(
        root=root,
        dimensions=tuple(Dimension(**one) for one in raw.pop("dimensions", None) or ())
        or SIX_DIMENSIONS,
        systems=tuple(StudySystem(name, folder) for name, folder in raw.pop("systems").items()),
        cases=tuple(RatedCase(**one) for one in raw.pop("cases")),
        tasks=tuple(_task(one) for one in raw.pop("tasks")),
        rules=Rules(**raw.pop("rules")),
        checks=tuple(CheckQuestion(**one) for one in raw.pop("checks", [])),
        refused=tuple((name, case) for name, of in raw.pop("refused", {}).items() for case in of),
        **raw,
    )


def _task(raw: dict) -> StudyTask:
    raw = dict(raw)
    single, pairs = raw.pop("systems", None), raw.pop("pairs", None)
    if (single is None) == (pairs is None):
        raise ValueError(f"task {raw.get('kind')} needs either systems or pairs")
    compared = tuple(tuple(pair) for pair in pairs) if pairs else tuple((name,) for name in single)
    return StudyTask(compared=compared, **raw)
