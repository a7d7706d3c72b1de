"""A user's own videos to shards: of one rate, cropped to the person, cut into clips.

It is a run of the data engine whose plan takes every stretch that a manifest names, or all, and
whose last stage makes the samples. Every file and every stretch of one that gives no clip is a row
of `report.json` with its reason. The run's results lie in a hidden folder beside the output until
all are there, so the same command goes on where one was stopped, even by kill -9, and gives the
same bytes with any number of workers. The output folder appears whole, at the end.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from avatar_v.base import checks
from avatar_v.base.progress import results_console
from avatar_v.base.video_format import Framing, checked_rate
from avatar_v.base.words import counted
from avatar_v.faces import face_track
from avatar_v_data.curation.parts import PartStage
from avatar_v_data.curation.plan import CurationPlan
from avatar_v_data.curation.probe import ProbeStage
from avatar_v_data.curation.reconcile import desired
from avatar_v_data.curation.run import perform_all
from avatar_v_data.curation.samples import SampleStage, first_frame
from avatar_v_data.curation.shards import Named, samples_of, write_shards
from avatar_v_data.curation.stages import FAILED, FootageRecording, Result
from avatar_v_data.curation.store import CurationStore
from avatar_v_data.import_plan import (
    PersonRule,
    Source,
    cluster_faces,
    find_sources,
    groups_of,
    split_persons,
)

REPORT_FILE = "report.json"
CAPTION_BYTES = 256  # of ByteTextEncoder; UMT5 of the full sizes takes 512 tokens


@dataclass(frozen=True)
class ImportSettings:
    """The settings that turn a folder into clips."""

    num_frames: int = 101
    size: int | str = 64
    face_crop: bool = True
    framing: Framing = "face"
    frame_rate_hz: int = 25
    person: PersonRule | None = None  # None: the manifest's column, else one person a file
    manifest: str | None = None
    validation: float = 0.0  # share of the persons
    seed: int = 0  # of which persons these are
    licence: str = "unknown"
    consent: str = "unknown"
    clips_per_shard: int = 64

    def __post_init__(self) -> None:
        _ = self.plan
        checked_rate(self.frame_rate_hz)
        if self.clips_per_shard < 1:
            raise ValueError(f"clips per shard are at least 1, got {self.clips_per_shard}")
        if not 0 <= self.validation < 1:
            raise ValueError(f"--validation is a share from 0 to below 1, got {self.validation}")
        if self.person == "face" and not self.face_crop:
            raise ValueError("--person face needs the face: leave out --no-face-crop")

    @property
    def plan(self) -> CurationPlan:
        """What the engine is asked for."""
        samples = SampleStage(
            self.num_frames,
            self.size,
            self.face_crop,
            self.person == "face",
            framing=self.framing,
        )
        return CurationPlan((ProbeStage(), PartStage(self.num_frames), samples))


@dataclass(frozen=True)
class ImportRow:
    """A file, or frames of one, with what is to be said about it."""

    file: str
    frames: str  # "" for the whole file
    reason: str


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
    sources, num_left_out = find_sources(
        folder, settings.manifest, settings.person, settings.frame_rate_hz
    )
    parts = [part for source in sources for part in source.parts]
    if settings.validation and any(part.split for part in parts):
        raise ValueError("--validation draws a split, and the manifest has one: leave one out")
    if settings.validation and settings.person != "face":
        _drawn(((s.name, part.person) for s in sources for part in s.parts), settings)
    if out.is_symlink() and not out.exists():
        raise ValueError(f"{out} is a link to nothing; choose a new or empty folder")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} already exists; choose a new or empty folder")
    if settings.face_crop and not face_track.is_available():
        raise ValueError(face_track.HOW_TO_INSTALL)
    report = ImportReport(str(folder), settings, not_in_manifest=num_left_out)
    work = work_folder(out)
    store = CurationStore(work)
    recordings = [
        FootageRecording.of(Path(s.path), s.name, s.parts, settings.frame_rate_hz, s.heard)
        for s in sources
    ]
    tasks = desired(settings.plan, recordings)
    perform_all(settings.plan, tasks, store, num_workers, None, on_file)
    found = _Found(store, {(t.recording.name, t.stage.name): t.key for t in tasks})
    whole = work / "whole"
    with store.locked():  # till all is done: another import of this name is refused
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir()
        _assemble(sources, found, whole, settings, report)
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


def work_folder(out: str | Path) -> Path:
    """Where finished files lie until all are: hidden, beside ``out``."""
    return Path(out).with_name(f".{Path(out).name}.import")


@dataclass(frozen=True)
class _Found:
    """The results of a run, by file and stage."""

    store: CurationStore
    keys: dict[tuple[str, str], str]

    def of(self, name: str, stage: str) -> Result:
        return self.store.result(self.keys[name, stage])


def _assemble(
    sources: list[Source],
    found: _Found,
    out: Path,
    settings: ImportSettings,
    report: ImportReport,
) -> None:
    """Join the files' samples, in order, to shards; persons and splits are settled here."""
    results = {source.name: found.of(source.name, "samples") for source in sources}
    known = _persons_by_face(results.values()) if settings.person == "face" else {}
    named: list[Named] = []
    split_of: dict[str, str] = {}
    for source in sources:
        _describe(source, results[source.name], found.of(source.name, "clips"), report)
        if not report.clips_of[source.name]:
            continue
        for sample in samples_of(found.store.files, found.keys[source.name, "samples"]):
            part = source.part_at(first_frame(sample.key))
            person = known.get(sample.key, part.person)
            files = report.persons.setdefault(person, [])
            if source.name not in files:
                files.append(source.name)
            if split_of.setdefault(person, part.split) != part.split:
                raise ValueError(f"{person} is in train and in validation: {', '.join(files)}")
            licence = part.licence or settings.licence
            consent = part.consent or settings.consent
            named.append(Named(sample, person, part.scene, part.caption, "", licence, consent))
    if settings.validation and named:
        shown = ((file, person) for person, files in report.persons.items() for file in files)
        report.splits = _drawn(shown, settings)
    elif any(split_of.values()):
        report.splits = split_of
    for split in sorted(set(report.splits.values())) or [""]:
        chosen = [one for one in named if report.splits.get(one.person, "") == split]
        write_shards(out / split, "import", chosen, settings.clips_per_shard)


def _drawn(shown: Iterable[tuple[str, str]], settings: ImportSettings) -> dict[str, str]:
    """The split of each person. ``shown``: files, and persons in them."""
    groups = groups_of(shown)
    splits = split_persons(groups.values(), settings.validation, settings.seed)
    return {person: splits[group] for person, group in groups.items()}


def _describe(source: Source, samples: Result, clips: Result, report: ImportReport) -> None:
    """What became of a file, and what is odd about it."""
    name = source.name
    report.clips_of[name] = sum(clip["samples"] for clip in samples.get("clips", ()))
    if source.caption_note:
        report.noted.append(ImportRow(name, "", source.caption_note))
    longest = max((len(part.caption.encode()) for part in source.parts), default=0)
    if longest > CAPTION_BYTES:
        why = (
            f"a caption of {longest} bytes is too long for the text encoder of the tiny and small "
            f"sizes, which takes {CAPTION_BYTES}"
        )
        report.noted.append(ImportRow(name, "", why))
    if FAILED in samples:
        _, _, reason = samples[FAILED].partition(": ")  # behind the stage's name
        report.dropped.append(ImportRow(name, "", reason))
        return
    for row in clips["dropped"]:
        report.dropped.append(ImportRow(name, row["frames"], row["reason"]))
    for row in samples["rows"]:
        rows = report.noted if row["what"] == "noted" else report.dropped
        rows.append(ImportRow(name, row["frames"], row["reason"]))
    if report.clips_of[name] and not all(part.caption for part in source.parts):
        report.without_caption.append(name)


def _persons_by_face(results: Iterable[Result]) -> dict[str, str]:
    """The person of each sample, as far as faces tell."""
    rows = [row for result in results for row in result.get("faces", ())]
    numbers = cluster_faces([torch.tensor(row["face"]) for row in rows])
    return {row["key"]: f"face-{n:03d}" for row, n in zip(rows, numbers, strict=True)}
