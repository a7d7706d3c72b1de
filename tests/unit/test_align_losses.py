"""losses/align.py against torch.distributions, Monte Carlo and what must hold exactly."""

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from avatar_v.losses.align import (
    clipped_policy_loss,
    flow_dpo_loss,
    gaussian_kl,
    group_advantages,
    guarded_log_ratio,
    log_density,
    per_latent,
    preference_loss,
    shuffled_in_groups,
)

NAN = math.nan


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("shape", [(2, 3, 8), (2, 3, 4, 2, 2)])
def test_densities_are_those_of_torch(shape: tuple[int, ...]) -> None:
    x, mean = normal(*shape), normal(*shape, seed=1)
    expected = Normal(mean, 0.3).log_prob(x)
    got = log_density(x, mean, 0.3)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(per_latent(got), expected.flatten(2).mean(-1))
    weight = torch.zeros(shape[2:])
    weight[0] = 1
    assert per_latent(got, weight).shape == shape[:2]
    chosen = expected.flatten(2)[..., weight.flatten() > 0].mean(-1)
    torch.testing.assert_close(per_latent(got, weight), chosen)
    assert torch.equal(per_latent(got, torch.zeros(shape[2:])), torch.zeros(shape[:2]))


def test_kl_is_that_of_torch_and_of_monte_carlo() -> None:
    mean, other, std = normal(1, 1, 6), normal(1, 1, 6, seed=1), 0.7
    got = gaussian_kl(mean, other, std)
    torch.testing.assert_close(got, kl_divergence(Normal(mean, std), Normal(other, std)))
    x = mean + std * normal(200_000, 1, 6, seed=2)
    sampled = log_density(x, mean.expand_as(x), std) - log_density(x, other.expand_as(x), std)
    # the difference of log densities has a standard deviation of |mean - other| / std < 5
    torch.testing.assert_close(sampled.mean(0), got[0], atol=5 * 5 / 200_000**0.5, rtol=0)


def test_the_guard_makes_the_log_ratio_unbiased() -> None:
    """On samples of the old policy Δ log p is -KL on average, and the correction takes it away."""
    old, std = torch.zeros(100_000, 1, 1), 0.5
    new, x = old + 0.2, old + std * normal(100_000, 1, 1)
    log_ratio = per_latent(log_density(x, new, std) - log_density(x, old, std))
    drift = per_latent(gaussian_kl(new, old, std))
    assert log_ratio.mean().item() == pytest.approx(-0.08, abs=0.006)  # 5 standard errors of .4
    assert guarded_log_ratio(log_ratio, drift, std).mean().item() == pytest.approx(0, abs=0.003)


def test_clipping_stops_what_goes_on_and_not_what_comes_back() -> None:
    ratio = torch.tensor([[0.5, 1.0, 2.0]], requires_grad=True)
    for sign, gradient in ((1.0, [-1, -1, 0]), (-1.0, [0, 1, 1])):
        (got,) = torch.autograd.grad(
            clipped_policy_loss(ratio, torch.full((1, 3), sign), 0.1).sum(), ratio
        )
        assert got.tolist() == [gradient]


def test_advantages_are_normal_within_the_group_and_missing_ones_are_none() -> None:
    rewards = torch.tensor([[1.0, 2, 3, 6], [5.0, NAN, 7, NAN], [4.0, 4, 4, 4], [NAN, NAN, 1, NAN]])
    got = group_advantages(rewards)
    first = rewards[0]
    expected = (first - 3) / (first.std(correction=0) + 1e-4)
    torch.testing.assert_close(got[0], expected)
    torch.testing.assert_close(got[1], torch.tensor([-1.0, 0, 1, 0]), atol=2e-4, rtol=0)
    assert got[2:].abs().max() == 0
    torch.testing.assert_close(group_advantages(rewards, by_spread=False)[0], first - 3)
    thirds = torch.full((1, 3), 0.1)  # their mean is no 0.1 in floating point
    assert group_advantages(thirds).abs().max() == 0
    far = torch.zeros(1, 100)
    far[0, 0] = 1
    assert group_advantages(far).max() == 5


def test_local_advantages_are_centred_by_frame_with_one_spread() -> None:
    rewards = normal(2, 5, 7)
    rewards[:, :, 3] = 2.5  # alike in all samples
    rewards[0, 1, 2] = NAN
    got = group_advantages(rewards)
    assert got[:, :, 3].abs().max() == 0
    assert got[0, 1, 2] == 0
    torch.testing.assert_close(got.sum(1), torch.zeros(2, 7), atol=1e-5, rtol=0)
    known = torch.isfinite(rewards[0])
    assert got[0][known].square().mean().sqrt().item() == pytest.approx(1, abs=1e-3)


def test_shuffled_advantages_keep_their_group_and_lose_their_sample() -> None:
    advantages = group_advantages(normal(4000, 4))
    got = shuffled_in_groups(advantages, torch.Generator().manual_seed(0))
    assert torch.equal(got.sort(1).values, advantages.sort(1).values)
    assert abs((got * advantages).mean().item()) < 5 / 16_000**0.5


def test_outcomes_sum_to_one_and_ties_are_likely_between_equals() -> None:
    margin, tied = torch.linspace(-4, 4, 9), torch.ones(9, dtype=torch.bool)
    won, lost = preference_loss(margin), preference_loss(-margin)
    tie = preference_loss(margin, tied)
    total = sum(torch.exp(-x) for x in (won, lost, tie))
    torch.testing.assert_close(total, torch.ones(9))
    assert tie.argmin() == 4
    assert torch.exp(-tie[4]).item() == pytest.approx(24 / 36)
    with pytest.raises(ValueError, match="above 1"):
        preference_loss(margin, tied, ties=1.0)
    with pytest.raises(ValueError, match="from 1, got"):
        preference_loss(margin, ties=0.5)


def test_dpo_begins_at_log_two_and_leads_from_the_loser_to_the_winner() -> None:
    errors = normal(6).square()
    winner, loser = (errors.clone().requires_grad_() for _ in range(2))
    loss = flow_dpo_loss(winner, loser, errors, errors, beta=3.0)
    torch.testing.assert_close(loss, torch.full((6,), math.log(2)))
    down, up = torch.autograd.grad(loss.sum(), (winner, loser))
    assert (down > 0).all(), "a step against the gradient lowers the winner's error"
    assert (up < 0).all()
    tied = torch.ones(6, dtype=torch.bool)
    loss = flow_dpo_loss(winner, loser, errors, errors, beta=3.0, tied=tied, ties=5.0)
    gradients = torch.autograd.grad(loss.sum(), (winner, loser))
    assert all(g.abs().max() < 1e-6 for g in gradients), "equals that tie stay"
