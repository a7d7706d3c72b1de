"""Tables of a run: means over the matched set (Avatar V table 1), differences, what failed."""

import dataclasses
from collections.abc import Mapping, Sequence

import polars as pl

from avatar_v.scoring.values import ScoreOutput
from avatar_v_eval.bench.rows import BenchRun
from avatar_v_eval.bench.summary import Line, counts, summarise, without_value
from avatar_v_eval.bench.systems import TRUTH
from avatar_v_eval.human.report_tables import REAL, objective_table
from avatar_v_eval.human.summary import of_condition
from avatar_v_eval.records import Number, without_folders
from avatar_v_eval.table_view import Better, Column, Table, TableRow

HEADLINE = (
    "syncnet_c",
    "syncnet_d",
    "sync_world_c",
    "sync_world_d",
    "face_arcface",
    "face_world",
    "face_dlib",
    "qalign_iqa",
)
"""The outputs of the report's table 1, which come first, by whichever critic."""
MAX_COLUMNS = 5

_BETTER: dict[str, Better | None] = {"higher": "high", "lower": "low", "zero": "zero", "": None}


def system_label(system: str) -> str:
    """The name of a system in tables."""
    return REAL if system == TRUTH else system


def objective_tables(run: BenchRun, condition: str = "") -> list[Table]:
    """Means of every system, the real footage first; a condition, or "" for all cases."""
    groups = _groups(run, condition)
    titles = ["Objective metrics", *["Further metrics"] * (len(groups) - 1)]
    return [
        of_condition(_means_table(run, lines, title), condition)
        for lines, title in zip(groups, titles, strict=True)
    ]


def difference_tables(run: BenchRun, baseline: str) -> list[Table]:
    """Every other system less ``baseline`` on the same matched cases; FID and FVD have no cases.

    ValueError for a baseline that is not in the run.
    """
    if baseline not in run.info.systems:
        known = ", ".join(run.info.systems)
        raise ValueError(f"no baseline {baseline!r}; the systems are {known}")
    groups = [
        [line for line in lines if line.output not in run.info.distances]
        for lines in _groups(run, "")
    ]
    return [_difference_table(run, lines, baseline) for lines in groups if lines]


def counts_table(run: BenchRun) -> Table:
    """The number of cases of each system that were delivered, scored and matched."""
    found = counts(run, summarise(run))
    rows = tuple(
        TableRow(system_label(name), found[name].words(run.info.num_cases), ranked=name != TRUTH)
        for name in _ordered(run)
    )
    notes = (
        "Delivered: there was a video. Scored: one number at least could be measured of it. "
        "Matched: every system has the number, so that the case counts in means; where columns "
        "differ, the fewest to the most.",
    )
    columns = tuple(Column(name) for name in ("Delivered", "Scored", "Matched"))
    return Table("Cases of each system", "Method", columns, rows, notes, kind="counts")


def failure_table(run: BenchRun) -> Table | None:
    """Every case without a number, with its reason; None where all was measured."""
    num_metrics = len(run.info.metrics)
    missing = (
        without_value(run)
        .group_by("system", "case", "reason", maintain_order=True)
        .agg(pl.col("metric").unique(maintain_order=True))
    )
    rows = tuple(
        TableRow(
            system_label(system),
            (
                case,
                "all" if len(metrics) == num_metrics else ", ".join(metrics),
                without_folders(reason),
            ),
        )
        for system, case, reason, metrics in missing.rows()
    )
    if not rows:
        return None
    columns = (Column("Case", text=True), Column("Metrics", text=True), Column("Reason", text=True))
    return Table("Not measured", "System", columns, rows, kind="failures")


def _groups(run: BenchRun, condition: str) -> list[list[Line]]:
    """The lines of each table: the report's own numbers together, then the rest in order."""
    lines = summarise(run, condition=condition)
    headline = [line for key in HEADLINE for line in lines if line.output.key == key]
    rest = [line for line in lines if line.output.key not in HEADLINE]
    return [
        group[start : start + MAX_COLUMNS]
        for group in (headline, rest)
        for start in range(0, len(group), MAX_COLUMNS)
    ]


def _means_table(run: BenchRun, lines: Sequence[Line], title: str) -> Table:
    means = [line.means for line in lines]
    columns = [_column(line.output, each) for line, each in zip(lines, means, strict=True)]
    table = objective_table(
        {system_label(name): [each.get(name) for each in means] for name in _ordered(run)},
        num_cases=lines[0].num_matched,
        columns=columns,
        intervals=True,
    )
    return _with_sizes(table, run, lines, title)


def _difference_table(run: BenchRun, lines: Sequence[Line], baseline: str) -> Table:
    columns = []
    for line in lines:
        column = _column(line.output, line.means)
        if line.output.better == "zero":
            column = dataclasses.replace(column, title=f"|{column.title}|", better="low")
        columns.append(dataclasses.replace(column, difference=True))
    given = [line.differences(baseline) for line in lines]
    rows = tuple(
        TableRow(system_label(name), tuple(each.get(name) for each in given), ranked=name != TRUTH)
        for name in _ordered(run)
        if name != baseline
    )
    notes = ("Paired differences, Student's t over persons. *: the 95 % interval leaves zero out.",)
    table = Table("", "Method", tuple(columns), rows, notes, intervals=True, kind="difference")
    return _with_sizes(table, run, lines, f"Differences from {system_label(baseline)}")


def _with_sizes(table: Table, run: BenchRun, lines: Sequence[Line], title: str) -> Table:
    """The table with what its means are over: in the title, or a row where columns differ."""
    sizes = [f"{line.num_matched} of {line.num_cases}" for line in lines]
    rows, notes = table.rows, list(table.notes)
    if len(set(sizes)) == 1:
        num = lines[0].num_matched
        title = f"{title} on the {num} matched test case{'s' if num != 1 else ''}"
        notes.insert(0, f"{sizes[0]} cases: those of which every system has a number.")
    else:
        rows = (*rows, TableRow("Matched cases", tuple(sizes)))
    for name in _ordered(run):
        silent = [line.output.label for line in lines if name not in line.means]
        if silent:
            notes.append(
                f"{system_label(name)} has no number for {', '.join(silent)}; cases are matched "
                "without it there."
            )
    return dataclasses.replace(table, title=title, rows=rows, notes=tuple(notes))


def _column(output: ScoreOutput, means: Mapping[str, Number]) -> Column:
    title = f"{output.label} ({output.unit})" if output.unit else output.label
    digits = _digits([number.value for number in means.values()])
    return Column(title[:1].upper() + title[1:], _BETTER[output.better], digits)


def _digits(values: Sequence[float]) -> int:
    """Three significant digits of the largest, as the report prints: 8.97, 0.840."""
    largest = max(map(abs, values), default=1.0)
    return 4 if 0 < largest < 0.1 else 3 if largest < 2 else 2 if largest < 100 else 1


def _ordered(run: BenchRun) -> list[str]:
    """Systems, the real footage first."""
    return sorted(run.info.systems, key=lambda name: name != TRUTH)
