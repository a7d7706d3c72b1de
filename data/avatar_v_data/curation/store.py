"""The results of a run: Parquet by stage, written by the one process that leads it.

A part is `results/STAGE/NAME-CRC.parquet`: some rows, each with its key, the recording, the reason
where there is no result, the seconds it took, and the result's own fields as columns. It is there
whole or not at all, and its name holds its checksum: one that a disk or a hand has changed is
named, set aside, and its rows are made again. Parts are joined when they are many. What stages
leave besides lies in `files`. A second process that leads a run on the same folder is refused.
"""

import fcntl
import io
import json
import uuid
import warnings
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import polars

from avatar_v.base.paths import whole_file
from avatar_v.base.words import counted
from avatar_v_data.curation.stages import FAILED, Result

MOST_PARTS = 32
"""Of a stage, before they are joined."""
LARGEST_PART = 2_000
"""Rows of a joined part that is joined no more, at least."""
MOST_LOADED = 64
"""Parts that are held in memory."""
OWN = ("key", "recording", FAILED, "seconds")
"""Columns that are not of the result."""


@dataclass(frozen=True)
class Row:
    """One result on its way to the disk."""

    stage: str
    key: str
    recording: str
    result: Result
    seconds: float = 0.0


class CurationStore:
    """Results below ``folder``, which is made. Reading needs no lead."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.files = self.folder / "files"
        self._results = self.folder / "results"
        self.files.mkdir(parents=True, exist_ok=True)
        self._results.mkdir(exist_ok=True)
        self._load = lru_cache(MOST_LOADED)(_by_key)

    @contextmanager
    def led(self) -> Iterator[None]:
        """Inside, this process alone writes. ValueError where another does."""
        with (self.folder / "lead").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ValueError(f"{self.folder}: another process works on this run") from error
            for partial in self.files.glob(".*.tmp"):  # of workers that were killed
                partial.unlink()
            yield

    @cached_property
    def _places(self) -> dict[str, Path]:
        """The part that holds each key, of parts that are whole; others are set aside."""
        places, damaged = {}, []
        for path in sorted(self._results.glob("*/*.parquet")):
            try:
                keys = _read(path, ["key"])["key"]
            except FileNotFoundError:  # joined with others just now
                continue
            except ValueError as error:
                damaged.append(str(error))
                path.rename(path.with_suffix(".damaged"))
                continue
            places.update(dict.fromkeys(keys, path))
        if damaged:
            words = f"{counted(len(damaged), 'part')} of results made again, since {damaged[0]}"
            warnings.warn(words, stacklevel=2)
        return places

    def finished(self) -> set[str]:
        """The keys of all results, of failures too."""
        return set(self._places)

    def result(self, key: str) -> Result:
        """A finished result. One that a stage refused to give has the reason under `FAILED`."""
        return _result(self._load(self._places[key])[key])

    def results(self, stage: str) -> dict[str, Result]:
        """All finished results of a stage, by their keys."""
        paths = {path for path in self._places.values() if path.parent.name == stage}
        rows = [row for path in sorted(paths) for row in _read(path).to_dicts()]
        return {row["key"]: _result(row) for row in rows}

    def costs(self, stage: str, keys: Collection[str]) -> tuple[int, int, float]:
        """How many of a stage's results are there, how many of these failed, and the seconds that
        they took."""
        paths = {path for path in self._places.values() if path.parent.name == stage}
        columns = ["key", FAILED, "seconds"]
        parts = [_read(path, columns) for path in sorted(paths) if path.is_file()]
        if not parts:
            return 0, 0, 0.0
        whole = polars.concat(parts).unique("key").filter(polars.col("key").is_in(list(keys)))
        failed = len(whole) - whole[FAILED].null_count()
        return len(whole), failed, float(whole["seconds"].sum())

    def commit(self, rows: Sequence[Row]) -> None:
        """Keep results: a part for each stage. Twice the same is no harm."""
        by_stage: dict[str, list[Row]] = {}
        for row in rows:
            by_stage.setdefault(row.stage, []).append(row)
        for stage, own in by_stage.items():
            path = self._write(stage, _frame([_columns(row) for row in own]))
            self._places.update(dict.fromkeys([row.key for row in own], path))
            parts = [p for p in (self._results / stage).glob("*.parquet") if _is_small(p)]
            if len(parts) >= MOST_PARTS:
                self._join(stage, parts)

    def forget_failures(self) -> None:
        """Let what failed, and what depends on it, be made again."""
        for path in set(self._places.values()):
            whole = _read(path)
            kept = whole.filter(polars.col(FAILED).is_null())
            if len(kept) < len(whole):
                if len(kept):
                    self._write(path.parent.name, kept)
                path.unlink()
        self.__dict__.pop("_places", None)

    def _join(self, stage: str, parts: Sequence[Path]) -> None:
        """A new part with the rows of those, which go."""
        rows: dict[str, dict[str, Any]] = {}
        for part in sorted(parts):
            rows |= _by_key(part)
        path = self._write(stage, _frame(list(rows.values())), joined=len(rows) >= LARGEST_PART)
        self._places.update(dict.fromkeys(rows, path))
        for part in parts:
            part.unlink()

    def _write(self, stage: str, frame: polars.DataFrame, *, joined: bool = False) -> Path:
        buffer = io.BytesIO()
        frame.write_parquet(buffer)
        data = buffer.getvalue()
        name = f"{'shard' if joined else 'part'}-{uuid.uuid4().hex}-{zlib.crc32(data):08x}"
        path = self._results / stage / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        with whole_file(path) as temporary:
            temporary.write_bytes(data)
        return path


def unkept(result: Result) -> str:
    """Why a result cannot be kept, "" where it can: JSON's values and finite numbers can, where the
    rows of a list have the same fields."""
    try:
        json.dumps(result, allow_nan=False)
        if _result(_frame([_columns(Row("", "", "", result))]).to_dicts()[0]) != result:
            return "its rows have different fields"
    except (TypeError, ValueError, OverflowError, polars.exceptions.PolarsError) as error:
        return str(error)
    return ""


def _columns(row: Row) -> dict[str, Any]:
    fields = {} if FAILED in row.result else row.result
    own = (row.key, row.recording, row.result.get(FAILED), round(row.seconds, 4))
    return {**dict(zip(OWN, own, strict=True)), **fields}


def _frame(rows: Sequence[Mapping[str, Any]]) -> polars.DataFrame:
    types = {"key": polars.String, "recording": polars.String, FAILED: polars.String}
    return polars.DataFrame(
        rows, schema_overrides=types, infer_schema_length=None, strict=False, orient="row"
    )


def _result(row: Mapping[str, Any]) -> Result:
    if row[FAILED] is not None:
        return {FAILED: row[FAILED]}
    return {name: value for name, value in row.items() if name not in OWN}


def _by_key(path: Path) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in _read(path).to_dicts()}


def _read(path: Path, columns: list[str] | None = None) -> polars.DataFrame:
    """ValueError, with the file's name, for one that is not as it was written."""
    data = path.read_bytes()
    if f"{zlib.crc32(data):08x}" != path.stem.rpartition("-")[2]:
        raise ValueError(f"{path} is not as it was written (checksum)")
    return polars.read_parquet(io.BytesIO(data), columns=columns)


def _is_small(path: Path) -> bool:
    return path.name.startswith("part-")
