"""eval/motion_stream.py and what personality.py says of followed motion."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from avatar_v.types import MOTION_NAMES
from avatar_v_eval import motion_stream
from avatar_v_eval.motion_stream import Mover, make_movers, numbers
from avatar_v_eval.personality import Score, followed_numbers, scene_distance
from avatar_v_eval.shown import make_shown_cases
from avatar_v_eval.style import HABITS

WORDS = {"video": "16 s", "baseline": "others"}


@pytest.fixture(scope="module")
def movers() -> list[Mover]:
    return make_movers("validation", 6, first=30, num_frames=101, reference_frames=101)


def test_they_are_the_persons_of_the_shown_cases(movers: list[Mover]) -> None:
    (case,) = make_shown_cases("validation", 1, first=30, num_frames=13, reference_frames=101)
    mover = make_movers("validation", 1, first=30, num_frames=13, reference_frames=101)[0]
    assert (mover.person_id, mover.prompt) == (case.person_id, case.prompt)
    assert torch.equal(mover.motion, case.motion)
    assert case.reference.motion is not None
    assert torch.equal(mover.shown, case.reference.motion)
    assert mover.person_id == movers[0].person_id


def test_who_moves_as_the_truth_has_no_error_and_still_people_have_no_habits(
    movers: list[Mover],
) -> None:
    truth = [mover.motion.double().numpy() for mover in movers]
    still = [np.tile(track[:1], (len(track), 1)) for track in truth]
    found = numbers(movers, {"truth": truth, "video": truth, "baseline": still}, WORDS, "video")
    for habit in HABITS:
        assert found[f"{habit}_video"].value == found[f"{habit}_truth"].value
        assert found[f"{habit}_video_error"].value == 0
        assert found[f"{habit}_baseline"].value == 0
    amplitude = found["mouth_amplitude_over_baseline"]
    assert amplitude.value == pytest.approx(found["mouth_amplitude_video"].value)
    assert amplitude.value > 0.5
    assert found["sway_yaw_baseline_error"].value > 0.01


def test_the_command_writes_a_result(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = "--split validation --first 30 --persons 4 --frames 13 --steps 1 --name few --batch 3"
    motion_stream.main([*words.split(), "--out", str(tmp_path)])
    result = json.loads((tmp_path / "motion_stream_few.json").read_text())
    assert result["numbers"]["sway_yaw_video"]["n"] == 4
    best = [result["numbers"][f"blink_rate_hz_{of}_at_best"]["value"] for of in ("image", "video")]
    assert 0 < best[0] < best[1] < 0.1, "of 16 s much is known, but half a second hardly shows it"
    assert any("motion before the video" in note for note in result["notes"])
    assert "blink rate, r over persons: one reference frame" in capsys.readouterr().out


def test_a_scene_is_as_far_as_its_corners() -> None:
    true = torch.full((30, 3, 64, 64), 100, dtype=torch.uint8)
    moved = true.clone()
    moved[:, :, 16:] = 0  # the person, and what is below
    assert scene_distance(moved, true) == 0
    moved[-25:, 0, :16, :10] += 60  # one of two corners, one of three colours
    assert scene_distance(moved, true) == pytest.approx(10)
    moved[:5] = 0
    assert scene_distance(moved, true) == pytest.approx(10), "the last second alone"


def test_followed_motion_is_a_mean_over_persons() -> None:
    def score(r: float, slope: float) -> Score:
        followed = {name: (r, slope) for name in ("mouth_open", "eye_open", "yaw")}
        return Score({}, {}, 0.0, 0.0, 0.0, 0.0, np.zeros(1), followed)

    blind = Score({}, None, 0.0, 0.0, 0.0, 0.0, np.zeros(1), {})
    found = followed_numbers(
        {"video": [score(0.8, 1.0), score(0.6, 0.5)], "truth": [blind] * 2}, {"video": "16 s"}
    )
    assert set(found) == {
        f"followed_{name}_{kind}_video"
        for name in ("mouth_open", "eye_open", "yaw")
        for kind in ("r", "slope")
    }
    assert set(MOTION_NAMES) > {"mouth_open", "eye_open", "yaw"}
    assert found["followed_yaw_r_video"].value == pytest.approx(0.7)
    assert found["followed_yaw_slope_video"].value == pytest.approx(0.75)
