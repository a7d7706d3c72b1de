"""The contents of a report in their order; `page` and `files` print them."""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from avatar_v_eval.bench.merge import merge_runs
from avatar_v_eval.bench.rows import BenchRun, RunInfo, read_run
from avatar_v_eval.bench.systems import TRUTH
from avatar_v_eval.records import without_folders
from avatar_v_eval.report.charts import Chart, charts_for
from avatar_v_eval.report.human import Human, read_human
from avatar_v_eval.report.objective import (
    counts_table,
    difference_tables,
    failure_table,
    objective_tables,
    system_label,
)
from avatar_v_eval.report.worst import Worst, worst_cases
from avatar_v_eval.table_view import Column, Table, TableRow

OVERALL = ("mos", "score", "win", "turing")
RATERS = ("preference", "agreement", "left_out")


@dataclass(frozen=True)
class ReportOptions:
    """The options of a report. ``worst_by`` "" is the first headline number."""

    runs: tuple[Path, ...] = ()
    votes: tuple[Path, ...] = ()
    baseline: str = ""
    num_worst: int = 3
    worst_by: str = ""
    title: str = ""


@dataclass(frozen=True)
class Section:
    """Tables and the charts below them; ``worst`` has videos, which the page alone shows."""

    title: str
    tables: tuple[Table, ...]
    charts: tuple[Chart, ...] = ()
    worst: Worst | None = None


@dataclass(frozen=True)
class Report:
    """A whole report. ``facts`` are (what, how much) of its first lines."""

    title: str
    facts: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]

    def numbered(self) -> list[tuple[Section, list[tuple[int, Table]]]]:
        """Sections with their tables, counted from 1 through all of them."""
        number, out = 0, []
        for section in self.sections:
            tables = []
            for table in section.tables:
                number += 1
                tables.append((number, table))
            out.append((section, tables))
        return out

    @property
    def is_ranked(self) -> bool:
        """Whether any cell is marked as best: of one system alone, none is."""
        return any(place for table in self.tables for row in table.places() for place in row)

    @property
    def has_truth(self) -> bool:
        """Whether a table has a row beside those that can be ranked, as the ground truth is."""
        return any(not row.ranked for table in self.tables for row in table.rows)

    @property
    def tables(self) -> list[Table]:
        return [table for section in self.sections for table in section.tables]


def make_report(sources: ReportOptions) -> Report:
    """Reads everything and computes every table; writes nothing.

    ValueError: nothing given, a folder that holds no run or no rows, runs that were not measured
    alike, an unknown baseline or number, votes that are none.
    """
    if not sources.runs and not sources.votes:
        raise ValueError("nothing to report: give folders that `run` wrote, or --votes")
    if (sources.baseline or sources.worst_by) and not sources.runs:
        raise ValueError("--baseline and --worst-by need a run: votes have no such numbers")
    runs = {folder: read_run(folder) for folder in sources.runs}
    run = merged(runs) if runs else None
    humans = [read_human(path) for path in sources.votes]
    human_tables = [table for human in humans for table in human.tables]
    sections = [
        _objective(run, human_tables),
        _human(human_tables),
        _differences(run, sources.baseline),
        _conditions(run, human_tables),
        _worst(run, sources.num_worst, sources.worst_by),
        _failures(run),
        _section("Raters", [table for table in human_tables if table.kind in RATERS]),
        Section("Protocol and weights", tuple(_protocol(runs, run, humans))),
    ]
    name = run.info.manifest if run else humans[0].name
    title = sources.title or f"Evaluation on {name}"
    return Report(title, _facts(run, humans), tuple(one for one in sections if one))


def merged(runs: dict[Path, BenchRun]) -> BenchRun:
    """All runs as one; ValueError names two that cannot stand in one table."""
    first, *others = runs
    for folder, run in runs.items():
        if run.cases.is_empty():
            raise ValueError(f"{folder} holds no rows: nothing was measured")
    for other in others:
        a, b = runs[first].info, runs[other].info
        if a.manifest_hash != b.manifest_hash:
            raise ValueError(
                f"runs of different cases: {first} of {a.manifest} ({a.manifest_hash}), {other} of "
                f"{b.manifest} ({b.manifest_hash})"
            )
    for folder in runs:
        for other in others:
            if difference := _difference(runs[folder].info, runs[other].info):
                raise ValueError(f"runs of different protocols, {folder} and {other}: {difference}")
    return merge_runs(list(runs.values()))


def _difference(a: RunInfo, b: RunInfo) -> str:
    """The first way in which two runs did not measure alike, in words; "" where they did."""
    if (a.checks, a.convert) != (b.checks, b.convert):
        return (
            f"checks {a.checks} with convert={a.convert}, and checks {b.checks} with "
            f"convert={b.convert}"
        )
    for name in a.metrics:
        if name in b.metrics and a.metrics[name] != b.metrics[name]:
            return f"{name} is version and weights {a.metrics[name]!r}, and {b.metrics[name]!r}"
    return ""


def _objective(run: BenchRun | None, human_tables: Sequence[Table]) -> Section | None:
    tables = [*objective_tables(run), counts_table(run)] if run else []
    tables += [table for table in human_tables if table.kind == "objective"]
    return _section("Objective metrics", tables, charts=run is not None)


def _human(tables: Sequence[Table]) -> Section | None:
    chosen = [table for table in tables if table.kind in OVERALL and not table.condition]
    return _section("Human evaluation", chosen, charts=True)


def _differences(run: BenchRun | None, baseline: str) -> Section | None:
    if run is None or not baseline:
        return None
    return _section("Paired differences", difference_tables(run, baseline))


def _conditions(run: BenchRun | None, human_tables: Sequence[Table]) -> Section | None:
    """Nothing where there is one condition alone: it would say all again."""
    tables = []
    if run and len(conditions := _seen(run.cases["condition"])) > 1:
        tables = [table for name in conditions for table in objective_tables(run, name)]
    by_votes = [table for table in human_tables if table.condition]
    if len({table.condition for table in by_votes}) > 1:
        tables += by_votes
    return _section("By scene condition", tables)


def _worst(run: BenchRun | None, num: int, key: str) -> Section | None:
    worst = worst_cases(run, num, key) if run else None
    if worst is None or not worst.cases:
        return None
    return Section("Worst cases", (worst.table,), worst=worst)


def _failures(run: BenchRun | None) -> Section | None:
    table = failure_table(run) if run else None
    return _section("Not measured", [table] if table else [])


def _section(title: str, tables: Sequence[Table], *, charts: bool = False) -> Section | None:
    if not tables:
        return None
    kinds: dict[str, Table] = {}
    for table in tables:
        kinds.setdefault(table.kind, table)
    drawn = [chart for table in kinds.values() for chart in charts_for(table)] if charts else []
    return Section(title, tuple(tables), tuple(drawn))


def _protocol(
    runs: dict[Path, BenchRun], run: BenchRun | None, humans: Sequence[Human]
) -> Iterable[Table]:
    """Hashes of what was measured, by whom, and when."""
    if run:
        judges = run.cases.unique(["metric", "version", "judge", "weights"], maintain_order=True)
        text = Column("Judge", text=True)
        yield Table(
            "Metrics", "Metric", (Column("Version"), text, Column("Hash of weights")),
            tuple(TableRow(row["metric"], (str(row["version"]), row["judge"], row["weights"]))
                  for row in judges.iter_rows(named=True)),
            tuple(
                f"Left out: {name} {without_folders(why)}."
                for name, why in run.info.left_out.items()
            ),
            kind="metrics",
        )  # fmt: skip
        yield _systems(run)
    heads = ("Of", "Hash", "Protocol", "Made by", "Date")
    columns = [Column(name, text=name in ("Of", "Made by")) for name in heads]
    rows = [
        TableRow(
            folder.resolve().name,
            (
                _named(one.info),
                one.info.manifest_hash,
                one.info.protocol,
                f"{without_folders(one.info.command)} ({one.info.commit[:10]})",
                one.info.date[:10],
            ),
        )
        for folder, one in runs.items()
    ]
    rows += [
        TableRow(human.name, (human.source, human.hash, "none", "people", "")) for human in humans
    ]
    yield Table("Sources", "Source", tuple(columns), tuple(rows), kind="sources")


def _systems(run: BenchRun) -> Table:
    """The source of each system: a page is for others, so a folder has its name alone."""
    rows = []
    for name, source in run.info.systems.items():
        own = (
            run.cases.filter(pl.col("system") == name).select("case", "video").unique().sort("case")
        )
        videos = hashlib.sha256(json.dumps(own.rows()).encode()).hexdigest()[:12]
        places = [
            Path(one).name if Path(one).is_absolute() else without_folders(one)
            for one in source.split("; ")  # of a merged run
        ]
        rows.append(TableRow(system_label(name), (videos, "; ".join(dict.fromkeys(places)))))
    columns = (Column("Hash of videos"), Column("Source", text=True))
    return Table("Systems", "System", columns, tuple(rows), kind="systems")


def _named(info: RunInfo) -> str:
    content = f", content {info.content[:16]}" if info.content else ""
    return f"cases of {info.manifest}{content}"


def _facts(run: BenchRun | None, humans: Sequence[Human]) -> tuple[tuple[str, str], ...]:
    facts = []
    if run:
        names = [name for name in run.info.systems if name != TRUTH]
        facts += [
            ("Cases", str(run.info.num_cases)),
            ("Persons", str(run.cases["person"].n_unique())),
            ("Scenes", ", ".join(_seen(run.cases["condition"]))),
            ("Systems", ", ".join(names) or "ground truth alone"),
            ("Values", run.info.date[:10]),
            ("Protocol", run.info.protocol),
        ]
    facts += [("Votes", f"{human.name} ({human.source})") for human in humans]
    return tuple(facts)


def _seen(column: pl.Series) -> list[str]:
    """Values in a fixed order: same, cross, generated, then others."""
    known = ["same", "cross", "generated"]
    found = column.unique(maintain_order=True).to_list()
    return sorted(found, key=lambda name: known.index(name) if name in known else len(known))
