"""Whose votes count: every rater that is left out is listed with the reason.

Reasons, in the order they are looked for: withdrawn, failed qualification or calibration,
unfinished, failed golds or traps, too fast. Checks and audits are never part of a result.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from avatar_v_eval.human.study import Rules
from avatar_v_eval.human.votes import UNFINISHED, Rater, Vote


@dataclass(frozen=True)
class Exclusion:
    """One rater whose votes do not count."""

    rater: str
    reason: str


def exclusions(
    raters: Sequence[Rater], votes: Sequence[Vote], rules: Rules
) -> tuple[Exclusion, ...]:
    """The raters who are left out, with the first reason of each. Raters who never began are no
    loss and not listed.

    ``raters`` may lack raters of ``votes`` (files of votes alone): then only answers are judged.
    """
    states = {rater.name: rater for rater in raters}
    reviewers = {rater.name for rater in raters if rater.tier == 2}
    own: dict[str, list[Vote]] = {rater.name: [] for rater in raters if rater.state != "invited"}
    for vote in votes:
        own.setdefault(vote.rater, []).append(vote)
    own = {name: given for name, given in own.items() if name not in reviewers}
    found = ((name, _reason(states.get(name), given, rules)) for name, given in own.items())
    return tuple(Exclusion(name, reason) for name, reason in sorted(found) if reason)


def counted(votes: Iterable[Vote], excluded: Collection[Exclusion]) -> list[Vote]:
    """The votes that results are made of: of the study, by raters who are not excluded."""
    names = {exclusion.rater for exclusion in excluded}
    return [vote for vote in votes if vote.role == "study" and vote.rater not in names]


def _reason(rater: Rater | None, votes: Sequence[Vote], rules: Rules) -> str:
    """Why a rater's votes do not count; "" where they do."""
    if rater and rater.state == "withdrawn":
        return "withdrawn; all votes deleted" if not votes else "withdrawn"
    if rater and rater.state == "failed":
        role = "calibration" if any(vote.role == "study" for vote in votes) else "qualification"
        return f"failed the {role}: wrong on {_named(_wrong(votes, role))}"
    if rater and rater.standing in UNFINISHED and not rules.count_unfinished:
        known = f": {rater.num_answered} of {rater.num_assigned} items"
        return "unfinished" + (known if rater.num_assigned else "")  # unknown of an imported one
    for role, limit in (("gold", rules.max_wrong_golds), ("trap", rules.max_wrong_traps)):
        wrong = _wrong(votes, role)
        if len(wrong) > limit:
            return f"failed {role}s: wrong on {_named(wrong)}, {limit} allowed"
    seconds = median_seconds(votes)
    if seconds is not None and seconds < rules.min_seconds:
        return f"too fast: {seconds:.1f} s an item (median), at least {rules.min_seconds:g} s"
    return ""


def median_seconds(votes: Iterable[Vote]) -> float | None:
    """Median time of a rater's items, the six votes of a MOS item being one; None without any."""
    items = {vote.question[:-1]: vote.duration_s for vote in votes if vote.role == "study"}
    return median(items.values()) if items else None


def _wrong(votes: Iterable[Vote], role: str) -> list[str]:
    """Checks answered wrong; a MOS check is wrong if one of its scores is."""
    right: dict[str, bool] = defaultdict(lambda: True)
    for vote in votes:
        if vote.role == role:
            right[vote.case] &= not vote.wrong
    return sorted(name for name, good in right.items() if not good)


def _named(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
