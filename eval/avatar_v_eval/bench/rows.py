"""The files of a run: ``cases.parquet``, ``frames.parquet`` and ``run.json``; and their merging.

A row of cases.parquet is one output of one metric for one video: a value, or a reason. The columns
are the fields of `CaseRow` and `FrameRow`.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from avatar_v_eval.bench.measured import Output

CASES, FRAMES, RUN = "cases.parquet", "frames.parquet", "run.json"


@dataclass(frozen=True)
class CaseRow:
    """One number, or why there is none. ``seconds`` is what the metric took when it measured."""

    system: str
    case: str
    condition: str
    person: str
    language: str
    metric: str
    output: str
    value: float | None
    reason: str
    notes: str
    version: int
    judge: str
    weights: str  # hash of the metric's networks
    video: str  # sha256 of the file; "" where there is none
    seconds: float
    cached: bool


@dataclass(frozen=True)
class FrameRow:
    """One number of one frame; of sync metrics, of the window that starts there."""

    system: str
    case: str
    metric: str
    output: str
    frame: int
    value: float


@dataclass(frozen=True)
class RunInfo:
    """What has to agree before two runs may be merged, and who made them."""

    manifest: str
    manifest_hash: str
    content: str
    num_cases: int  # of the manifest
    shard: str  # "1/1": all
    convert: bool
    systems: dict[str, str]  # name → source
    metrics: dict[str, str]  # name → "version weights"
    outputs: tuple[Output, ...]  # of these metrics
    left_out: dict[str, str]  # metric → why
    command: str
    commit: str
    date: str


@dataclass(frozen=True)
class Run:
    """A run in memory."""

    info: RunInfo
    cases: pl.DataFrame
    frames: pl.DataFrame


_TYPES = {"value": pl.Float64, "version": pl.Int64, "frame": pl.Int64, "seconds": pl.Float64,
          "cached": pl.Boolean}  # fmt: skip


def table(kind: type, rows: Sequence[CaseRow] | Sequence[FrameRow]) -> pl.DataFrame:
    """Rows as a data frame with the columns of ``kind``, also where there are none."""
    names = [field.name for field in dataclasses.fields(kind)]
    schema = {name: _TYPES.get(name, pl.String) for name in names}
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    return pl.DataFrame(columns, schema=schema)


def write_run(run: Run, folder: Path) -> None:
    """Writes the three files; each is whole or not there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in ((CASES, run.cases), (FRAMES, run.frames)):
        partial = folder / f"{name}.partial"
        frame.write_parquet(partial)
        partial.replace(folder / name)
    text = json.dumps(dataclasses.asdict(run.info), indent=1, ensure_ascii=False)
    (folder / RUN).write_text(text + "\n", encoding="utf-8")


def read_run(folder: Path) -> Run:
    """ValueError for a folder that no run was written to."""
    for name in (CASES, FRAMES, RUN):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} holds no run: {name} is missing")
    raw = json.loads((folder / RUN).read_text(encoding="utf-8"))
    try:
        raw["outputs"] = tuple(Output(**one) for one in raw["outputs"])
        info = RunInfo(**raw)
    except (TypeError, KeyError) as error:
        raise ValueError(f"{folder / RUN} does not describe a run: {error}") from error
    return Run(info, pl.read_parquet(folder / CASES), pl.read_parquet(folder / FRAMES))


def merge_runs(runs: Sequence[Run]) -> Run:
    """One run of several shards, or of several systems on the same cases.

    ValueError where they differ in cases, metrics or conversion, where two rows of the same
    measurement disagree, and where a system lacks cases.
    """
    if not runs:
        raise ValueError("nothing to merge")
    first = runs[0].info
    systems: dict[str, str] = {}
    for run in runs:
        for field in ("manifest_hash", "metrics", "convert"):
            if getattr(run.info, field) != getattr(first, field):
                a, b = getattr(first, field), getattr(run.info, field)
                raise ValueError(f"runs differ in {field}: {a} and {b}")
        for name, source in run.info.systems.items():
            known = systems.setdefault(name, source)
            if source not in known.split("; "):  # the same folder elsewhere, on another machine
                systems[name] = f"{known}; {source}"
    cases = pl.concat([run.cases for run in runs])
    cases = cases.unique(["system", "case", "output", "value", "reason"], maintain_order=True)
    twins = cases.filter(pl.struct("system", "case", "output").is_duplicated())
    if len(twins):
        row = twins.row(0, named=True)
        raise ValueError(f"two runs disagree on {row['output']} of {row['system']}, {row['case']}")
    frames = pl.concat([run.frames for run in runs])
    frames = frames.unique(["system", "case", "output", "frame"], maintain_order=True)
    _check_whole(cases, first.num_cases, systems)
    return Run(dataclasses.replace(first, systems=systems, shard="1/1"), cases, frames)


def _check_whole(cases: pl.DataFrame, num_cases: int, systems: dict[str, str]) -> None:
    """Every system on every case: else a table would compare different cases without saying so."""
    for name in systems:
        found = cases.filter(pl.col("system") == name)["case"].n_unique()
        if found != num_cases:
            raise ValueError(f"{name} has {found} of {num_cases} cases: a shard is missing")
