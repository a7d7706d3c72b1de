"""A rater's way through a study: which page comes next, and what an answer leads to.

invited → (consent) → qualifying → rating → done; a failed qualification ends at failed, and
withdrawing is possible anywhere. All state is in the store, so a session goes on after a closed
browser or a restarted server. No HTTP here.
"""

import datetime
from dataclasses import dataclass
from typing import Literal

from avatar_v_eval.human.assign import qualification_plan, rating_plan
from avatar_v_eval.human.items import Item, item_votes
from avatar_v_eval.human.store import Screen, StudyStore
from avatar_v_eval.human.study import Kind, Study
from avatar_v_eval.human.votes import Rater, read_answer

PageName = Literal["welcome", "instructions", "ready", "item", "done", "failed", "withdrawn"]


@dataclass(frozen=True)
class Page:
    """The screen that is due. ``number`` counts from 1 within the round of ``total`` items."""

    name: PageName
    kind: Kind | None = None
    screen: Screen | None = None
    item: Item | None = None
    number: int = 0
    total: int = 0
    qualifying: bool = False


@dataclass(frozen=True)
class Feedback:
    """The feedback on an answer; empty unless the answer was of the qualification."""

    right: bool | None = None
    why: str = ""


def next_page(study: Study, store: StudyStore, items: dict[str, Item], rater: Rater) -> Page:
    """The page that a rater is at."""
    match rater.state:
        case "invited":
            return Page("welcome")
        case "done" | "failed" | "withdrawn":
            return Page(rater.state)
    qualifying = rater.state == "qualifying"
    round_ = [s for s in store.screens(rater.name) if (s.role == "qualification") == qualifying]
    number, screen = next((n, s) for n, s in enumerate(round_, 1) if s.answered_s is None)
    item = items[screen.item]
    read = store.pages_read(rater.name)
    page = Page("item", item.kind, screen, item, number, len(round_), qualifying)
    if item.kind not in read:
        return Page("instructions", item.kind, number=number, total=len(round_))
    if not qualifying and "ready" not in read:
        return Page("ready", item.kind, total=len(round_))
    return page


def consent(study: Study, store: StudyStore, rater: Rater, now_s: float) -> None:
    """Start a session; a second consent changes nothing."""
    if rater.state != "invited":
        return
    plan = qualification_plan(study)
    if plan:
        store.assign(rater.name, lambda load: plan, now_s=now_s)
        store.set_state(rater.name, "qualifying")
    else:
        store.mark_read(rater.name, "ready")
        _start_rating(study, store, rater.name, now_s)


def answer(
    study: Study,
    store: StudyStore,
    items: dict[str, Item],
    rater: Rater,
    public: str,
    sent: object,
    now_s: float,
) -> Feedback:
    """Record what a page sent for the screen ``public`` and move on where a round is complete.

    Raises LookupError where the screen is not this rater's, ValueError for a malformed answer or
    one out of turn, DuplicateVoteError for a second, different one.
    """
    screens = store.screens(rater.name)
    screen = next((screen for screen in screens if screen.public == public), None)
    if screen is None:
        raise LookupError("no such question in this session")
    if screen.shown_s is None:
        raise ValueError("this question was not shown yet")
    item = items[screen.item]
    answers = read_answer(item.kind, sent, study.dimensions, screen.second_on_left)
    votes = item_votes(
        item,
        rater.name,
        answers,
        second_on_left=screen.second_on_left,
        duration_s=max(0.0, now_s - screen.shown_s),  # a clock may be set back meanwhile
        time=datetime.datetime.fromtimestamp(now_s, datetime.UTC).isoformat(timespec="seconds"),
    )
    store.answer(screen, votes, now_s)
    if all(screen.answered_s is not None for screen in store.screens(rater.name)):
        _finish_round(study, store, rater, now_s)
    if item.role != "qualification":
        return Feedback()
    return Feedback(all(vote.right for vote in votes), item.why)


def _finish_round(study: Study, store: StudyStore, rater: Rater, now_s: float) -> None:
    if rater.state == "rating":
        store.set_state(rater.name, "done")
    elif rater.state == "qualifying":
        wrong = wrong_questions(store, rater.name)
        if wrong > study.rules.max_wrong_qualification:
            store.set_state(rater.name, "failed")
        else:
            _start_rating(study, store, rater.name, now_s)


def wrong_questions(store: StudyStore, rater: str) -> int:
    """Qualification items with a wrong answer; a MOS item is wrong if one of its scores is."""
    votes = [v for v in store.votes() if v.rater == rater and v.role == "qualification"]
    return len({vote.case for vote in votes if not vote.right})


def _start_rating(study: Study, store: StudyStore, rater: str, now_s: float) -> None:
    store.assign(rater, lambda load: rating_plan(study, rater, load), now_s=now_s)
    store.set_state(rater, "rating")
