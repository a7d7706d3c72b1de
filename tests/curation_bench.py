"""The engine's records, eval/results/data_engine.json and data_engine_footage.json:
`python tests/curation_bench.py [workers] [footage]`. They take 15 and 4 minutes of a machine that
does nothing else.

Stub stages that wait stand for models: how long a plan of 200,000 passes takes to make, how busy
workers are, how soon it is noticed that one was killed or a node of a cluster lost, and whether all
come to the same results. Real stages run on drawn footage: decodes and seconds of a core. It needs
the extras data, faces and ray.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from avatar_v.media import reading
from avatar_v_data import cli
from avatar_v_data.curation.curated import opened
from avatar_v_data.curation.engine import Outcome, RunStatus, Workers, run_passes
from avatar_v_data.curation.local import Processes
from avatar_v_data.curation.on_ray import HEALTH, Actors
from avatar_v_data.curation.plan import PLANS, CurationPlan
from avatar_v_data.curation.reconcile import desired, missing
from avatar_v_data.curation.stages import Result, seconds
from avatar_v_data.curation.store import CurationStore
from avatar_v_eval.records import RESULTS_DIR, Number, make_result, write_result
from curation_stubs import Count, Double, Last, recordings

NUM_MANY, NUM_PASSES, NUM_KILLS = 200_000, 400, 20
PLAN = CurationPlan((Count(busy_s=0.4), Double(), Last()))
TASKS = desired(PLAN, recordings(*(f"r{n}" for n in range(NUM_PASSES))))
PRINTS = {"": "prints: {}", "once_": "prints: {beforehand: false}"}
ROUNDS = 2
FOOTAGE = ("--recordings", "6", "--seconds", "20", "--persons", "4", "--seed", "1")
RAY = {"_system_config": {**HEALTH, "worker_niceness": 0}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)} (all)")
    parser.add_argument("--out", default=RESULTS_DIR, type=Path)
    args = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # for actors
    os.environ["RAY_AUTH_MODE"] = "disabled"
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"no part {min(unknown)}; there are {', '.join(PARTS)}")
    for part in args.parts or PARTS:
        name, title, measured = PARTS[part]
        command = f"python tests/curation_bench.py {part}"
        print(write_result(make_result(name, title, measured(), command=command), args.out))


def planned() -> dict[str, Number]:
    many = recordings(*(f"folder/recording-{n:06d}.mp4" for n in range(NUM_MANY)))
    begin = time.monotonic()
    num = len(list(missing(PLAN, desired(PLAN, many), set())))
    number = Number(time.monotonic() - begin, num)
    return {"plan_s": number.described(f"to plan {num:,} passes of 3 stages", unit="s")}


def footage() -> dict[str, Number]:
    """Through all stages of the plan `world`, in this process: with copies known before the other
    stages begin, and in one pass of all."""
    decoded, true, spent = Counter[str](), reading.decoded, dict.fromkeys(PRINTS, 0.0)
    way = ""

    def counted(container: Any, stream: Any, path: Path) -> Iterator[object]:
        for frame in true(container, stream, path):
            decoded[way] += stream.type == "video"
            yield frame

    with tempfile.TemporaryDirectory() as folder:
        assert cli.main(["footage", "--out", f"{folder}/in", *FOOTAGE]) == 0
        lines = Path(folder, "in", "truth.jsonl").read_text().splitlines()
        truth = [json.loads(line) for line in lines]
        frames = sum(row["shots"][-1]["stop"] for row in truth)
        reading.decoded = counted
        plan = (PLANS / "world.yaml").read_text()
        for way, settings in PRINTS.items():
            Path(folder, f"plan_{way}.yaml").write_text(plan.replace("prints: {}", settings))
        for round_, way in product(range(ROUNDS), PRINTS):
            out, begin = f"{folder}/run_{way}{round_}", time.process_time()
            words = ["--out", out, "--plan", f"{folder}/plan_{way}.yaml"]
            assert cli.main(["curate", f"{folder}/in", *words]) == 0
            spent[way] += time.process_time() - begin
        reading.decoded = true
        clips = {way: len(opened(f"{folder}/run_{way}0").found().clips) for way in PRINTS}
    numbers, n, minutes = {}, len(truth), seconds(frames) / 60
    for way, words in {"": "copies known first", "once_": "copies known last"}.items():
        own = spent[way] / ROUNDS
        values = {
            "decodes": (
                decoded[way] / ROUNDS / frames,
                "decodes of each frame of it, and one of its first",
            ),
            "cpu_s": (own / minutes, "of a core for a minute of it, all stages"),
            "clips_a_core": (60 * clips[way] / own, "clips that a core makes in a minute"),
        }
        for name, (value, what) in values.items():
            asked = "≤ 1.01" if way and name == "decodes" else ""
            unit = "s" if name == "cpu_s" else ""
            number = Number(value, n).described(f"{what}, {words}", unit=unit, target=asked)
            numbers[f"{way}{name}"] = number
    return numbers


@dataclass
class Measured:
    """A run of all tasks, with deaths or without."""

    rows: list[Result]
    status: RunStatus
    noticed_s: list[float] = field(default_factory=list)  # after each death

    @property
    def notice(self) -> Number:
        return Number(max(self.noticed_s), len(self.noticed_s))


def workers() -> dict[str, Number]:
    ray: Any = import_module("ray")
    runs: dict[str, Measured] = {}
    files = Path(tempfile.mkdtemp())
    for num in (2, 8):
        runs[f"processes_{num}"] = measured(Processes(PLAN.stages, files), num)
        ray.init("local", num_cpus=num, include_dashboard=False, **RAY)
        runs[f"ray_{num}"] = measured(Actors(PLAN.stages, files, "local"), num)
        ray.shutdown()
    runs["killed_process"] = measured(Processes(PLAN.stages, files), 4, kills("spawn_main"))
    ray.init("local", num_cpus=4, include_dashboard=False, **RAY)
    runs["killed_actor"] = measured(Actors(PLAN.stages, files, "local"), 4, kills("ray::_Actor"))
    ray.shutdown()
    for how in ("killed", "hung"):
        runs[f"{how}_node"] = without_a_node(how, files)
    first, *others = [run.rows for run in runs.values()]
    numbers = {
        f"busy_{name}": Number(run.status.busy, NUM_PASSES).described(
            f"busy share of {name.replace('_', ', ')}", target="≥ 0.95"
        )
        for name, run in runs.items()
        if not run.noticed_s
    }
    same = Number(sum(rows == first for rows in others) / len(others), len(runs))
    numbers["same_rows"] = same.described("runs with the same results", target="≥ 1")
    for name, run in runs.items():
        if run.noticed_s:
            words = f"until a {' '.join(name.split('_'))} was noticed, at most"
            numbers[name] = run.notice.described(words, unit="s", target="< 30")
    return planned() | numbers


PARTS = {
    "workers": ("data_engine", "The data engine: workers, deaths", workers),
    "footage": ("data_engine_footage", "The data engine: decodes, seconds of a core", footage),
}


def measured(
    some: Workers, num: int, end_some: Callable[[threading.Event], Iterator[float]] | None = None
) -> Measured:
    """``end_some`` gives the times at which it ended workers."""
    store, noticed, ended_at = CurationStore(tempfile.mkdtemp()), list[float](), list[float]()
    outcomes, is_over = some.outcomes, threading.Event()

    def watched(timeout_s: float) -> list[Outcome]:
        found = outcomes(timeout_s)
        noticed.extend(time.time() for outcome in found if outcome.is_dead)
        return found

    some.outcomes = watched  # pyright: ignore[reportAttributeAccessIssue]
    if end_some:
        threading.Thread(target=lambda: ended_at.extend(end_some(is_over)), daemon=True).start()
    status = run_passes(missing(PLAN, TASKS, set()), store, some, num)
    is_over.set()
    rows = [CurationStore(store.folder).result(task.key) for task in TASKS]
    after = [min((n - at for n in noticed if n >= at), default=None) for at in ended_at]
    print(status, after, flush=True)
    return Measured(rows, status, [one for one in after if one is not None])


def kills(word: str) -> Callable[[threading.Event], Iterator[float]]:
    """Of processes below this one whose command line has the word."""

    def end_some(is_over: threading.Event) -> Iterator[float]:
        draw, left = random.Random(0), NUM_KILLS
        while left and not is_over.wait(draw.uniform(1, 4)):
            if found := [p for p in below(os.getpid()) if word in " ".join(p.cmdline())]:
                draw.choice(found).kill()
                left -= 1
                yield time.time()

    return end_some


def without_a_node(how: str, files: Path) -> Measured:
    """A cluster of three nodes on this machine, one of which is removed or stopped."""
    ray: Any = import_module("ray")
    cluster: Any = import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, **RAY}
    )
    cluster.add_node(num_cpus=2)
    node = cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address)

    def end_it(is_over: threading.Event) -> Iterator[float]:
        is_over.wait(30)
        at, raylet = time.time(), node.all_processes["raylet"][0].process.pid
        if how == "hung":
            for process in [*below(raylet), psutil.Process(raylet)]:
                process.suspend()
        else:
            cluster.remove_node(node, allow_graceful=False)
        yield at

    found = measured(Actors(PLAN.stages, files, cluster.address), 4, end_it)
    ray.shutdown()
    cluster.shutdown()
    return found


def below(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


if __name__ == "__main__":
    main()
