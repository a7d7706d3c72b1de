"""The measures of generated video, on tracks and embeddings whose answer is known."""

import numpy as np
import pytest
import torch

from avatar_v_eval.cases import loudness
from avatar_v_eval.protocol import Readings
from avatar_v_eval.studies.learning import (
    best_lag,
    comparison_numbers,
    identity_numbers,
    sync_numbers,
)
from eval_cases import case_of


def tracks(num: int = 32, num_frames: int = 60, seed: int = 0) -> np.ndarray:
    """Smooth, unrelated mouths in [0, 1]."""
    noise = np.random.default_rng(seed).normal(size=(num, num_frames + 6))
    smooth = np.lib.stride_tricks.sliding_window_view(noise, 7, axis=1).mean(-1)
    return 0.5 + 0.3 * smooth


def test_perfect_lips_score_one_and_unrelated_ones_nothing():
    truth = tracks()
    numbers = sync_numbers(truth, truth)
    assert numbers["sync"].value == pytest.approx(1.0, abs=1e-9)
    assert numbers["sync"].met
    assert numbers["lag"].value == 0
    assert numbers["amplitude"].value == pytest.approx(1.0, abs=1e-6)
    # 32 pairs of about 60 / 7 independent values: the mean of r has a deviation of about 0.07
    assert abs(numbers["sync_unrelated"].value) < 0.21


def test_lips_of_other_speech_fail_the_test():
    numbers = sync_numbers(tracks(seed=1), tracks(seed=2))
    assert not numbers["sync"].met
    assert numbers["sync"].low < 0 < numbers["sync"].high


def test_a_still_mouth_scores_zero_not_nan():
    numbers = sync_numbers(np.full((8, 40), 0.3), tracks(8, 40))
    assert numbers["sync"].value == 0.0
    assert numbers["amplitude"].value == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("lag", [-3, 0, 2])
def test_lag_is_found_with_its_sign(lag):
    truth = tracks(1, 80)[0]
    late = np.roll(truth, lag)
    assert best_lag(late, truth) == lag


def test_a_gain_is_paired_over_persons():
    truth = tracks()
    better = truth + 0.2 * tracks(seed=3)
    worse = truth + 0.6 * tracks(seed=3)
    rows = {
        name: [{"mouth_open": track} for track in found]
        for name, found in (("generated", better), ("baseline", worse))
    }
    numbers = comparison_numbers(Readings(rows), truth)
    assert numbers["gain"].met
    assert numbers["gain"].low > 0
    spread = numbers["baseline_sync"].high - numbers["baseline_sync"].low
    assert numbers["gain"].value > spread / 4


def test_identity_follows_the_reference():
    faces = torch.eye(6).double()
    numbers = identity_numbers(faces, faces.roll(-1, 0), faces, faces)
    assert numbers["identity"].value == numbers["identity_elsewhere"].value == 1.0
    assert numbers["identity_follows"].value == 1.0
    assert numbers["identity_swapped"].value == 0.0
    # a generator that ignores the reference is found out
    ignored = identity_numbers(faces, faces, faces, faces)
    assert (ignored["identity_follows"].value, ignored["identity_swapped"].value) == (0.0, 1.0)
    assert not ignored["identity_follows"].met


def test_loudness_is_that_of_each_frame():
    audio = torch.cat([torch.zeros(640), torch.full((640,), 0.5)])
    assert loudness(audio, 2).tolist() == [0.0, 0.5]


def test_a_shortened_case_keeps_sound_and_picture_together():
    video = torch.zeros(3, 3, 4, 4, dtype=torch.uint8)
    short = case_of(1, video).shortened(2)
    assert (len(short.audio), len(short.video), len(short.motion)) == (1280, 2, 2)
