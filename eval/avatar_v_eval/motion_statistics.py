"""Three motion statistics with a meaning: mouth amplitude, blink rate and sway.

Each statistic of a track estimates one number of world/style.py, in its units. An estimate is at
best as good as that from the true motion of as many seconds; a blink is rare, so a few seconds tell
its rate badly however well they are read.
"""

import numpy as np
import torch
from jaxtyping import Float

from avatar_v.motion.habits import blink_rate_hz, slope, spread
from avatar_v.types import MOTION_NAMES
from avatar_v.world.speech import frame_times_s, say
from avatar_v.world.style import sample_style
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
        "mouth_amplitude": float(slope(*map(torch.as_tensor, (neutral, column("mouth_open"))))),
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
