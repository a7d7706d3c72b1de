"""What reads motion from a clip, by name: the meter (drawn faces), landmarks (real), or yours.

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
from avatar_v.faces.face_track import FaceTrack
from avatar_v.motion.landmarks import HABITS, motion_from_landmarks
from avatar_v.types import MOTION_NAMES

Frames = UInt8[Tensor, "f 3 side side"]
Extractor = Callable[[Frames, FaceTrack | None], Float[Tensor, "f m"]]

AUTO, NONE = "auto", "none"
NAMES = (AUTO, NONE, "meter", "landmarks")
METER_HABITS = ("mouth_open", "jaw", "yaw", "pitch", "roll", "eye_open", "gaze_x")
"""Components in which the meter's reading of 16 s tells people apart as the truth does.
Of the others it knows a frame, but adds habits of its own (lips, teeth, tongue, brows)."""


def find_extractor(name: str, *, face_crop: bool, drawn: bool = False) -> Extractor | None:
    """The extractor of a name or dotted path; None for "none".

    "auto": for weights that know ``drawn`` people alone the shipped meter of drawn faces, whoever
    is read: what landmarks say of some components lies far outside of what such weights have seen.
    For others landmarks; the meter, too, without ``face_crop``, where there are none.
    ValueError for a name that there is not, a path that leads to nothing or tells habits of what
    motion does not have, and landmarks without cropping.
    """
    if name == AUTO:
        name = "meter" if drawn or not face_crop else "landmarks"
    if name == NONE:
        return None
    if name == "meter":
        return from_meter
    if name == "landmarks":
        if not face_crop:
            raise ValueError("--motion landmarks needs the face track; drop --no-face-crop")
        return from_landmarks
    extractor = _imported(name)
    components(extractor)
    return extractor


def components(extractor: Extractor) -> tuple[str, ...]:
    """In which components its reading of a clip tells a person's habits: of one of a user's its
    attribute ``habits``, or all. ValueError for ``habits`` that are not names of components."""
    if extractor is from_meter:
        return METER_HABITS
    if extractor is from_landmarks:
        return HABITS
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
