"""The files of a run: ``cases.parquet``, ``frames.parquet``, ``features.parquet`` and ``run.json``.

A row of cases.parquet is one output of one metric for one video: a value, or a reason. What is said
of all videos of a system together (FID, FVD) follows from the rows of features.parquet
(scorers/sets.py). The columns are the fields of `CaseRow`, `FrameRow` and `FeatureRow`.
"""

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl
from jaxtyping import Float

from avatar_v.base.outside import read_json
from avatar_v.base.stored import built
from avatar_v.scoring.values import ScoreOutput
from avatar_v_eval.bench.systems import TRUTH

CASES, FRAMES, RUN = "cases.parquet", "frames.parquet", "run.json"
FEATURES = "features.parquet"


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
    file: str = ""  # where the video was; "" where there is none


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
class FeatureRow:
    """One row of features of one video, of a metric of sets."""

    system: str
    case: str
    metric: str
    row: int
    values: Float[np.ndarray, " d"]


@dataclass(frozen=True)
class RunInfo:
    """The facts that have to agree before two runs may be merged, and the origin of a run."""

    manifest: str
    manifest_hash: str
    content: str
    num_cases: int  # of the manifest
    shard: str  # "1/1": all
    convert: bool
    systems: dict[str, str]  # name → source
    metrics: dict[str, str]  # name → "version weights"
    outputs: tuple[ScoreOutput, ...]  # of these metrics
    left_out: dict[str, str]  # metric → why
    command: str
    commit: str
    date: str
    checks: int = 1  # version of the checks of a delivered video
    distances: tuple[
        ScoreOutput, ...
    ] = ()  # of metrics that judge sets; the key is the metric's name

    @property
    def protocol(self) -> str:
        """16 hex digits; changes with any metric's version or weights, and with the checks."""
        known = {"metrics": self.metrics, "checks": self.checks, "convert": self.convert}
        return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class BenchRun:
    """A run in memory."""

    info: RunInfo
    cases: pl.DataFrame
    frames: pl.DataFrame
    features: pl.DataFrame = field(default_factory=lambda: table(FeatureRow, []))


_TYPES = {"value": pl.Float64, "seconds": pl.Float64, "version": pl.Int64, "frame": pl.Int64,
          "row": pl.Int64, "cached": pl.Boolean, "values": pl.List(pl.Float32)}  # fmt: skip

Row = CaseRow | FrameRow | FeatureRow


def table(kind: type, rows: Sequence[Row]) -> pl.DataFrame:
    """Rows as a data frame with the columns of ``kind``, also where there are none."""
    names = [field.name for field in dataclasses.fields(kind)]
    schema = {name: _TYPES.get(name, pl.String) for name in names}
    columns = {name: [getattr(row, name) for row in rows] for name in names}
    return pl.DataFrame(columns, schema=schema)


def write_run(run: BenchRun, folder: Path) -> None:
    """Writes all files; each is whole or not there."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {CASES: run.cases, FRAMES: run.frames, FEATURES: run.features}
    for name, frame in tables.items():
        partial = folder / f"{name}.partial"
        frame.write_parquet(partial)
        partial.replace(folder / name)
    text = json.dumps(dataclasses.asdict(run.info), indent=1, ensure_ascii=False)
    (folder / RUN).write_text(text + "\n", encoding="utf-8")


def read_run(folder: Path) -> BenchRun:
    """ValueError for a folder that no run was written to."""
    for name in (CASES, FRAMES, FEATURES, RUN):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} holds no run: {name} is missing")
    info = built(RunInfo, read_json(folder / RUN), where=folder / RUN, sparse=True)
    kinds = {CASES: CaseRow, FRAMES: FrameRow, FEATURES: FeatureRow}
    return BenchRun(info, *(_read(folder / name, kind) for name, kind in kinds.items()))


def check_same_systems(folder: Path, systems: Mapping[str, str]) -> None:
    """ValueError where ``folder`` holds results of a system of the same name with another source:
    other weights (their hash is part of it), another command or folder; and where it holds results
    of a system that ``systems`` lacks, which would be gone."""
    if not (folder / RUN).is_file():
        return
    kept = read_json(folder / RUN).get("systems")
    kept = kept if isinstance(kept, Mapping) else {}
    if gone := sorted(set(kept) - {*systems, TRUTH}):
        raise ValueError(
            f"{folder} holds results of {', '.join(gone)}, which this run leaves out: name "
            "them, too, give another --out, or pass --overwrite to drop them"
        )
    for name, source in systems.items():
        before = kept.get(name, source)
        if before != source:
            raise ValueError(
                f"{folder} holds results of a system {name} that is {before}, and {name} is "
                f"{source} here: give it another name, or pass --overwrite to replace them"
            )


def _read(path: Path, kind: type) -> pl.DataFrame:
    frame, wanted = pl.read_parquet(path), [field.name for field in dataclasses.fields(kind)]
    if frame.columns != wanted:
        raise ValueError(
            f"{path} was written by another version: its columns are {frame.columns}, expected "
            f"{wanted}; the same `run` again measures nothing twice"
        )
    return frame
