"""What reads motion from a clip, by name: the meter (drawn faces), landmarks (real), the reader
(both), or yours.

An extractor is any function of (square frames, face track or None) that gives types.MOTION_NAMES
per frame; one of a user's is named by its dotted path, ``package.module:function``.
"""

import importlib
import inspect
from collections.abc import Callable, Collection
from typing import cast

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.critics.motion import MotionMeter
from avatar_v.faces.face_reader import READ, FaceReader
from avatar_v.faces.face_track import FaceTrack
from avatar_v.faces.patches import from_68
from avatar_v.motion.landmarks import HABITS, KNOWN, head_pose, motion_from_landmarks
from avatar_v.types import MOTION_NAMES

Frames = UInt8[Tensor, "f 3 side side"]
Extractor = Callable[[Frames, FaceTrack | None], Float[Tensor, "f m"]]

AUTO, NONE = "auto", "none"
NAMES = (AUTO, NONE, "meter", "landmarks", "reader")
METER_HABITS = ("mouth_open", "jaw", "yaw", "pitch", "roll", "eye_open", "gaze_x")
"""Components in which the meter's reading of 16 s tells people apart as the truth does.
Of the others it knows a frame, but adds habits of its own (lips, teeth, tongue, brows)."""
POSE = ("yaw", "pitch", "roll")
READER_HABITS = ("mouth_open", "jaw", "gaze_x", "roll")
"""Components of which the reader's mean and spread tell drawn people apart as the true ones do: r
of .75 or more, chosen on the 32 people that eval/results/reader.json was measured on."""
READER_SIDE = 192  # pixels: the reader was trained on faces in squares of this size


def find_extractor(name: str, *, face_crop: bool, drawn: bool = False) -> Extractor | None:
    """The extractor of a name or dotted path; None for "none".

    "auto": for weights that know ``drawn`` people alone the shipped meter of drawn faces, whoever
    is read: what landmarks say of some components lies far outside of what such weights have seen.
    For others landmarks; the meter, too, without ``face_crop``, where there are none.
    ValueError for a name that there is not, a path that leads to nothing or tells habits of what
    motion does not have, and landmarks or the reader without cropping.
    """
    if name == AUTO:
        name = "meter" if drawn or not face_crop else "landmarks"
    if name == NONE:
        return None
    if name == "meter":
        return from_meter
    if name in ("landmarks", "reader"):
        if not face_crop:
            raise ValueError(f"--motion {name} needs the face track; drop --no-face-crop")
        return from_landmarks if name == "landmarks" else from_reader
    extractor = _imported(name)
    components(extractor)
    return extractor


def needs_track(extractor: Extractor | None) -> bool:
    """Whether it can read nothing where no face is followed."""
    return extractor in (from_landmarks, from_reader)


def square_side(extractor: Extractor | None, side: int) -> int:
    """Pixels of the squares that it reads, where those of the weights have ``side``."""
    return max(side, READER_SIDE) if extractor is from_reader else side


def components(extractor: Extractor) -> tuple[str, ...]:
    """In which components its reading of a clip tells a person's habits: of one of a user's its
    attribute ``habits``, or all. ValueError for ``habits`` that are not names of components."""
    if extractor is from_meter:
        return METER_HABITS
    if extractor is from_landmarks:
        return HABITS
    if extractor is from_reader:
        return READER_HABITS
    habits = getattr(extractor, "habits", MOTION_NAMES)
    if (
        isinstance(habits, str)
        or not isinstance(habits, Collection)
        or set(habits) - {*MOTION_NAMES}
    ):
        raise ValueError(
            f"--motion: the attribute habits of {extractor} is {habits!r}, expected a tuple of "
            f"names among {', '.join(MOTION_NAMES)}"
        )
    return tuple(habits)


def known(extractor: Extractor) -> tuple[str, ...]:
    """The components that it fills; all others it leaves at 0."""
    if extractor is from_landmarks:
        return KNOWN
    return (*READ, *POSE) if extractor is from_reader else MOTION_NAMES


def extract(extractor: Extractor, frames: Frames, track: FaceTrack | None) -> Float[Tensor, "f m"]:
    """The motion of every frame; ValueError unless it has one row a frame of finite numbers.

    What an extractor of one's own raises becomes a ValueError that names it.
    """
    try:
        motion = extractor(frames, track)
    except ValueError:
        raise
    except Exception as error:
        name = getattr(extractor, "__name__", repr(extractor))
        text = f"--motion: {name} failed, {type(error).__name__}: {error}"
        raise ValueError(text) from error
    shape = (len(frames), len(MOTION_NAMES))
    given = tuple(motion.shape) if isinstance(motion, Tensor) else type(motion).__name__
    if given != shape or not bool(torch.isfinite(motion).all()):
        raise ValueError(
            f"the motion extractor gave {given}, expected {shape} finite numbers: "
            f"one row a frame of {', '.join(MOTION_NAMES)}"
        )
    return motion.float()


def from_meter(frames: Frames, track: FaceTrack | None) -> Float[Tensor, "f m"]:
    """The shipped MotionMeter's reading, a frame at a time."""
    return MotionMeter.from_pretrained().measure(frames).values


def from_landmarks(frames: Frames, track: FaceTrack | None) -> Float[Tensor, "f m"]:
    """From the 68 landmarks of the track; what they cannot tell is 0. ValueError without one."""
    if track is None:
        raise ValueError("landmarks need a face track")
    # Landmarks are fractions of the square the face was tracked in, so no aspect to undo.
    return motion_from_landmarks(track.landmarks, track.found)


def from_reader(frames: Frames, track: FaceTrack | None) -> Float[Tensor, "f m"]:
    """The shipped FaceReader's reading around the track's landmarks, and the pose of those; frames
    without a face and what neither tells are 0. ValueError without a track."""
    if track is None:
        raise ValueError("the reader needs a face track")
    motion = torch.zeros(len(frames), len(MOTION_NAMES))
    if not track.found.any():
        return motion
    seen, landmarks = frames[track.found].float() / 127.5 - 1, track.landmarks[track.found]
    read = FaceReader.from_pretrained().measure(seen, from_68(landmarks * frames.shape[-1]))
    columns = [MOTION_NAMES.index(name) for name in (*READ, *POSE)]
    motion[track.found.nonzero(), columns] = torch.cat([read, head_pose(landmarks)], dim=1)
    return motion


def _imported(path: str) -> Extractor:
    module, colon, function = path.partition(":")
    if not colon:
        raise ValueError(
            f"--motion {path}: there are {', '.join(NAMES)}; your own is package.module:function"
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"--motion {path}: cannot be imported ({error})") from error
    if not callable(found) or inspect.isclass(found):  # a class makes objects of its own, no motion
        raise ValueError(f"--motion {path} is no function")
    try:
        inspect.signature(found).bind(None, None)
    except (TypeError, ValueError) as error:
        text = f"--motion {path}: a motion extractor takes (frames, track); here {error}"
        raise ValueError(text) from error
    return cast(Extractor, found)
