"""Ways to schedule a fleet of GPU cells (HELIOS, Avatar V §6.1), simulated with drawn work.

Every seed draws work and faults once, and every way to schedule meets them. A number is the mean
over seeds with Student's interval; gains are taken within a seed. Use is the share of all GPU time
in which a GPU works; waste is the share in which it is held and does not: data are copied, a start
waits, work is lost to a fault or a preemption, a gang waits for its last node.
"""

import argparse

import numpy as np

from avatar_v.base import checks
from avatar_v_eval.cells.fleet import simulated
from avatar_v_eval.cells.policies import Cells, OneQueue, PlainKueue
from avatar_v_eval.cells.traces import draw
from avatar_v_eval.intervals import mean_interval
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

WAYS = {
    "two": ("two stages", lambda: Cells(chooses=True)),
    "queue": ("one queue", lambda: OneQueue(skips=False)),
    "skips": ("one queue that skips", lambda: OneQueue(skips=True)),
    "kueue": ("plain Kueue", PlainKueue),
    "cell": ("infra/cell alone", lambda: Cells(chooses=False)),
}
MEASURES = {
    "use": "use", "not_working": "waste and idle time", "waste": "waste",
    "gpu_copying": "of it copies of data", "gpu_starting": "of it starts",
    "gpu_lost": "of it lost work", "gpu_waiting": "of it gangs that wait",
    "wait_inference": "wait of inference, 90 %, h",
    "wait_training": "wait of training, 90 %, h", "wait_data": "wait of data, 90 %, h",
    "usd_per_working_hour": "price of a working hour, USD",
}  # fmt: skip
GAINS = {"use": "use", "waste": "waste", "not_working": "waste and idle time"}
CLAIMED = {"use": "≥ 0.15", "waste": "≤ -0.20", "not_working": "≤ -0.20"}
WARM_DAYS = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--seeds", type=int, default=6)
    add("--first", type=int, default=1, help="of them; choices were made by a look at seed 0")
    add("--loads", type=float, nargs="+", default=(1.0, 0.8), help="work over the fleet's GPUs")
    add("--days", type=float, default=4.0, help="of which the first is not counted")


def measure(options: argparse.Namespace) -> Findings:
    checks.count("--seeds", options.seeds, least=2)
    checks.number("--days", options.days, above=WARM_DAYS, most=365)
    checks.seed("--first", options.first)
    numbers: dict[str, Number] = {}
    seeds = range(options.first, options.first + options.seeds)
    for load in options.loads:
        checks.positive("--loads", load, most=10)
        found = {way: [one(way, seed, load, options.days) for seed in seeds]
                 for way in WAYS}  # fmt: skip
        numbers.update(summary(found, load))
    return Findings(
        "Ways to schedule 15 cells of 5,000 GPUs, simulated",
        numbers,
        notes=[
            f"seeds {seeds[0]} to {seeds[-1]}; {options.days:g} days, of which the first is not "
            "counted; the fleet and its work are drawn, no company's trace",
            "asked: what Avatar V §6.1 says of its scheduler, against a fleet that it does not "
            "describe",
        ],
    )


def one(way: str, seed: int, load: float, days: float) -> dict[str, float]:
    """One way on the work of one seed."""
    trace = draw(seed, load, days)
    return simulated(WAYS[way][1](), trace, seed, days, WARM_DAYS)


def summary(found: dict[str, list[dict[str, float]]], load: float) -> dict[str, Number]:
    """All measures of all ways, and the gains of two stages over each other way."""
    numbers, end = {}, f"{100 * load:.0f}"
    for key, words in MEASURES.items():
        for way, (name, _) in WAYS.items():
            values = np.array([run[key] for run in found[way]])
            numbers[f"{key}_{way}_{end}"] = mean_interval(values).described(f"{words}: {name}")
    for key, words in GAINS.items():
        for way, (name, _) in list(WAYS.items())[1:]:
            pairs = zip(found["two"], found[way], strict=True)
            gains = np.array([two[key] / other[key] - 1 for two, other in pairs])
            numbers[f"gain_{key}_{way}_{end}"] = mean_interval(gains).described(
                f"gain in {words} of two stages over {name}", target=CLAIMED[key]
            )
    return numbers
