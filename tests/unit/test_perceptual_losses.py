"""losses/perceptual.py against values by hand, and the weight of late times."""

import math

import pytest
import torch

from avatar_v.losses.perceptual import (
    feature_loss,
    identity_loss,
    late_weight,
    motion_loss,
    sync_loss,
)


def test_only_late_predictions_count():
    t = torch.tensor([0.0, 0.5, 0.7, 0.71, 1.0])
    assert late_weight(t).tolist() == pytest.approx([1.0, 0.5, 0.3, 0.0, 0.0])


def test_identity_is_one_minus_cosine():
    reference = torch.tensor([[1.0, 0.0]])
    frames = torch.tensor([[[2.0, 0.0], [0.0, 3.0]]])  # the same direction, and a right angle
    assert float(identity_loss(frames, reference)) == pytest.approx(0.5)


def test_motion_counts_each_component_in_its_own_unit():
    truth = torch.zeros(1, 2, 2)
    read = torch.tensor([[[0.1, 0.0], [0.0, 2.0]]])
    scale = torch.tensor([0.1, 2.0])
    assert float(motion_loss(read, truth, scale)) == pytest.approx(0.5)
    components = torch.tensor([[1.5, 0.5]])
    assert float(motion_loss(read, truth, scale, components)) == pytest.approx(0.5)
    read[0, 0, 0] = 0.2  # 4 spreads² of the first, 1 of the second
    assert float(motion_loss(read, truth, scale, components)) == pytest.approx(6.5 / 4)


def test_perceptual_distance_of_features_at_right_angles_is_two():
    a = torch.zeros(1, 2, 3, 3)
    b = torch.zeros(1, 2, 3, 3)
    a[:, 0], b[:, 1] = 5.0, 0.1
    assert float(feature_loss([a, a], [b, a])) == pytest.approx(1.0)
    assert float(feature_loss([a], [7 * a])) == pytest.approx(0.0, abs=1e-6)


def test_sync_is_the_cross_entropy_of_the_cosine():
    lips = torch.tensor([[[1.0, 0.0]]])
    assert float(sync_loss(lips, torch.tensor([[[0.0, 1.0]]]))) == pytest.approx(math.log(2))
    assert float(sync_loss(lips, lips)) == pytest.approx(0.0, abs=2e-4)  # p is clamped
    assert float(sync_loss(lips, -lips)) == pytest.approx(-math.log(1e-4), rel=1e-4)


def test_every_loss_has_one_value_a_sample() -> None:
    frames = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    reference = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    assert identity_loss(frames, reference).tolist() == pytest.approx([1.0, 0.0])
    assert sync_loss(frames, reference[:, None]).tolist() == pytest.approx(
        [math.log(2), -math.log(1 - 1e-4)], rel=1e-3
    )
    moved = motion_loss(frames, frames + torch.tensor([1.0, 2.0])[:, None, None], torch.ones(2))
    assert moved.tolist() == pytest.approx([1.0, 4.0])
    maps = frames[:, 0, :, None, None]
    assert feature_loss([maps], [maps[:1].expand(2, -1, -1, -1)]).tolist() == pytest.approx([0, 2])
