"""The cost of a benchmark: seconds a video and metric, at first and from a cache.

Time includes decoding, which falls on whoever asks first: the check of a video, then the metrics
in their order. Making videos is not part of it.
"""

import dataclasses
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from rich.table import Table

from avatar_v_eval.bench.manifest import Manifest, file_fault
from avatar_v_eval.bench.rows import Run
from avatar_v_eval.bench.run import run_benchmark
from avatar_v_eval.bench.score import Job, Scoring, built_metrics, score_case
from avatar_v_eval.bench.systems import Delivery, System
from avatar_v_eval.intervals import mean_of, median_of_repeats
from avatar_v_eval.records import Result, make_result

CACHED_REPEATS = 5


@dataclasses.dataclass(frozen=True)
class Cost:
    """Of one metric, over the videos that it was asked of: mean seconds a video."""

    metric: str
    measured_s: float  # of those measured anew
    num_measured: int
    cached_s: float  # of those found in the cache
    num_cached: int


def costs(run: Run) -> list[Cost]:
    """Seconds that this run spent on each metric, one entry a video."""
    once = run.cases.filter(pl.col("video") != "").unique(
        ["system", "case", "metric"], maintain_order=True
    )
    found = []
    for (metric,), rows in once.group_by("metric", maintain_order=True):
        cached = rows["cached"].to_numpy().astype(bool)
        spent_s = rows["spent_s"].to_numpy()
        new, old = spent_s[~cached], spent_s[cached]
        found.append(Cost(str(metric), _mean(new), len(new), _mean(old), len(old)))
    return found


def as_table(found: Sequence[Cost]) -> Table:
    """For the terminal."""
    table = Table("metric", "measured", "s a video", "cached", "s a video", title="cost")
    for cost in found:
        table.add_row(
            cost.metric,
            str(cost.num_measured),
            f"{cost.measured_s:.3f}" if cost.num_measured else "–",
            str(cost.num_cached),
            f"{cost.cached_s:.5f}" if cost.num_cached else "–",
        )
    return table


def measure_cost(manifest: Manifest, systems: Sequence[System], scoring: Scoring) -> Result:
    """Scores everything in an empty cache, then again from it: seconds a case and their ratio.

    One process, networks loaded before. Each case is timed as a whole, hashing of its files
    included, and the cached ones `CACHED_REPEATS` times (the median counts). ValueError below two
    cases, and where nothing could be scored.
    """
    jobs = [_job(manifest, index, systems) for index in range(len(manifest.cases))]
    with tempfile.TemporaryDirectory() as folder:
        scoring = dataclasses.replace(scoring, cache=Path(folder))
        built_metrics(scoring)
        cold = np.array([_seconds(job, scoring) for job in jobs])
        warm = np.array(
            [np.median([_seconds(job, scoring) for _ in range(CACHED_REPEATS)]) for job in jobs]
        )
        run = run_benchmark(manifest, systems, scoring)
    if run.cases["value"].is_null().all():
        raise ValueError(f"nothing could be scored: {run.cases['reason'][0]}")
    measured = run.cases.unique(["system", "case", "metric"], maintain_order=True)
    numbers = {
        "cold": mean_of(cold).described("scoring a case, nothing cached", unit="s"),
        "cached": mean_of(warm).described("scoring a case, all cached", unit="s"),
        "ratio": median_of_repeats((cold / warm).tolist()).described(
            "cold over cached, median of cases", unit="x", target="≥ 50"
        ),
    }
    for (metric,), rows in measured.group_by("metric", maintain_order=True):
        seconds = rows["seconds"].to_numpy()
        numbers[f"cold_{metric}"] = mean_of(seconds).described(
            f"{metric}, a video, nothing cached", unit="s"
        )
    return make_result(
        "eval_cost",
        f"What scoring {manifest.name} costs",
        numbers,
        weights={metric.name: metric.weights for metric in built_metrics(scoring)},
        notes=[
            f"{len(jobs)} cases of {manifest.name} ({manifest.fingerprint}), systems: "
            f"{', '.join(system.name for system in systems)}; one process",
            "a case is all its videos with all metrics, its files hashed; videos are there already",
            f"cached: the median of {CACHED_REPEATS} repeats; decoding falls on the first to ask",
        ],
    )


def _job(manifest: Manifest, index: int, systems: Sequence[System]) -> Job:
    case = manifest.cases[index]
    deliveries = {system.name: system.deliver(manifest, case) for system in systems}
    return Job(manifest, case, deliveries)


def _seconds(job: Job, scoring: Scoring) -> float:
    begin = time.perf_counter()
    if fault := file_fault(job.manifest, job.case):
        job = dataclasses.replace(
            job, deliveries={n: Delivery(reason=fault) for n in job.deliveries}
        )
    score_case(job, scoring)
    return time.perf_counter() - begin


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0
