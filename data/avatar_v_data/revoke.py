"""What lies below some folders of a person who withdraws, and its removal.

The person is known by names, as shards and manifests have them, and by the face of a record of
consent, which the data engine's vectors are compared with. Selections may name one person in more
than one way: names, clips and recordings that belong together are followed until no more are found.
Removed is what this library wrote to be trained on or looked up by: clips of shards, latents and
preference pairs, results of the data engine, rows of tables and manifests, records of consent. Told
of, and left to people, is the rest: recordings, weights that were trained on the clips or begin
from such, videos that were made, and files that still say the name.

Everything is looked for before anything is removed, and what is known of the person lies in a file
until all is gone: a removal that was stopped is made again by the same call.
"""

import csv
import io
import json
import shutil
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars

from avatar_v.base.paths import whole_file
from avatar_v.base.words import counted, listed
from avatar_v.safety.consent import SUFFIX, read_consent
from avatar_v.shards.loader import read_members
from avatar_v.shards.writer import (
    RawClip,
    ShardIndex,
    index_path,
    write_shard,
    write_text_atomically,
)
from avatar_v_data.curation.curated import copies_known, opened
from avatar_v_data.curation.graph import GRAPH_FILE
from avatar_v_data.curation.reconcile import CurationTask
from avatar_v_data.curation.report import WATCHED
from avatar_v_data.curation.run import REPORT_FILE
from avatar_v_data.curation.stages import Result
from avatar_v_data.curation.store import RESULTS, CurationStore
from avatar_v_data.revoke_left import left_of
from avatar_v_data.revoke_place import PERSON, Place, json_object, manifest_rows
from avatar_v_data.revoke_who import Withdrawn, said_in


@dataclass(frozen=True)
class Trace:
    """Something of the person. ``remove`` takes it away; None: people must decide."""

    path: Path
    what: str
    remove: Callable[[], None] | None = None


def traces_of(who: Withdrawn, place: Place) -> list[Trace]:
    """All there is, what is removed first, records of consent behind it; ``who`` learns names,
    clips and recordings on the way."""
    stopped = place.ending(who.file)
    for path in stopped:
        who.learn(path)
    unsure = [trace for run in place.runs for trace in _know_face(who, run, place)]
    unsure += _know_more(who, place)
    removed = [trace for run in place.runs for trace in _results(who, run)]
    removed += [*_watched(who, place), *_rows(who, place), *_clips(who, place)]
    records = [path for path in place.ending(SUFFIX) if _is_record_of(who, path)]
    removed += [Trace(path, "a record of consent", path.unlink) for path in records]
    what = "what a removal that was stopped knew"
    removed += [Trace(path, what, partial(path.unlink, missing_ok=True)) for path in stopped]
    gone = {trace.path for trace in removed}
    return [*removed, *unsure, *(Trace(*left) for left in left_of(who, place, gone))]


def _know_face(who: Withdrawn, run: CurationStore, place: Place) -> Iterator[Trace]:
    """Recordings that show the face, and names under which `avatar-v-data select` knows it."""
    found = {
        recording
        for recording, result in run.of_recordings("person")
        if any(map(who.shows, result.get("clips", ())))
    }
    who.recordings |= found
    pairs = _pairs(run, found)
    starts = {
        (recording, clip["start"])
        for recording, (persons, clips) in pairs.items()
        for one, clip in zip(persons, clips, strict=True)
        if who.shows(one)
    }
    for _, table in place.tables:
        if {"file", "start", PERSON} <= set(table.columns):
            rows = table.select("file", "start", PERSON).iter_rows()
            for file, start, person in rows:
                if (file, start) in starts:
                    who.learn_name(person or "", file)
    if unpaired := sorted(found - pairs.keys()):
        words = f"{listed(unpaired)} shows the face, and by which name it was selected is not known"
        yield Trace(run.folder, f"{words}: look, and add --person NAME where there is one")


def _pairs(
    run: CurationStore, recordings: Collection[str]
) -> dict[str, tuple[list[Result], list[Result]]]:
    """What the stages `person` and `clips` say of each clip of a recording. A run keeps what older
    plans gave, whose clips have other numbers: where there is more than one result of a stage, the
    run's plan says which belong together."""
    found: list[dict[str, list[list[Result]]]] = []
    for stage in ("person", "clips"):
        found.append({})
        for recording, result in run.of_recordings(stage):
            if "clips" in result:
                found[-1].setdefault(recording, []).append(result["clips"])
    pairs, open_ones = {}, set()
    for recording in recordings:
        persons, clips = (results.get(recording, []) for results in found)
        if len(persons) == len(clips) == 1:
            pairs[recording] = persons[0], clips[0]
        else:
            open_ones.add(recording)
    if open_ones:
        finished = run.finished()
        for task in _tasks(run.folder):
            own = task.key, task.inputs.get("clips", "")
            is_asked = task.recording.name in open_ones and task.stage.name == "person"
            if is_asked and finished.issuperset(own):
                both = [run.result(key).get("clips", []) for key in own]
                pairs[task.recording.name] = both[0], both[1]
    return {name: (a, b) for name, (a, b) in pairs.items() if len(a) == len(b)}


def _tasks(folder: Path) -> Sequence[CurationTask]:
    """Of a run; none where its plan or its footage is gone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of recordings that were withdrawn before
        try:
            return opened(folder).tasks
        except (ValueError, KeyError, OSError):
            return ()


def _know_more(who: Withdrawn, place: Place) -> Iterator[Trace]:
    """All names, clips and recordings that belong together: a name has clips, a clip has names in
    other selections, and a copy of a recording shows who is in that one."""
    said = [said_in(row) for _, rows in place.manifests for row in rows]
    for path, table in place.tables:
        columns = [c for c in ("file", "start", "stop", PERSON) if c in table.columns]
        said += map(said_in, table.select(columns).iter_rows(named=True))
        if path.name == GRAPH_FILE and {"clip", PERSON} <= set(table.columns):
            for person, clip in table.select(PERSON, "clip").iter_rows():
                said.append((person or "", clip, clip.rpartition(":")[0]))
    copies = [copies_known(run.folder) for run in place.runs]
    num = 0
    while num < who.num_known:
        num = who.num_known
        for person, clip, file in said:
            if person in who.names or clip in who.clips:
                who.learn_name(person, file)
                who.clips |= {clip} - {""}
                who.recordings |= {file} - {""}
        for index in place.indexes:
            for clip in filter(who.has, index.clips):
                who.learn_clip(clip)
        for originals in copies:
            who.recordings |= {
                copy for copy, own in originals.items() if who.recordings.intersection(own)
            }
    for index in place.indexes:
        others = {clip.person for clip in index.clips if who.has(clip)} - who.names - {"unknown"}
        for name in sorted(others):
            words = f"has clips of the person under the name {name}, and maybe more of them"
            yield Trace(index_path(index.shard), f"{words}: look, and revoke that name below here")


def _clips(who: Withdrawn, place: Place) -> Iterator[Trace]:
    """Of shards, latents and pairs; samples of a run go with its results."""
    samples = {run.files.resolve() for run in place.runs}
    for index in place.indexes:
        own = [clip.key for clip in index.clips if who.has(clip)]
        if own and Path(index.shard).parent not in samples:
            what = f"{len(own)} of {counted(len(index.clips), 'clip')}"
            yield Trace(Path(index.shard), what, partial(_without, index, frozenset(own)))


def _without(index: ShardIndex, keys: frozenset[str]) -> None:
    """The shard again, without these clips; an empty one goes."""
    kept = [clip for clip in index.clips if clip.key not in keys]
    path = Path(index.shard)
    if not kept:
        index_path(path).unlink()  # first: a tar without an index is no shard
        path.unlink()
        return
    clips = (RawClip(clip.key, read_members(clip, list(clip.members))) for clip in kept)
    write_shard(path, [*clips, *index.failures])


def _rows(who: Withdrawn, place: Place) -> Iterator[Trace]:
    """Of Parquet files with the person, or a clip of theirs, in any column, and of manifests."""
    known = [*who.names, *who.clips]
    for path, table in place.tables:
        texts = [name for name, kind in table.schema.items() if kind == polars.String]
        if not texts:
            continue
        values = [polars.col(name) for name in texts]
        if {"file", "start", "stop"} <= set(table.columns):  # as clip_name
            values.append(polars.format("{}:{}-{}", "file", "start", "stop"))
        is_own = polars.any_horizontal([value.is_in(known) for value in values])
        num = table.filter(is_own).height
        if num:
            kept = table.filter(~is_own.fill_null(False))
            what = f"{num} of {counted(table.height, 'row')}"
            if path.name == GRAPH_FILE:  # its rows count each other
                yield Trace(path, f"{what}; select makes it anew", path.unlink)
                continue
            yield Trace(path, what, partial(_write_table, path, kept))
    for path, rows in place.manifests:
        num = sum(who.has_row(row) for row in rows)
        if num:
            what = f"{num} of {counted(len(rows), 'line')}"
            yield Trace(path, what, partial(_without_lines, path, who))


def _write_table(path: Path, table: polars.DataFrame) -> None:
    with whole_file(path) as temporary:
        table.write_parquet(temporary)


def _without_lines(path: Path, who: Withdrawn) -> None:
    rows = [row for row in manifest_rows(path) if not who.has_row(row)]
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
        shots = json_object(path).get("shots")
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
        values = json_object(path)
        return values.get(PERSON) in who.names
    return consent.person in who.names


def remove(
    who: Withdrawn,
    traces: Sequence[Trace],
    folder: Path,
    on_progress: Callable[[int], None] = lambda num: None,
) -> None:
    """Take away what can be, in order; meanwhile ``folder`` holds what is known of the person.
    ValueError, before anything is removed, while a process works on a run among them."""
    for trace in traces:
        if (trace.path / RESULTS).is_dir() and CurationStore(trace.path).is_led():
            words = "wait for its end, or stop it, and do the same again; nothing was removed"
            raise ValueError(f"{trace.path}: a process works on this run: {words}")
    who.keep(folder / who.file)
    for number, trace in enumerate(traces, 1):
        if trace.remove is not None:
            trace.remove()
        on_progress(number)
    (folder / who.file).unlink(missing_ok=True)
