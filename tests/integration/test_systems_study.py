"""The studies `systems` and `motion`, on cases and readings whose answer is known."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from avatar_v_eval.cases import Case, loudness, make_cases
from avatar_v_eval.motion_statistics import STATISTICS
from avatar_v_eval.protocol import Readings
from avatar_v_eval.studies import motion
from avatar_v_eval.studies.systems_figures import PANELS, draw
from avatar_v_eval.studies.systems_readings import (
    CEILING,
    SWAPPED,
    colour_shares,
    identity_numbers,
    with_unrelated,
)
from avatar_v_eval.study_metrics import StudyMetrics, picture_shares, scene_distance
from avatar_v_eval.systems import named
from eval_cases import case_of, measured

WORDS = {"truth": "the true motion", "made": "16 s", "other": "others"}


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
    truth = np.stack([case.motion.double().numpy() for case in cases])[None]
    still = np.repeat(truth[:, :, :1], truth.shape[2], axis=2)
    tracks = {"truth": truth, "made": np.concatenate([truth, truth]), "other": still}
    found = motion.summarise_motion(cases, tracks, WORDS, [("made", "other")])
    for name in STATISTICS:
        assert found[f"{name}_made"].value == pytest.approx(found[f"{name}_truth"].value)
        assert found[f"{name}_made_error"].value == 0
        assert found[f"{name}_other"].value == 0
    amplitude = found["mouth_amplitude_made_over_other"]
    assert amplitude.value == pytest.approx(found["mouth_amplitude_made"].value)
    assert amplitude.value > 0.5
    assert found["sway_yaw_other_error"].value > 0.01
    gain = found["sway_yaw_made_over_other_error"]
    assert gain.value == pytest.approx(-found["sway_yaw_other_error"].value)
    assert (found["lips_made"].value, found["lips_made_over_other"].value) == (1.0, 1.0)


def test_the_motion_of_two_networks_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = (
        "--split validation --first 30 --persons 4 --frames 13 --name few --batch 3 --samples 2 "
        "--references image four_s --systems one=small?num_steps=1 two=small_student?num_steps=1 "
        "--pairs two_four_s:one_image"
    )
    assert measured("study", "motion", *words.split(), "--out", str(tmp_path)) == 0
    result = json.loads((tmp_path / "few.json").read_text())
    assert result["numbers"]["sway_yaw_one_image"]["n"] == 4
    assert "lips_two_four_s_over_one_image" in result["numbers"]
    assert "motion of two_image" in result["weights"]
    assert sum("1 steps, guidance text" in note for note in result["notes"]) == 4
    assert "blink rate, r over persons: one, one reference frame" in capsys.readouterr().out


def test_videos_of_two_systems_are_written(tmp_path: Path) -> None:
    words = (
        "--split validation --first 30 --persons 4 --frames 29 --name few --diverse 2 --shown 1 "
        "--references image --systems one=small?num_steps=1 two=small_student?num_steps=1 "
        "--pairs two:one --swapped"
    )
    assert measured("study", "systems", *words.split(), "--out", str(tmp_path)) == 0
    numbers = json.loads((tmp_path / "few.json").read_text())["numbers"]
    for measure in ("mouth", "held_out_identity", "sync", "flicker", "energy", "style"):
        gain = numbers[f"{measure}_two"]["value"] - numbers[f"{measure}_one"]["value"]
        assert numbers[f"{measure}_two_over_one"]["value"] == pytest.approx(
            gain, rel=1e-3, abs=1e-4
        )
        assert f"{measure}_{CEILING}" in numbers
    assert numbers[f"sharpness_{CEILING}"]["value"] == 1
    assert numbers["mouth_ceiling"]["value"] > 0.9
    assert {"nearest_one", f"nearest_{SWAPPED}", "nearest_follows", "apart_seeds_one"} <= set(
        numbers
    )
    assert numbers["apart_two_one"]["value"] > 0
    assert (tmp_path / "few_frames.webp").exists()


def test_systems_have_names() -> None:
    assert named(["a=x?b=c", "d=y"]) == [("a", "x?b=c"), ("d", "y")]
    for wrong in (["x"], ["a=x", "a=y"]):
        with pytest.raises(ValueError, match="each name once"):
            named(wrong)


def test_a_scene_is_as_far_as_its_corners() -> None:
    true = torch.full((30, 3, 64, 64), 100, dtype=torch.uint8)
    moved = true.clone()
    moved[:, :, 16:] = 0  # the person, and what is below
    assert scene_distance(moved, true) == 0
    moved[-25:, 0, :16, :10] += 60  # one of two corners, one of three colours
    assert scene_distance(moved, true) == pytest.approx(10)
    moved[:5] = 0
    assert scene_distance(moved, true) == pytest.approx(10), "the last second alone"


def test_readers_are_the_scorers_without_the_first_frame() -> None:
    (case,) = make_cases("validation", 1, first=30, num_frames=49, reference_frames=13)
    metrics = StudyMetrics.load()
    found = metrics.read(case, case.video)
    spoilt = case.video.clone()
    spoilt[0] = 0
    assert metrics.read(case, spoilt) == found
    assert found["mouth"] > 0.9
    assert found["identity"] > 0.7
    still = case.video[:1].repeat(49, 1, 1, 1)
    assert metrics.read(case, still)["sync"] < found["sync"] - 0.2
    assert picture_shares(case, case.video, case.video) == {"sharpness": 1.0, "flicker": 1.0}
    assert picture_shares(case, still, case.video)["flicker"] == 0.0


def test_dark_videos_have_less_of_each_colour() -> None:
    video = torch.randint(0, 250, (4, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    video = (video // 2 * 2).to(torch.uint8)
    assert colour_shares(video // 2, video) == pytest.approx(
        {"energy": 0.5, "saturation": 0.5, "brightness": 0.5}
    )


def test_lips_of_the_next_person_are_unrelated() -> None:
    truth = np.random.default_rng(0).normal(size=(3, 40))
    found = with_unrelated(
        Readings({"a": [{"mouth_open": x} for x in np.roll(truth, 1, 0)]}), truth
    )
    assert [row["unrelated"] for row in found.rows["a"]] == pytest.approx([1.0] * 3)


def test_identity_follows_the_reference() -> None:
    faces = np.eye(6)
    rows = {
        name: [{"face": face, "elsewhere": own} for face, own in zip(shown, faces, strict=True)]
        for name, shown in (
            (CEILING, faces), ("made", faces), (SWAPPED, np.roll(faces, -1, axis=0))
        )
    }  # fmt: skip
    words = dict.fromkeys(rows, "x")
    numbers = identity_numbers(Readings(rows), words)
    assert numbers["nearest_made"].value == numbers["nearest_follows"].value == 1.0
    assert numbers["nearest_swapped"].value == 0.0
    # a generator that ignores the reference is found out
    ignored = identity_numbers(Readings({**rows, SWAPPED: rows["made"]}), words)
    assert (ignored["nearest_follows"].value, ignored["nearest_swapped"].value) == (0.0, 1.0)
    assert not ignored["nearest_follows"].met


def test_loudness_is_that_of_each_frame() -> None:
    audio = torch.cat([torch.zeros(640), torch.full((640,), 0.5)])
    assert loudness(audio, 2).tolist() == [0.0, 0.5]


def test_a_shortened_case_keeps_sound_and_picture_together() -> None:
    short = case_of(1, torch.zeros(3, 3, 4, 4, dtype=torch.uint8)).shortened(2)
    assert (len(short.audio), len(short.video), len(short.motion)) == (1280, 2, 2)


def test_the_picture_has_a_row_for_each_way() -> None:
    from avatar_v_eval.records import Number

    numbers = {f"{panel}_{key}": Number(0.5, 4, 0.4, 0.6) for panel in PANELS
               for key in (CEILING, "a", "b")}  # fmt: skip
    figure = draw(numbers, {CEILING: "true", "a": "first", "b": "second"})
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == ["first", "second"]
