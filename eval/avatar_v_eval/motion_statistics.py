"""Three motion statistics with a meaning: mouth amplitude, blink rate and sway.

Each statistic of a track estimates one number of world/style.py, in its units. An estimate is at
best as good as that from the true motion of as many seconds; a blink is rare, so a few seconds tell
its rate badly however well they are read.
"""

import numpy as np
import torch
from jaxtyping import Float

from avatar_v.motion.habits import blink_rate_hz
from avatar_v.motion.stats import MotionStats
from avatar_v.motion.style import motion_moments, style_statistics
from avatar_v.motion.vectors import pack_motion
from avatar_v.types import MOTION_NAMES
from avatar_v.world.speech import frame_times_s, say
from avatar_v.world.style import HABIT_RANGES, sample_style
from avatar_v.world.viseme import mouth_shape
from avatar_v.world.voice import sample_voice

Motion = Float[np.ndarray, "f m"]

STATISTICS = {
    "mouth_amplitude": "mouth amplitude",
    "blink_rate_hz": "blink rate",
    "sway_yaw": "sway",
}
"""In words."""


def motion_statistics(motion: Motion, neutral: Float[np.ndarray, " f"]) -> dict[str, float]:
    """The statistics of a track; ``neutral`` is the mouth opening of its speech at amplitude 1."""

    def column(name: str) -> Float[np.ndarray, " f"]:
        return motion[:, MOTION_NAMES.index(name)]

    return {
        "mouth_amplitude": slope(neutral, column("mouth_open")),
        "blink_rate_hz": blink_rate_hz(column("eye_open")),
        "sway_yaw": spread(column("yaw")),
    }


def true_statistics(person_id: int) -> dict[str, float]:
    """The statistics that the motion of a drawn person was made with."""
    style = sample_style(person_id)
    return {name: getattr(style, name) for name in STATISTICS}


def neutral_opening(person_id: int, speech_id: int, num_frames: int) -> Float[np.ndarray, " f"]:
    """The mouth opening of a person's speech if their mouth amplitude were 1."""
    style = sample_style(person_id)
    speech = say(speech_id, sample_voice(person_id), style, num_frames)
    times_s = frame_times_s(num_frames)
    return mouth_shape(speech.phases, times_s, 1.0, style.lip_gesture, style.smoothing_s)[:, 0]


def slope(x: Float[np.ndarray, " f"], y: Float[np.ndarray, " f"]) -> float:
    """Of the least-squares line of y on x."""
    x = x - x.mean()
    return float(x @ (y - y.mean()) / (x @ x))


def best_blink_r(reference_s: float, generated_s: float) -> float:
    """Correlation over persons of blinks counted in a video with the rate of its person, for who
    knows of them as much as ``reference_s`` seconds tell, and blinks at random as people do.

    Rates are uniform in `HABIT_RANGES`, with variance S and mean m. A count over T seconds has the
    variance m / T besides, so that the best guess at a rate varies by w S, w = S / (S + m / T); and
    blinks counted in G seconds at that rate by m / G more.
    """
    low, high = HABIT_RANGES["blink_rate_hz"]
    mean, variance = (low + high) / 2, (high - low) ** 2 / 12
    if reference_s == 0:
        return 0.0
    guess = variance**2 / (variance + mean / reference_s)
    return float(guess / np.sqrt(variance * (guess + mean / generated_s)))


def random_blink_error(reference_s: float, generated_s: float) -> float:
    """Mean absolute difference of the rates counted in a true and a generated video, a second, for
    who blinks at random at the best guess (see `best_blink_r`; the errors add up to a normal one).

    It falls little: what a reference tells is small beside what chance does to two counts, and
    without chance in one of them it is smaller. Who blinks always at the mean rate of all people,
    evenly, is closer to the counts than a person is to themselves.
    """
    low, high = HABIT_RANGES["blink_rate_hz"]
    mean, variance = (low + high) / 2, (high - low) ** 2 / 12
    known = 0.0 if reference_s == 0 else variance / (variance + mean / reference_s)
    return float(np.sqrt(2 / np.pi * ((1 - known) * variance + 2 * mean / generated_s)))


def spread(x: Float[np.ndarray, " f"]) -> float:
    """The standard deviation that the quartiles suggest: a rare turn away does not count."""
    low, high = np.quantile(x, [0.25, 0.75])
    return float(high - low) / 1.349


def style_of(motion: Float[np.ndarray, "f m"], stats: MotionStats) -> Float[np.ndarray, " s"]:
    """The motion statistics that models read, of the last 4k + 1 vectors."""
    packed = pack_motion(torch.from_numpy(motion[3:]).float()[None], stats)
    moments = motion_moments(packed, torch.ones(packed.shape[:2], dtype=torch.bool), stats)
    return style_statistics(moments)[0].numpy()
