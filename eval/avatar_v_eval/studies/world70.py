"""The order in which the benchmark's metrics put systems whose order a person would know.

Reads a run of the benchmark on world70 whose systems are ours, ours with one frame of reference
(image) and controls (still, blurred, unsynced; ``avatar-v-eval cases controls``), and weights of
earlier stages (stage2, stage1) where there are any: the mean of every metric for every system, then
the differences that a person would expect, paired over cases, each with the sign it should have.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

from avatar_v_eval.bench.rows import BenchRun, read_run
from avatar_v_eval.bench.summary import Line, summarise
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

EARLIER = {"stage2": "stage 2", "stage1": "stage 1, which does not hear"}
"""What a run may lack: these weights do not ship."""
SYSTEMS = {
    "truth": "the truth",
    "ours": "shipped weights",
    "image": "shipped weights, one reference frame",
    **EARLIER,
    "still": "the first picture, still",
    "unsynced": "the truth, other words on its lips",
    "blurred": "the truth, blurred",
}


@dataclass(frozen=True)
class Expected:
    """``better`` is better than ``worse`` by this output: a person would say so at once."""

    better: str
    worse: str
    output: str


EXPECTED = (
    Expected("truth", "unsynced", "sync_world_c"),
    Expected("truth", "still", "sync_world_c"),
    Expected("truth", "unsynced", "mouth_r"),
    Expected("truth", "ours", "mouth_r"),
    Expected("truth", "ours", "face_world"),
    Expected("truth", "blurred", "sharpness"),
    Expected("truth", "blurred", "face_world"),
    Expected("truth", "stage1", "sync_world_c"),
    Expected("ours", "still", "sync_world_c"),
    Expected("ours", "unsynced", "sync_world_c"),
    Expected("ours", "stage1", "sync_world_c"),
    Expected("ours", "stage2", "mouth_r"),
    Expected("ours", "stage2", "face_world"),
    Expected("ours", "image", "face_world"),
    Expected("ours", "image", "style"),
    Expected("ours", "still", "style"),
    Expected("stage2", "stage1", "mouth_r"),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", type=Path, help="folder of `avatar-v-eval run`")


def measure(options: argparse.Namespace) -> Findings:
    run = read_run(options.run)
    return Findings(
        "The benchmark's metrics on systems whose order is known",
        numbers(run),
        weights=dict(sorted(run.info.metrics.items())),
        notes=[
            f"cases: {run.info.manifest}, content {run.info.content}; protocol {run.info.protocol}",
            *(f"{name}: {source}" for name, source in run.info.systems.items()),
            "means over the cases that all systems have; intervals and differences over persons",
            "critics of drawn faces; motion, face and sync critics were losses of stage 3, too",
        ],
    )


def numbers(run: BenchRun) -> dict[str, Number]:
    """Means by output and system, then the expected differences. ValueError for a run that lacks
    one of the systems that ship."""
    there = [name for name in SYSTEMS if name in run.info.systems]
    if missing := [name for name in SYSTEMS if name not in {*there, *EARLIER}]:
        raise ValueError(f"the run lacks the systems {', '.join(missing)}")
    lines = {line.output.key: line for line in summarise(run, there)}
    found = {
        f"{key}_{name}": number.described(f"{line.output.label}: {SYSTEMS[name]}")
        for key, line in lines.items()
        for name, number in line.means.items()
    }
    return found | {
        f"order_{one.output}_{one.better}_{one.worse}": gain(lines[one.output], one)
        for one in EXPECTED
        if {one.better, one.worse} <= set(there)
    }


def gain(line: Line, one: Expected) -> Number:
    """By how much the better one is better, whichever way the metric points."""
    difference = line.differences(one.worse)[one.better]
    if line.output.better in ("lower", "zero"):
        difference = Number(
            -difference.value,
            difference.n,
            None if difference.high is None else -difference.high,
            None if difference.low is None else -difference.low,
        )
    words = f"{SYSTEMS[one.better]} better than {SYSTEMS[one.worse]}"
    return difference.described(f"{line.output.label}: {words}, by", target="> 0")
