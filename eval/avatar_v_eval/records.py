"""Result files: one JSON per measurement, with what is needed to judge and to repeat it.

A file holds numbers with 95 % intervals and sample sizes, the command, commit, recipe, weights and
hardware. Here is the format, the reader, the writer and the intervals; not the measurements.

Intervals: over persons by percentile bootstrap (Efron 1979), for rates Wilson's score interval
(Wilson 1927), for the correlation of independent pairs Fisher's z (Fisher 1921).
"""

import dataclasses
import datetime
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from avatar_v.cli import guarded

RESULTS_DIR = Path(__file__).resolve().parents[1] / "results"
_Z95 = 1.959963984540054


@dataclass(frozen=True)
class Number:
    """One measured value. ``low`` and ``high`` are the 95 % interval, None where there is none."""

    value: float
    n: int
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
) -> Result:
    """A result of now, here: command, commit, date and hardware are filled in."""
    commit, dirty = git_state()
    return Result(
        name=name,
        title=title,
        command=command or running_command(),
        commit=commit,
        dirty=dirty,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        hardware=hardware(),
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
    path = Path(directory) / f"{result.name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_rounded(dataclasses.asdict(result)), indent=1, ensure_ascii=False)
    partial = path.with_suffix(".json.partial")
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def read_result(path: Path | str) -> Result:
    """Reads a file of ``write_result``; ValueError names the field that does not fit."""
    path = Path(path)
    raw = json.loads(path.read_text(encoding="utf-8"))
    known = {f.name for f in dataclasses.fields(Result)}
    if unknown := sorted(set(raw) - known):
        raise ValueError(f"{path}: unknown fields {unknown}, expected {sorted(known)}")
    try:
        numbers = {key: Number(**number) for key, number in raw["numbers"].items()}
        return Result(**{**raw, "numbers": numbers, "notes": tuple(raw.get("notes", ()))})
    except (TypeError, KeyError) as error:
        raise ValueError(f"{path} is not a result file: {error}") from error


def bootstrap_mean(
    values: Float[np.ndarray, " n"], *, seed: int = 0, num_resamples: int = 10_000
) -> Number:
    """Mean over independent units (persons) with its percentile bootstrap interval."""
    values = np.asarray(values, dtype=np.float64)
    return bootstrap(lambda index: float(values[index].mean()), len(values), seed, num_resamples)


def bootstrap(
    statistic: Callable[[np.ndarray], float], num_units: int, seed: int, num_resamples: int
) -> Number:
    """``statistic`` of unit indices, with the interval from units drawn with replacement.

    Use it where a statistic pools many dependent values per unit: frames of one person.
    """
    if num_units < 2:
        raise ValueError(f"a bootstrap needs at least 2 units, got {num_units}")
    generator = np.random.default_rng(seed)
    draws = generator.integers(0, num_units, size=(num_resamples, num_units))
    samples = np.array([statistic(index) for index in draws])
    low, high = np.percentile(samples, [2.5, 97.5])
    return Number(statistic(np.arange(num_units)), num_units, float(low), float(high))


def rate(successes: int, n: int) -> Number:
    """A proportion with Wilson's 95 % interval."""
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"a rate needs 0 <= successes <= n and n >= 1, got {successes} of {n}")
    p, z2 = successes / n, _Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(p * (1 - p) / n + z2 / (4 * n * n))
    return Number(p, n, max(0.0, centre - half), min(1.0, centre + half))


def correlation(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> Number:
    """Pearson's r of *independent* pairs with Fisher's z interval.

    Frames of a video are not independent: bootstrap over persons instead.
    """
    n = len(x)
    if n < 4:
        raise ValueError(f"an interval of r needs at least 4 pairs, got {n}")
    r = pearson(x, y)
    z, half = math.atanh(max(-1 + 1e-12, min(1 - 1e-12, r))), _Z95 / math.sqrt(n - 3)
    return Number(r, n, math.tanh(z - half), math.tanh(z + half))


def pearson(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """Pearson's r in fp64; 0 where one side is constant, since it then tells nothing."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"r needs two vectors of equal length, got {x.shape} and {y.shape}")
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / scale if scale > 1e-12 else 0.0


def median_of_repeats(values: Sequence[float]) -> Number:
    """The median of repeated timings; ``low`` and ``high`` are the smallest and the largest."""
    if not values:
        raise ValueError("a median needs at least one repeat, got none")
    return Number(float(np.median(values)), len(values), min(values), max(values))


def as_command(main: Callable[[], object]) -> None:
    """End the process with the ``main`` of a script, guarded as ``avatar-v`` guards its commands.
    ``--debug`` is no option of the script: it is taken off the command line."""

    def run(words: list[str]) -> int:
        sys.argv[1:] = words
        main()
        return 0

    raise SystemExit(guarded(Path(sys.argv[0]).stem, sys.argv[1:], run))


def running_command() -> str:
    """The command line of this process as a user would type it, but for ``--out``: where a result
    was put says nothing about it."""
    words = list(sys.argv[1:])
    while "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    words = [word for word in words if not word.startswith("--out=")]
    main = sys.modules["__main__"]
    if main.__spec__ is not None and main.__spec__.name:
        module = main.__spec__.name.removesuffix(".__main__")
        return shlex.join(["python", "-m", module, *words])
    return shlex.join([Path(sys.argv[0]).name, *words])


def without_folders(text: str) -> str:
    """The last part of every absolute path in a text: what others may see of this machine."""
    return re.sub(r"(?<![\w.}/])/(?:[^\s/:;,'\"]+/)+(?=[^\s/])", "", text)


def git_state(root: Path = RESULTS_DIR.parent) -> tuple[str, bool]:
    """(commit, dirty) of the checkout around this file; ("unknown", True) outside of one.

    Result files do not count as changes, else the second measurement of a day would be dirty.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(root), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    try:
        commit = git("rev-parse", "HEAD").strip()
        changed = git("status", "--porcelain", "--", ":/", ":(top,exclude)eval/results")
        return commit, bool(changed.strip())
    except (OSError, subprocess.CalledProcessError):
        return "unknown", True


def hardware() -> dict[str, str]:
    """Processor, cores, threads, memory, accelerator, torch: what a timing depends on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    return {
        "cpu": cpu,
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


def _rounded(value):
    """Six significant digits: more is noise, and files stay readable."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value
