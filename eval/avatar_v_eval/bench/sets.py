"""From a run's feature rows to one number a system and set metric (FID, FVD), with its interval.

The set is the cases that the truth and every compared system have rows of: the matched set.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import polars as pl

from avatar_v_eval.bench.rows import Run, SetRow, table
from avatar_v_eval.bench.systems import TRUTH
from avatar_v_eval.records import Number
from avatar_v_eval.scoring.frechet import frechet_number


def set_numbers(run: Run, metric: str, systems: Sequence[str]) -> dict[str, Number]:
    """System → its distance to the truth; empty where fewer than two rows are matched."""
    own = run.features.filter(pl.col("metric") == metric)
    names = list(dict.fromkeys([TRUTH, *systems]))
    found = {
        name: own.filter(pl.col("system") == name).partition_by("case", as_dict=True)
        for name in names
    }
    cases = [key for key in found[TRUTH] if all(key in found[name] for name in names)]
    rows = {name: [_matrix(found[name][key]) for key in cases] for name in names}
    if sum(map(len, rows[TRUTH])) < 2:
        return {}
    return {name: frechet_number(rows[TRUTH], rows[name]) for name in systems}


def with_sets(run: Run) -> Run:
    """The run with a row for every system and set metric, a value or a reason, in ``sets``."""
    return dataclasses.replace(run, sets=table(SetRow, _set_rows(run)))


def _set_rows(run: Run) -> list[SetRow]:
    systems = list(run.info.systems)
    rows = []
    for distance in run.info.distances:
        numbers = set_numbers(run, distance.key, systems)
        version, weights = run.info.metrics[distance.key].split(" ", 1)
        for name in systems:
            number = numbers.get(name)
            rows.append(
                SetRow(
                    system=name,
                    metric=distance.key,
                    value=None if number is None else number.value,
                    low=None if number is None else number.low,
                    high=None if number is None else number.high,
                    num_cases=0 if number is None else number.n,
                    reason="" if number else "no case that the truth and every system have",
                    version=int(version),
                    weights=weights,
                )
            )
    return rows


def _matrix(rows: pl.DataFrame) -> np.ndarray:
    return np.stack([np.asarray(row, dtype=np.float32) for row in rows.sort("row")["values"]])
