"""The shared part of several scorers: from the rows of a critic to the numbers of a clip."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.sync import MAX_SHIFT, SyncCritic, distance_table, embed_stream, sync_score
from avatar_v.faces.face_track import FaceTrack
from avatar_v.motion.habits import blink_rate_hz, spread
from avatar_v.scoring.clip import Footage, Waveform
from avatar_v.scoring.pictures import Frames
from avatar_v.scoring.sampling import first_minus_last, trimmed_mean
from avatar_v.scoring.values import ScoreOutput, Values
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES

Motion = Float[np.ndarray, "f m"]

STYLE_SPREADS = ("mouth_open", "yaw", "pitch", "roll")
"""Components whose spread is a habit and which the meters can read."""
EYE_OPEN = MOTION_NAMES.index("eye_open")
STYLE = [*map(MOTION_NAMES.index, STYLE_SPREADS), EYE_OPEN]
"""All that a style is read of."""
SPREAD_FLOOR = 0.01  # radians or openings: below, two spreads count as one


def sync_outputs(prefix: str, judge: str) -> tuple[ScoreOutput, ScoreOutput, ScoreOutput]:
    """The three numbers of `sync_reading`."""
    return (
        ScoreOutput(f"{prefix}_c", f"Sync-C, {judge}", "higher"),
        ScoreOutput(f"{prefix}_d", f"Sync-D, {judge}", "lower"),
        ScoreOutput(f"{prefix}_offset", f"sync offset, {judge}", "zero", "frames"),
    )


def sync_reading(
    prefix: str, critic: SyncCritic, faces: Iterable[Frames], num_frames: int, sound: Waveform
) -> Values:
    """Sync-C, Sync-D and offset of ``num_frames`` faces, some at a time; per frame the distance of
    picture and sound as they are."""
    table = distance_table(*embed_stream(critic, faces, num_frames, sound))
    score = sync_score(table)
    return Values(
        {
            f"{prefix}_c": score.confidence,
            f"{prefix}_d": score.distance,
            f"{prefix}_offset": float(score.offset),
        },
        {f"{prefix}_d": list(enumerate(table[:, MAX_SHIFT].tolist()))},
    )


def likeness_outputs(key: str, what: str, judge: str) -> tuple[ScoreOutput, ScoreOutput]:
    """Both numbers of `face_reading`, where more is better."""
    return (
        ScoreOutput(key, f"{what}, {judge}", "higher"),
        ScoreOutput(f"{key}_drift", f"{what} lost, first quarter to last", "zero"),
    )


def face_reading(
    key: str, values: Sequence[float], frames: Sequence[int], notes: tuple[str, ...] = ()
) -> Values:
    """Of likeness in sampled frames: the trimmed mean, and first quarter less last (``_drift``)."""
    return Values(
        {key: trimmed_mean(values), f"{key}_drift": first_minus_last(values)},
        {key: list(zip(frames, values, strict=True))},
        notes,
    )


def mean_direction(rows: Float[Tensor, "n d"]) -> Float[Tensor, " d"]:
    """One unit vector for several embeddings."""
    return F.normalize(rows.mean(0), dim=-1)


def read_motion(meter: MotionMeter, footage: Footage) -> Motion:
    """The motion of every frame, as the meter reads it of the centre square."""
    return footage.squares.each(lambda x: meter.measure(x).values).double().cpu().numpy()


def style_distance(motion: Motion, reference: Float[np.ndarray, "r m"]) -> float:
    """The distance of the motion of two clips, from 0: the mean over habits of |a - b| / (a + b).

    Habits are the spreads of ``STYLE_SPREADS`` and the blink rate (style.py), none of which asks
    what is said. A spread has `SPREAD_FLOOR` and a rate one blink of the shorter clip added below,
    so that readings near zero count as alike. ValueError below 1 s.
    """
    shorter = min(len(motion), len(reference))
    if shorter < FRAME_RATE_HZ:
        raise ValueError(f"a style needs 1 s of motion ({FRAME_RATE_HZ} frames), got {shorter}")
    habits = []
    for column in STYLE[:-1]:
        a, b = spread(motion[:, column]), spread(reference[:, column])
        habits.append(abs(a - b) / (a + b + SPREAD_FLOOR))
    a, b = blink_rate_hz(motion[:, EYE_OPEN]), blink_rate_hz(reference[:, EYE_OPEN])
    habits.append(abs(a - b) / (a + b + FRAME_RATE_HZ / shorter))
    return float(np.mean(habits))


def at_scene_size(frames: Frames, image: UInt8[Tensor, "3 _h _w"]) -> UInt8[Tensor, "f 3 _a _b"]:
    """Larger pictures reduced to the scene image's size, so that resolution is not a merit.

    Smaller ones stay: what they lack is theirs.
    """
    if frames.shape[2] <= image.shape[1]:
        return frames
    small = [
        F.interpolate(x[None].float(), image.shape[1:], mode="bilinear", antialias=True)[0]
        for x in frames
    ]
    return torch.stack([x.round().clamp(0, 255).to(torch.uint8) for x in small])


def longest_run(track: FaceTrack) -> tuple[int, int]:
    """First and one past the last frame of the longest run in which the face was found."""
    best, begin = (0, 0), 0
    for index, found in enumerate([*track.found.tolist(), False]):
        if found:
            continue
        if index - begin > best[1] - best[0]:
            best = begin, index
        begin = index + 1
    return best


def face_notes(footage: Footage) -> tuple[str, ...]:
    """Odd facts about the faces of a real video."""
    num = footage.track.num_faces
    return (f"{num} faces in one picture: the largest is scored",) if num > 1 else ()
