"""One run of several: shards of one, or several systems on the same cases."""

import dataclasses
from collections.abc import Sequence

import polars as pl

from avatar_v_eval.bench.rows import BenchRun


def merge_runs(runs: Sequence[BenchRun]) -> BenchRun:
    """One run of several shards, or of several systems on the same cases.

    ValueError where they differ in cases, checks, conversion, in a metric that both have, in the
    weights or the command of a system or in its videos, where
    two rows of the same measurement disagree, and where a system lacks cases of a metric.
    """
    if not runs:
        raise ValueError("nothing to merge")
    first = runs[0].info
    systems: dict[str, str] = {}
    metrics: dict[str, str] = {}
    for run in runs:
        for field in ("manifest_hash", "checks", "convert"):
            if getattr(run.info, field) != getattr(first, field):
                a, b = getattr(first, field), getattr(run.info, field)
                raise ValueError(f"runs differ in {field}: {a} and {b}")
        for name, version in run.info.metrics.items():
            if (known := metrics.setdefault(name, version)) != version:
                raise ValueError(f"runs differ in metrics: {name} is {known} and {version}")
        for name, source in run.info.systems.items():
            known = systems.setdefault(name, source)
            if source != known and source not in known.split("; "):  # a command may have a "; "
                if any(x.startswith(("pipeline:", "command:")) for x in (known, source)):
                    raise ValueError(f"runs differ in system {name}: {known} and {source}")
                systems[name] = f"{known}; {source}"  # the same folder, on another machine
    cases = pl.concat([run.cases for run in runs])
    cases = cases.unique(["system", "case", "output", "value", "reason"], maintain_order=True)
    twins = cases.filter(pl.struct("system", "case", "output").is_duplicated())
    if len(twins):
        row = twins.row(0, named=True)
        raise ValueError(f"two runs disagree on {row['output']} of {row['system']}, {row['case']}")
    shown = cases.filter(pl.col("video") != "").group_by("system", "case", maintain_order=True)
    twice = shown.agg(pl.col("video").n_unique().alias("n")).filter(pl.col("n") > 1)
    if len(twice):
        system, case, _ = twice.row(0)
        raise ValueError(f"runs differ in the video of {system}, {case}: it was made anew")
    frames = pl.concat([run.frames for run in runs])
    frames = frames.unique(["system", "case", "output", "frame"], maintain_order=True)
    features = pl.concat([run.features for run in runs])
    features = features.unique(["system", "case", "metric", "row"], maintain_order=True)
    _check_whole(cases, first.num_cases, systems)
    info = dataclasses.replace(
        first,
        systems=systems,
        metrics=metrics,
        outputs=tuple(dict.fromkeys(output for run in runs for output in run.info.outputs)),
        distances=tuple(dict.fromkeys(output for run in runs for output in run.info.distances)),
        left_out={
            name: reason
            for run in runs
            for name, reason in run.info.left_out.items()
            if name not in metrics
        },
        shard="1/1",
    )
    return BenchRun(info, cases, frames, features)


def _check_whole(cases: pl.DataFrame, num_cases: int, systems: dict[str, str]) -> None:
    """Every system on every case of each metric that it was given: else a table would compare
    different cases without saying so."""
    if missing := sorted(set(systems) - set(cases["system"])):
        raise ValueError(f"{missing[0]} has 0 of {num_cases} cases: a shard is missing")
    found = cases.group_by("system", "metric", maintain_order=True).agg(pl.col("case").n_unique())
    for name, metric, num in found.rows():
        if num != num_cases:
            raise ValueError(
                f"{name} has {num} of {num_cases} cases: a shard is missing ({metric})"
            )
