"""What a run says at a glance: means over the matched set, and everything that was not measured.

The matched set of an output is the cases that every system has a number for (the report compares
36 of 70); systems that deliver only the easy cases gain nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from rich.table import Table

from avatar_v_eval.bench.measured import Output
from avatar_v_eval.bench.rows import Run
from avatar_v_eval.records import Number, bootstrap_mean


@dataclass(frozen=True)
class Line:
    """One output: the mean of each system over the cases that all of them have."""

    output: Output
    means: dict[str, Number]  # system → mean; empty where no case is matched
    num_matched: int
    num_cases: int


def summarise(run: Run, systems: Sequence[str] = ()) -> list[Line]:
    """A line for each output of the run. ``systems`` to compare: none means all of them."""
    names = list(systems or run.info.systems)
    if unknown := sorted(set(names) - set(run.info.systems)):
        raise ValueError(f"no systems {unknown}; the run has {list(run.info.systems)}")
    lines = []
    for output in run.info.outputs:
        rows = run.cases.filter(
            (pl.col("output") == output.key) & pl.col("system").is_in(names)
        ).drop_nulls("value")
        matched = (
            rows.group_by("case").agg(pl.col("system").n_unique().alias("n"))
            .filter(pl.col("n") == len(names))["case"]
        )  # fmt: skip
        rows = rows.filter(pl.col("case").is_in(matched.to_list()))
        means = {
            name: _mean(rows.filter(pl.col("system") == name)["value"].to_numpy()) for name in names
        }
        lines.append(Line(output, means if len(matched) else {}, len(matched), run.info.num_cases))
    return lines


def unmeasured(run: Run) -> list[tuple[str, str, str, int]]:
    """(system, reason, first case, number of cases) of all that has no value, most cases first."""
    rows = run.cases.filter(pl.col("value").is_null())
    grouped = (
        rows.group_by("system", "reason", maintain_order=True)
        .agg(pl.col("case").first(), pl.col("case").n_unique().alias("n"))
        .sort("n", descending=True, maintain_order=True)
    )
    return grouped.select("system", "reason", "case", "n").rows()


def as_table(lines: Sequence[Line]) -> Table:
    """For the terminal."""
    systems = list(dict.fromkeys(name for line in lines for name in line.means))
    table = Table("measure", *systems, "matched", title="means over matched cases")
    for line in lines:
        arrow = {"higher": " ↑", "lower": " ↓", "zero": " →0", "": ""}[line.output.better]
        values = [f"{line.means[name].value:.3f}" if line.means else "–" for name in systems]
        matched = f"{line.num_matched} of {line.num_cases}"
        table.add_row(f"{line.output.label}{arrow}", *values, matched)
    return table


def _mean(values: np.ndarray) -> Number:
    """With its interval over cases; without one for a single case."""
    if len(values) < 2:
        return Number(float(values.mean()) if len(values) else 0.0, len(values))
    return bootstrap_mean(values)
