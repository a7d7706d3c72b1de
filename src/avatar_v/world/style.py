"""How a person moves and speaks: the same in every scene, and independent of how the person looks.

Nothing here shows in a neutral frame (motion zero, eyes open): all acts through motion or time.
"""

import dataclasses
from dataclasses import dataclass

import numpy as np

from avatar_v.base.seeds import stream
from avatar_v.world.splits import split_of


@dataclass(frozen=True)
class Habits:
    """Habits of one person. Angles in radians, rates in events a second, durations in seconds."""

    person_id: int
    mouth_amplitude: float  # factor on the opening
    lip_gesture: float  # factor on width and rounding
    smoothing_s: float  # how lazily the lips follow (standard deviation of a Gaussian)
    smile_rate_hz: float
    smile_amount: float  # corner raise at the top of a smile
    smile_asymmetry: float  # left minus right, in proportion to the smile
    speaking_rate: float  # factor on speed
    pause_rate: float  # probability of a pause inside a sentence
    pause_length: float  # factor on pauses
    filler_rate: float  # probability of "um" and the like in a pause
    sway_hz: float
    sway_yaw: float
    sway_pitch: float
    sway_roll: float
    nod_on_stress: float  # pitch of a nod at full stress
    blink_rate_hz: float
    blink_duration_s: float
    brow_on_stress: float  # brow raise at full stress
    gaze_away_rate_hz: float
    gaze_away_amount: float
    gaze_side: float  # -1 always left … 1 always right


STYLE_NAMES = tuple(field.name for field in dataclasses.fields(Habits))[1:]

HABIT_RANGES = {
    "mouth_amplitude": (0.65, 1.25),
    "lip_gesture": (0.6, 1.1),
    "smoothing_s": (0.0, 0.025),
    "smile_rate_hz": (0.02, 0.16),
    "smile_amount": (0.25, 0.9),
    "smile_asymmetry": (-0.6, 0.6),
    "speaking_rate": (0.8, 1.2),
    "pause_rate": (0.1, 0.9),
    "pause_length": (0.6, 1.5),
    "filler_rate": (0.0, 0.4),
    "sway_hz": (0.1, 0.45),
    "sway_yaw": (0.03, 0.22),
    "sway_pitch": (0.015, 0.08),
    "sway_roll": (0.01, 0.10),
    "nod_on_stress": (-0.03, 0.16),
    "blink_rate_hz": (0.15, 0.7),
    "blink_duration_s": (0.12, 0.32),
    "brow_on_stress": (-0.15, 0.9),
    "gaze_away_rate_hz": (0.05, 0.5),
    "gaze_away_amount": (0.3, 0.9),
    "gaze_side": (-1.0, 1.0),
}
"""Of each habit over persons, who have it uniformly."""


def sample_style(person_id: int) -> Habits:
    """The style of a person; each habit is drawn uniformly, from a stream of its own."""
    split_of(person_id)
    rng = stream("style", person_id)
    return Habits(person_id, *(float(rng.uniform(*HABIT_RANGES[name])) for name in STYLE_NAMES))


def style_vector(style: Habits) -> np.ndarray:
    """Habits in the order of STYLE_NAMES, each scaled from its range to [-1, 1]."""
    values = []
    for name, value in zip(STYLE_NAMES, dataclasses.astuple(style)[1:], strict=True):
        low, high = HABIT_RANGES[name]
        values.append(2 * (value - low) / (high - low) - 1)
    return np.array(values, dtype=np.float32)
