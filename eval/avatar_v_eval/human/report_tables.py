"""Tables 1 to 4 of the Avatar V report, in its form, from any study's votes.

The same functions print our own studies (with intervals) and rebuild the report's from the counts
in ``eval/benchmarks/avatar_v_report`` (`counts`). Figure 10 (radar) shows the numbers of table 2,
figure 11 (bars) those of table 3: ``Table.series()``.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

from avatar_v_eval.human.aggregate import Turing, mos, turing, win_rates
from avatar_v_eval.human.questions import SIX_DIMENSIONS, Dimension
from avatar_v_eval.human.votes import Vote
from avatar_v_eval.table_view import Column, Table, TableRow, Value

REPORT_HEADS = {
    "identity": "Identity",
    "lip_sync": "Lip Sync",
    "motion_naturalness": "Motion Nat.",
    "motion_consistency": "Motion Con.",
    "artifacts": "Artifacts",
    "visual": "Visual",
}
"""The report's short heads of its six dimensions."""

REAL = "Ground Truth"
"""The report's name of the real footage."""

OBJECTIVE_COLUMNS = (
    Column("Sync-C", "high"),
    Column("Sync-D", "low"),
    Column("Face Sim", "high", digits=3),
    Column("Q-Align", "high"),
)


def objective_table(
    means: Mapping[str, Sequence[Value]],
    *,
    num_cases: int,
    columns: Sequence[Column] = OBJECTIVE_COLUMNS,
    real: str = REAL,
    intervals: bool = False,
) -> Table:
    """Table 1: ``means`` per system, one for each column; ``real`` is not ranked."""
    rows = tuple(
        TableRow(name, tuple(values), ranked=name != real) for name, values in means.items()
    )
    title = f"Objective metrics on the {num_cases} matched test cases"
    return Table(title, "Method", tuple(columns), rows, intervals=intervals, kind="objective")


def mos_table(
    votes: Sequence[Vote],
    dimensions: Sequence[Dimension] = SIX_DIMENSIONS,
    *,
    kind: Literal["mos", "score"] = "mos",
    unranked: Sequence[str] = (),
    intervals: bool = False,
) -> Table:
    """Table 2: a row per system in the order of first votes, a column per dimension."""
    numbers = mos(votes, kind)
    systems = dict.fromkeys(system for system, _ in numbers)
    columns = tuple(
        Column(REPORT_HEADS.get(line.key, line.title), "high", digits=2 if kind == "mos" else 1)
        for line in dimensions
    )
    rows = tuple(
        TableRow(
            system,
            tuple(numbers.get((system, dimension.key)) for dimension in dimensions),
            ranked=system not in unranked,
        )
        for system in systems
    )
    title = "MOS (5-point scale)" if kind == "mos" else "Scores from 0 to 100"
    return Table(title, "Method", columns, rows, intervals=intervals, kind=kind)


def win_table(votes: Sequence[Vote], *, raters_per_item: int = 3, intervals: bool = False) -> Table:
    """Table 3: a row per pair, the first system's majority wins and losses over cases.

    Ties have a column if there are any: the report's form has none.
    """
    rates = win_rates(votes, raters_per_item)
    firsts = list(dict.fromkeys(rate.first for rate in rates))
    percent = {"digits": 1, "scale": 100.0, "unit": "%"}
    columns = [Column("Win ↑", **percent), Column("Lose ↓", **percent), Column("#Cases", digits=0)]
    ties = any(rate.ties for rate in rates)
    if ties:
        columns.insert(2, Column("No majority", digits=0))
    rows = []
    for rate in rates:
        label = rate.second if len(firsts) == 1 else f"{rate.first} : {rate.second}"
        values = [rate.win, rate.lose, float(rate.num_cases)]
        if ties:
            values.insert(2, float(rate.ties))
        rows.append(TableRow(label, tuple(values)))
    short = sum(rate.num_short for rate in rates)
    notes = (f"{short} cases have fewer than {raters_per_item} votes that count.",) if short else ()
    title = f"Pairwise win rate of {firsts[0]}" if len(firsts) == 1 else "Pairwise win rate"
    return Table(title, "Competitor", tuple(columns), tuple(rows), notes, intervals, "win")


def turing_table(votes: Sequence[Vote], *, intervals: bool = False) -> Table:
    """Table 4: one column per system; the warning that belongs to each stands below."""
    results = turing(votes)
    columns = tuple(Column(result.system, digits=1, scale=100.0, unit="%") for result in results)
    rows = (
        TableRow("Real identification accuracy", tuple(result.accuracy for result in results)),
        TableRow("Fooled rate (mistaken as real)", tuple(result.fooled for result in results)),
        TableRow("Chance level (random guessing)", tuple(0.5 for _ in results)),
        TableRow("Cases fooling ≥ 1 annotator", tuple(_cases(result) for result in results)),
    )
    notes = tuple(
        f"{result.system}: {result.num_judgments} judgments. {result.warning}" for result in results
    )
    return Table("Avatar Turing test", "Metric", columns, rows, notes, intervals, "turing")


def _cases(result: Turing) -> str:
    share = 100 * result.num_cases_fooling / result.num_cases
    return f"{result.num_cases_fooling}/{result.num_cases} ({share:.1f}%)"
