"""The protocol of every measurement: cases x conditions x metrics give numbers with intervals.

A measurement is a module of `studies` or `speed` with ``add_options(parser)`` and
``measure(options) -> Findings | None``. `run_measurement` reads the command line, writes the result
file and the figures and prints the numbers; a module only measures.

`read_cases` makes a video of every case under every condition and reads it; a reading is a number
or an array. `means` and `gains` turn readings into numbers.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from avatar_v.base.command_line import Parser
from avatar_v.base.paths import inside
from avatar_v_eval import records
from avatar_v_eval.cases import Case
from avatar_v_eval.generated import GeneratedClip
from avatar_v_eval.intervals import mean_interval
from avatar_v_eval.processes import mapped
from avatar_v_eval.records import Number
from avatar_v_eval.speed.clocks import watched

T = TypeVar("T")
Reading = Mapping[str, float | np.ndarray]
Condition = Callable[[Case], GeneratedClip]


@dataclass(frozen=True)
class Findings:
    """The outcome of a measurement: its numbers, and what they were measured with."""

    title: str
    numbers: dict[str, Number]
    recipe: str = ""
    weights: dict[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict)
    """By the end of the file's name: "" is NAME.png."""


@dataclass(frozen=True)
class Readings:
    """Condition → the readings of all cases, in one order."""

    rows: Mapping[str, Sequence[Reading]]

    def values(self, condition: str, measure: str) -> Float[np.ndarray, "n *k"]:
        """One measure of all cases."""
        return np.array([row[measure] for row in self.rows[condition]], dtype=np.float64)


def run_measurement(command: str, name: str, module: ModuleType, words: Sequence[str]) -> int:
    """Carry out `avatar-v-eval COMMAND NAME WORDS`; returns the exit status."""
    parser = Parser(
        prog=f"avatar-v-eval {command} {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    result_name = name if command == "study" else f"{command}_{name}"
    parser.add_argument("--name", default=result_name, help="of the result")
    parser.add_argument(
        "--out", type=Path, default=records.RESULTS_DIR, help="folder of the result"
    )
    if command == "speed":
        parser.add_argument(
            "--lock-clock", type=int, metavar="MHZ",
            help="of the GPUs, while it is measured, where NVML allows it",
        )  # fmt: skip
    module.add_options(parser)
    options = parser.parse_args(words)
    _check_place(options)
    options.state, options.kept = records.git_state(), None
    if command == "speed":
        with watched(options.lock_clock) as clocks:
            findings = module.measure(options)
        if findings is not None:
            findings = dataclasses.replace(findings, notes=[*findings.notes, *clocks])
    else:
        findings = module.measure(options)
    if findings is not None:
        _write(findings, options, records.typed(["avatar-v-eval", command, name, *words]))
    if options.kept is not None:
        shutil.rmtree(options.kept, ignore_errors=True)
    return 0


def _check_place(options: argparse.Namespace) -> None:
    """ValueError, before hours of work, for a result that could not be written."""
    inside(options.out, f"{options.name}.json", where="--name", links_out=True)
    place = next(path for path in (options.out, *options.out.absolute().parents) if path.exists())
    if not options.name or not place.is_dir() or not os.access(place, os.W_OK):
        raise ValueError(
            f"--out {options.out} --name {options.name}: expected a name, and a folder that can be "
            "written or made"
        )


def _write(findings: Findings, options: argparse.Namespace, command: str) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    if findings.numbers:
        result = records.make_result(
            options.name,
            findings.title,
            findings.numbers,
            recipe=findings.recipe,
            weights=findings.weights,
            notes=findings.notes,
            command=command,
            precision=vars(options).get("precision", "auto"),
        )
        print(records.write_result(result, options.out))
        for number in findings.numbers.values():
            print(f"{number.label:80s} {number.value:10.4g}  [{number.low}, {number.high}]")
    for ending, figure in findings.figures.items():
        path = options.out / f"{options.name}{ending}.webp"  # a third of the bytes of a PNG
        figure.savefig(path, dpi=150, pil_kwargs={"quality": 75, "method": 6})
        print(path)


def resumable(options: argparse.Namespace, weights: Mapping[str, str], *more: Any) -> Path | None:
    """The folder in which `read_cases` keeps finished cases, so that the same command goes on where
    it was stopped; its name changes with the commit, the options, ``weights`` and ``more``, which
    is what no option names, such as `Rollout.sampling`.

    None, with a line that says so, where the checkout has uncommitted changes.
    """
    commit, dirty = options.state
    if dirty:
        print("uncommitted changes: stopped, this measurement would begin anew")
        return None
    left_out = ("out", "workers", "state", "kept")
    known = {key: value for key, value in vars(options).items() if key not in left_out}
    text = json.dumps([commit, known, dict(weights), more], sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    options.kept = Path(options.out) / ".kept" / f"{options.name}-{digest}"
    return options.kept


def read_cases(
    cases: Sequence[Case],
    conditions: Mapping[str, Callable[[Case], T]],
    metric: Callable[[Case, T], Reading],
    *,
    num_workers: int = 1,
    kept: Path | None = None,
) -> Readings:
    """The reading of every case under every condition. A condition makes what the metric reads: a
    video, or an iterator over one that is too long to be kept."""
    rows = {}
    for name, make in conditions.items():

        def read(i: int, make: Callable[[Case], T] = make) -> Reading:
            return metric(cases[i], make(cases[i]))

        folder = None if kept is None else kept / name
        rows[name] = mapped(read, len(cases), name, num_workers, folder)
    return Readings(rows)


def means(
    readings: Readings,
    measures: Mapping[str, str],
    conditions: Mapping[str, str],
    units: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Number]:
    """MEASURE_CONDITION: the mean over persons, for measures and conditions in words."""
    return {
        f"{measure}_{condition}": mean_interval(readings.values(condition, measure)).described(
            f"{word}: {conditions[condition]}", unit=units.get(measure, "")
        )
        for measure, word in measures.items()
        for condition in conditions
        if condition in readings.rows
    }


def gains(
    readings: Readings,
    measures: Mapping[str, str],
    conditions: Mapping[str, str],
    pairs: Iterable[tuple[str, str]],
    units: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Number]:
    """MEASURE_A_over_B: the mean difference of two conditions, paired over persons."""
    there = [(a, b) for a, b in pairs if a != b and {a, b} <= set(readings.rows)]
    return {
        f"{measure}_{a}_over_{b}": mean_interval(
            readings.values(a, measure) - readings.values(b, measure)
        ).described(f"{word}: {conditions[a]} over {conditions[b]}", unit=units.get(measure, ""))
        for measure, word in measures.items()
        for a, b in there
    }
