"""How good raters are, told by audits: agreement with labels, a leaderboard, and pay.

An answer that was audited agrees in so many of its lines; agreement is the share over all lines,
its interval over answers. What agrees is said in `votes.Vote.agrees`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from avatar_v_eval.human.agreement import alpha_of
from avatar_v_eval.human.exclude import median_seconds
from avatar_v_eval.human.study import KINDS, Study
from avatar_v_eval.human.votes import Rater, Vote
from avatar_v_eval.intervals import pooled_mean, rate, within_unit
from avatar_v_eval.records import Number
from avatar_v_eval.table_view import Column, Table, TableRow

Audited = Iterable[tuple[Vote, str]]
"""Votes, each with the answer of its label."""
_PERCENT = {"digits": 1, "scale": 100.0, "unit": "%"}


def labels(votes: Iterable[Vote]) -> dict[tuple[str, ...], str]:
    """Question (`Vote.asked`) → the answer that reviewers decided on."""
    return {vote.asked: vote.answer for vote in votes if vote.role == "label"}


def audited(votes: Sequence[Vote]) -> list[tuple[Vote, str]]:
    """The votes of raters that have a label."""
    known = labels(votes)
    return [(v, known[v.asked]) for v in votes if v.role == "study" and v.asked in known]


def agreement_with(pairs: Audited) -> Number | None:
    """Share of lines that agree with their labels; ``n`` counts answers. None without any."""
    answers: dict[tuple[str, ...], list[bool]] = defaultdict(list)
    for vote, label in pairs:
        answers[vote.rater, *vote.asked[:-1]].append(vote.agrees(label))
    right = np.array([sum(lines) for lines in answers.values()], dtype=float)
    asked = np.array([len(lines) for lines in answers.values()], dtype=float)
    if len(answers) < 2:  # no spread can be seen
        return Number(float(right[0] / asked[0]), 1) if answers else None
    return within_unit(pooled_mean(right, asked))


def is_below(study: Study, pairs: Audited) -> bool:
    """Whether enough answers were audited, and too few of them agree."""
    found = agreement_with(pairs)
    rules = study.audits
    return found is not None and found.n >= rules.min_audited and found.value < rules.min_agreement


def is_trusted(study: Study, pairs: Audited) -> bool:
    """Whether enough answers were audited, and enough of them agree."""
    found = agreement_with(pairs)
    rules = study.audits
    return found is not None and found.n >= rules.min_audited and found.value >= rules.min_agreement


def pay(
    study: Study, num_items: Mapping[str, int], agreement: Number | None
) -> tuple[float, float]:
    """(base, bonus) for so many items of each kind. The bonus grows from nothing at the least
    agreement to its full share at 100 %, and asks for enough audits."""
    base = sum(task.pay * num_items.get(task.kind, 0) for task in study.tasks)
    rules = study.audits
    if agreement is None or agreement.n < rules.min_audited or rules.min_agreement == 1:
        return base, 0.0
    over = (agreement.value - rules.min_agreement) / (1 - rules.min_agreement)
    return base, base * rules.bonus * max(0.0, over)


def audit_table(votes: Sequence[Vote]) -> Table:
    """Agreement with labels, and Krippendorff's alpha among raters, for each kind of task."""
    pairs = audited(votes)
    rows = []
    for kind in KINDS:
        own = [vote for vote in votes if vote.kind == kind and vote.role == "study"]
        if own:
            agreed = agreement_with(pair for pair in pairs if pair[0].kind == kind)
            audits = float(agreed.n) if agreed else 0.0
            lines = {vote.dimension: [] for vote in own}
            for vote in own:
                lines[vote.dimension].append(vote)
            alphas = [a for a in map(alpha_of, lines.values()) if a is not None]
            alpha = sum(alphas) / len(alphas) if alphas else None
            rows.append(TableRow(kind, (agreed, audits, alpha)))
    columns = (Column("Agree with label", **_PERCENT), Column("Audited", digits=0), Column("Alpha"))
    notes = (
        "Asked: 85 %. Scores agree within one point of 5 or ten of 100, ranges from an overlap of "
        "one half on, choices where they are equal. Alpha is that of raters among each other, "
        "the mean over an item's lines.",
    )
    return Table("Agreement with reviewers", "Task", columns, tuple(rows), notes, True, "audits")


def leaderboard(study: Study, votes: Sequence[Vote], raters: Sequence[Rater]) -> Table:
    """Raters, the best audited first: agreement, consistency with others, pace, pay."""
    pairs, own, rules = audited(votes), defaultdict(list), study.audits
    for vote in votes:
        if vote.role == "study":
            own[vote.rater].append(vote)
    consistent = _consistency(votes)
    lines = []
    for rater in raters:
        if rater.tier != 1 or rater.state in ("invited", "withdrawn"):
            continue
        agreed = agreement_with(pair for pair in pairs if pair[0].rater == rater.name)
        items = {vote.question[:-1] for vote in own[rater.name]}
        num = {kind: sum(item[1] == kind for item in items) for kind in KINDS}
        base, bonus = pay(study, num, agreed)
        line = (rater.state, float(len(items)), float(agreed.n if agreed else 0), agreed)
        line += (consistent.get(rater.name), median_seconds(own[rater.name]), base, bonus)
        sure = rate(round(agreed.value * agreed.n), agreed.n).low if agreed else None
        order = (sure is None, -(sure or 0.0), rater.name)
        lines.append((order, TableRow(rater.name, (*line, base + bonus))))
    columns = (
        Column("State", text=True), Column("Items", digits=0), Column("Audited", digits=0),
        Column("Agree with label", **_PERCENT), Column("Agree with others", **_PERCENT),
        Column("Seconds an item", digits=1), Column("Base"), Column("Bonus"), Column("Pay"),
    )  # fmt: skip
    rows = tuple(row for _, row in sorted(lines, key=lambda line: line[0]))
    notes = (
        f"The bonus is {100 * rules.bonus:g} % of the base at full agreement, and nothing at "
        f"{100 * rules.min_agreement:g} % or with fewer than {rules.min_audited} audited answers. "
        "The order is that of the lower end of Wilson's interval.",
    )
    return Table("Leaderboard and pay", "Rater", columns, rows, notes, True, "leaderboard")


def _consistency(votes: Sequence[Vote]) -> dict[str, float]:
    """Rater → share of equal-enough answers among pairs with others on the same question."""
    asked: dict[tuple[str, ...], list[Vote]] = defaultdict(list)
    for vote in votes:
        if vote.role == "study":
            asked[vote.asked].append(vote)
    found: dict[str, list[bool]] = defaultdict(list)
    for given in asked.values():
        for vote in given:
            found[vote.rater] += [vote.agrees(o.answer) for o in given if o.rater != vote.rater]
    return {name: sum(agrees) / len(agrees) for name, agrees in found.items() if agrees}
