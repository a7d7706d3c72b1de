"""What lies below some folders of a person who withdraws, and its removal.

The person is known by names, as shards and manifests have them, and by the face of a record of
consent, which the data engine's vectors are compared with. Removed is what this library wrote to be
trained on or looked up by: clips of shards, latents and preference pairs, results of the data
engine, rows of tables and manifests, records of consent. Told of, and left to people, is the rest:
recordings, weights that were trained on the clips or begin from such, videos that were made, and
files that still say the name.

Everything is looked for before anything is removed, and records of consent, which hold the face,
go last: a removal that was stopped is made again by the same call.
"""

import csv
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars

from avatar_v.base.outside import parse_json, read_bytes, read_json, read_table, read_yaml
from avatar_v.base.paths import whole_file
from avatar_v.base.words import counted
from avatar_v.safety.consent import FILMED, SUFFIX, StoredConsent, read_consent
from avatar_v.shards.loader import read_members
from avatar_v.shards.schema import META, decode_meta
from avatar_v.shards.writer import (
    INDEX_SUFFIX,
    RawClip,
    ShardIndex,
    index_path,
    read_index,
    write_shard,
    write_text_atomically,
)
from avatar_v_data.curation.curated import RUN_FILE, footage_of
from avatar_v_data.curation.graph import GRAPH_FILE
from avatar_v_data.curation.plan import Grouping
from avatar_v_data.curation.report import WATCHED
from avatar_v_data.curation.run import REPORT_FILE
from avatar_v_data.curation.store import RESULTS, CurationStore, withdrawn
from avatar_v_data.curation.table import clip_name

LEAST_LETTERS = 4
"""Of a name that is looked for in texts; a shorter one, or a number, is in every file."""
MOST_TEXT = 1 << 28
"""Bytes of a file that is searched for names."""
NO_TEXT = {".tar", ".safetensors", ".mp4", ".flac", ".wav", ".ckpt", ".png", ".jpg", ".webp"}
TABLES = {".jsonl", ".csv"}
PERSON = "person"
BEFORE = "a recording with a person who withdrew before"


@dataclass(frozen=True)
class Trace:
    """Something of the person. ``remove`` takes it away; None: people must decide."""

    path: Path
    what: str
    remove: Callable[[], None] | None = None


@dataclass
class Withdrawn:
    """Who withdraws, and what is known by that name."""

    names: set[str]
    face: np.ndarray | None = None  # a unit vector of dlib's
    clips: set[str] = field(default_factory=set)  # keys of shards, and `clip_name`
    recordings: set[str] = field(default_factory=set)
    shards: set[Path] = field(default_factory=set)

    @classmethod
    def of(cls, person: str | None, record: StoredConsent | None) -> "Withdrawn":
        """ValueError for nobody, and for a record of a drawn face without a name."""
        names = {name for name in (person, record.consent.person if record else None) if name}
        if not names:
            raise ValueError("name the person (--person), or give a record of consent (--record)")
        face = None
        if record is not None and record.consent.critic == FILMED:
            vector = np.array(record.consent.face)
            face = vector / np.linalg.norm(vector)
        return cls(names, face)


@dataclass
class Place:
    """The files below the folders that are searched, by what they are."""

    files: list[Path]

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

    def indexes(self) -> Iterator[ShardIndex]:
        return map(read_index, self.ending(INDEX_SUFFIX))

    def runs(self) -> list[CurationStore]:
        """Of the data engine."""
        parts = {p.parents[2] for p in self.ending(".parquet") if p.parents[1].name == RESULTS}
        return [CurationStore(folder) for folder in sorted(parts)]

    def tables(self) -> Iterator[tuple[Path, polars.DataFrame]]:
        """Parquet files that are no results of the engine."""
        for path in self.ending(".parquet"):
            if path.parents[1].name != RESULTS:
                yield path, polars.read_parquet(path)


def persons_in(place: Place) -> set[str]:
    """All names of persons below the folders."""
    names = {clip.person for index in place.indexes() for clip in index.clips}
    for path in place.ending(*TABLES):
        names |= {str(row[PERSON]) for row in _manifest(path) if row.get(PERSON)}
    for _, table in place.tables():
        if PERSON in table.columns:
            names |= {str(name) for name in table[PERSON].unique() if name}
    return names | {str(_object(path).get(PERSON)) for path in place.ending(SUFFIX)}


def traces_of(who: Withdrawn, place: Place) -> list[Trace]:
    """All there is, what is removed first, records of consent behind it; ``who`` learns names,
    clips and recordings on the way."""
    runs = place.runs()
    if who.face is not None:
        for run in runs:
            _know_face(who, run, place)
    removed = [*_clips(who, place), *_rows(who, place)]  # these tell clips and recordings
    removed += [trace for run in runs for trace in _results(who, run)]
    removed += _watched(who, place)
    records = [path for path in place.ending(SUFFIX) if _is_record_of(who, path)]
    removed += [Trace(path, "a record of consent", path.unlink) for path in records]
    gone = {trace.path for trace in removed}
    return [*removed, *_left(who, place, runs, gone)]


def _know_face(who: Withdrawn, run: CurationStore, place: Place) -> None:
    """Names under which `avatar-v-data select` knows the face."""
    near: dict[str, set[int]] = {}
    limit = Grouping().same_person["face"]
    for recording, result in run.of_recordings("person"):
        for number, clip in enumerate(result.get("clips", ())):
            if np.linalg.norm(np.array(clip["face"]) - who.face) <= limit:
                near.setdefault(recording, set()).add(number)
    who.recordings |= near.keys()
    starts = {
        (recording, result["clips"][number]["start"])
        for recording, result in run.of_recordings("clips")
        for number in near.get(recording, ())
        if number < len(result.get("clips", ()))
    }
    for _, table in place.tables():
        if {"file", "start", PERSON} <= set(table.columns):
            rows = table.select("file", "start", PERSON).iter_rows()
            who.names |= {person for file, start, person in rows if (file, start) in starts}


def _clips(who: Withdrawn, place: Place) -> Iterator[Trace]:
    """Of shards, latents and pairs."""
    for index in place.indexes():
        own = [clip for clip in index.clips if clip.person in who.names]
        if not own:
            continue
        who.shards.add(Path(index.shard))
        for clip in own:
            meta = decode_meta(read_members(clip, [META])[META], clip.key)
            who.clips.add(clip.key)
            who.recordings.add(meta.source)
        what = f"{len(own)} of {counted(len(index.clips), 'clip')}"
        yield Trace(Path(index.shard), what, partial(_without, index, frozenset(who.names)))


def _without(index: ShardIndex, names: frozenset[str]) -> None:
    """The shard again, without these persons; an empty one goes."""
    kept = [clip for clip in index.clips if clip.person not in names]
    path = Path(index.shard)
    if not kept:
        index_path(path).unlink()  # first: a tar without an index is no shard
        path.unlink()
        return
    clips = (RawClip(clip.key, read_members(clip, list(clip.members))) for clip in kept)
    write_shard(path, [*clips, *index.failures])


def _rows(who: Withdrawn, place: Place) -> Iterator[Trace]:
    """Of Parquet files with the person, or a clip of theirs, in any column, and of manifests."""
    tables = list(place.tables())
    for _, table in tables:
        if {"file", "start", "stop", PERSON} <= set(table.columns):
            for row in table.filter(polars.col(PERSON).is_in(who.names)).iter_rows(named=True):
                who.clips.add(clip_name(row))
                who.recordings.add(row["file"])
    manifests = []
    for path in place.ending(*TABLES):
        rows = _manifest(path)
        own = [row for row in rows if row.get(PERSON) in who.names]
        who.recordings |= {str(row["file"]) for row in own if "file" in row}
        if own:
            manifests.append((path, len(own), len(rows)))
    for path, table in tables:
        texts = [name for name, kind in table.schema.items() if kind == polars.String]
        known = who.names | who.clips
        is_own = polars.any_horizontal([polars.col(name).is_in(known) for name in texts])
        num = table.filter(is_own).height if texts else 0
        if num:
            kept = table.filter(~is_own.fill_null(False))
            what = f"{num} of {counted(table.height, 'row')}"
            if path.name == GRAPH_FILE:  # its rows count each other
                yield Trace(path, f"{what}; select makes it anew", path.unlink)
                continue
            yield Trace(path, what, partial(_write_table, path, kept))
    for path, num, whole in manifests:
        what = f"{num} of {counted(whole, 'line')}"
        yield Trace(path, what, partial(_without_lines, path, frozenset(who.names)))


def _write_table(path: Path, table: polars.DataFrame) -> None:
    with whole_file(path) as temporary:
        table.write_parquet(temporary)


def _manifest(path: Path) -> list[dict[str, Any]]:
    """The rows of a table of persons; none for a file that is something else."""
    try:
        if path.suffix == ".csv":
            return [dict(row) for _, row in read_table(path)]
        lines = read_bytes(path, what="manifest", most=MOST_TEXT).splitlines()
        rows = [parse_json(line, where=path) for line in lines if line.strip()]
    except ValueError:
        return []
    return [row for row in rows if isinstance(row, dict)]


def _without_lines(path: Path, names: frozenset[str]) -> None:
    rows = [row for row in _manifest(path) if row.get(PERSON) not in names]
    if path.suffix == ".jsonl":
        write_text_atomically(path, "".join(f"{json.dumps(row)}\n" for row in rows))
        return
    with path.open(newline="", encoding="utf-8-sig") as file:
        header = next(csv.reader(file))
    text = io.StringIO()
    writer = csv.DictWriter(text, header)
    writer.writeheader()
    writer.writerows(rows)
    write_text_atomically(path, text.getvalue())


def _results(who: Withdrawn, run: CurationStore) -> Iterator[Trace]:
    """All that the engine knows of the recordings, other persons in them included. It looks at
    none of them again."""
    own = who.recordings & run.recordings()
    if own:
        what = f"results of {counted(len(own), 'recording')}, of others in them, too"
        yield Trace(run.folder, what, partial(run.withdraw, own))


def _watched(who: Withdrawn, place: Place) -> Iterator[Trace]:
    """Reports on recordings with the person, others in them included."""
    for path in place.ending(REPORT_FILE):
        shots = _object(path).get("shots")
        if isinstance(shots, dict) and who.recordings & shots.keys():
            page, watched = path.with_suffix(".html"), path.with_name(WATCHED)
            what = "a report; select makes one in another folder"
            if watched.is_dir():
                yield Trace(watched, "its clips and pictures", partial(shutil.rmtree, watched))
            if page.is_file():
                yield Trace(page, what, page.unlink)
            yield Trace(path, f"the numbers of {what}", path.unlink)


def _is_record_of(who: Withdrawn, path: Path) -> bool:
    try:
        consent = read_consent(path).consent
    except ValueError:  # of another key: nobody can use it here, but it holds a name and a face
        values = _object(path)
        return values.get(PERSON) in who.names
    return consent.person in who.names


def _left(
    who: Withdrawn, place: Place, runs: Sequence[CurationStore], gone: set[Path]
) -> Iterator[Trace]:
    """What people must decide on, each file once."""
    seen = set(gone)
    for path, what in (*_recordings(who, place, runs), *_weights(who, place), *_videos(who, place)):
        if path not in seen:
            seen.add(path)
            yield Trace(path, what)
    words = [
        name for name in who.names | who.clips if len(name) >= LEAST_LETTERS and not name.isdigit()
    ]
    if not words:
        return
    said = re.compile(b"|".join(rb"(?<!\w)" + re.escape(w.encode()) + rb"(?!\w)" for w in words))
    for path in place.files:
        if path in seen or path.suffix in NO_TEXT or path.name.endswith(INDEX_SUFFIX):
            continue
        is_result = path.suffix == ".parquet" and path.parents[1].name == RESULTS
        if not is_result and path.stat().st_size <= MOST_TEXT and said.search(path.read_bytes()):
            yield Trace(path, "says the name, or names a clip")


def _recordings(
    who: Withdrawn, place: Place, runs: Sequence[CurationStore]
) -> Iterator[tuple[Path, str]]:
    """Below the folders, and in the footage of runs of the data engine, wherever that is; of such a
    run those, too, with anybody who withdrew from it before."""
    ends = tuple(f"{os.sep}{name}" for name in who.recordings if name)
    found = {path for path in place.files if str(path).endswith(ends)}
    before: set[Path] = set()
    for run in runs:
        if (run.folder / RUN_FILE).is_file():
            footage = footage_of(run.folder)
            found |= {footage / name for name in who.recordings if (footage / name).is_file()}
            before |= {footage / name for name in withdrawn(run.folder)}
    for path in sorted(found):
        yield path, "a recording: an import, or another run of curate, takes it in again"
    for path in sorted(path for path in before - found if path.is_file()):
        yield path, BEFORE


def _weights(who: Withdrawn, place: Place) -> Iterator[tuple[Path, str]]:
    """Runs whose recipe reads a folder with shards of the person, or begins from such weights."""
    runs = {path.parent: _paths_in(path) for path in place.ending("recipe.yaml")}
    seen: set[Path] = set()
    for run, paths in runs.items():
        if any(shard.is_relative_to(path) for path in paths for shard in who.shards):
            seen.add(run)
    yield from ((run, "weights that were trained on the person") for run in sorted(seen))
    while True:
        more = {
            run
            for run, paths in runs.items()
            if run not in seen and any(p.is_relative_to(s) for p in paths for s in seen)
        }
        if not more:
            return
        seen |= more
        yield from ((run, "weights that begin from such") for run in sorted(more))


def _paths_in(recipe: Path) -> set[Path]:
    """The folders that a recipe names, from wherever above it the run was started."""
    try:
        values = read_yaml(recipe, "recipe")
    except ValueError:
        return set()
    found: set[Path] = set()
    left = [values]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
        elif isinstance(value, str) and value and "\0" not in value and len(value) < 4096:
            tried = [base / value for base in recipe.parents]
            found |= {path.resolve() for path in tried if path.is_dir() and path != recipe.parent}
    return found - set(recipe.parents)


def _videos(who: Withdrawn, place: Place) -> Iterator[tuple[Path, str]]:
    """Records of generation that name the person's consent."""
    for path in place.ending(".json"):
        if path.name.endswith((INDEX_SUFFIX, SUFFIX)):
            continue
        agreed = _object(path).get("consented")
        if isinstance(agreed, dict) and agreed.get(PERSON) in who.names:
            yield path, f"the record of a video that was made of the person, {path.stem}"


def _object(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except ValueError:
        return {}


def remove(traces: Sequence[Trace], on_progress: Callable[[int], None] = lambda num: None) -> None:
    """Take away what can be, in order."""
    for number, trace in enumerate(traces, 1):
        if trace.remove is not None:
            trace.remove()
        on_progress(number)
