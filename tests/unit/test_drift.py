"""The seams and courses of long videos, on numbers whose answer is known."""

import numpy as np
import pytest

from avatar_v_eval.protocol import Readings
from avatar_v_eval.studies.drift import (
    PLACES,
    SEAMS,
    SILENT,
    TRACKS,
    VARIANTS,
    change_ratio,
    chunk_borders,
    memory_growth,
    speaks,
    summarise_drift,
    tracks_of,
    windows,
)
from avatar_v_eval.studies.drift_figures import draw_courses, draw_frames

FRAMES = np.arange(12 * 3 * 16 * 16).reshape(12, 3, 16, 16).astype(np.uint8)


def reading(track: list[float], frames: np.ndarray = FRAMES) -> dict:
    """A person with one course in all tracks."""
    seams = {f"{place}_{seam}": 1.1 for place in PLACES for seam in SEAMS}
    return {**dict.fromkeys(TRACKS, np.array(track)), **seams, "frames": frames}


def test_borders_are_the_first_frames_of_later_chunks() -> None:
    # 13 latents are 49 frames; each later chunk brings 11 new latents, 44 frames
    assert chunk_borders(49 + 44 + 10, chunk_latents=13) == [49, 93]
    assert chunk_borders(49, chunk_latents=13) == []


def test_a_seam_is_the_change_into_the_first_frame_of_a_chunk() -> None:
    change = np.ones(100)
    change[48] = change[92] = 3.0  # from frame 48 to 49, and from 92 to 93
    assert change_ratio(change, [49, 93]) == 3.0
    assert change_ratio(change, [50, 94]) == 1.0
    assert change_ratio(np.ones(100), [49, 93]) == 1.0
    rough = np.array([1.0, 1.0, 9.0, 9.0, 9.0, 2.0])
    assert change_ratio(rough, [6]) == pytest.approx(2 / 9)
    assert change_ratio(rough, [6], left_out=[3, 4, 5]) == 2.0


def test_a_gain_is_paired_over_persons() -> None:
    """Persons differ by more than ways do."""
    lasts = {"plain": [0.0, 1.0, 2.0], "anchor": [0.2, 1.2, 2.2]}
    rows = {way: [reading([9.0, last]) for last in values] for way, values in lasts.items()}
    gain = summarise_drift(Readings(rows))["anchor_identity_gain"]
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.2, 0.2, 0.2))
    alone = summarise_drift(Readings({"anchor": rows["anchor"]}))
    assert "anchor_identity_gain" not in alone


def test_systems_are_compared_with_the_first_of_them() -> None:
    """At the end, and over all of the video."""
    rows = {"clean": [reading([1.0, 0.0]), reading([2.0, 1.0])],
            "less": [reading([1.5, 0.1]), reading([2.5, 1.1])]}  # fmt: skip
    words = {"clean": "a name of a variant", "less": "less"}
    found = summarise_drift(Readings(rows), words, base="clean")
    assert found["less_identity_gain"].value == pytest.approx(0.1)
    assert found["less_identity_over"].value == pytest.approx(0.3)
    assert found["less_identity_over"].label == (
        "face similarity with the reference, all: less over a name of a variant"
    )
    assert not any(key.startswith("clean") and key.endswith(("gain", "over")) for key in found)


def test_change_is_paired_and_minutes_are_means() -> None:
    rows = [reading([s, s, s, s - 0.3, s - 0.3, s - 0.3]) for s in (0.0, 1.0, 2.0, 3.0)]
    numbers = summarise_drift(Readings({"plain": rows}))
    assert numbers["plain_identity_change"].value == pytest.approx(-0.3)
    assert numbers["plain_identity_change"].high == pytest.approx(-0.3)
    assert numbers["plain_identity_minute_1"].value == pytest.approx(1.5)
    assert numbers["plain_identity_minute_2"].value == pytest.approx(1.2)
    assert numbers["plain_seam_motion"].met


def test_who_is_silent_in_turns_is_read_by_halves_of_windows() -> None:
    """The lips follow the truth where it speaks, and rest where it is silent."""
    said, true = speaks(1_000), np.sin(np.arange(1_000.0))
    assert said[:250].all()
    assert not said[250:500].any()
    values = np.zeros((1_000, 6))
    values[:, 1] = np.where(said, true, 0.1 * true)
    tracks = windows(values, true, turns=True)
    assert tracks["mouth"] == pytest.approx([1, 1])
    assert tracks[SILENT] == pytest.approx([0.1, 0.1], abs=1e-3)
    assert windows(values, true)["mouth"][0] < 0.99


def test_memory_grows_from_the_second_window_on() -> None:
    held = np.array([[50.0, 100, 110, 105], [50.0, 100, 90, 130]])
    assert memory_growth(held).value == pytest.approx(1.2)
    assert not memory_growth(held).met


def test_of_long_videos_some_windows_are_numbers() -> None:
    rows = [reading([float(i) for i in range(60)]), reading([float(i) for i in range(60)])]
    numbers = summarise_drift(Readings({"anchor": rows}))
    assert numbers["anchor_mouth_at_100"].value == 5
    assert numbers["anchor_mouth_at_1000"].value == 50
    assert "anchor_mouth_minute_1" not in numbers
    assert "anchor_mouth_at_10000" not in numbers
    readings = Readings({"anchor": rows})
    axes = draw_courses(readings, {"anchor": "x"}, tracks_of(readings)).axes
    assert np.asarray(axes[0].lines[0].get_ydata())[-1] == 59


def test_a_stream_of_hours_has_a_trend_even_of_one_person() -> None:
    """The interval is over its pieces: how they differ from the line, and not how windows do."""
    pieces = np.random.default_rng(1).normal(0, 0.05, 17).repeat(30)
    course = 0.5 - 0.06 * np.arange(510) * 20 / 3600 + pieces
    numbers = summarise_drift(Readings({"anchor": [reading([*course])]}))
    trend, last = numbers["anchor_identity_trend"], numbers["anchor_identity_last"]
    assert trend.n == 17
    assert trend.low is not None
    assert trend.high is not None
    assert trend.low < -0.06 < trend.high
    assert 0.03 < trend.high - trend.low < 0.12
    assert (last.value, last.low) == (course[-1], None)
    assert "anchor_identity_at_10000" in numbers
    short = summarise_drift(Readings({"anchor": [reading([*course[:60]])]}))
    assert "anchor_identity_trend" not in short


def test_frames_are_drawn_in_a_row_for_each_way() -> None:
    rows = {
        "plain": [reading([1.0, 2.0])],
        "anchor": [reading([1.0, 2.0], 255 - FRAMES)],
    }
    words = {name: VARIANTS[name] for name in rows}
    axes = draw_frames(Readings(rows), words, 1.0).axes
    assert len(axes) == 2 * 12
    first, second = (axes[at].images[0].get_array() for at in (0, 12))
    assert first is not None
    assert second is not None
    assert (first == FRAMES[0].transpose(1, 2, 0)).all()
    assert (second == 255 - first).all()
    assert axes[0].get_ylabel() == "prefix"
    assert axes[-1].get_xlabel() == "60 s"
