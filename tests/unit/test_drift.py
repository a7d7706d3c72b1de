"""The seams and courses of long videos, on numbers whose answer is known."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from avatar_v_eval.drift import (
    PLACES,
    SEAMS,
    TRACKS,
    Course,
    borders_of,
    change_ratio,
    gains_of,
    numbers_of,
    save_frames,
)

FRAMES = torch.arange(12 * 3 * 16 * 16).reshape(12, 3, 16, 16).to(torch.uint8)


def test_borders_are_the_first_frames_of_later_chunks() -> None:
    # 13 latents are 49 frames; each later chunk brings 11 new latents, 44 frames
    assert borders_of(49 + 44 + 10, chunk_latents=13) == [49, 93]
    assert borders_of(49, chunk_latents=13) == []


def test_a_seam_is_the_change_into_the_first_frame_of_a_chunk() -> None:
    change = np.ones(100)
    change[48] = change[92] = 3.0  # from frame 48 to 49, and from 92 to 93
    assert change_ratio(change, [49, 93]) == 3.0
    assert change_ratio(change, [50, 94]) == 1.0
    assert change_ratio(np.ones(100), [49, 93]) == 1.0
    rough = np.array([1.0, 1.0, 9.0, 9.0, 9.0, 2.0])
    assert change_ratio(rough, [6]) == pytest.approx(2 / 9)
    assert change_ratio(rough, [6], left_out=[3, 4, 5]) == 2.0


def seams() -> dict[str, float]:
    return {f"{place}_{seam}": 1.1 for place in PLACES for seam in SEAMS}


def test_a_gain_is_paired_over_persons() -> None:
    """Persons differ by more than ways do."""
    tracks = {"plain": np.array([0.0, 1.0, 2.0]), "anchor": np.array([0.2, 1.2, 2.2])}
    courses = {
        way: [
            Course(dict.fromkeys(TRACKS, np.array([9.0, last])), seams(), FRAMES) for last in values
        ]
        for way, values in tracks.items()
    }
    gain = gains_of(courses)["anchor_identity_gain"]
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.2, 0.2, 0.2))
    assert gains_of({"anchor": courses["anchor"]}) == {}


def test_change_is_paired_and_minutes_are_means() -> None:
    courses = []
    for start in (0.0, 1.0, 2.0, 3.0):
        track = start + np.array([0.0, 0.0, 0.0, -0.3, -0.3, -0.3])
        courses.append(Course(dict.fromkeys(TRACKS, track), seams(), FRAMES))
    numbers = numbers_of({"plain": courses})
    assert numbers["plain_identity_change"].value == pytest.approx(-0.3)
    assert numbers["plain_identity_change"].high == pytest.approx(-0.3)
    assert numbers["plain_identity_minute_1"].value == pytest.approx(1.5)
    assert numbers["plain_identity_minute_2"].value == pytest.approx(1.2)
    assert numbers["plain_seam_motion"].met


def test_frames_are_drawn_in_a_row_for_each_way(tmp_path: Path) -> None:
    track = dict.fromkeys(TRACKS, np.array([1.0, 2.0]))
    one = {"plain": [Course(track, seams(), FRAMES)]}
    two = {**one, "anchor": [Course(track, seams(), 255 - FRAMES)]}
    heights = []
    for courses in (one, two):
        save_frames(tmp_path / "frames.png", courses, 1.0)
        with Image.open(tmp_path / "frames.png") as picture:
            heights.append(picture.height)
    assert heights[1] > 1.5 * heights[0]
