"""Result files: one JSON per measurement, with what is needed to judge and to repeat it.

A file holds numbers with 95 % intervals and sample sizes, the command, commit, recipe, weights and
hardware. This file has the format, the reader and the writer; the intervals are in `intervals`.
"""

import dataclasses
import datetime
import json
import math
import os
import platform
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch

from avatar_v.base.command_line import commit_of
from avatar_v.base.device import chosen_device, chosen_precision, processor_flags
from avatar_v.base.outside import read_json
from avatar_v.base.paths import check_name
from avatar_v.base.stored import Within, built

RESULTS_DIR = Path(__file__).resolve().parents[1] / "results"
"""Results of the weights that ship, and of measurements without weights. Results of other weights,
which compare ways to train, lie in ``experiments/NAME``."""


@dataclass(frozen=True)
class Number:
    """One measured value. ``low`` and ``high`` are the 95 % interval, None where there is none."""

    value: float
    n: Annotated[int, Within(0, 10**12)]
    low: float | None = None
    high: float | None = None
    unit: str = ""
    label: str = ""  # the row's text in a table; the key where empty
    target: str = ""  # what was asked, in words: "≥ 0.6"
    met: bool | None = None  # whether the target was reached; None where there is no target

    def described(self, label: str, *, unit: str = "", target: str = "") -> "Number":
        """The same number with its words. A ``target`` must start with <, >, ≤, ≥ or |·| <."""
        met = _meets(self.value, target) if target else None
        return dataclasses.replace(self, label=label, unit=unit, target=target, met=met)


@dataclass(frozen=True)
class Result:
    """One result file."""

    name: str  # the file's stem
    title: str
    command: str
    commit: str
    dirty: bool  # uncommitted changes were present
    date: str  # ISO 8601, UTC
    hardware: dict[str, str]
    numbers: dict[str, Number]
    recipe: str = ""
    weights: dict[str, str] = field(default_factory=dict)  # which network: hash of its tensors
    notes: tuple[str, ...] = ()


def make_result(
    name: str,
    title: str,
    numbers: dict[str, Number],
    *,
    recipe: str = "",
    weights: dict[str, str] | None = None,
    notes: Sequence[str] = (),
    command: str | None = None,
    precision: str = "auto",
) -> Result:
    """A result of now, here: command, commit, date and hardware are filled in. ``precision`` is
    what the measurement asked for (device.PRECISIONS)."""
    commit, dirty = git_state()
    return Result(
        name=name,
        title=title,
        command=command or running_command(),
        commit=commit,
        dirty=dirty,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        hardware=hardware(precision),
        numbers=numbers,
        recipe=recipe,
        weights=weights or {},
        notes=tuple(notes),
    )


def write_result(result: Result, directory: Path | str = RESULTS_DIR) -> Path:
    """Writes ``directory/name.json`` whole or not at all, and returns its path.

    Raises ValueError for a number that is not finite: a failed measurement is not a result.
    """
    for key, number in result.numbers.items():
        parts = [number.value, number.low, number.high]
        if not all(part is None or math.isfinite(part) for part in parts):
            raise ValueError(f"{result.name}: {key} must be finite, got {number}")
    name = f"{check_name(result.name, where='the name of a result')}.json"
    path = Path(directory) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = _text(_rounded(dataclasses.asdict(result)))
    partial = path.with_suffix(".json.partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def read_result(path: Path | str) -> Result:
    """Reads a file of ``write_result``; ValueError names the field that does not fit."""
    return built(Result, read_json(path), where=path, sparse=True)


def running_command() -> str:
    """The command line of this process as a user would type it."""
    main = sys.modules["__main__"]
    if main.__spec__ is not None and main.__spec__.name != "avatar_v_eval.cli":
        module = main.__spec__.name.removesuffix(".__main__")
        return typed(["python", "-m", module, *sys.argv[1:]])
    name = Path(sys.argv[0]).name
    return typed(["avatar-v-eval" if name == "cli.py" else name, *sys.argv[1:]])


def typed(words: Sequence[str]) -> str:
    """A command line without ``--out``: where a result was put says nothing about it."""
    words = list(words)
    while "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    return shlex.join(word for word in words if not word.startswith("--out="))


def without_folders(text: str) -> str:
    """The last part of every absolute path in a text: what others may see of this machine."""
    return re.sub(r"(?<![\w.}/])/(?:[^\s/:;,'\"]+/)+(?=[^\s/])", "", text)


def git_state(root: Path = RESULTS_DIR.parent) -> tuple[str, bool]:
    """(commit, dirty) of the checkout around this file; ("unknown", True) outside of one.

    Result files do not count as changes, else the second measurement of a day would be dirty.
    """
    found = commit_of(root, digits=40, changes=["--", ":/", ":(top,exclude)eval/results"])
    return found.removesuffix("+") or "unknown", not found or found.endswith("+")


def hardware(precision: str = "auto") -> dict[str, str]:
    """Processor, cores, threads, memory, accelerator, torch, and the precision that networks run in
    where ``precision`` is asked for: what a timing depends on. Older results lack precision and
    flags."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "cpu": cpu,
        "cpu_flags": processor_flags(),
        "precision": chosen_precision(precision, chosen_device("auto")),
        "cores": str(os.cpu_count()),
        "threads": str(torch.get_num_threads()),
        "memory": f"{gib:.0f} GiB",
        "gpu": gpu,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _meets(value: float, target: str) -> bool:
    words = target.split()
    if words[0] in ("|r|", "|·|"):
        value, words = abs(value), words[1:]
    bound = float(words[1])
    match words[0]:
        case "≥":
            return value >= bound
        case "≤":
            return value <= bound
        case "<":
            return value < bound
        case ">":
            return value > bound
    raise ValueError(f"a target starts with <, >, ≤, ≥ or |r| <, got {target!r}")


def _text(values: dict) -> str:
    """JSON with one number a line, without what a number has not, such as a unit."""
    rows = [
        f"  {json.dumps(key)}: "
        + json.dumps({k: v for k, v in row.items() if v not in ("", None)}, ensure_ascii=False)
        for key, row in values["numbers"].items()
    ]
    head = json.dumps(values | {"numbers": {}}, indent=1, ensure_ascii=False)
    return head.replace('"numbers": {}', '"numbers": {\n' + ",\n".join(rows) + "\n }", 1)


def _rounded(value):
    """Six significant digits: more is noise, and files stay readable."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
