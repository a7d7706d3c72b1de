"""A user's own videos to shards: 25 fps, 16 kHz mono, cropped to the face, cut into clips.

Every file and every stretch of one that gives no clip is a row of `report.json` with its reason.
The folder appears whole: it is written under a temporary name and moved at the end.
"""

import dataclasses
import itertools
import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from avatar_v.critics import face_track
from avatar_v.critics.landmark_motion import HABITS, KNOWN, motion_from_landmarks
from avatar_v.media import iter_video, probe, read_audio
from avatar_v.shards.schema import NO_PHONEME, Meta, Sample, to_int16
from avatar_v.shards.writer import write_shard
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME, num_latents

REPORT_FILE = "report.json"
NOT_MEDIA = {".txt", ".json", ".md", ".csv"}
MIN_FOUND = 0.5  # share of a clip's frames that must show a face
MAX_MISSING_AUDIO = 5  # frames of audio that may lack at a clip's end, filled with silence
SILENCE = 1e-3  # a clip whose loudest sample is below -60 dBFS has no speech to learn from


@dataclass(frozen=True)
class ImportSettings:
    """How a folder is turned into clips."""

    num_frames: int = 101
    size: int = 64
    face_crop: bool = True
    person_is_folder: bool = True
    licence: str = "unknown"
    consent: str = "unknown"
    clips_per_shard: int = 64

    def __post_init__(self) -> None:
        num_latents(self.num_frames)
        if self.size < 8 or self.size % 8:
            raise ValueError(f"size is a multiple of 8 (the VAE's factor), got {self.size}")
        if self.clips_per_shard < 1:
            raise ValueError(f"clips per shard are at least 1, got {self.clips_per_shard}")


@dataclass(frozen=True)
class Dropped:
    """A file, or frames of one, that gave no clip."""

    file: str
    frames: str  # "" for the whole file
    reason: str


@dataclass
class ImportReport:
    """What became of each file. Filled while importing; `report.json` in the end."""

    folder: str
    settings: ImportSettings
    clips_of: dict[str, int] = field(default_factory=dict)
    without_caption: list[str] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)

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
    on_file: Callable[[int, int], None] = lambda num_done, num_files: None,
) -> ImportReport:
    """Import every media file in and below ``folder``; ``out`` must not exist or be empty.

    ValueError for the two folders, and if faces are wanted and dlib is absent; files that cannot
    be used are rows of the report.
    """
    folder, out = Path(folder), Path(out)
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder; expected a folder of videos")
    files = sorted(p for p in folder.rglob("*") if p.is_file() and _may_be_media(p))
    if not files:
        raise ValueError(f"{folder}: holds no media files")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} already exists; choose a new or empty folder")
    if settings.face_crop and not face_track.is_available():
        raise ValueError(face_track.HOW_TO_INSTALL)
    report = ImportReport(str(folder), settings)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True)
    try:
        samples = _samples(folder, files, settings, report, on_file)
        for number in itertools.count():
            first = next(samples, None)
            if first is None:
                break
            rest = itertools.islice(samples, settings.clips_per_shard - 1)
            path = temporary / f"import-{number:06d}.tar"
            index = write_shard(path, itertools.chain([first], rest))
            assert not index.failures, index.failures
        (temporary / REPORT_FILE).write_text(report.to_json())
        if out.exists():
            out.rmdir()
        os.replace(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return report


def print_report(report: ImportReport) -> None:
    """The report as two tables: clips a file, and what was dropped and why."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("file", "clips", title=f"{report.num_clips} clips from {report.folder}")
    for file, count in report.clips_of.items():
        table.add_row(file, str(count))
    console.print(table)
    if report.dropped:
        table = Table("file", "frames", "dropped because", title="dropped")
        for row in report.dropped:
            table.add_row(row.file, row.frames, row.reason)
        console.print(table)
    if report.without_caption:
        names = ", ".join(report.without_caption[:5])
        console.print(f"{len(report.without_caption)} files without NAME.txt, no caption: {names}")


def _may_be_media(path: Path) -> bool:
    return path.suffix.lower() not in NOT_MEDIA and not path.name.startswith(".")


def _samples(
    folder: Path,
    files: list[Path],
    settings: ImportSettings,
    report: ImportReport,
    on_file: Callable[[int, int], None],
) -> Iterator[Sample]:
    for number, path in enumerate(files):
        on_file(number, len(files))
        name = str(path.relative_to(folder))
        report.clips_of[name] = 0
        try:
            for sample in _samples_of(folder, path, settings, report):
                report.clips_of[name] += 1
                yield sample
        except ValueError as error:  # unreadable or damaged: the clips before it are kept
            report.dropped.append(Dropped(name, "", str(error).removeprefix(f"{path}: ")))
    on_file(len(files), len(files))


def _samples_of(
    folder: Path, path: Path, settings: ImportSettings, report: ImportReport
) -> Iterator[Sample]:
    name = str(path.relative_to(folder))
    info = probe(path)
    if not info.has_video:
        raise ValueError("no video stream")
    if not info.has_audio:
        raise ValueError("no audio stream")
    audio = read_audio(path)
    caption = path.with_suffix(".txt")
    text = " ".join(caption.read_text(encoding="utf-8").split()) if caption.is_file() else ""
    if not text:
        report.without_caption.append(name)
    frames = iter_video(path, max_side=max(720, 6 * settings.size))
    for start in itertools.count(0, settings.num_frames):
        pictures = list(itertools.islice(frames, settings.num_frames))
        if len(pictures) < settings.num_frames:
            if pictures:
                why = f"too short: {len(pictures)} frames, a clip has {settings.num_frames}"
                report.dropped.append(Dropped(name, _span(start, len(pictures)), why))
            return
        try:
            sound = _sound(audio, start, settings.num_frames)
            yield _sample(folder, path, text, start, _stacked(pictures), sound, settings)
        except ValueError as error:
            report.dropped.append(Dropped(name, _span(start, len(pictures)), str(error)))


def _sample(
    folder: Path,
    path: Path,
    text: str,
    start: int,
    frames: Tensor,
    sound: Tensor,
    settings: ImportSettings,
) -> Sample:
    num_frames, _, height, width = frames.shape
    name = str(path.relative_to(folder))
    parent = path.parent.name if path.parent != folder else folder.resolve().name
    slug = re.sub(r"[^A-Za-z0-9_-]+", "_", name)
    track = _tracked(frames) if settings.face_crop else None
    if track is None:
        windows = face_track.centre_windows(num_frames, height, width)
        whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(num_frames, 1)
        face, mouth, points = whole, whole.clone(), torch.zeros(num_frames, 0, 2)
        found = torch.ones(num_frames, dtype=torch.bool)
        motion = torch.zeros(num_frames, len(MOTION_NAMES))
    else:
        windows = face_track.crop_windows(track, height, width)
        points = face_track.in_windows(track.landmarks, windows, height, width)
        face, mouth = face_track.head_box(points), face_track.mouth_box(points)
        found = track.found
        motion = motion_from_landmarks(points, found)
    meta = Meta(
        person=parent if settings.person_is_folder else name,
        scene=name,
        sentence=f"{name}:{start}",
        text=text,
        num_frames=num_frames,
        height=settings.size,
        width=settings.size,
        licence=settings.licence,
        consent=settings.consent,
        source=name,
        motion_known=() if track is None else KNOWN,
        habits_known=() if track is None else HABITS,
    )
    return Sample(
        key=f"{slug}-{zlib.crc32(name.encode()):08x}-{start:06d}",
        meta=meta,
        audio=to_int16(sound),
        motion=motion,
        face_box=face,
        mouth_box=mouth,
        landmarks=points,
        valid=found,
        phonemes=torch.full((num_frames,), NO_PHONEME, dtype=torch.int16),
        video=face_track.crop(frames, windows, settings.size),
    )


def _tracked(frames: Tensor) -> face_track.FaceTrack:
    track = face_track.track_faces(frames)
    num_found = int(track.found.sum())
    if num_found < MIN_FOUND * len(frames):
        raise ValueError(f"no face in {len(frames) - num_found} of {len(frames)} frames")
    return track


def _sound(audio: Tensor, start: int, num_frames: int) -> Tensor:
    sound = audio[start * SAMPLES_PER_FRAME : (start + num_frames) * SAMPLES_PER_FRAME]
    missing = num_frames * SAMPLES_PER_FRAME - len(sound)
    if missing > MAX_MISSING_AUDIO * SAMPLES_PER_FRAME:
        raise ValueError(f"the audio ends {missing / SAMPLES_PER_FRAME:.0f} frames early")
    if sound.abs().max() < SILENCE:
        raise ValueError("the audio is silent")
    return torch.nn.functional.pad(sound, (0, missing))


def _stacked(pictures: list[Tensor]) -> Tensor:
    shapes = {tuple(picture.shape) for picture in pictures}
    if len(shapes) > 1:
        raise ValueError(f"the picture changes size, {sorted(shapes)}")
    return torch.stack(pictures)


def _span(start: int, count: int) -> str:
    return f"{start}-{start + count - 1}"
