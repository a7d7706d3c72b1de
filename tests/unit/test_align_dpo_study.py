"""The study align_dpo: who is preferred, and by how much, on tracks that are known."""

import argparse
import dataclasses

import numpy as np
import pytest
import torch

from avatar_v.faces.face_track import spread_frames
from avatar_v.rewards.clip_features import ClipFeatures
from avatar_v.rewards.preference import Preference, PreferenceModel
from avatar_v.rewards.raters import OWN_LOOKS, Panel, SimulatedRater, Term
from avatar_v.weights.random import make_batch
from avatar_v_eval.cases import heard, make_cases, signed, video_of
from avatar_v_eval.generated import truth
from avatar_v_eval.motion_levels import levels
from avatar_v_eval.protocol import Readings
from avatar_v_eval.studies import align_dpo
from avatar_v_eval.studies.align_dpo import WORDS, values_of_motion, values_of_videos, win_rates
from avatar_v_eval.video_judges import VideoJudges, video_wins

PANEL = Panel(
    (
        SimulatedRater(
            "mouth",
            (Term("avatar_v.rewards.likeness.own_amplitude", 50.0),),
            position_bias=1.0,
            ties=1.0,
        ),
    )
)


@pytest.fixture(scope="module")
def cases():
    return make_cases(
        "validation", 6, first=0, num_frames=101, reference_frames=401,
        target_video=False, reference_video=False,
    )  # fmt: skip


def test_who_moves_like_the_persons_is_preferred_and_equals_share(cases) -> None:
    true = np.stack([case.motion.double().numpy() for case in cases])[None]
    tracks = {"before": 0.1 * true, "aligned": true, "control": 0.1 * true}
    found = win_rates(PANEL, values_of_motion(PANEL, cases, tracks))
    assert found["preferred_aligned"].value == 1
    assert found["preferred_aligned"].met
    assert found["preferred_aligned_by_mouth"].value == 1
    # of equal samples the one shown first wins at most, and each is shown first once
    assert 0.2 < found["preferred_control"].value < 0.8
    assert found["own_amplitude_aligned_over_before"].value > 1
    assert found["own_amplitude_control_over_before"].value == 0
    found = levels(cases, tracks, WORDS, [("aligned", "before"), ("control", "aligned")])
    assert found["lips_aligned"].value == pytest.approx(1)
    own, aligned, before = (
        found[f"mouth_amplitude_{of}"].value for of in ("own", "aligned", "before")
    )
    assert aligned == pytest.approx(own, rel=0.2)
    assert before == pytest.approx(0.1 * aligned, rel=1e-6)
    gain = found["mouth_amplitude_error_aligned_over_before"]
    assert gain.high is not None
    assert gain.high < 0
    assert found["lips_control_over_aligned"].value == pytest.approx(0)
    loss = found["mouth_amplitude_error_control_over_aligned"]
    assert loss.value == pytest.approx(-gain.value)


def test_raters_cannot_see_more_than_there_is() -> None:
    parser = argparse.ArgumentParser()
    align_dpo.add_options(parser)
    options = parser.parse_args(["--frames", "49"])
    with pytest.raises(ValueError, match="judged-frames is at most --frames, 49"):
        align_dpo.measure(options)


def test_judges_of_videos_prefer_the_higher_value_and_equals_share() -> None:
    rows = {
        "before_0": [{"lips": 0.0}, {"lips": 1.0}],
        "before_1": [{"lips": 2.0}, {"lips": 1.0}],
        "aligned_0": [{"lips": 1.0}, {"lips": 1.0}],
        "aligned_1": [{"lips": 3.0}, {"lips": 1.0}],
    }
    found = video_wins(Readings(rows), {"lips": "lips"}, WORDS, ["before", "aligned"], 2)
    assert found.keys() == {"videos_aligned_by_lips", "videos_aligned_lips_over_before"}
    assert found["videos_aligned_by_lips"].value == pytest.approx((0.75 + 0.5) / 2)
    assert found["videos_aligned_lips_over_before"].value == pytest.approx(0.5)


def test_raters_of_videos_prefer_what_they_weigh() -> None:
    path = PANEL.raters[0].terms[0].path
    rows = {"before_0": [{path: 0.0}] * 4, "aligned_0": [{path: 1.0}] * 4}
    values = values_of_videos(PANEL, Readings(rows), 1, ["before", "aligned"])
    assert win_rates(PANEL, values)["preferred_aligned"].value == 1


def test_a_preference_model_judges_as_it_rewards(tmp_path) -> None:
    features = ClipFeatures()
    torch.manual_seed(0)
    PreferenceModel(features.num).save_pretrained(tmp_path)
    (case,) = make_cases("validation", 1, first=0, num_frames=13, reference_frames=21)
    read = VideoJudges.load(tmp_path, Panel(OWN_LOOKS)).read(case, truth(case))
    assert read["avatar_v.rewards.shipped.sharpness"] == 1
    assert read["avatar_v.rewards.shipped.Identity"] > 0.5
    assert read["held_out_mouth"] > 0.8
    assert read["held_out_identity"] > 0.5
    own = {"motion": case.reference.motion[None], "valid": case.reference.valid[None]}
    reference = dataclasses.replace(make_batch(1, 21), **own)
    portraits = video_of(case.reference)[spread_frames(case.reference.valid, 4)]
    reward = Preference(str(tmp_path))(
        signed(case.video)[None], heard(case.target)[None], reference, case.motion[None],
        portrait=signed(portraits)[None], condition=torch.zeros(1, dtype=torch.long),
    )  # fmt: skip
    assert reward is not None
    assert read["preference"] == pytest.approx(float(reward))
