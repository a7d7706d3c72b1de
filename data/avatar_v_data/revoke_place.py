"""The files below some folders, by what this library wrote them as."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars

from avatar_v.base.outside import parse_json, read_bytes, read_json, read_table
from avatar_v.safety.consent import SUFFIX
from avatar_v.shards.writer import INDEX_SUFFIX, ShardIndex, read_index
from avatar_v_data.curation.store import RESULTS, CurationStore

MOST_TEXT = 1 << 28
"""Bytes of a file that is searched for names."""
TABLES = (".jsonl", ".csv")
PERSON = "person"
Rows = list[dict[str, Any]]


@dataclass
class Place:
    """Each is read once."""

    files: list[Path]
    damaged: list[Path] = field(default_factory=list)
    """Tables that cannot be read, once `tables` has been asked for."""

    @classmethod
    def below(cls, folders: Iterable[str | Path]) -> "Place":
        """ValueError for a path that is no folder."""
        files: set[Path] = set()
        for folder in map(Path, folders):
            if not folder.is_dir():
                raise ValueError(f"{folder}: no such folder")
            for root, _, names in os.walk(folder.resolve()):
                files |= {Path(root) / name for name in names}
        return cls(sorted(path for path in files if path.is_file() and not path.is_symlink()))

    def ending(self, *endings: str) -> list[Path]:
        return [path for path in self.files if path.name.endswith(endings)]

    @cached_property
    def indexes(self) -> list[ShardIndex]:
        return [read_index(path) for path in self.ending(INDEX_SUFFIX)]

    @cached_property
    def runs(self) -> list[CurationStore]:
        """Of the data engine."""
        parts = {p.parents[2] for p in self.ending(".parquet") if is_result(p)}
        return [CurationStore(folder) for folder in sorted(parts)]

    @cached_property
    def tables(self) -> list[tuple[Path, polars.DataFrame]]:
        """Parquet files that are no results of the engine."""
        found = []
        for path in self.ending(".parquet"):
            if not is_result(path):
                try:
                    found.append((path, polars.read_parquet(path)))
                except polars.exceptions.PolarsError:  # anybody's
                    self.damaged.append(path)
        return found

    @cached_property
    def manifests(self) -> list[tuple[Path, Rows]]:
        """Tables of text with persons."""
        return [(path, rows) for path in self.ending(*TABLES) if (rows := manifest_rows(path))]


def persons_in(place: Place) -> set[str]:
    """All names of persons below the folders."""
    names = {clip.person for index in place.indexes for clip in index.clips}
    for _, rows in place.manifests:
        names |= {str(row[PERSON]) for row in rows if row.get(PERSON)}
    for _, table in place.tables:
        if PERSON in table.columns:
            names |= {str(name) for name in table[PERSON].unique() if name}
    return names | {str(json_object(path).get(PERSON)) for path in place.ending(SUFFIX)}


def is_result(path: Path) -> bool:
    """Whether it is a part of the results of a run."""
    return path.parents[1].name == RESULTS


def manifest_rows(path: Path) -> Rows:
    """The rows of a table of persons; none for a file that is something else."""
    try:
        if path.suffix == ".csv":
            return [dict(row) for _, row in read_table(path)]
        lines = read_bytes(path, what="manifest", most=MOST_TEXT).splitlines()
        rows = [parse_json(line, where=path) for line in lines if line.strip()]
    except ValueError:
        return []
    return [row for row in rows if isinstance(row, dict)]


def json_object(path: Path) -> dict[str, Any]:
    """What a file of JSON says; nothing for one that is none."""
    try:
        return read_json(path)
    except ValueError:
        return {}
