"""The studies `motion_prior` and `personality`, on cases whose answer is known."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from avatar_v_eval.cases import Case, make_cases
from avatar_v_eval.motion_statistics import STATISTICS
from avatar_v_eval.protocol import Readings
from avatar_v_eval.readers import scene_distance
from avatar_v_eval.studies.motion_prior import numbers_of
from avatar_v_eval.studies.personality import followed_numbers
from eval_cases import measured

WORDS = {"truth": "the true motion", "video": "16 s", "baseline": "others"}


def undrawn(num: int, num_frames: int) -> list[Case]:
    """Cases without pictures."""
    return make_cases(
        "validation", num, first=30, num_frames=num_frames, reference_frames=101,
        target_video=False, reference_video=False,
    )  # fmt: skip


def test_a_case_without_pictures_is_the_same_case() -> None:
    (case,) = make_cases("validation", 1, first=30, num_frames=13, reference_frames=101)
    (bare,) = undrawn(1, 13)
    assert (bare.ids, bare.prompt) == (case.ids, case.prompt)
    assert torch.equal(bare.motion, case.motion)
    assert torch.equal(bare.reference.motion, case.reference.motion)
    assert bare.target.video is None
    assert torch.equal(case.image, case.video[0])


def test_the_true_motion_has_no_error_and_a_still_person_no_statistics() -> None:
    cases = undrawn(6, 101)
    truth = [case.motion.double().numpy() for case in cases]
    still = [np.tile(track[:1], (len(track), 1)) for track in truth]
    tracks = {"truth": truth, "video": truth, "baseline": still}
    found = numbers_of(cases, tracks, WORDS, "video")
    for name in STATISTICS:
        assert found[f"{name}_video"].value == found[f"{name}_truth"].value
        assert found[f"{name}_video_error"].value == 0
        assert found[f"{name}_baseline"].value == 0
    amplitude = found["mouth_amplitude_over_baseline"]
    assert amplitude.value == pytest.approx(found["mouth_amplitude_video"].value)
    assert amplitude.value > 0.5
    assert found["sway_yaw_baseline_error"].value > 0.01


def test_the_command_writes_a_result(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = "--split validation --first 30 --persons 4 --frames 13 --steps 1 --name few --batch 3"
    assert measured("study", "motion_prior", *words.split(), "--out", str(tmp_path)) == 0
    result = json.loads((tmp_path / "few.json").read_text())
    assert result["numbers"]["sway_yaw_video"]["n"] == 4
    best = [result["numbers"][f"blink_rate_hz_{of}_at_best"]["value"] for of in ("image", "video")]
    assert 0 < best[0] < best[1] < 0.1, "of 16 s much is known, but half a second hardly shows it"
    assert any("steps, guidance text" in note for note in result["notes"])
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
    names = ("mouth_open", "eye_open", "yaw")

    def reading(r: float, slope: float) -> dict[str, float]:
        return {f"followed_{n}_{k}": x for n in names for k, x in (("r", r), ("slope", slope))}

    rows = {"video": [reading(0.8, 1.0), reading(0.6, 0.5)], "truth": [{}, {}]}
    found = followed_numbers(Readings(rows), {"video": "16 s"}, ("truth", "video"))
    assert set(found) == {f"followed_{n}_{k}_video" for n in names for k in ("r", "slope")}
    assert found["followed_yaw_r_video"].value == pytest.approx(0.7)
    assert found["followed_yaw_slope_video"].value == pytest.approx(0.75)
