"""Every candidate of a search with its code, parent and numbers: archive.jsonl, one a line.

A line is on the disk before the next candidate is tried. The last line of a search that was killed
may be torn; it is dropped. The specification lies beside it, and another one is refused.
"""

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from avatar_v.base.outside import MAX_JSON, parse_json, read_bytes
from avatar_v.base.paths import disk_named, whole_file
from avatar_v.base.stored import Within, built
from avatar_v.kernels.evolve.spec import Spec

Index = Annotated[int, Within(0, 10**6)]
Source = Literal["inductor", "cpp", "triton", "endpoint"]
Ratio = Annotated[float, Within(0, 1e12)]


@dataclass(frozen=True)
class Place:
    """Where a candidate stands in the search."""

    generation: Index
    island: Index
    slot: Index


@dataclass(frozen=True)
class Record:
    """A candidate. ``source`` is the grammar's family or "endpoint", ``parent`` the index of
    another record; ``status`` is ok, or why it is out. ``ended_s`` is the search's own clock."""

    index: Index
    generation: Index
    island: Index
    slot: Index
    parent: Annotated[int, Within(-1, 10**6)]
    source: Source
    genome: dict[str, Any]
    code: str
    status: str
    reason: str
    speedup: Ratio
    low: Ratio
    high: Ratio
    pairs: Index
    error: Ratio
    ended_s: Ratio

    @property
    def place(self) -> Place:
        return Place(self.generation, self.island, self.slot)

    @property
    def fitness(self) -> float:
        """The lower end of the interval, which is of one start: noise of single measurements counts
        less, the luck of the start does not. 0 for one that is out."""
        return self.low if self.status == "ok" else 0.0


class Archive:
    """The folder of a search, new or to be continued."""

    def __init__(self, folder: Path, spec: Spec) -> None:
        self._file, stated = folder / "archive.jsonl", folder / "spec.json"
        values = json.loads(json.dumps(dataclasses.asdict(spec)))
        if stated.exists():
            before = parse_json(read_bytes(stated, what="specification"), where=stated)
            kept = {**values, "budget": None}
            if not isinstance(before, dict) or {**before, "budget": None} != kept:
                raise ValueError(f"{folder} is of another specification (its budget may change)")
        elif folder.exists() and any(folder.iterdir()):
            raise ValueError(f"{folder} is not empty and no archive of a search")
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(stated) as partial:
            partial.write_text(json.dumps(values, indent=1) + "\n", encoding="utf-8")
        self.records = self._read()

    def add(self, record: Record) -> None:
        """Behind all others, on the disk."""
        line = json.dumps(dataclasses.asdict(record), ensure_ascii=True, allow_nan=False)
        with disk_named(self._file), self._file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.records.append(record)

    def _read(self) -> list[Record]:
        if not self._file.exists():
            return []
        data = read_bytes(self._file, what="archive of a search", most=MAX_JSON)
        whole = data[: data.rfind(b"\n") + 1]
        if whole != data:
            with whole_file(self._file) as partial:
                partial.write_bytes(whole)
        found = []
        for number, line in enumerate(whole.splitlines()):
            where = f"{self._file}, line {number + 1}"
            record = built(Record, parse_json(line, where=where), where=where)
            if record.index != number or record.parent >= number:
                raise ValueError(f"{where}: out of order")
            found.append(record)
        return found
