"""A study's file, read and checked: every name, list, known answer and video is there.

What a study is stands in `study`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from avatar_v.base.outside import read_text, read_yaml
from avatar_v.base.stored import built
from avatar_v_eval.human.questions import (
    ATTRIBUTES,
    FAULTS,
    SIX_DIMENSIONS,
    Attribute,
    Dimension,
    Fault,
    check_lists,
    chosen,
)
from avatar_v_eval.human.ranges import known_ranges
from avatar_v_eval.human.study import (
    PAIRED,
    Audits,
    CheckQuestion,
    Kind,
    Money,
    RatedCase,
    Rules,
    Seed,
    Study,
    StudySystem,
    StudyTask,
)
from avatar_v_eval.human.votes import SCALES

MAX_GUIDELINES = 2**18
"""Bytes of a text for raters."""


def load_study(path: Path | str) -> Study:
    """Reads and checks ``study.yaml`` or the folder that holds it.

    Raises ValueError for unknown or missing keys, names used twice, unknown systems and videos
    that are not there; the message names the file and the first fault.
    """
    path = Path(path)
    file = path / "study.yaml" if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"no study at {path}: expected a study.yaml or a folder that holds one")
    found = built(_StudyFile, read_yaml(file, "study"), where=file, sparse=True)
    try:
        study = found.study(file.parent.resolve())
        check_study(study)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return study


def check_study(study: Study) -> None:
    """Raises ValueError for the first fault of a study, the missing video named."""
    _no_twins("system", [system.name for system in study.systems])
    _no_twins("case", [case.name for case in study.cases])
    _no_twins("check", [check.name for check in study.checks])
    _no_twins("task of a kind", [task.kind for task in study.tasks])
    check_lists(study.dimensions, study.faults, study.attributes)
    if not study.tasks:
        raise ValueError("a study needs at least one task, got none")
    for task in study.tasks:
        _check_task(task, [system.name for system in study.systems])
    for check in study.checks:
        _check_check(check, study)
    _check_nothing_empty(study)
    has_calibration = any(check.role == "calibration" for check in study.checks)
    if study.audits.share and not has_calibration:
        raise ValueError("audits need checks of the role calibration: who falls below repeats them")
    for _, text in study.guidelines:
        read_text(study.path(text), what="guidelines in UTF-8", most=MAX_GUIDELINES)
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
    width = 2 if task.kind in PAIRED else 1
    for names in task.compared:
        if len(names) != width or len(set(names)) != width:
            raise ValueError(f"a {task.kind} task compares {width} systems, got {names}")
        if unknown := sorted(set(names) - set(systems)):
            raise ValueError(f"task {task.kind} names unknown systems {unknown}, not in {systems}")
    if len({tuple(names) for names in task.compared}) < len(task.compared):
        raise ValueError(f"task {task.kind} compares the same twice: {list(task.compared)}")
    if not task.compared or task.raters_per_item < 1 or task.items_per_rater < 1:
        raise ValueError(f"task {task.kind} needs systems, raters and items, got {task}")


def _check_references(study: Study) -> None:
    """Identity and own motion are judged against a clip; a check without one would stand out."""
    lacking = [case.name for case in study.cases if not case.reference]
    six = study.task("mos") and study.dimensions == SIX_DIMENSIONS
    if lacking and (six or study.task("score")):
        what = "mos on the six dimensions" if six else "score"
        raise ValueError(f"{what} needs a reference clip, none for {lacking}")
    plain = [
        c.name for c in study.checks if c.kind not in ("turing", "attributes") and not c.reference
    ]
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
    if len(check.videos) != (2 if check.kind in PAIRED else 1):
        raise ValueError(f"{where} of kind {check.kind} has {len(check.videos)} videos")
    if check.kind == "ranges":
        faults = {fault.key for fault in study.faults}
        if unknown := {marked.fault for marked in known_ranges(check.expected)[0]} - faults:
            raise ValueError(f"{where} expects unknown faults {sorted(unknown)}")
    elif check.kind == "attributes":
        known = {attribute.key: attribute.values for attribute in study.attributes}
        for key, value in chosen(check.expected).items():
            if value not in known.get(key, ()):
                raise ValueError(f"{where} expects {key}={value}, which the study does not know")
    else:
        _check_choice(check, where)


def _check_choice(check: CheckQuestion, where: str) -> None:
    scale = SCALES.get(check.kind, ())
    ranges = [f"{low}-{high}" for low in scale for high in scale if low <= high]
    choices = ["first", "second"] + (["tie"] if check.kind == "pair" else [])
    if check.expected not in (ranges or choices):
        told = "low-high of its scale" if ranges else str(choices)
        raise ValueError(f"{where} expects {check.expected!r}: {check.kind} takes {told}")


def _no_twins(what: str, names: Sequence[str]) -> None:
    if twins := sorted({name for name in names if list(names).count(name) > 1}):
        raise ValueError(f"{what} named twice: {twins}")


@dataclass(frozen=True)
class _TaskFile:
    """A task of the file names systems or pairs of them."""

    kind: Kind
    raters_per_item: int
    items_per_rater: int
    systems: tuple[str, ...] | None = None
    pairs: tuple[tuple[str, ...], ...] | None = None
    pay: Money = 0.0
    trusted: bool = False

    def task(self) -> StudyTask:
        if (self.systems is None) == (self.pairs is None):
            raise ValueError(f"task {self.kind} needs either systems or pairs")
        compared = self.pairs or tuple((name,) for name in self.systems or ())
        numbers = (self.raters_per_item, self.items_per_rater, self.pay, self.trusted)
        return StudyTask(self.kind, compared, *numbers)


@dataclass(frozen=True)
class _StudyFile:
    """``study.yaml``, where systems and refused videos are mappings."""

    name: str
    title: str
    seed: Seed
    systems: Mapping[str, Path]
    cases: tuple[RatedCase, ...]
    tasks: tuple[_TaskFile, ...]
    rules: Rules
    dimensions: tuple[Dimension, ...] = SIX_DIMENSIONS
    faults: tuple[Fault, ...] = FAULTS
    attributes: tuple[Attribute, ...] = ATTRIBUTES
    checks: tuple[CheckQuestion, ...] = ()
    audits: Audits = field(default_factory=Audits)
    guidelines: Mapping[Kind, Path] = field(default_factory=dict)
    refused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def study(self, root: Path) -> Study:
        return Study(
            **vars(self)
            | {
                "root": root,
                "systems": tuple(StudySystem(*pair) for pair in self.systems.items()),
                "tasks": tuple(task.task() for task in self.tasks),
                "guidelines": tuple(self.guidelines.items()),
                "refused": tuple((name, case) for name, of in self.refused.items() for case in of),
            }
        )
