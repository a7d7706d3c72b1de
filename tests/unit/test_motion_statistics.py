"""Motion statistics of tracks, against the persons that the tracks were made with."""

import numpy as np
import pytest

from avatar_v.motion.habits import blink_rate_hz
from avatar_v.types import MOTION_NAMES
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES
from avatar_v.world.style import sample_style
from avatar_v_eval.motion_statistics import motion_statistics, neutral_opening

PERSONS = tuple(RANGES["validation"][i] for i in range(4))


@pytest.mark.parametrize("person", PERSONS)
def test_mouth_amplitude_is_that_of_the_style(person: int) -> None:
    clip = make_clip(person, person, person + 9, num_frames=101, size=64, render_video=False)
    read = motion_statistics(clip.motion.numpy(), neutral_opening(person, person + 9, 101))
    assert read["mouth_amplitude"] == pytest.approx(sample_style(person).mouth_amplitude, abs=0.06)


def test_blinks_are_counted_and_half_closed_eyes_are_not() -> None:
    eyes = np.ones(250)
    for frame in (30, 100, 180):
        eyes[frame : frame + 5] = [0.5, 0.0, 0.0, 0.4, 0.8]
    eyes[60:70] = 0.8
    assert blink_rate_hz(eyes) == pytest.approx(0.3)


def test_a_rare_turn_is_no_sway() -> None:
    """Of a head that sways, and turns away once for 5 % of the time: the sway stays as it was,
    and the standard deviation would not."""
    motion = np.zeros((400, len(MOTION_NAMES)))
    yaw = motion[:, MOTION_NAMES.index("yaw")]
    yaw[:] = 0.1 * np.sin(np.arange(400) / 6)
    opening = np.sin(np.arange(400))
    still, deviation = motion_statistics(motion, opening)["sway_yaw"], yaw.std()
    yaw[100:120] += 1.15
    assert motion_statistics(motion, opening)["sway_yaw"] == pytest.approx(still, rel=0.15)
    assert yaw.std() > 2.5 * deviation


def test_sway_is_in_standard_deviations() -> None:
    """Of a normal track, with 40,000 draws: the quartiles' error is 0.4 %, four of them are 2 %."""
    motion = np.random.default_rng(0).normal(3, 0.2, (40_000, len(MOTION_NAMES)))
    sway = motion_statistics(motion, np.sin(np.arange(40_000)))["sway_yaw"]
    assert sway == pytest.approx(0.2, rel=0.02)
