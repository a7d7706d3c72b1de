"""Workers that are actors of a Ray cluster, with the processors and memory that a plan gives them.

Ray places them, restarts none (the leader does, elsewhere) and says when a node is lost: within 15
s as `HEALTH` sets it, where its own defaults take a minute for a node that hangs.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from avatar_v_data.curation.engine import Job, Outcome, perform
from avatar_v_data.curation.plan import Resources
from avatar_v_data.curation.stages import Stage

HEALTH = {
    "health_check_initial_delay_ms": 2000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 4,
}
"""What the head of a cluster is started with, each as a variable `RAY_` and its name."""
HOW_TO_INSTALL = "running on Ray needs it: pip install 'avatar_v[ray]'"
LOCAL = "local"
VERSION = "2.60.0"


class Actors:
    """An actor for each worker. ``address``: of a cluster, "auto" for the one that this machine
    belongs to, or `LOCAL` to begin one here that ends with the run."""

    def __init__(self, stages: Sequence[Stage], files: Path, address: str) -> None:
        ray = _ray()
        self._is_own = not ray.is_initialized()
        if self._is_own:
            where: dict[str, Any] = {"address": address}
            if address == LOCAL:
                os.environ.setdefault("RAY_AUTH_MODE", "disabled")
                config = {**HEALTH, "worker_niceness": 0}  # as processes have it; Ray's is 15
                where |= {"_system_config": config, "include_dashboard": False}
            ray.init(**where, log_to_driver=True, logging_level="WARNING")
        self._ray, self._files = ray, str(files.resolve())
        self._stages = ray.put(tuple(stages))
        self._num = 0
        self._actors: dict[int, Any] = {}
        self._jobs: dict[int, list[Any]] = {}  # of each worker, as they were sent

    def start(self, kind: Resources) -> int:
        self._num += 1
        memory = {"memory": int(kind.memory_gb * 2**30)} if kind.memory_gb else {}
        made = self._ray.remote(_Actor).options(
            num_cpus=kind.cpus, num_gpus=kind.gpus, max_restarts=0, max_task_retries=0,
            scheduling_strategy="SPREAD", **memory,
        )  # fmt: skip
        self._actors[self._num] = made.remote(self._num, self._stages, self._files)
        self._jobs[self._num] = [self._actors[self._num].ready.remote()]
        return self._num

    def send(self, worker: int, job: Job) -> None:
        self._jobs[worker].append(self._actors[worker].do.remote(job))

    def outcomes(self, timeout_s: float) -> list[Outcome]:
        worker_of = {job: worker for worker, jobs in self._jobs.items() for job in jobs[:1]}
        if not worker_of:
            time.sleep(timeout_s)
            return []
        jobs, found = list(worker_of), []
        ready, _ = self._ray.wait(jobs, num_returns=len(jobs), timeout=0)
        if not ready:
            ready, _ = self._ray.wait(jobs, num_returns=1, timeout=timeout_s)
        for job in ready:
            worker = worker_of[job]
            self._jobs[worker].remove(job)
            try:
                found.append(self._ray.get(job))
            except self._ray.exceptions.RayError:  # of a node, of memory, or of the work itself
                self._jobs.pop(worker)
                self._ray.kill(self._actors.pop(worker))
                found.append(Outcome(worker, is_dead=True))
        return found

    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        if self._is_own:
            self._ray.shutdown()


class _Actor:
    def __init__(self, number: int, stages: Sequence[Stage], files: str) -> None:
        import torch

        torch.set_num_threads(1)
        self._number, self._stages, self._files = number, stages, Path(files)

    def ready(self) -> Outcome:
        return Outcome(self._number, is_ready=True)

    def do(self, job: Job) -> Outcome:
        return perform(self._number, self._stages, self._files, job)


def _ray() -> Any:
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(HOW_TO_INSTALL) from error
    return ray
