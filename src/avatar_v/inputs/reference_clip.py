"""The reference video as the model reads it: framed pictures, their sound, motion and validity.

At most ``seconds`` of each clip are read, at little more than the model's resolution, so memory is
bounded by that and not by the file. Where the crop follows a face (framing.py) close-ups of it are
cut out of these larger frames, and whoever is cut in between is found by dlib's face embedding.
Which single frame shows the person best is best_frame.py's.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from avatar_v.base.video_format import VideoFormat
from avatar_v.faces import face_track
from avatar_v.faces.dlib_face import SAME_PERSON, embed_faces, embed_largest
from avatar_v.faces.face_track import (
    DETECT_SIDE,
    FaceTrack,
    face_windows,
    head_box,
    spread_frames,
)
from avatar_v.faces.same_person import LOOK_EVERY, first_frame_of_other, first_person
from avatar_v.inputs.framing import find_person
from avatar_v.media.channels import SILENT_PEAK
from avatar_v.media.sound import high_passed, normalise_loudness
from avatar_v.models.reference import NUM_FACES
from avatar_v.motion.extractors import (
    Extractor,
    components,
    extract,
    needs_track,
    square_side,
)
from avatar_v.types import (
    FRAME_RATE_HZ,
    MOTION_NAMES,
    SAMPLES_PER_FRAME,
    TEMPORAL_FACTOR,
)

MAX_UNEQUAL_S = 0.2
"""Sound and picture that differ by less end together, as far as a person can tell."""

Frames = UInt8[Tensor, "f 3 h w"]


@dataclass(frozen=True)
class ReferenceClip:
    """4k + 1 frames of the person, with what belongs to them."""

    video: Frames
    valid: Bool[Tensor, " f"]  # a face is visible
    audio: Float[Tensor, " s"] | None  # 640 f samples (sound.prepared); None: the file has no sound
    motion: Float[Tensor, "f m"] | None  # None: nothing reads it
    warnings: tuple[str, ...] = ()
    faces: UInt8[Tensor, "k 3 h w"] | None = None  # close-ups of the face; None: not known
    habits_known: tuple[str, ...] = MOTION_NAMES  # components in which ``motion`` tells habits
    who: Float[Tensor, " d"] | None = None  # dlib's embedding of the face, where it was followed
    landmarks: Float[Tensor, "f 68 2"] | None = None  # in [0, 1] of ``video``, where it was

    @property
    def num_frames(self) -> int:
        return self.video.shape[0]


def read_reference(
    path: str | Path,
    *,
    video: VideoFormat,
    seconds: float,
    face_crop: bool,
    extractor: Extractor | None,
    drawn: bool = False,
    faces: bool = False,
) -> ReferenceClip:
    """The first ``seconds`` of a clip (or the one frame of a picture) in the format ``video``.

    ``drawn``: framed for weights of drawn people. With ``faces`` also close-ups, evenly spread over
    the clip; they need a face that is followed.

    ValueError: unreadable, no video, no face, another person cut in (with the time), or an
    extractor that gives something else. Several faces, silence, and sound and picture of unequal
    length are warnings; the largest face is taken, and the sound is cut or filled with silence.
    """
    frames, ended = _read_frames(path, video, seconds)
    found, notes = None, ()
    if face_crop:
        looked = f"in its first {len(frames) / video.frame_rate_hz:.1f} s"
        found, notes = find_person(
            path, frames, drawn=drawn, extractor=extractor, looked=looked, aspect=video.aspect
        )
    who = None
    if found is not None:
        who = check_one_person(path, frames, found, video.frame_rate_hz)
    pictures = _framed(frames, found, video)
    audio, more = _read_sound(path, len(pictures), video.frame_rate_hz, ended=ended)
    motion = None
    if extractor is not None:
        square = video.squared(square_side(extractor, min(video.size)))
        seen = pictures if square == video else _framed(frames, found, square)
        height, width = frames.shape[2:]
        track = None if found is None else face_track.cropped_track(found, height, width)
        motion = extract(extractor, seen, track)
    valid = torch.ones(len(pictures), dtype=torch.bool) if found is None else found.found
    near = close_ups(frames, found, video) if faces and found is not None else None
    habits = MOTION_NAMES if extractor is None else components(extractor)
    points = None if found is None else _landmarks(frames, found, video)
    return ReferenceClip(pictures, valid, audio, motion, (*notes, *more), near, habits, who, points)


def close_ups(
    frames: UInt8[Tensor, "f 3 h w"], track: FaceTrack, video: VideoFormat
) -> UInt8[Tensor, "k 3 h2 w2"] | None:
    """The face in ``NUM_FACES`` of the frames that show it; None if none does."""
    chosen = spread_frames(track.found, NUM_FACES)
    if len(chosen) == 0:
        return None
    boxes = head_box(track.landmarks[chosen])
    windows = face_windows(boxes, *frames.shape[2:], aspect=video.aspect)
    return face_track.crop(frames[chosen], windows, video.size)


def still(
    image: UInt8[Tensor, "3 h w"],
    *,
    video: VideoFormat,
    face_crop: bool,
    extractor: Extractor | None,
    drawn: bool = False,
    faces: bool = False,
) -> ReferenceClip:
    """One picture as a reference of one frame, without sound. It is framed already: no face is
    followed in it for weights of ``drawn`` people, nor where nothing can find one."""
    frames, motion = _resized(image, video.size), None
    reads_track = needs_track(extractor) or (
        face_crop and not drawn and face_track.is_available() and (faces or extractor is not None)
    )
    track = face_track.track_faces(image[None]) if reads_track else None
    if extractor is not None:
        side, own = square_side(extractor, min(video.size)), track
        seen = _resized(image, (side, side))
        height, width = image.shape[1:]
        if height != width or video.framing == "body":  # motion is read from squares of the head
            found = None if track is None or not track.found.any() else track
            seen = _framed(image[None], found, video.squared(side))
            own = None if found is None else face_track.cropped_track(found, height, width)
        motion = extract(extractor, seen, own)
    near = close_ups(image[None], track, video) if faces and track is not None else None
    habits = MOTION_NAMES if extractor is None else components(extractor)
    return ReferenceClip(
        frames, torch.ones(1, dtype=torch.bool), None, motion, faces=near, habits_known=habits
    )


def _resized(image: UInt8[Tensor, "3 _h _w"], size: tuple[int, int]) -> Frames:
    small = F.interpolate(image[None].float(), size=size, mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8)


def check_same_person(path: str | Path, clip: ReferenceClip, first: ReferenceClip) -> None:
    """ValueError if the face of a further clip is not that of the first one, as far as known."""
    if clip.who is None or first.who is None:
        return
    if float((clip.who - first.who).norm()) > SAME_PERSON:
        raise ValueError(
            f"--also {path}: another person's face than in the reference; all clips show one person"
        )


def check_one_person(
    path: str | Path,
    frames: UInt8[Tensor, "f 3 h w"],
    track: FaceTrack,
    frame_rate_hz: int = FRAME_RATE_HZ,
) -> Float[Tensor, " d"] | None:
    """The person's mean embedding (None where no look shows a face). ValueError naming the second
    at which somebody else's face takes the place of the first."""
    looks = [i for i in range(0, len(frames), LOOK_EVERY) if bool(track.found[i])]
    if not looks:
        return None
    faces = embed_faces(frames[looks], track.landmarks[looks]).values
    who = first_person(faces, SAME_PERSON)
    if who.other is not None:
        at = first_frame_of_other(who, looks, faces, lambda i: embed_largest(frames[i]))
        raise ValueError(
            f"{path}: another person's face from {at / frame_rate_hz:.1f} s on; "
            "a reference shows one person: cut the clip there"
        )
    return who.face


def _read_frames(
    path: str | Path, video: VideoFormat, seconds: float
) -> tuple[UInt8[Tensor, "f 3 h w"], bool]:
    """4k + 1 frames: as many as there are, up to ``seconds``; and whether the file ended there."""
    from avatar_v.media import reading

    rate, side = video.frame_rate_hz, max(DETECT_SIDE, 2 * max(video.size))
    limit = TEMPORAL_FACTOR * round(seconds * rate / TEMPORAL_FACTOR) + 1
    lazily = reading.iter_video(path, max_side=side, frame_rate_hz=rate)
    frames = list(itertools.islice(lazily, limit))
    whole = TEMPORAL_FACTOR * ((len(frames) - 1) // TEMPORAL_FACTOR) + 1
    return torch.stack(frames[:whole]), len(frames) < limit


def _framed(
    frames: UInt8[Tensor, "f 3 h w"], found: FaceTrack | None, video: VideoFormat
) -> UInt8[Tensor, "f 3 _h _w"]:
    """Crops that follow the face ``found``; without one the centre."""
    height, width = frames.shape[2:]
    if found is None:
        windows = face_track.centre_windows(len(frames), height, width, video.aspect)
    else:
        windows = face_track.crop_windows(found, height, width, video.aspect, video.framing)
    return face_track.crop(frames, windows, video.size)


def _landmarks(
    frames: UInt8[Tensor, "f 3 h w"], found: FaceTrack, video: VideoFormat
) -> Float[Tensor, "f 68 2"]:
    """Those of the face ``found``, in [0, 1] of the crops that `_framed` gives."""
    size = frames.shape[2], frames.shape[3]
    windows = face_track.crop_windows(found, *size, video.aspect, video.framing)
    return face_track.in_windows(found.landmarks, windows, *size)


def _read_sound(
    path: str | Path, num_frames: int, frame_rate_hz: int, *, ended: bool
) -> tuple[Tensor | None, tuple[str, ...]]:
    """The sound of ``num_frames`` frames, and what is odd about it."""
    from avatar_v.media import reading

    info = reading.probe(path)
    if not info.has_audio:
        return None, () if num_frames == 1 else (f"{path} has no sound; only its picture is read",)
    rate, wanted = frame_rate_hz * SAMPLES_PER_FRAME, num_frames * SAMPLES_PER_FRAME
    most = wanted + round(2 * MAX_UNEQUAL_S * rate)
    samples, notes = reading.read_audio(path, max_samples=most, sample_rate_hz=rate), []
    missing_s = (wanted - len(samples)) / rate
    if missing_s > MAX_UNEQUAL_S:
        notes.append(f"{path}: its sound ends {missing_s:.1f} s before its picture; filled up")
    if ended and -missing_s > MAX_UNEQUAL_S:
        notes.append(f"{path}: its sound goes on behind its picture; left out")
    samples = high_passed(F.pad(samples, (0, max(0, wanted - len(samples))))[:wanted])
    assert isinstance(samples, Tensor)
    if float(samples.abs().max()) < SILENT_PEAK:
        notes.append(f"{path} is silent; how the person moves to speech cannot be read from it")
    return normalise_loudness(samples), tuple(notes)
