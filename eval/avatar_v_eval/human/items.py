"""Items: the questions of a study, one screen each, and their checks.

An item's name is internal ("mos/c01/ours"): raters see random ids alone (`store`). Items are made
anew from the study whenever they are needed, so nothing about systems is stored with a session.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from avatar_v_eval.human.answers import lines_of
from avatar_v_eval.human.questions import chosen
from avatar_v_eval.human.study import CheckQuestion, Kind, RatedCase, Study
from avatar_v_eval.human.votes import BY_LINE, Role, Vote


@dataclass(frozen=True)
class Item:
    """One screen: one video to score, or two to choose from."""

    name: str
    kind: Kind
    role: Role
    case: str
    condition: str
    first: str  # systems; "" in a check
    second: str
    videos: tuple[Path, ...]  # absolute, in the order first, second
    reference: Path | None
    expected: str = ""
    why: str = ""
    note: str = ""

    @property
    def files(self) -> tuple[Path, ...]:
        """All media of the screen: the videos, then the reference clip if there is one."""
        return (*self.videos, self.reference) if self.reference else self.videos


@lru_cache(16)
def study_items(study: Study, kind: Kind) -> tuple[Item, ...]:
    """The items of one task, in a fixed order; refused videos have none."""
    task = study.task(kind)
    if task is None:
        return ()
    return tuple(
        _item(study, kind, case, systems)
        for case in study.cases
        for systems in task.compared
        if not any((system, case.name) in study.refused for system in systems)
    )


def check_items(study: Study, kind: Kind, role: Role) -> tuple[Item, ...]:
    """The items with known answers of one kind and role."""
    return tuple(
        _check_item(study, check)
        for check in study.checks
        if check.kind == kind and check.role == role
    )


def all_items(study: Study) -> dict[str, Item]:
    """Every item of a study by its name."""
    items = [item for task in study.tasks for item in study_items(study, task.kind)]
    items += [_check_item(study, check) for check in study.checks]
    return {item.name: item for item in items}


def check_votes(study: Study, votes: Iterable[Vote]) -> None:
    """ValueError for a vote that answers no question of the study, or expects something else."""
    items = {(x.kind, x.case, x.first, x.second): x for x in all_items(study).values()}
    for vote in votes:
        item = items.get((vote.kind, vote.case, vote.first, vote.second))
        lines = lines_of(study, vote.kind) if vote.kind in BY_LINE else {"": ()}
        if item is None or vote.dimension not in lines:
            words = " ".join(filter(None, vote.asked))
            raise ValueError(f"{vote.rater} answered a question that the study has not: {words}")
        (same,) = item_votes(
            item, vote.rater, {vote.dimension: vote.answer}, second_on_left=False, duration_s=0.0,
            time="",
        )  # fmt: skip
        if vote.expected != same.expected:
            raise ValueError(
                f"{vote.rater}: of {vote.kind} {vote.case} the study expects {same.expected!r}, "
                f"and the vote {vote.expected!r}"
            )


def item_votes(
    item: Item,
    rater: str,
    answers: Mapping[str, str],
    *,
    second_on_left: bool,
    duration_s: float,
    time: str,
    role: Role | None = None,
) -> list[Vote]:
    """One vote per entry of ``answers`` (`answers.read_answer`); ``role`` replaces the item's."""
    known = chosen(item.expected) if item.kind == "attributes" and item.expected else None
    return [
        Vote(
            rater=rater,
            role=role or item.role,
            kind=item.kind,
            case=item.case,
            condition=item.condition,
            first=item.first,
            second=item.second,
            dimension=dimension,
            answer=answer,
            expected=item.expected if known is None else known.get(dimension, ""),
            second_on_left=second_on_left,
            duration_s=round(duration_s, 3),
            time=time,
        )
        for dimension, answer in answers.items()
    ]


def _item(study: Study, kind: Kind, case: RatedCase, systems: tuple[str, ...]) -> Item:
    shows = case.reference and kind not in ("turing", "attributes")
    reference = study.path(case.reference) if case.reference and shows else None
    return Item(
        name="/".join([kind, case.name, *systems]),
        kind=kind,
        role="study",
        case=case.name,
        condition=case.condition,
        first=systems[0],
        second=systems[1] if len(systems) == 2 else "",
        videos=tuple(study.video(system, case.name) for system in systems),
        reference=reference,
    )


def _check_item(study: Study, check: CheckQuestion) -> Item:
    return Item(
        name=f"check/{check.name}",
        kind=check.kind,
        role=check.role,
        case=check.name,
        condition="",
        first="",
        second="",
        videos=tuple(study.path(video) for video in check.videos),
        reference=study.path(check.reference) if check.reference else None,
        expected=check.expected,
        why=check.why,
        note=check.note,
    )
