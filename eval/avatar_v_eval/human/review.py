"""Audits (Avatar V §5.3): a reviewer answers blindly, sees where others differ, and decides.

What is decided is the label of the item, the measure of everybody who answered it. Raters whose
answers agree with labels too rarely go through a round of calibration, or end where none is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from avatar_v_eval.human.answers import described, sent_answer
from avatar_v_eval.human.assign import practice_plan
from avatar_v_eval.human.items import Item
from avatar_v_eval.human.quality import is_below
from avatar_v_eval.human.store import Screen, StudyStore
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.votes import Vote


@dataclass(frozen=True)
class Dispute:
    """What a reviewer sees of an audit that disagrees: answers without names."""

    own: dict  # in the form in which the page sent it
    others: tuple[str, ...]
    said: str


def dispute(store: StudyStore, item: Item, screen: Screen) -> Dispute:
    """Of an audit that was answered blindly and awaits its label."""
    own = _by_line([v for v in _votes(store, item, "audit") if v.rater == screen.rater])
    others: dict[str, list[Vote]] = {}
    for vote in _votes(store, item, "study"):
        others.setdefault(vote.rater, []).append(vote)
    left = screen.second_on_left
    return Dispute(
        sent_answer(item.kind, own, second_on_left=left),
        tuple(described(item.kind, _by_line(v), second_on_left=left) for v in others.values()),
        described(item.kind, own, second_on_left=left),
    )


def answer(
    study: Study,
    store: StudyStore,
    item: Item,
    screen: Screen,
    votes: Sequence[Vote],
    now_s: float,
    *,
    is_decision: bool,
) -> None:
    """Record a blind answer, which is the label where nobody differs, or the decision."""
    if is_decision:
        if screen.answered_s is None:
            raise ValueError("answer the question before you decide")
        labels = votes
    else:
        store.answer(screen, votes, now_s)
        own = {vote.dimension: vote.answer for vote in votes}
        if not all(v.agrees(own[v.dimension]) for v in _votes(store, item, "study")):
            return
        labels = [replace(vote, role="label") for vote in votes]
    store.decide(screen, labels, now_s)
    for name in sorted({vote.rater for vote in _votes(store, item, "study")}):
        _judge(study, store, name)


def _judge(study: Study, store: StudyStore, name: str) -> None:
    """A rater whose audits disagree too often goes no further without calibration."""
    rater = store.named(name)
    if rater.state == "rating" and is_below(study, store.audited(name, rater.calibrated)):
        has_round = bool(practice_plan(study, "calibration", store.seen(name)))
        store.set_state(name, "recalibrating" if has_round else "failed", only_from="rating")


def _votes(store: StudyStore, item: Item, role: str) -> list[Vote]:
    where = {"kind": item.kind, "case": item.case, "first": item.first, "second": item.second}
    return store.votes(role=role, **where)


def _by_line(votes: Sequence[Vote]) -> dict[str, str]:
    return {vote.dimension: vote.answer for vote in votes}
