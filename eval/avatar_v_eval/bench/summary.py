"""A run at a glance: means over the matched set, and everything that was not measured.

The matched set of an output is the cases that every system has a number for (the report compares
36 of 70); systems that deliver only the easy cases gain nothing. A system without a single number
has no mean, and does not empty the set for the others. Intervals: the
jackknife over persons, whose cases stay together.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float
from rich.table import Table

from avatar_v.scoring.values import ScoreOutput
from avatar_v_eval.bench.controls import CONTROLS
from avatar_v_eval.bench.rows import BenchRun
from avatar_v_eval.bench.systems import TRUTH
from avatar_v_eval.intervals import pooled_mean
from avatar_v_eval.records import Number
from avatar_v_eval.scoring.frechet import frechet_number
from avatar_v_eval.scoring.timing import NO_TIMING


@dataclass(frozen=True)
class Line:
    """One output on the cases that all systems with a number have, in one order for all."""

    output: ScoreOutput
    values: Mapping[str, Float[np.ndarray, " n"]]  # system → value per matched case
    persons: tuple[str, ...]  # of these cases
    cases: tuple[str, ...]  # their ids
    num_cases: int
    sets: Mapping[str, Number] = field(default_factory=dict)
    """System → one number of all its matched videos, in the place of values."""

    @property
    def num_matched(self) -> int:
        return max((number.n for number in self.sets.values()), default=len(self.persons))

    @property
    def means(self) -> dict[str, Number]:
        """System → mean, or number of its set, with its interval; empty where none is matched."""
        if self.sets:
            return dict(self.sets)
        if not self.persons:
            return {}
        return {name: mean_over(values, self.persons) for name, values in self.values.items()}

    def differences(self, baseline: str) -> dict[str, Number]:
        """System → mean of (system - baseline) over matched cases, paired.

        Where zero is best, of how far from it they are. Empty where the baseline has no number.
        """
        if baseline not in self.values or not self.persons:
            return {}
        size = np.abs if self.output.better == "zero" else np.asarray
        base = size(self.values[baseline])
        return {
            name: mean_over(size(values) - base, self.persons)
            for name, values in self.values.items()
            if name != baseline
        }


def summarise(run: BenchRun, systems: Sequence[str] = (), condition: str = "") -> list[Line]:
    """A line for each output of the run, then for each number of whole sets (FID, FVD), which are
    of all conditions together. ``systems`` to compare: none means all of them.

    ``condition`` takes the cases of one alone, and "" all.
    """
    names = list(systems or run.info.systems)
    if unknown := sorted(set(names) - set(run.info.systems)):
        raise ValueError(f"no systems {unknown}; the run has {list(run.info.systems)}")
    rows, num_cases = run.cases, run.info.num_cases
    if condition:
        rows = rows.filter(pl.col("condition") == condition)
        num_cases = rows["case"].n_unique()
    rows = rows.filter(pl.col("system").is_in(names)).drop_nulls("value")
    lines = [
        _line(output, rows.filter(pl.col("output") == output.key), names, num_cases)
        for output in run.info.outputs
    ]
    distances = () if condition else run.info.distances
    return lines + [_set_line(run, distance, names) for distance in distances]


def _set_line(run: BenchRun, distance: ScoreOutput, names: Sequence[str]) -> Line:
    return Line(distance, {}, (), (), run.info.num_cases, set_numbers(run, distance.key, names))


def mean_over(values: Float[np.ndarray, " n"], persons: Sequence[str]) -> Number:
    """Mean of cases; the 95 % interval is over persons, with all their cases. One person alone has
    none."""
    names, person = np.unique(np.asarray(persons), return_inverse=True)
    if len(names) < 2:
        return Number(float(values.mean()), len(values))
    found = pooled_mean(np.bincount(person, values), np.bincount(person))
    return dataclasses.replace(found, n=len(values))


@dataclass(frozen=True)
class Counts:
    """The number of cases of one system that were delivered, scored and matched."""

    delivered: int  # a video was there
    scored: int  # and has a number at least
    matched: tuple[int, int]  # and every system has it too: fewest and most of its outputs

    def words(self, num_cases: int) -> tuple[str, str, str]:
        """As printed."""
        low, high = self.matched
        matched = f"{low}" if low == high else f"{low} to {high}"
        return f"{self.delivered} of {num_cases}", str(self.scored), matched


def counts(run: BenchRun, lines: Sequence[Line]) -> dict[str, Counts]:
    """System → its counts, over the lines of the run."""
    out = {}
    for name in run.info.systems:
        rows = run.cases.filter(pl.col("system") == name)
        matched = [line.num_matched for line in lines if name in line.means] or [0]
        out[name] = Counts(
            delivered=rows.filter(pl.col("video") != "")["case"].n_unique(),
            scored=rows.drop_nulls("value")["case"].n_unique(),
            matched=(min(matched), max(matched)),
        )
    return out


def counts_table(run: BenchRun, lines: Sequence[Line]) -> Table:
    """For the terminal."""
    table = Table("system", "delivered", "scored", "matched", title="cases")
    for name, one in counts(run, lines).items():
        table.add_row(name, *one.words(run.info.num_cases))
    return table


def unmeasured(run: BenchRun) -> list[tuple[str, str, str, int]]:
    """(system, reason, first case, number of cases) of all that has no value, most cases first."""
    grouped = (
        without_value(run)
        .group_by("system", "reason", maintain_order=True)
        .agg(pl.col("case").first(), pl.col("case").n_unique().alias("n"))
        .sort("n", descending=True, maintain_order=True)
    )
    return grouped.select("system", "reason", "case", "n").rows()


def without_value(run: BenchRun) -> pl.DataFrame:
    """The rows that have none, but for the times of what no system made: truth and controls."""
    names = {control.name for control in CONTROLS}  # of their folders (controls.py)
    given = [name for name, at in run.info.systems.items() if Path(at).name in names]
    untimed = pl.col("system").is_in([TRUTH, *given]) & (pl.col("reason") == NO_TIMING)
    return run.cases.filter(pl.col("value").is_null() & ~untimed)


def as_table(lines: Sequence[Line]) -> Table:
    """For the terminal."""
    systems = list(dict.fromkeys(name for line in lines for name in line.means))
    table = Table("measure", *systems, "matched", title="over matched cases")
    for line in lines:
        arrow = {"higher": " ↑", "lower": " ↓", "zero": " →0", "": ""}[line.output.better]
        means = line.means
        values = [f"{means[name].value:.3f}" if name in means else "–" for name in systems]
        matched = f"{line.num_matched} of {line.num_cases}"
        table.add_row(f"{line.output.label}{arrow}", *values, matched)
    return table


def _line(output: ScoreOutput, rows: pl.DataFrame, names: Sequence[str], num_cases: int) -> Line:
    """Of the rows of one output that have a number."""
    able = [name for name in names if name in set(rows["system"])]
    shared = (
        rows.group_by("case", maintain_order=True)
        .agg(pl.col("system").n_unique().alias("n"), pl.col("person").first())
        .filter(pl.col("n") == len(able))
        .sort("case")
    )
    kept = rows.filter(pl.col("case").is_in(shared["case"].to_list())).sort("case")
    values = {name: kept.filter(pl.col("system") == name)["value"].to_numpy() for name in able}
    return Line(output, values, tuple(shared["person"]), tuple(shared["case"]), num_cases)


def set_numbers(run: BenchRun, metric: str, systems: Sequence[str]) -> dict[str, Number]:
    """System → its distance to the truth (FID, FVD) over the cases that the truth and every system
    that has rows at all have rows of; empty where fewer than two rows are matched."""
    own = run.features.filter(pl.col("metric") == metric)
    names = list(dict.fromkeys([TRUTH, *systems]))
    found = {
        name: own.filter(pl.col("system") == name).partition_by("case", as_dict=True)
        for name in names
    }
    able = [name for name in names if name == TRUTH or found[name]]
    cases = [key for key in found[TRUTH] if all(key in found[name] for name in able)]
    rows = {name: [_matrix(found[name][key]) for key in cases] for name in able}
    if sum(map(len, rows[TRUTH])) < 2:
        return {}
    person_of = dict(run.cases.select("case", "person").unique().rows())
    persons = [person_of[case] for (case,) in cases]
    return {
        name: frechet_number(rows[TRUTH], rows[name], persons) for name in systems if name in able
    }


def _matrix(rows: pl.DataFrame) -> np.ndarray:
    return np.stack([np.asarray(row, dtype=np.float32) for row in rows.sort("row")["values"]])
