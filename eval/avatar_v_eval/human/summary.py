"""All tables of one study: results with intervals, per condition, agreement, who was left out."""

import dataclasses
from collections.abc import Sequence

from avatar_v_eval.human.agreement import agreements
from avatar_v_eval.human.exclude import counted, exclusions
from avatar_v_eval.human.preference import NoScaleError, preference
from avatar_v_eval.human.questions import AXES, SIX_DIMENSIONS, Dimension
from avatar_v_eval.human.report_tables import mos_table, turing_table, win_table
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.votes import Rater, Vote
from avatar_v_eval.table_view import Column, Table, TableRow


def summary(study: Study, votes: Sequence[Vote], raters: Sequence[Rater]) -> list[Table]:
    """Tables 2 to 4 where the study asks for them, then Bradley-Terry, agreement and exclusions.

    Raises ValueError where no vote counts, with everyone who was left out.
    """
    excluded = exclusions(raters, votes, study.rules)
    kept = counted(votes, excluded)
    if not kept:
        why = "; ".join(f"{e.rater}: {e.reason}" for e in excluded) or "nobody has voted"
        raise ValueError(f"study {study.name} has no votes that count ({why})")
    tables = []
    for condition in ("", *dict.fromkeys(case.condition for case in study.cases)):
        some = [vote for vote in kept if condition in ("", vote.condition)]
        tables += _of_study(study, some, condition)
    if any(vote.kind == "pair" for vote in kept):
        tables.append(preference_table(kept))
    people = {vote.rater for vote in kept}
    tables.append(agreement_table(kept, f"{len(kept)} votes of {len(people)} raters count."))
    if excluded:
        rows = tuple(TableRow(exclusion.rater, (exclusion.reason,)) for exclusion in excluded)
        reason = Column("Reason", text=True)
        tables.append(Table("Raters left out", "Rater", (reason,), rows, kind="left_out"))
    return tables


def preference_table(votes: Sequence[Vote]) -> Table:
    """Bradley-Terry strengths with ties; where there are none, one row says why."""
    title, column = (
        "Bradley-Terry strength (log odds, ties by Davidson)",
        Column("Strength", "high"),
    )
    try:
        result = preference(votes)
    except NoScaleError as error:
        row = TableRow("–", (str(error),))
        return Table(title, "System", (Column("Strength", text=True),), (row,), kind="preference")
    note = f"{result.num_votes} votes, ν = {result.tie:.2f}"
    if any(number.low is None for number in result.strengths.values()):
        note += "; no intervals, since without one of the cases there is no scale"
    rows = tuple(TableRow(name, (number,)) for name, number in result.strengths.items())
    return Table(title, "System", (column,), rows, (note + ".",), True, "preference")


def agreement_table(votes: Sequence[Vote], note: str) -> Table:
    """Krippendorff's alpha and raw agreement."""
    percent = {"digits": 0, "scale": 100.0, "unit": "%"}
    columns = (Column("Alpha"), Column("Equal", **percent), Column("Near", **percent))
    rows = tuple(TableRow(row.label, (row.alpha, row.equal, row.near)) for row in agreements(votes))
    notes = (
        note,
        "Alpha: ordinal for scores, interval from 0 to 100, nominal else; for ranges of the faults "
        "named. Near: scores within 1 of 5 or 10 of 100, ranges that overlap by one half. "
        "Target: 85 % equal.",
    )
    return Table("Agreement of raters", "Question", columns, rows, notes, True, "agreement")


def result_tables(
    votes: Sequence[Vote],
    dimensions: Sequence[Dimension] = SIX_DIMENSIONS,
    *,
    real: Sequence[str] = (),
    raters_per_item: int = 3,
    condition: str = "",
) -> list[Table]:
    """Tables 2 to 4 of the kinds that have votes; ``real`` systems are not ranked.

    ``condition`` names what the votes are of, "" all.
    """
    kinds = {vote.kind for vote in votes}
    tables = []
    if "mos" in kinds:
        tables.append(mos_table(votes, dimensions, unranked=real, intervals=True))
    if "score" in kinds:
        tables.append(mos_table(votes, AXES, kind="score", unranked=real, intervals=True))
    if "pair" in kinds:
        tables.append(win_table(votes, raters_per_item=raters_per_item, intervals=True))
    if "turing" in kinds:
        tables.append(turing_table(votes, intervals=True))
    return [of_condition(table, condition) for table in tables]


def of_condition(table: Table, condition: str) -> Table:
    """The table with its condition in the title; "" is all of them."""
    if not condition:
        return table
    title = f"{table.title}, {condition} scene"
    return dataclasses.replace(table, title=title, condition=condition)


def _of_study(study: Study, votes: Sequence[Vote], condition: str) -> list[Table]:
    pair, turing = study.task("pair"), study.task("turing")
    return result_tables(
        votes,
        study.dimensions,
        real=[compared[1] for compared in turing.compared] if turing else [],
        raters_per_item=pair.raters_per_item if pair else 3,
        condition=condition,
    )
