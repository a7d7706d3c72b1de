"""losses/flow.py: weights, masks and what the loss must not see."""

import pytest
import torch

from avatar_v.losses.flow import box_cover, flow_loss, latent_boxes, region_weight


def latents(seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 3, 4, 8, 8, generator=torch.Generator().manual_seed(seed))


def test_without_weight_it_is_the_mean_squared_error() -> None:
    v, target, scored = latents(0), latents(1), torch.ones(2, 3, dtype=torch.bool)
    # 1e-6: two orders of summation of 1536 fp32 terms near 1
    torch.testing.assert_close(
        flow_loss(v, target, scored), torch.nn.functional.mse_loss(v, target), rtol=1e-6, atol=0
    )


def test_a_constant_weight_changes_nothing() -> None:
    v, target, scored = latents(0), latents(1), torch.ones(2, 3, dtype=torch.bool)
    weight = torch.full((2, 3, 1, 8, 8), 7.0)
    torch.testing.assert_close(
        flow_loss(v, target, scored, weight), flow_loss(v, target, scored), rtol=1e-6, atol=0
    )


def test_the_prefix_has_no_share_in_loss_or_gradient() -> None:
    v, target = latents(0).requires_grad_(), latents(1)
    scored = torch.tensor([[False, True, True], [False, False, True]])
    weight = 1 + torch.rand(2, 3, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    loss = flow_loss(v, target, scored, weight)
    loss.backward()
    assert v.grad is not None
    assert (v.grad.abs().sum((2, 3, 4)) > 0).equal(scored)
    moved = v.detach().clone()
    moved[~scored] += 100
    assert flow_loss(moved, target, scored, weight) == loss


def test_a_weighted_cell_counts_by_its_weight() -> None:
    target = torch.zeros(1, 1, 1, 1, 2)
    v = torch.tensor([1.0, 2.0]).view(1, 1, 1, 1, 2)
    weight = torch.tensor([1.0, 3.0]).view(1, 1, 1, 1, 2)
    loss = flow_loss(v, target, torch.ones(1, 1, dtype=torch.bool), weight)
    assert loss == (1 * 1 + 3 * 4) / 4


def test_cover_is_the_share_of_each_cell() -> None:
    box = torch.tensor([[[0.25, 0.5, 0.625, 1.0], [1.0, 1.0, 0.0, 0.0]]])
    cover = box_cover(box, 2, 4)
    expected = torch.tensor([[0, 0, 0, 0], [0, 1, 0.5, 0]])
    assert cover.shape == (1, 2, 1, 2, 4)
    assert torch.equal(cover[0, 0, 0], expected)
    assert not cover[0, 1].any()


def test_region_weight_adds_face_and_mouth() -> None:
    face = torch.tensor([[[0.0, 0.0, 1.0, 1.0]]])
    mouth = torch.tensor([[[0.0, 0.5, 0.5, 1.0]]])
    weight = region_weight(face, mouth, height=2, width=2, face_boost=1.0, mouth_boost=4.0)
    assert torch.equal(weight[0, 0, 0], torch.tensor([[2.0, 2.0], [6.0, 2.0]]))


def test_latent_boxes_are_unions_of_their_visible_frames() -> None:
    x = torch.arange(9) / 10
    boxes = torch.stack([x, x, x + 0.1, x + 0.1], dim=-1)[None]
    valid = torch.ones(1, 9, dtype=torch.bool)
    valid[0, 1] = False
    valid[0, 5:] = False
    out = latent_boxes(boxes, valid)[0]
    expected = torch.tensor([[0, 0, 0.1, 0.1], [0.2, 0.2, 0.5, 0.5], [1, 1, 0, 0]])
    torch.testing.assert_close(out, expected)
    assert latent_boxes(boxes[:, :1], valid[:, :1]).shape == (1, 1, 4)
    with pytest.raises(ValueError, match="4k"):
        latent_boxes(boxes[:, :8], valid[:, :8])
