"""The engine's leader with stub stages: `python tests/curation_bench.py plan local ray node`.

Prints a line of JSON for each: a plan of 200,000 passes; busy share and rows of 2 and 8 workers;
20 of them killed at random; and a node of a cluster lost or hung. Ray is needed for the last two.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from avatar_v_data.curation.engine import Outcome, Workers, run_passes
from avatar_v_data.curation.local import Processes
from avatar_v_data.curation.on_ray import HEALTH, Actors
from avatar_v_data.curation.plan import CurationPlan
from avatar_v_data.curation.reconcile import CurationTask, desired, missing
from avatar_v_data.curation.store import CurationStore
from curation_stubs import Count, Double, Last, recordings

NUM_KILLS = 20
PLAN = CurationPlan((Count(busy_s=0.4), Double(), Last()))
Rows = list[dict[str, Any]]


def main(what: Sequence[str]) -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # for actors
    os.environ["RAY_AUTH_MODE"] = "disabled"
    if "plan" in what:
        plan_many(200_000)
    tasks, files = (
        desired(PLAN, recordings(*(f"r{n}" for n in range(400)))),
        Path(tempfile.mkdtemp()),
    )
    expected, _ = measured("processes 2", Processes(PLAN.stages, files), tasks, 2)
    if "local" in what:
        measured("processes 8", Processes(PLAN.stages, files), tasks, 8, expected)
        victims = lambda: pids(f" {os.getpid()} ", "spawn_main")  # noqa: E731
        measured("processes killed", Processes(PLAN.stages, files), tasks, 4, expected, victims)
    if "ray" in what:
        for num in (2, 8):
            workers = Actors(PLAN.stages, files, "local", num_cpus=num)
            measured(f"ray {num}", workers, tasks, num, expected)
        workers = Actors(PLAN.stages, files, "local", num_cpus=4)
        measured("ray killed", workers, tasks, 4, expected, lambda: pids("ray::_Actor"))
    for how in ("killed", "hung") if "node" in what else ():
        lose_node(how, tasks, files, expected)


def plan_many(num: int) -> None:
    """Seconds until all passes of so many recordings are known."""
    many = recordings(*(f"folder/recording-{n:06d}.mp4" for n in range(num)))
    begin = time.monotonic()
    tasks = desired(PLAN, many)
    passes = list(missing(PLAN, tasks, set()))
    tell("plan", passes=len(passes), results=len(tasks), seconds=time.monotonic() - begin)


def measured(
    name: str,
    workers: Workers,
    tasks: Sequence[CurationTask],
    num: int,
    expected: Rows | None = None,
    victims: Callable[[], list[int]] | None = None,
    lose: Callable[[], float] | None = None,
) -> tuple[Rows, float]:
    """One run, with deaths or without."""
    store, noticed, lost, ended = CurationStore(tempfile.mkdtemp()), [], [], threading.Event()
    outcomes = workers.outcomes

    def watched(timeout_s: float) -> list[Outcome]:
        found = outcomes(timeout_s)
        noticed.extend(time.time() for outcome in found if outcome.is_dead)
        return found

    def end_some() -> None:
        draw = random.Random(0)
        while victims and len(lost) < NUM_KILLS and not ended.wait(draw.uniform(1, 4)):
            if found := victims():
                os.kill(draw.choice(found), signal.SIGKILL)
                lost.append(time.time())
        if lose:
            lost.append(lose())

    workers.outcomes = watched  # pyright: ignore[reportAttributeAccessIssue]
    threading.Thread(target=end_some, daemon=True).start()
    begin = time.monotonic()
    status = run_passes(missing(PLAN, tasks, set()), store, workers, num)
    ended.set()
    rows = [CurationStore(store.folder).result(task.key) for task in tasks]
    delays = [min((n - at for n in noticed if n >= at), default=None) for at in lost]
    tell(
        name, seconds=time.monotonic() - begin, busy=status.busy, deaths=status.deaths,
        equal=expected is None or rows == expected, failed=status.failed, noticed_after=delays,
    )  # fmt: skip
    return rows, status.busy


def lose_node(how: str, tasks: Sequence[CurationTask], files: Path, expected: Rows) -> None:
    """A cluster of three nodes on this machine, one of which is removed or stopped."""
    import ray
    from ray.cluster_utils import Cluster

    config = {**HEALTH, "worker_niceness": 0}
    head = {"num_cpus": 0, "_system_config": config}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=2)
    node = cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address)

    def lose() -> float:
        time.sleep(30)
        at, raylet = time.time(), node.all_processes["raylet"][0].process.pid
        if how == "hung":
            for pid in [*pids(f" {raylet} "), raylet]:
                os.kill(pid, signal.SIGSTOP)
        else:
            cluster.remove_node(node, allow_graceful=False)
        return at

    measured(
        f"node {how}", Actors(PLAN.stages, files, cluster.address), tasks, 4, expected, lose=lose
    )
    ray.shutdown()
    cluster.shutdown()


def pids(*words: str) -> list[int]:
    """Processes whose line of `ps` holds these."""
    lines = subprocess.run(["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True).stdout
    return [int(x.split()[0]) for x in lines.splitlines() if all(word in x for word in words)]


def tell(what: str, **numbers: object) -> None:
    print(json.dumps({"what": what, **numbers}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
