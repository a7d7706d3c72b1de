"""A user's own videos to shards: 25 fps, 16 kHz mono, cropped to the face, cut into clips.

Every file and every stretch of one that gives no clip is a row of `report.json` with its reason.
Finished files lie in a hidden folder beside the output until all are, so the same command goes on
where one was stopped, even by kill -9, and gives the same bytes with any number of workers. The
output folder appears whole, at the end.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from avatar_v.base import checks
from avatar_v.base.progress import results_console
from avatar_v.base.words import counted
from avatar_v.faces import face_track
from avatar_v.shards.loader import read_members
from avatar_v.shards.schema import META, decode_meta, encode_meta
from avatar_v.shards.writer import ClipEntry, RawClip, index_path, read_index, write_shard
from avatar_v.types import num_latents
from avatar_v_data.import_file import FileResult, ImportRow, ReadSettings, first_frame
from avatar_v_data.import_plan import (
    PersonRule,
    Source,
    cluster_faces,
    find_sources,
    split_persons,
)
from avatar_v_data.import_work import clips_path, read_files, read_result, work_folder

REPORT_FILE = "report.json"


@dataclass(frozen=True)
class ImportSettings:
    """The settings that turn a folder into clips."""

    num_frames: int = 101
    size: int = 64
    face_crop: bool = True
    person: PersonRule | None = None  # None: the manifest's column, else one person a file
    manifest: str | None = None
    validation: float = 0.0  # share of the persons
    seed: int = 0  # of which persons these are
    licence: str = "unknown"
    consent: str = "unknown"
    clips_per_shard: int = 64

    def __post_init__(self) -> None:
        num_latents(self.num_frames)
        if self.size < 8 or self.size % 8:
            raise ValueError(f"size is a multiple of 8 (the VAE's factor), got {self.size}")
        if self.clips_per_shard < 1:
            raise ValueError(f"clips per shard are at least 1, got {self.clips_per_shard}")
        if not 0 <= self.validation < 1:
            raise ValueError(f"--validation is a share from 0 to below 1, got {self.validation}")
        if self.person == "face" and not self.face_crop:
            raise ValueError("--person face needs the face: leave out --no-face-crop")

    @property
    def reading(self) -> ReadSettings:
        """The part of the settings that the clips of one file depend on."""
        embed = self.person == "face"
        return ReadSettings(
            self.num_frames, self.size, self.face_crop, embed, self.licence, self.consent
        )


@dataclass
class ImportReport:
    """The outcome of each file. Filled while importing; `report.json` in the end."""

    folder: str
    settings: ImportSettings
    clips_of: dict[str, int] = field(default_factory=dict)
    persons: dict[str, list[str]] = field(default_factory=dict)  # and the files that show them
    splits: dict[str, str] = field(default_factory=dict)  # of each person, where one is asked
    without_caption: list[str] = field(default_factory=list)
    not_in_manifest: int = 0  # files that were left out
    noted: list[ImportRow] = field(default_factory=list)  # kept, but odd
    dropped: list[ImportRow] = field(default_factory=list)

    @property
    def num_clips(self) -> int:
        return sum(self.clips_of.values())

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1, sort_keys=True)


def import_folder(
    folder: str | Path,
    out: str | Path,
    settings: ImportSettings,
    *,
    num_workers: int = 1,
    on_file: Callable[[int, int], None] = lambda num_done, num_files: None,
) -> ImportReport:
    """Import every media file in and below ``folder``; ``out`` must not exist or be empty.

    ValueError for the two folders and the manifest, and if faces are wanted and dlib is absent;
    files that cannot be used are rows of the report.
    """
    folder, out = Path(folder), Path(out)
    checks.at_once("workers", num_workers)
    sources, num_left_out = find_sources(folder, settings.manifest, settings.person)
    parts = [part for source in sources for part in source.parts]
    persons = {part.person for part in parts}
    if settings.validation and any(part.split for part in parts):
        raise ValueError("--validation draws a split, and the manifest has one: leave one out")
    if settings.validation and settings.person != "face":
        split_persons(persons, settings.validation, settings.seed)
    if out.is_symlink() and not out.exists():
        raise ValueError(f"{out} is a link to nothing; choose a new or empty folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} already exists; choose a new or empty folder")
    if settings.face_crop and not face_track.is_available():
        raise ValueError(face_track.HOW_TO_INSTALL)
    report = ImportReport(str(folder), settings, not_in_manifest=num_left_out)
    work = work_folder(out)
    work.mkdir(parents=True, exist_ok=True)
    places = read_files(sources, settings.reading, work, num_workers, on_file)
    whole = work / "whole"
    shutil.rmtree(whole, ignore_errors=True)
    whole.mkdir()
    _assemble(sources, places, whole, settings, report)
    (whole / REPORT_FILE).write_text(report.to_json())
    if out.exists():
        out.rmdir()
    os.replace(whole, out)
    shutil.rmtree(work, ignore_errors=True)
    return report


def print_report(report: ImportReport) -> None:
    """The report as tables: clips and persons of each file, what is odd, and what was dropped."""
    from rich.markup import escape
    from rich.table import Table

    console = results_console()
    clips, persons = counted(report.num_clips, "clip"), counted(len(report.persons), "person")
    title = f"{clips} of {persons} from {escape(report.folder)}"
    table = Table("file", "clips", "person", title=title)
    for file, count in report.clips_of.items():
        shown = [person for person, files in report.persons.items() if file in files]
        words = [f"{p} ({report.splits[p]})" if p in report.splits else p for p in shown]
        table.add_row(escape(file), str(count), escape(", ".join(words)))
    console.print(table)
    for name, rows in (("kept, but", report.noted), ("dropped because", report.dropped)):
        if rows:
            table = Table("file", "frames", name, title=name.split()[0].rstrip(","))
            for row in rows:
                table.add_row(escape(row.file), row.frames, escape(row.reason))
            console.print(table)
    if report.without_caption:
        names = escape(", ".join(report.without_caption[:5]))
        files = counted(len(report.without_caption), "file")
        console.print(f"{files} without NAME.txt, no caption: {names}")
    if report.not_in_manifest:
        files = counted(report.not_in_manifest, "file")
        console.print(f"left out, not in the manifest: {files}")


def _assemble(
    sources: list[Source],
    places: list[Path],
    out: Path,
    settings: ImportSettings,
    report: ImportReport,
) -> None:
    """Join the files' clips, in order, to shards; persons and splits are settled here."""
    results = [read_result(place) for place in places]
    known = _persons_by_face(results) if settings.person == "face" else {}
    clips: list[tuple[str, ClipEntry]] = []
    split_of: dict[str, str] = {}
    for source, place, result in zip(sources, places, results, strict=True):
        report.clips_of[source.name] = result.num_clips
        report.noted += result.noted
        report.dropped += result.dropped
        if result.num_clips and not all(part.caption for part in source.parts):
            report.without_caption.append(source.name)
        for clip in read_index(index_path(clips_path(place))).clips:
            part = source.part_at(first_frame(clip.key))
            person = known.get(clip.key, part.person)
            files = report.persons.setdefault(person, [])
            if source.name not in files:
                files.append(source.name)
            if split_of.setdefault(person, part.split) != part.split:
                raise ValueError(f"{person} is in train and in validation: {', '.join(files)}")
            clips.append((person, clip))
    if settings.validation and clips:
        report.splits = split_persons(report.persons, settings.validation, settings.seed)
    elif any(split_of.values()):
        report.splits = split_of
    for split in sorted(set(report.splits.values())) or [""]:
        chosen = [row for row in clips if report.splits.get(row[0], "") == split]
        _write_shards(out / split, chosen, settings.clips_per_shard)


def _persons_by_face(results: list[FileResult]) -> dict[str, str]:
    """The person of each clip, as far as faces tell."""
    faces = {key: torch.tensor(face) for result in results for key, face in result.faces.items()}
    numbers = cluster_faces(list(faces.values()))
    return {key: f"face-{n:03d}" for key, n in zip(faces, numbers, strict=True)}


def _write_shards(out: Path, clips: list[tuple[str, ClipEntry]], clips_per_shard: int) -> None:
    for number, start in enumerate(range(0, len(clips), clips_per_shard)):
        part = clips[start : start + clips_per_shard]
        path = out / f"import-{number:06d}.tar"
        index = write_shard(path, (_of_person(person, clip) for person, clip in part))
        assert not index.failures, index.failures


def _of_person(person: str, clip: ClipEntry) -> RawClip:
    members = read_members(clip, list(clip.members))
    meta = decode_meta(members[META], clip.key)
    named = encode_meta(dataclasses.replace(meta, person=person))
    return RawClip(clip.key, {**members, META: named})
