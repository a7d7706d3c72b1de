"""From a run's feature rows to one number a system and set metric (FID, FVD), with its interval.

The set is the cases that the truth and every compared system have rows of: the matched set.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

from avatar_v_eval.bench.rows import BenchRun
from avatar_v_eval.bench.systems import TRUTH
from avatar_v_eval.records import Number
from avatar_v_eval.scoring.frechet import frechet_number


def set_numbers(run: BenchRun, metric: str, systems: Sequence[str]) -> dict[str, Number]:
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


def _matrix(rows: pl.DataFrame) -> np.ndarray:
    return np.stack([np.asarray(row, dtype=np.float32) for row in rows.sort("row")["values"]])
