"""What reads motion from a face: the reader, landmarks and the meter, of drawn and filmed people.

Drawn: r with the truth over each clip, mean over TEST persons. Filmed (``--real``): r with dlib's
landmarks, for what these tell; n is the number of clips, and the reader was trained on none.
Habits: does the mean or the spread of a clip tell drawn people apart as the truth does? r over
persons.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base.progress import track
from avatar_v.faces.dlib_face import weights_hash
from avatar_v.faces.face_reader import FaceReader
from avatar_v.faces.face_track import FaceTrack, cropped_track, face_crop, track_faces
from avatar_v.media.reading import read_video
from avatar_v.motion.extractors import (
    READER_SIDE,
    from_landmarks,
    from_meter,
    from_reader,
    known,
)
from avatar_v.scoring.sampling import pearson
from avatar_v.types import MOTION_NAMES
from avatar_v_eval.cases import add_case_options, cases_note, drawn_clips, rendered_video
from avatar_v_eval.intervals import jackknife, mean_interval
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

READERS = {"reader": from_reader, "landmarks": from_landmarks, "meter": from_meter}
DRAWN = ("mouth_open", "mouth_width", "teeth", "jaw", "yaw", "eye_open", "gaze_x", "gaze_y", "brow")
REAL = ("mouth_open", "eye_open", "brow")

Rows = dict[str, list[float]]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=32, frames=101)
    add = parser.add_argument
    add("--size", type=int, default=128, help="height and width of the drawn clips in pixels")
    add("--real", nargs="+", default=[], help="videos of real faces")
    add("--real-frames", type=int, default=201, help="of each video, at most")


def measure(options: argparse.Namespace) -> Findings:
    torch.set_num_threads(1)
    rows: Rows = {}
    lost, read_clips, true_clips = 0, [], []
    for i in track(range(options.persons), "drawn people"):
        (clip,) = drawn_clips(
            options.split, 1, first=options.first + i, num_frames=options.frames, size=options.size
        )
        found = track_faces(rendered_video(clip))
        if not found.found.any():
            lost += 1
            continue
        frames, seen = cropped(rendered_video(clip), found)
        for name, read in READERS.items():
            motion = read(frames, seen)
            compare(rows, f"drawn_{name}", motion, clip.motion, DRAWN)
            if name == "reader":
                read_clips.append(motion.double().numpy())
                true_clips.append(clip.motion.double().numpy())
    for path in track(options.real, "filmed people"):
        video = read_video(path, max_frames=options.real_frames)
        found = track_faces(video)
        if not found.found.any():
            raise ValueError(f"{path}: no face is found")
        frames, seen = cropped(video, found)
        truth = from_landmarks(frames, seen)
        for name in ("reader", "meter"):
            compare(rows, f"real_{name}", READERS[name](frames, seen), truth, REAL)
    numbers = {key: described(key, values) for key, values in rows.items()}
    numbers |= habits(read_clips, true_clips)
    notes = [
        cases_note(options, f" at {options.size} px, one clip each; faces are found by dlib"),
        f"drawn clips in which no face was found: {lost}",
        "filmed: "
        + ", ".join(
            f"{Path(path).stem} (lids {lids:.2f}, mouth {mouth:.2f})"
            for path, lids, mouth in zip(
                options.real,
                rows.get("real_reader_eye_open", []),
                rows.get("real_reader_mouth_open", []),
                strict=True,
            )
        ),
    ]
    weights = {"reader": FaceReader.from_pretrained().hash(), "dlib": weights_hash()}
    return Findings("What reads motion from a face", numbers, weights=weights, notes=notes)


def cropped(
    video: UInt8[Tensor, "f 3 h w"], found: FaceTrack
) -> tuple[UInt8[Tensor, "f 3 s s"], FaceTrack]:
    """The head in squares of the reader's size, and its track within them."""
    height, width = video.shape[2:]
    return face_crop(video, found, READER_SIDE), cropped_track(found, height, width)


def compare(
    rows: Rows,
    key: str,
    read: Float[Tensor, "f m"],
    truth: Float[Tensor, "f m"],
    names: tuple[str, ...],
) -> None:
    """Adds r of every component that the reading has anything to say of."""
    for name in names:
        column = MOTION_NAMES.index(name)
        one, other = (np.asarray(x[:, column], np.float64) for x in (read, truth))
        if one.any():
            rows.setdefault(f"{key}_{name}", []).append(pearson(one, other))


def habits(read: list[np.ndarray], truth: list[np.ndarray]) -> dict[str, Number]:
    """r over persons of each component's mean and spread."""
    numbers = {}
    for name in known(from_reader):
        column = MOTION_NAMES.index(name)
        for what, of in (("mean", np.mean), ("spread", np.std)):
            one, other = (np.array([of(x[:, column]) for x in clips]) for clips in (read, truth))
            numbers[f"habit_{name}_{what}"] = jackknife(
                lambda index, one=one, other=other: pearson(one[index], other[index]), len(one)
            ).described(f"habit, {what} of {name.replace('_', ' ')}: r over drawn people")
    return numbers


def described(key: str, values: list[float]) -> Number:
    people, reader, component = key.split("_", 2)
    who = "drawn people, truth" if people == "drawn" else "filmed people, dlib's landmarks"
    asked = "≥ 0.85" if key == "real_reader_eye_open" else ""
    return mean_interval(np.array(values)).described(
        f"{component.replace('_', ' ')}, r by the {reader}: {who}", target=asked
    )
