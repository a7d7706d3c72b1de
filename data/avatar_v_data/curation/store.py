"""The results of a run: Parquet by stage, written by the one process that leads it.

A part is `results/STAGE/NAME-CRC.parquet`: some rows, each with its key, the recording, the reason
where there is no result, the seconds it took, and the result as JSON. It is there whole or not at
all, and its name holds its checksum: one that a disk or a hand has changed is named, and the
process that leads sets it aside and has its rows made again. Parts are joined when they are many.
What stages leave besides lies in `files`. A second process that leads a run on the same folder is
refused; others may read meanwhile.
"""

import io
import json
import os
import uuid
import warnings
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

import polars

from avatar_v.base.locks import exclusive
from avatar_v.base.outside import read_json
from avatar_v.base.paths import whole_file
from avatar_v.base.words import counted
from avatar_v.shards.writer import write_text_atomically
from avatar_v_data.curation.stages import FAILED, Result

RESULTS = "results"
"""The folder of the parts of a run."""
WITHDRAWN_FILE = "withdrawn.json"
"""Recordings that are looked at no more, by name."""
MOST_PARTS = 32
"""Of a stage, before they are joined."""
LARGEST_PART = 2_000
"""Rows of a joined part that is joined no more, at least."""
MOST_LOADED = 64
"""Parts that are held in memory."""
SCHEMA = {
    "key": polars.String,
    "recording": polars.String,
    FAILED: polars.String,
    "seconds": polars.Float64,
    "result": polars.String,
}


def withdrawn(folder: Path) -> set[str]:
    """The recordings that `CurationStore.withdraw` has named in the folder of a run."""
    path = folder / WITHDRAWN_FILE
    return set(map(str, read_json(path)["recordings"])) if path.is_file() else set()


@dataclass(frozen=True)
class Row:
    """One result on its way to the disk."""

    stage: str
    key: str
    recording: str
    result: Result
    seconds: float = 0.0


class Costs(NamedTuple):
    """Results of one stage: those there are, those it refused, those that another stage, which it
    needs, did not give, and the seconds spent on all."""

    made: int
    failed: int
    not_reached: int
    seconds: float


class CurationStore:
    """Results below ``folder``, which is made. Reading needs no lock."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.files = self.folder / "files"
        self._results = self.folder / RESULTS
        self.files.mkdir(parents=True, exist_ok=True)
        self._results.mkdir(exist_ok=True)
        self._load = lru_cache(MOST_LOADED)(_by_key)
        self._is_locked = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Inside, this process alone writes. ValueError where another does."""
        taken = f"{self.folder}: another process works on this run"
        lock = exclusive(self.folder / "lock", taken)
        try:
            for partial in self.files.glob(".*.tmp"):  # of workers that were killed
                partial.unlink()
            self._is_locked = True
            self._look_again()
            yield
        finally:
            self._is_locked = False
            os.close(lock)

    def is_led(self) -> bool:
        """Whether a process works on this run."""
        try:
            os.close(exclusive(self.folder / "lock", ""))
        except ValueError:
            return True
        return False

    @cached_property
    def _places(self) -> dict[str, Path]:
        """The part that holds each key, of parts that are whole; the leader sets others aside."""
        places, damaged = {}, []
        for path in sorted(self._results.glob("*/*.parquet")):
            try:
                keys = _read(path, ["key"])["key"]
            except FileNotFoundError:  # joined with others just now
                continue
            except ValueError as error:
                damaged.append(str(error))
                if self._is_locked:
                    path.rename(path.with_suffix(".damaged"))
                continue
            places.update(dict.fromkeys(keys, path))
        if damaged:
            lost = "made again" if self._is_locked else "missing until curate goes on"
            words = f"{counted(len(damaged), 'part')} of results {lost}, since {damaged[0]}"
            warnings.warn(words, stacklevel=2)
        return places

    def finished(self) -> set[str]:
        """The keys of all results, of failures too."""
        return set(self._places)

    def result(self, key: str) -> Result:
        """A finished result. One that a stage refused to give has the reason under `FAILED`."""
        while True:
            try:
                return json.loads(self._load(self._places[key])[key])
            except FileNotFoundError:  # joined with others just now
                self._look_again()

    def results(self, stage: str) -> dict[str, Result]:
        """All finished results of a stage, by their keys."""
        rows = self._columns(stage, ["key", "result"]).iter_rows()
        return {key: json.loads(text) for key, text in rows}

    def failures(self, stage: str) -> dict[str, str]:
        """The reasons of those that failed, by their keys."""
        columns = self._columns(stage, ["key", FAILED])
        return dict(columns.filter(polars.col(FAILED).is_not_null()).iter_rows())

    def costs(self, stage: str, keys: Collection[str]) -> Costs:
        """What a stage has done of these."""
        columns = self._columns(stage, ["key", FAILED, "seconds"])
        own = columns.filter(polars.col("key").is_in(list(keys)))
        failed = int(own[FAILED].str.starts_with(f"{stage}:").sum())
        without = len(own) - own[FAILED].null_count()
        return Costs(len(own) - without, failed, without - failed, float(own["seconds"].sum()))

    def commit(self, rows: Sequence[Row]) -> None:
        """Keep results: a part for each stage. Twice the same is no harm."""
        by_stage: dict[str, list[Row]] = {}
        for row in rows:
            by_stage.setdefault(row.stage, []).append(row)
        for stage, own in by_stage.items():
            path = self._write(stage, _frame(own))
            self._places.update(dict.fromkeys([row.key for row in own], path))
            parts = [p for p in (self._results / stage).glob("*.parquet") if _is_small(p)]
            if len(parts) >= MOST_PARTS:
                self._join(stage, parts)

    def recordings(self) -> set[str]:
        """Those of which anything is known."""
        paths = set(self._places.values())
        return {name for path in paths for name in _read(path, ["recording"])["recording"]}

    def of_recordings(self, stage: str) -> list[tuple[str, Result]]:
        """The finished results of a stage, by their recordings."""
        rows = self._columns(stage, ["key", "recording", "result"]).iter_rows()
        return [(recording, json.loads(text)) for _, recording, text in rows]

    def forget_failures(self) -> None:
        """Let what failed, and what depends on it, be made again. Inside `locked`."""
        self._keep(polars.col(FAILED).is_null())

    def forget_recordings(self, names: Collection[str]) -> None:
        """Nothing is known of these any more, nor left of their files, nor of files without a row
        and of damaged parts, which may be theirs. ValueError while another process works on the
        run."""
        with self.locked():
            self._keep(~polars.col("recording").is_in(list(names)))
            known = self.finished()
            for file in self.files.iterdir():
                if file.name.partition(".")[0] not in known:
                    file.unlink()
            for damaged in self._results.glob("*/*.damaged"):
                damaged.unlink()

    def withdraw(self, names: Collection[str]) -> None:
        """Forget these recordings, in which a person is who withdrew; a run looks at no file of
        such a name again. ValueError while another process works on the run."""
        gone = sorted(withdrawn(self.folder).union(names))
        text = json.dumps({"recordings": gone}, indent=1)
        write_text_atomically(self.folder / WITHDRAWN_FILE, text)
        self.forget_recordings(names)

    def _keep(self, rows: polars.Expr) -> None:
        """Of all results those, and no others."""
        for path in set(self._places.values()):
            whole = _read(path)
            kept = whole.filter(rows)
            if len(kept) < len(whole):
                if len(kept):
                    self._write(path.parent.name, kept)
                path.unlink()
        self._look_again()

    def _columns(self, stage: str, names: list[str]) -> polars.DataFrame:
        """Some columns of all results of a stage, each once."""
        while True:
            paths = {path for path in self._places.values() if path.parent.name == stage}
            try:
                parts = [_read(path, names) for path in sorted(paths)]
            except FileNotFoundError:  # joined with others just now
                self._look_again()
                continue
            empty = polars.DataFrame(schema={name: SCHEMA[name] for name in names})
            return polars.concat([empty, *parts]).unique("key", maintain_order=True)

    def _look_again(self) -> None:
        self.__dict__.pop("_places", None)

    def _join(self, stage: str, parts: Sequence[Path]) -> None:
        """A new part with the rows of those, which go."""
        rows = polars.concat(map(_read, sorted(parts))).unique("key", maintain_order=True)
        path = self._write(stage, rows, joined=len(rows) >= LARGEST_PART)
        self._places.update(dict.fromkeys(rows["key"], path))
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
    """Why a result cannot be kept, "" where it can: what JSON gives back as it was can."""
    try:
        text = json.dumps(result, allow_nan=False)
    except (TypeError, ValueError, OverflowError) as error:
        return str(error)
    return "" if json.loads(text) == result else "it is another one as JSON"


def _frame(rows: Sequence[Row]) -> polars.DataFrame:
    values = [
        (row.key, row.recording, row.result.get(FAILED), round(row.seconds, 4),
         json.dumps(row.result))
        for row in rows
    ]  # fmt: skip
    return polars.DataFrame(values, schema=SCHEMA, orient="row")


def _by_key(path: Path) -> dict[str, str]:
    return dict(_read(path, ["key", "result"]).iter_rows())


def _read(path: Path, columns: list[str] | None = None) -> polars.DataFrame:
    """ValueError, with the file's name, for one that is not as it was written."""
    data = path.read_bytes()
    if f"{zlib.crc32(data):08x}" != path.stem.rpartition("-")[2]:
        raise ValueError(f"{path} is not as it was written (checksum)")
    if polars.read_parquet_schema(io.BytesIO(data)) != SCHEMA:
        raise ValueError(f"{path} is of another version")
    return polars.read_parquet(io.BytesIO(data), columns=columns)


def _is_small(path: Path) -> bool:
    return path.name.startswith("part-")
