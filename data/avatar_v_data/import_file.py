"""One video file to clips of one length, and rows on what became of it.

The clips follow each other without a gap. The last one moves back to the end of the video, over
frames of the clip before, so that no speech is lost; a rest of less than an eighth of a clip is
left out. What a clip does not show, a face or speech, is a row and not a clip.
"""

import itertools
import json
import re
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.words import counted
from avatar_v.faces import face_track
from avatar_v.faces.dlib_face import embed_faces
from avatar_v.media import containers, reading
from avatar_v.motion.landmarks import HABITS, KNOWN, motion_from_landmarks
from avatar_v.shards.schema import NO_PHONEME, Meta, Sample, to_int16
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME
from avatar_v_data.import_plan import ImportPart, Source

MIN_FOUND = 0.5  # share of a clip's frames that must show a face
CAPTION_BYTES = 256  # of ByteTextEncoder; UMT5 of the full sizes takes 512 tokens
FEW_FOUND = 0.9  # a clip with a smaller share is kept, and noted
MAX_MISSING_AUDIO = 5  # frames of audio that may lack at a clip's end, filled with silence
SILENCE = 1e-3  # a clip whose loudest sample is below -60 dBFS has no speech to learn from
SMALLEST_REST = 1 / 8  # of a clip
NUM_LOOKS = 4  # frames of a clip in which its person is looked at


@dataclass(frozen=True)
class ReadSettings:
    """All that a file's clips depend on, beside the file."""

    num_frames: int
    size: int
    face_crop: bool
    embed: bool  # measure whose face it is
    licence: str
    consent: str


@dataclass(frozen=True)
class ImportRow:
    """A file, or frames of one, with what is to be said about it."""

    file: str
    frames: str  # "" for the whole file
    reason: str


@dataclass
class FileResult:
    """The outcome of one file."""

    num_clips: int = 0
    dropped: list[ImportRow] = field(default_factory=list)
    noted: list[ImportRow] = field(default_factory=list)
    faces: dict[str, list[float]] = field(default_factory=dict)  # key → whose face it shows

    @classmethod
    def from_json(cls, text: str) -> "FileResult":
        """Inverse of json.dumps(dataclasses.asdict(result))."""
        fields = json.loads(text)
        rows = {name: [ImportRow(**row) for row in fields[name]] for name in ("dropped", "noted")}
        return cls(fields["num_clips"], faces=fields["faces"], **rows)


def read_file(source: Source, settings: ReadSettings, result: FileResult) -> Iterator[Sample]:
    """The clips of a file; whatever keeps one from being made is a row of ``result``."""
    try:
        for sample in _clips(source, settings, result):
            result.num_clips += 1
            yield sample
    except ValueError as error:  # unreadable or damaged: the clips before it are kept
        reason = str(error).removeprefix(f"{source.path}: ")
        result.dropped.append(ImportRow(source.name, "", reason))
    except Exception as error:  # of a decoder or of dlib: one file never ends an import
        reason = f"cannot be read ({type(error).__name__}: {error})"
        result.dropped.append(ImportRow(source.name, "", reason))


def first_frame(key: str) -> int:
    """Where in its file a clip of this key begins."""
    return int(key.rpartition("-")[2])


def _clips(source: Source, settings: ReadSettings, result: FileResult) -> Iterator[Sample]:
    if source.caption_note:
        result.noted.append(ImportRow(source.name, "", source.caption_note))
    longest = max((len(part.caption.encode()) for part in source.parts), default=0)
    if longest > CAPTION_BYTES:
        why = (
            f"a caption of {longest} bytes is too long for the text encoder of the tiny and small "
            f"sizes, which takes {CAPTION_BYTES}"
        )
        result.noted.append(ImportRow(source.name, "", why))
    info = reading.probe(source.path)
    if info.no_video or info.no_audio:
        raise ValueError(info.no_video or info.no_audio)
    if early := containers.early_end(source.path):
        result.noted.append(ImportRow(source.name, "", early.removeprefix(f"{source.path} ")))
    if converted := reading.colour_note(source.path):
        result.noted.append(ImportRow(source.name, "", converted.removeprefix(f"{source.path} ")))
    audio = reading.read_audio(source.path)
    frames = reading.iter_video(source.path, max_side=max(720, 6 * settings.size))
    for start, pictures in _parts(frames, source, settings.num_frames, result):
        span, part = _span(start, len(pictures)), source.part_at(start)
        try:
            sound = _sound(audio, start + part.sound_late, settings.num_frames)
            track = _tracked(pictures) if settings.face_crop else None
        except ValueError as error:
            result.dropped.append(ImportRow(source.name, span, str(error)))
            continue
        sample = _sample(source, part, start, pictures, track, sound, settings)
        if track is not None:
            _note_faces(
                sample.key, pictures, track, ImportRow(source.name, span, ""), settings, result
            )
        yield sample


def _parts(
    frames: Iterator[Tensor], source: Source, num: int, result: FileResult
) -> Iterator[tuple[int, Tensor]]:
    """The clips of all parts, in one pass through the file."""
    at = 0
    for part in source.parts:
        for _ in itertools.islice(frames, part.start - at):
            pass
        length = None if part.stop is None else part.stop - part.start
        of_part = itertools.islice(frames, length)
        yield from _windows(of_part, part.start, source, num, result)
        at = part.stop or 0


def _windows(
    frames: Iterator[Tensor], first: int, source: Source, num: int, result: FileResult
) -> Iterator[tuple[int, Tensor]]:
    """Clips of ``num`` frames with the number of the first; see the head of this file. The first
    of ``frames`` has the number ``first``."""
    last: list[Tensor] = []
    for start in itertools.count(first, num):
        new = list(itertools.islice(frames, num))
        if len(new) < num:
            break
        yield start, torch.stack(new)
        last = new
    if last and len(new) >= SMALLEST_REST * num:
        yield start + len(new) - num, torch.stack((last + new)[-num:])
    elif new:
        few = "a rest of" if last else "too short:"
        why = f"{few} {counted(len(new), 'frame')}, a clip has {num}"
        result.dropped.append(ImportRow(source.name, _span(start, len(new)), why))


def _sample(
    source: Source,
    part: ImportPart,
    start: int,
    frames: Tensor,
    track: face_track.FaceTrack | None,
    sound: Float[Tensor, " s"],
    settings: ReadSettings,
) -> Sample:
    num_frames, _, height, width = frames.shape
    slug = re.sub(r"[^A-Za-z0-9_-]+", "_", source.name)
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
        person=part.person or "unknown",
        scene=part.scene,
        sentence=f"{source.name}:{start}",
        text=part.caption,
        num_frames=num_frames,
        height=settings.size,
        width=settings.size,
        licence=settings.licence,
        consent=settings.consent,
        source=source.name,
        motion_known=() if track is None else KNOWN,
        habits_known=() if track is None else HABITS,
    )
    return Sample(
        key=f"{slug}-{zlib.crc32(source.name.encode()):08x}-{start:06d}",  # see first_frame
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # several faces: a row says so
        track = face_track.track_faces(frames)
    num_found = int(track.found.sum())
    if num_found < MIN_FOUND * len(frames):
        raise ValueError(f"no face in {len(frames) - num_found} of {len(frames)} frames")
    return track


def _note_faces(
    key: str,
    frames: Tensor,
    track: face_track.FaceTrack,
    row: ImportRow,
    settings: ReadSettings,
    result: FileResult,
) -> None:
    """Say where faces are few or several, and keep whose face it is."""
    num_found, num = int(track.found.sum()), len(frames)
    if num_found < FEW_FOUND * num:
        why = f"a face in {num_found} of {num} frames ({100 * num_found // num} %); kept"
        result.noted.append(ImportRow(row.file, row.frames, why))
    if track.num_faces > 1:
        why = f"{track.num_faces} faces in one picture: the largest is taken"
        result.noted.append(ImportRow(row.file, row.frames, why))
    if settings.embed:
        looks = face_track.spread_frames(track.found, NUM_LOOKS)
        faces = embed_faces(frames[looks], track.landmarks[looks]).values
        result.faces[key] = [round(value, 6) for value in faces.mean(0).tolist()]


def _sound(audio: Tensor, start: int, num_frames: int) -> Tensor:
    """Of the frames from ``start`` on, which may lie before the file's beginning."""
    before = max(-start, 0) * SAMPLES_PER_FRAME
    sound = audio[max(start, 0) * SAMPLES_PER_FRAME : (start + num_frames) * SAMPLES_PER_FRAME]
    sound = torch.nn.functional.pad(sound, (before, 0))
    missing = num_frames * SAMPLES_PER_FRAME - len(sound)
    if missing > MAX_MISSING_AUDIO * SAMPLES_PER_FRAME:
        raise ValueError(f"the audio ends {missing / SAMPLES_PER_FRAME:.0f} frames early")
    if len(sound) == 0 or sound.abs().max() < SILENCE:
        raise ValueError("the audio is silent")
    return torch.nn.functional.pad(sound, (0, missing))


def _span(start: int, count: int) -> str:
    return f"{start}-{start + count - 1}"
