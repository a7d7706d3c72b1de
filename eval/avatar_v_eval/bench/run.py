"""A whole run: systems deliver, processes score, rows are written; nothing is measured twice.

Videos are made one after another in this process, since a generator wants the machine to itself.
Scoring is spread over processes by case, so that a case's files are decoded once for all systems.
"""

import datetime
import multiprocessing
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

from avatar_v.base import checks
from avatar_v.base.interrupts import interrupts_deferred
from avatar_v_eval.bench.delivery import BenchSystem, Delivery
from avatar_v_eval.bench.footage import CHECKS_VERSION
from avatar_v_eval.bench.manifest import BenchManifest, CaseFiles, file_fault
from avatar_v_eval.bench.rows import BenchRun, CaseRow, FeatureRow, FrameRow, RunInfo, table
from avatar_v_eval.bench.score import CaseRows, Job, Scoring, built_metrics, score_case
from avatar_v_eval.records import git_state, running_command
from avatar_v_eval.scoring.scorers.sets import SetScorer

OnStep = Callable[[str, int, int], None]
"""(what is done, how much of it, of how much)."""


def run_benchmark(
    manifest: BenchManifest,
    systems: Sequence[BenchSystem],
    scoring: Scoring,
    *,
    shard: tuple[int, int] = (1, 1),
    num_workers: int = 1,
    left_out: dict[str, str] | None = None,
    on_step: OnStep = lambda what, done, total: None,
) -> BenchRun:
    """Every system on every case of the shard: a row each, in the order of the manifest.

    ValueError where a metric's networks cannot be loaded. Interrupt it at any time: the same call
    goes on from the cache.
    """
    checks.at_once("--workers", num_workers)
    cases = select_shard(manifest.cases, shard)
    metrics = built_metrics(scoring)
    jobs = []
    for done, case in enumerate(cases):
        on_step("videos", done, len(cases))
        jobs.append(_job(manifest, case, systems))
    on_step("videos", len(cases), len(cases))
    results: dict[str, CaseRows] = {}
    on_step("scores", 0, len(jobs))
    for case_id, scored in _scored(jobs, scoring, num_workers):
        results[case_id] = scored
        on_step("scores", len(results), len(jobs))
    in_order = [results[case.id] for case in cases]
    info = RunInfo(
        manifest=manifest.name,
        manifest_hash=manifest.fingerprint,
        content=manifest.content,
        num_cases=len(manifest.cases),
        shard=f"{shard[0]}/{shard[1]}",
        convert=scoring.convert,
        systems={system.name: system.source for system in systems},
        metrics={metric.name: f"{metric.version} {metric.weights}" for metric in metrics},
        outputs=tuple(output for metric in metrics for output in metric.outputs),
        left_out=left_out or {},
        command=running_command(),
        commit=git_state()[0],
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        checks=CHECKS_VERSION,
        distances=tuple(metric.distance for metric in metrics if isinstance(metric, SetScorer)),
    )
    return BenchRun(
        info,
        table(CaseRow, [row for scored in in_order for row in scored.cases]),
        table(FrameRow, [row for scored in in_order for row in scored.frames]),
        table(FeatureRow, [row for scored in in_order for row in scored.features]),
    )


def parse_shard(text: str) -> tuple[int, int]:
    """``i/n``, counted from 1; ValueError for anything else."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"--shard {text}: expected i/n with 1 <= i <= n, such as 2/4")
    return int(match[1]), int(match[2])


def select_shard(cases: Sequence[CaseFiles], shard: tuple[int, int]) -> list[CaseFiles]:
    """Every n-th case from the i-th on; ValueError where none is left."""
    index, num = shard
    chosen = list(cases[index - 1 :: num])
    if not chosen:
        raise ValueError(f"shard {index}/{num} of {len(cases)} cases is empty")
    return chosen


def _job(manifest: BenchManifest, case: CaseFiles, systems: Sequence[BenchSystem]) -> Job:
    """A case with a fault is given to nobody: what it would score is not the benchmark's."""
    if fault := file_fault(manifest, case):
        return Job(manifest, case, {system.name: Delivery(reason=fault) for system in systems})
    return Job(manifest, case, {system.name: system.deliver(manifest, case) for system in systems})


def _scored(
    jobs: Sequence[Job], scoring: Scoring, num_workers: int
) -> Iterator[tuple[str, CaseRows]]:
    """Case ids with their rows, as they are done."""
    if num_workers == 1:
        for job in jobs:
            yield job.case.id, score_case(job, scoring)
        return
    context = multiprocessing.get_context("spawn")  # torch's threads do not survive a fork
    pool = ProcessPoolExecutor(num_workers, mp_context=context, initializer=_start_worker)
    try:
        with interrupts_deferred():  # the first of them starts the processes
            futures = {pool.submit(score_case, job, scoring): job.case.id for job in jobs}
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Several share the cores, so one thread each."""
    torch.set_num_threads(1)
