"""The study align_dpo: who is preferred, and by how much, on tracks that are known."""

import argparse

import numpy as np
import pytest

from avatar_v.critics.raters import Panel, SimulatedRater, Term
from avatar_v_eval.cases import make_cases
from avatar_v_eval.motion_levels import levels
from avatar_v_eval.studies import align_dpo
from avatar_v_eval.studies.align_dpo import WORDS, win_rates

PANEL = Panel(
    (
        SimulatedRater(
            "mouth",
            (Term("avatar_v.critics.likeness.own_amplitude", 50.0),),
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
    found = win_rates(PANEL, cases, tracks)
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
