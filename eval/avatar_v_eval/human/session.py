"""A rater's way through a study: which page comes next, and what an answer leads to.

invited → (consent) → qualifying → rating → done. A failed qualification ends at failed, audits that
disagree too often lead over recalibrating back to rating or to failed, and withdrawing is possible
anywhere. Reviewers (tier 2) are qualified alike; what they rate are audits (`review`). All state is
in the store, so a session goes on after a closed browser or a restarted server. No HTTP here.

Every function here is called inside of the store's transaction, with the rater locked.
"""

import datetime
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from avatar_v_eval.human import review
from avatar_v_eval.human.answers import read_answer
from avatar_v_eval.human.assign import practice_plan, rating_plan
from avatar_v_eval.human.items import Item, item_votes
from avatar_v_eval.human.quality import is_below, is_trusted
from avatar_v_eval.human.store import Screen, StudyStore
from avatar_v_eval.human.study import Kind, Study
from avatar_v_eval.human.votes import ENDED, Rater, Role, Vote

PageName = Literal[
    "welcome", "instructions", "ready", "item", "waiting", "done", "failed", "withdrawn"
]
Round = Literal["qualification", "calibration", "rating", "audit"]


@dataclass(frozen=True)
class Page:
    """The screen that is due. ``number`` counts from 1 within the round of ``total`` items."""

    name: PageName
    kind: Kind | None = None
    screen: Screen | None = None
    item: Item | None = None
    number: int = 0
    total: int = 0
    round: Round = "rating"
    dispute: review.Dispute | None = None  # of an audit that disagrees
    has_more: bool = False  # another batch can be taken


@dataclass(frozen=True)
class Feedback:
    """The feedback on an answer; empty unless the answer was of a round of practice."""

    right: bool | None = None
    why: str = ""


def next_page(
    study: Study, store: StudyStore, items: dict[str, Item], rater: Rater, now_s: float
) -> Page:
    """The page that a rater is at. Calibration and audits are assigned when they are due."""
    match rater.state:
        case "invited":
            return Page("welcome")
        case "done":
            return Page("done", has_more=bool(_batch(study, store, rater, now_s)))
        case "failed" | "withdrawn":
            return Page(rater.state)
    roles = _roles(rater)
    screen = store.next_open(rater.name, roles)
    if screen is None:
        if not _assign_due(study, store, items, rater, now_s):
            return Page("waiting")
        screen = store.next_open(rater.name, roles)
        assert screen is not None
    num_done, total = store.progress(rater.name, roles)
    item, read = items[screen.item], store.pages_read(rater.name)
    round_: Round = "audit" if rater.tier == 2 else "rating"
    round_ = _PRACTICE.get(rater.state, round_)
    page = Page("item", item.kind, screen, item, num_done + 1, total, round_)
    if item.kind not in read:
        return Page("instructions", item.kind, total=total)
    if round_ in ("rating", "audit") and "ready" not in read:
        return Page("ready", item.kind, total=total, round=round_)
    if screen.role == "audit" and screen.answered_s is not None:
        return replace(page, dispute=review.dispute(store, item, screen))
    return page


def consent(study: Study, store: StudyStore, rater: Rater, now_s: float) -> None:
    """Start a session; a second consent changes nothing."""
    if rater.state != "invited":
        return
    plan = practice_plan(study, "qualification")
    if plan:
        store.assign(rater.name, lambda load: plan, now_s=now_s)
        store.set_state(rater.name, "qualifying")
    else:
        store.mark_read(rater.name, "ready")
        _start_rating(study, store, rater, now_s)


def take_more(study: Study, store: StudyStore, rater: Rater, now_s: float) -> None:
    """Another batch for a rater who is done; nothing where there is none. Whose audits disagree
    too often calibrates first."""
    if rater.state != "done" or not _batch(study, store, rater, now_s):
        return
    if is_below(study, store.audited(rater.name, rater.calibrated)):
        store.set_state(rater.name, "recalibrating")
    else:
        _start_rating(study, store, rater, now_s)


def answer(
    study: Study,
    store: StudyStore,
    items: dict[str, Item],
    rater: Rater,
    public: str,
    sent: object,
    now_s: float,
    *,
    is_decision: bool = False,
    length_s: Callable[[Item], float] = lambda item: math.inf,
) -> Feedback:
    """Record what a page sent for the screen ``public`` and move on where a round is complete.
    ``is_decision``: of a reviewer who has seen the answers of others. ``length_s``: of an item's
    clip, in which ranges must lie.

    Raises LookupError where the screen is not this rater's, ValueError for a malformed answer or
    one out of turn, DuplicateVoteError for a second, different one.
    """
    screen = store.screen(rater.name, public)
    if screen is None:
        raise LookupError("no such question in this session")
    if screen.shown_s is None:
        raise ValueError("this question was not shown yet")
    item, left = items[screen.item], screen.second_on_left
    end_s = length_s(item) if item.kind == "ranges" else math.inf
    answers = read_answer(study, item.kind, sent, second_on_left=left, duration_s=end_s)

    def votes(role: Role) -> list[Vote]:
        duration_s = max(0.0, now_s - (screen.shown_s or 0.0))  # a clock may be set back meanwhile
        return item_votes(
            item, rater.name, answers, second_on_left=left, duration_s=duration_s,
            time=_time(now_s), role=role,
        )  # fmt: skip

    if screen.role == "audit":
        audit = votes("label" if is_decision else "audit")
        review.answer(study, store, item, screen, audit, now_s, is_decision=is_decision)
        return Feedback()
    if is_decision:
        raise ValueError("this question is not for you to decide")
    given = votes(item.role)
    store.answer(screen, given, now_s)
    _finish_round(study, store, rater, now_s)
    if item.role not in _PRACTICE.values():
        return Feedback()
    return Feedback(not any(vote.wrong for vote in given), item.why)


_PRACTICE: Mapping[str, Literal["qualification", "calibration"]] = {
    "qualifying": "qualification",
    "recalibrating": "calibration",
}
"""State → role of the items of its round."""
_RATED: tuple[Role, ...] = ("study", "gold", "trap", "audit")


def _roles(rater: Rater) -> tuple[Role, ...]:
    """The roles of the screens that a rater's state is about."""
    return (_PRACTICE[rater.state],) if rater.state in _PRACTICE else _RATED


def _assign_due(
    study: Study, store: StudyStore, items: dict[str, Item], rater: Rater, now_s: float
) -> bool:
    """More screens for a round without an open one; False where there are none now."""
    if rater.state == "recalibrating":
        plan = _calibration(study, store, rater)
        store.assign(rater.name, lambda load: plan, now_s=now_s)
        return True  # `review` lets nobody recalibrate for whom there is nothing
    name = None
    if rater.tier == 2:
        name = store.next_audit(rater.name, study.audits.share, now_s)
    if name is None:
        return False
    store.assign(rater.name, lambda load: [(items[name], False)], now_s=now_s, role="audit")
    return True


def _finish_round(study: Study, store: StudyStore, rater: Rater, now_s: float) -> None:
    """Move a rater on whose round has no open screen."""
    if store.next_open(rater.name, _roles(rater)):
        return
    role = _PRACTICE.get(rater.state)
    if role is None:
        if rater.state == "rating" and rater.tier == 1:
            store.mark_read(rater.name, ENDED)
            store.set_state(rater.name, "done")
        return
    votes = [v for v in store.votes(rater=rater.name, role=role) if v.time > rater.calibrated]
    if not votes:
        return  # an answer from before the calibration began
    if len({vote.case for vote in votes if vote.wrong}) > study.rules.max_wrong_qualification:
        store.set_state(rater.name, "failed")
    elif role == "qualification":
        _start_rating(study, store, rater, now_s)
    else:
        store.set_calibrated(rater.name, _time(now_s))
        store.set_state(rater.name, "rating" if store.next_open(rater.name, _RATED) else "done")


def _start_rating(study: Study, store: StudyStore, rater: Rater, now_s: float) -> None:
    if rater.tier == 1:
        seen = _seen(store, rater)
        trusted = is_trusted(study, store.audited(rater.name, rater.calibrated))
        plan = lambda load: rating_plan(study, rater.name, load, seen=seen, is_trusted=trusted)  # noqa: E731
        store.assign(rater.name, plan, now_s=now_s)
    # others may have been given meanwhile what there was
    has_work = rater.tier == 2 or store.next_open(rater.name, _RATED) is not None
    store.set_state(rater.name, "rating" if has_work else "done")


def _batch(study: Study, store: StudyStore, rater: Rater, now_s: float) -> list:
    """What a rater who is done could be given more of."""
    if not study.audits.batches or rater.tier != 1:
        return []
    pairs = store.audited(rater.name, rater.calibrated)
    if is_below(study, pairs) and not _calibration(study, store, rater):
        return []
    load, seen, trusted = store.load(now_s), _seen(store, rater), is_trusted(study, pairs)
    return rating_plan(study, rater.name, load, seen=seen, is_trusted=trusted)


def _calibration(study: Study, store: StudyStore, rater: Rater) -> list[tuple[Item, bool]]:
    """A further round of calibration; empty where the rater has seen all of it."""
    return practice_plan(study, "calibration", store.seen(rater.name))


def _seen(store: StudyStore, rater: Rater) -> set[str]:
    """Items of the rounds of rating that a rater had."""
    return {item for item, role in store.seen(rater.name).items() if role in _RATED}


def _time(now_s: float) -> str:
    return datetime.datetime.fromtimestamp(now_s, datetime.UTC).isoformat(timespec="seconds")
