"""Exploring samples and their policy gradients on distributions whose optimum is known."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from avatar_v.objectives.policy_gradient import (
    GRPO,
    Trajectory,
    compute_advantages,
    densities,
    step_loss,
)
from avatar_v.rewards.terms import RewardTerm
from avatar_v.sampling.exploring import Exploration, explored, mean_again
from avatar_v.sampling.solver import normal
from avatar_v.training.policies import SampleLayout

CONDITIONS, LATENTS = 4, 3
FIRST, SECOND = ("first",), ("second",)
WEIGHTS: dict[tuple[str, ...], Tensor] = {
    FIRST: torch.tensor([1.0, 0.0]),
    SECOND: torch.tensor([0.0, 1.0]),
}
TERMS = [RewardTerm("tests.first", credit=FIRST), RewardTerm("tests.second", credit=SECOND)]
WANTED, SPREAD = 1.0, 0.5


class Gaussian(nn.Module):
    """The exact velocity of numbers with the distribution N(mean, spread²)."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(2))

    def forward(self, x_t: Tensor, t: Tensor) -> Tensor:
        t = t[..., None]
        off = (x_t - (1 - t) * self.mean) / ((1 - t) ** 2 * SPREAD**2 + t**2)
        return t * off - (self.mean + (1 - t) * SPREAD**2 * off)


def rolled_out(
    policy: nn.Module, exploration: Exploration, numbers: GRPO, generator: torch.Generator,
    reward: float = 1.0, held: Sequence[tuple[float, Tensor]] = (),
) -> Trajectory:  # fmt: skip
    """A rollout: the first number is rewarded for being near to WANTED, in every latent frame, the
    second for nothing."""
    window = exploration.draw_window(generator)
    noise = torch.randn(CONDITIONS * numbers.group_size, LATENTS, 2, generator=generator)
    with torch.no_grad():
        made, moves = explored(policy, noise, exploration, window, normal(generator))
        old = [densities(move, move.mean, WEIGHTS) for move in moves]
    values = {
        "first": -reward * (made[..., 0] - WANTED).square(),
        "second": torch.ones(len(made)),
    }
    layout = SampleLayout(numbers.group_size, LATENTS, 0)
    advantages, logs = compute_advantages(values, TERMS, layout, numbers, generator)
    return Trajectory(
        moves, WEIGHTS, old, [move.mean for move in moves], list(held), values, advantages, logs
    )


def updated(
    policy: nn.Module,
    exploration: Exploration,
    numbers: GRPO,
    num_updates: int,
    reward: float = 1.0,
) -> None:
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(0)
    for _ in range(num_updates):
        trajectory = rolled_out(policy, exploration, numbers, generator, reward)
        optimizer.zero_grad()
        for number, move in enumerate(trajectory.moves):
            loss, _ = step_loss(
                trajectory, number, mean_again(policy, move, exploration), numbers, first=True
            )
            loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("exploration", "guard"),
    [
        (Exploration(num_steps=6, noise=0.7, window=2), False),
        (Exploration(num_steps=6, noise=0.7, window=2), True),
        (Exploration(num_steps=6, sampler="cps", noise=0.8, window=2), False),
    ],
)
def test_a_policy_reaches_the_known_optimum_and_leaves_alone_what_earns_nothing(
    exploration: Exploration, guard: bool
) -> None:
    policy = Gaussian()
    updated(policy, exploration, GRPO(group_size=16, kl_weight=0.0, guard=guard), 60)
    first, second = policy.mean.tolist()
    assert first == pytest.approx(WANTED, abs=0.15)  # Adam's steps of .05 around it
    assert second == 0


def test_no_reward_and_random_advantages_lead_nowhere() -> None:
    exploration = Exploration(num_steps=6, noise=0.7, window=2)
    policy = Gaussian()
    updated(policy, exploration, GRPO(group_size=8), 5, reward=0.0)
    assert policy.mean.tolist() == [0, 0]
    policy = Gaussian()
    updated(policy, exploration, GRPO(group_size=16, kl_weight=0.0, control="random"), 30)
    assert abs(policy.mean[0].item()) < 0.6  # a walk of 30 steps of .05 of either sign: .27


@pytest.mark.parametrize("only", [None, SECOND], ids=["all", "the second number"])
def test_the_frozen_weights_hold_a_policy_back(only: tuple[str, ...] | None) -> None:
    exploration = Exploration(num_steps=6, noise=0.7, window=2)
    generator, policy = torch.Generator().manual_seed(0), Gaussian()
    numbers = GRPO(group_size=8, kl_weight=10.0 if only is None else 0.0)
    held = [] if only is None else [(10.0, WEIGHTS[only])]
    trajectory = rolled_out(policy, exploration, numbers, generator, reward=0.0, held=held)
    with torch.no_grad():
        policy.mean.add_(0.1)
    loss, logs = step_loss(
        trajectory, 0, mean_again(policy, trajectory.moves[0], exploration), numbers, first=False
    )
    loss.backward()
    assert policy.mean.grad is not None
    assert policy.mean.grad[1] > 0
    assert policy.mean.grad[0] > 0 if only is None else policy.mean.grad[0] == 0
    assert logs["kl"] > 0
    assert logs["ratio"] > 0


def test_a_pass_that_does_not_repeat_the_rollout_ends_the_run() -> None:
    exploration = Exploration(num_steps=4, window=1)
    generator, policy = torch.Generator().manual_seed(0), Gaussian()
    trajectory = rolled_out(policy, exploration, GRPO(), generator)
    with torch.no_grad():
        policy.mean.add_(1e-5)
    with pytest.raises(RuntimeError, match="ratio is not 1 before the update"):
        step_loss(
            trajectory, 0, mean_again(policy, trajectory.moves[0], exploration), GRPO(), first=True
        )


def test_noise_is_in_the_window_alone_and_the_rest_is_the_ode() -> None:
    exploration = Exploration(num_steps=10, window=2)
    assert exploration.num_noisy == 5
    generator = torch.Generator().manual_seed(0)
    windows = {exploration.draw_window(generator) for _ in range(100)}
    assert windows == {range(i, i + 2) for i in range(4)}
    noise = torch.randn(2, LATENTS, 2, generator=generator)
    policy = Gaussian()
    plain, none = explored(policy, noise, exploration, range(0), None)
    assert none == []
    noisy, moves = explored(policy, noise, exploration, range(1, 3), normal(generator))
    assert [round(move.t, 6) for move in moves] == [0.9, 0.8]
    assert all(move.std > 0 for move in moves)
    assert not torch.allclose(noisy, plain)
    prefix = torch.full((2, 1, 2), 7.0)
    given, moves = explored(policy, noise, exploration, range(1), normal(generator), prefix)
    assert torch.equal(given[:, :1], prefix)
    assert moves[0].after.shape[1] == LATENTS - 1
    again = mean_again(policy, moves[0], exploration, prefix)
    assert torch.equal(again, moves[0].mean)


def test_missing_rewards_are_counted_and_have_no_advantage() -> None:
    values = {"first": torch.randn(8), "second": torch.full((8,), math.nan)}
    values["first"][0] = math.nan
    numbers = GRPO(group_size=4)
    advantages, logs = compute_advantages(
        values, TERMS, SampleLayout(4, 5, 2), numbers, torch.Generator()
    )
    assert advantages[FIRST].shape == (8, 3)
    assert advantages[FIRST][0].abs().max() == advantages[SECOND].abs().max() == 0
    assert logs["missing_first"] == 0.125
    assert logs["missing_second"] == 1
    assert "reward_second" not in logs
    torch.testing.assert_close(logs["reward"], values["first"].nanmean())
    # row k c + i is sample k of condition i: c = 2, so rows 1, 3, 5, 7 are a group
    torch.testing.assert_close(advantages[FIRST][1::2].sum(), torch.zeros(()), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "numbers",
    [{"window": 9}, {"num_steps": 1}, {"noise": 0.0}, {"sampler": "cps", "noise": 1.5}],
)
def test_explorations_that_cannot_be_are_refused(numbers: dict) -> None:
    with pytest.raises(ValueError, match=f"{list(numbers)[-1]} is"):
        Exploration(**numbers)
