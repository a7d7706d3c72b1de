"""The clips of a recording as training takes them: cropped to the head, tracked, of one length.

They are the last stage of a plan and all of an import. Whose they are, in which words and under
which licence, is written when shards are put together (shards.py), so that nothing is read again
for it. What a clip does not show, a face or speech, is a row and not a clip.
"""

import dataclasses
import re
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import ClassVar

import torch
from torch import Tensor

from avatar_v.base.video_format import Framing, VideoFormat
from avatar_v.faces import face_track
from avatar_v.faces.dlib_face import embed_faces
from avatar_v.media import containers, reading
from avatar_v.motion.landmarks import HABITS, KNOWN, motion_from_landmarks
from avatar_v.shards.schema import NO_PHONEME, Meta, Sample, encode_sample, to_int16
from avatar_v.shards.writer import RawClip, write_shard
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME, num_latents
from avatar_v_data.curation.parts import windows
from avatar_v_data.curation.stages import (
    MACHINE,
    Clip,
    Frames,
    Reader,
    Reads,
    Result,
    Seen,
    Stage,
    Waveform,
)
from avatar_v_data.curation.sync import sound_late

MIN_FOUND = 0.5  # share of a clip's frames that must show a face
FEW_FOUND = 0.9  # a clip with a smaller share is kept, and noted
MAX_MISSING_AUDIO = 5  # frames of audio that may lack at a clip's end, filled with silence
SILENCE = 1e-3  # a clip whose loudest sample is below -60 dBFS has no speech to learn from
NUM_FACES = 4  # frames of a clip whose faces say who it shows


@dataclass(frozen=True)
class SampleStage(Stage):
    """``embed``: measure whose face each clip shows. ``sure``: the least ``sync_confidence`` at
    which sound is moved by the offset that sync found, None: never.

    ``clips``: the number of samples of each. ``rows``: what was dropped or is odd, and why. The
    samples themselves are a shard among the files of the run.
    """

    num_frames: int = 97
    size: int | str = 64  # pixels of a square, or WIDTHxHEIGHT
    face_crop: bool = True
    embed: bool = False
    sure: float | None = None
    framing: Framing = "face"

    name: ClassVar[str] = "samples"
    version: ClassVar[int] = 1
    reads: ClassVar[Reads] = "clips"
    needs: ClassVar[tuple[str, ...]] = ("probe", "clips")
    uses: ClassVar[tuple[str, ...]] = ("sync",)
    whole: ClassVar[bool] = False
    numbers: ClassVar[tuple[str, ...]] = ("samples",)

    def __post_init__(self) -> None:
        num_latents(self.num_frames)
        if any(side < 8 or side % 8 for side in self.video.size):
            raise ValueError(f"size is a multiple of 8 (the VAE's factor), got {self.size}")

    @property
    def video(self) -> VideoFormat:
        return VideoFormat.of(str(self.size), framing=self.framing)

    @property
    def side(self) -> int:
        return max(720, 6 * max(self.video.size))

    def weights(self) -> str:
        if self.face_crop and not face_track.is_available():
            raise ValueError(face_track.HOW_TO_INSTALL)
        return ""

    def begin(self, seen: Seen) -> Reader:
        _ = seen.audio, seen.heard  # their errors are the file's, before any frame
        return _Samples(self, seen)


def first_frame(key: str) -> int:
    """Where in its file a sample of this key begins."""
    return int(key.rpartition("-")[2])


class _Samples(Reader):
    def __init__(self, stage: SampleStage, seen: Seen) -> None:
        self.columns = {"clips": [], "rows": [], "faces": []}
        self._stage, self._seen = stage, seen
        self._made: list[tuple[str, dict[str, int]]] = []  # keys, and the sizes of their members
        self._spool = TemporaryFile(dir=seen.files)  # noqa: SIM115 (memory holds no clips)

    def clip(self, clip: Clip) -> None:
        before, num = len(self._made), self._stage.num_frames
        starts, why = windows(clip.start, clip.stop, num)
        if why and not starts:
            self._row("dropped", clip.start, len(clip.frames), why)
        for start in starts:
            first = start - clip.start
            try:
                pictures = torch.stack(list(clip.frames[first : first + num]))
                self._add(start, pictures, self._late(clip))
            except MACHINE:
                raise
            except ValueError as error:
                self._row("dropped", start, num, str(error))
            except Exception as error:  # dlib's, or a picture of another size: one clip alone
                why = f"cannot be read ({type(error).__name__}: {error})"
                self._row("dropped", start, num, why)
        self.columns["clips"].append({"samples": len(self._made) - before})

    def finish(self) -> Result:
        path = self._seen.recording.path
        for note in (containers.early_end(path), reading.colour_note(path)):
            if note:
                self._row("noted", 0, 0, note.removeprefix(f"{path} "))
        key = self._seen.keys[self._stage.name]
        with self._spool:
            write_shard(self._seen.files / f"{key}.tar", self._clips())
        return self.columns

    def _clips(self) -> Iterator[RawClip]:
        self._spool.seek(0)
        for key, sizes in self._made:
            yield RawClip(key, {name: self._spool.read(size) for name, size in sizes.items()})

    def _add(self, start: int, pictures: Frames, late: int) -> None:
        stage, name = self._stage, self._seen.recording.name
        sound, heard = _sounds(self._seen, start + late, len(pictures))
        track = _tracked(pictures) if stage.face_crop else None
        video = dataclasses.replace(stage.video, frame_rate_hz=self._seen.recording.frame_rate_hz)
        sample = _sample(name, start, pictures, track, sound, video)
        if heard is not None:
            sample = dataclasses.replace(sample, heard=to_int16(heard))
        members = encode_sample(sample)
        self._spool.writelines(members.values())
        self._made.append((sample.key, {name: len(data) for name, data in members.items()}))
        if track is not None:
            self._note_faces(sample.key, start, pictures, track)

    def _late(self, clip: Clip) -> int:
        """Frames by which the sound is late."""
        for part in self._seen.recording.parts:
            if part.start <= clip.start and (part.stop is None or clip.start < part.stop):
                return part.sound_late
        rows = self._seen.results.get("sync", {}).get("clips")
        return sound_late(rows[clip.number], self._stage.sure) if rows else 0

    def _note_faces(
        self, key: str, start: int, frames: Frames, track: face_track.FaceTrack
    ) -> None:
        """Say where faces are few or several, and keep whose face it is."""
        num_found, num = int(track.found.sum()), len(frames)
        if num_found < FEW_FOUND * num:
            why = f"a face in {num_found} of {num} frames ({100 * num_found // num} %); kept"
            self._row("noted", start, num, why)
        if track.num_faces > 1:
            why = f"{track.num_faces} faces in one picture: the largest is taken"
            self._row("noted", start, num, why)
        if self._stage.embed:
            at = face_track.spread_frames(track.found, NUM_FACES)
            faces = embed_faces(frames[at], track.landmarks[at]).values
            face = [round(value, 6) for value in faces.mean(0).tolist()]
            self.columns["faces"].append({"key": key, "face": face})

    def _row(self, what: str, start: int, num: int, reason: str) -> None:
        frames = f"{start}-{start + num - 1}" if num else ""
        self.columns["rows"].append({"what": what, "frames": frames, "reason": reason})


def _sample(
    name: str,
    start: int,
    frames: Frames,
    track: face_track.FaceTrack | None,
    sound: Waveform,
    video: VideoFormat,
) -> Sample:
    num_frames, _, height, width = frames.shape
    slug = re.sub(r"[^A-Za-z0-9_-]+", "_", name)
    if track is None:
        crops = face_track.centre_windows(num_frames, height, width, video.aspect)
        whole = torch.tensor([[0.0, 0.0, 1.0, 1.0]]).repeat(num_frames, 1)
        face, mouth, points = whole, whole.clone(), torch.zeros(num_frames, 0, 2)
        found = torch.ones(num_frames, dtype=torch.bool)
        motion = torch.zeros(num_frames, len(MOTION_NAMES))
    else:
        crops = face_track.crop_windows(track, height, width, video.aspect, video.framing)
        points = face_track.in_windows(track.landmarks, crops, height, width)
        face, mouth = face_track.head_box(points), face_track.mouth_box(points)
        found = track.found
        square = face_track.cropped_track(track, height, width)  # motion is read from squares
        motion = motion_from_landmarks(square.landmarks, found)
    meta = Meta(
        person="unknown",  # this and the scene are settled last
        scene=name,
        sentence=f"{name}:{start}",
        text="",
        num_frames=num_frames,
        height=video.height,
        width=video.width,
        licence="unknown",
        consent="unknown",
        source=name,
        motion_known=() if track is None else KNOWN,
        habits_known=() if track is None else HABITS,
        frame_rate_hz=video.frame_rate_hz,
        sample_rate_hz=SAMPLES_PER_FRAME * video.frame_rate_hz,
    )
    return Sample(
        key=f"{slug}-{zlib.crc32(name.encode()):08x}-{start:06d}",  # see first_frame
        meta=meta,
        audio=to_int16(sound),
        motion=motion,
        face_box=face,
        mouth_box=mouth,
        landmarks=points,
        valid=found,
        phonemes=torch.full((num_frames,), NO_PHONEME, dtype=torch.int16),
        video=face_track.crop(frames, crops, video.size),
    )


def _tracked(frames: Tensor) -> face_track.FaceTrack:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # several faces: a row says so
        track = face_track.track_faces(frames)
    num_found = int(track.found.sum())
    if num_found < MIN_FOUND * len(frames):
        raise ValueError(f"no face in {len(frames) - num_found} of {len(frames)} frames")
    return track


def _sounds(seen: Seen, start: int, num_frames: int) -> tuple[Waveform, Waveform | None]:
    """What the person says in the frames from ``start`` on, and hears. ValueError where there is
    neither."""
    audio, heard = _cut(seen.audio, start, num_frames, "the audio"), None
    if seen.heard is not None:
        heard = _cut(seen.heard, start, num_frames, "what the person listens to")
    if all(x is None or float(x.abs().max()) < SILENCE for x in (audio, heard)):
        raise ValueError("the audio is silent")
    return audio, heard


def _cut(audio: Tensor, start: int, num_frames: int, what: str) -> Tensor:
    """The frames from ``start`` on, which may lie before the file's beginning."""
    before = max(-start, 0) * SAMPLES_PER_FRAME
    sound = audio[max(start, 0) * SAMPLES_PER_FRAME : (start + num_frames) * SAMPLES_PER_FRAME]
    sound = torch.nn.functional.pad(sound, (before, 0))
    missing = num_frames * SAMPLES_PER_FRAME - len(sound)
    if missing > MAX_MISSING_AUDIO * SAMPLES_PER_FRAME:
        raise ValueError(f"{what} ends {missing / SAMPLES_PER_FRAME:.0f} frames early")
    return torch.nn.functional.pad(sound, (0, missing))
