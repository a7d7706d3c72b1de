"""Objectives of alignment: policy gradients of noisy sampling steps (GRPO), and preferences (DPO).

Flow-GRPO (Liu et al., arXiv 2505.05470) reads a step of the solver that adds fresh noise as a draw
from a normal distribution of the solver's mean and standard deviation, and asks for more of what
earned a reward. Credit is per latent frame and per group of components here: the density of the
numbers concerned, against what happened around that frame. Flow-DPO: Liu et al., arXiv 2501.13918.
Pure functions, all in fp32.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.flow import State

PerLatent = Float[Tensor, "b l"]
MAX_ADVANTAGE = 5.0
SPREAD_FLOOR = 1e-4
"""Added to the standard deviation of a group's rewards."""


def log_density(x: State, mean: State, std: float) -> State:
    """``log N(x; mean, std²)`` of every number."""
    scaled = (x.float() - mean.float()) / std
    return -0.5 * scaled.square() - math.log(std) - 0.5 * math.log(2 * math.pi)


def gaussian_kl(mean: State, other: State, std: float) -> State:
    """``KL(N(mean, std²) ‖ N(other, std²)) = (mean - other)² / (2 std²)`` of every number."""
    return (mean.float() - other.float()).square() / (2 * std**2)


def per_latent(values: State, weight: Float[Tensor, "..."] | None = None) -> PerLatent:
    """The mean over all dimensions behind the latent frame, ``weight`` (broadcast) counting each.

    A mean, not a sum: a ratio of densities of hundreds of numbers would leave every clipping range.
    A frame whose weights are all 0 has 0.
    """
    if weight is None:
        return values.float().flatten(2).mean(-1)
    w = weight.float().to(values.device).expand_as(values).flatten(2)
    total = w.sum(-1)
    return (values.float().flatten(2) * w).sum(-1) / torch.where(total > 0, total, 1.0)


def guarded_log_ratio(log_ratio: PerLatent, drift: PerLatent, std: float) -> PerLatent:
    """GRPO-Guard's correction (arXiv 2510.22319): ``(Δ log p + ‖μ - μ_old‖² / (2 std²)) std``.

    ``drift`` is `gaussian_kl` of the new mean and that of the rollout, in the same averages as
    ``log_ratio``. Without it the ratio falls below 1 on average, and differently at every noise
    level, so that clipping stops no step that goes too far.
    """
    return (log_ratio + drift) * std


def clipped_policy_loss(ratio: PerLatent, advantage: PerLatent, clip: float) -> PerLatent:
    """``-min(ρ A, clip(ρ, 1 - ε, 1 + ε) A)`` (PPO, arXiv 1707.06347)."""
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def group_advantages(
    rewards: Float[Tensor, "g n *l"], *, by_spread: bool = True, most: float = MAX_ADVANTAGE
) -> Float[Tensor, "g n *l"]:
    """``(r - mean of the group) / (spread of the group + 1e-4)``, clipped to ±``most``.

    A group is the n samples of one condition. Rewards of latent frames "g n l" are centred frame by
    frame, since all samples of a group have the same audio there, and share one spread over all
    frames: where nothing happens in any sample nothing shall be blown up. ``by_spread`` False
    leaves the reward's own scale. A missing reward (NaN) has no advantage and no part in mean and
    spread. A group of one value, or of equal ones, has exactly 0.
    """
    known = torch.isfinite(rewards)
    r = torch.where(known, rewards, 0.0).double()
    count = known.sum(1, keepdim=True)
    mean = r.sum(1, keepdim=True) / count.clamp_min(1)
    low = torch.where(known, rewards, math.inf).amin(1, keepdim=True)
    high = torch.where(known, rewards, -math.inf).amax(1, keepdim=True)
    differ = known & (high > low) & (count > 1)
    centred = torch.where(differ, r - mean, 0.0)
    if by_spread:
        num = known.flatten(1).sum(1).clamp_min(1)
        spread = (centred.square().flatten(1).sum(1) / num).sqrt()
        centred = centred / (spread + SPREAD_FLOOR).reshape(-1, *[1] * (rewards.ndim - 1))
    return centred.clamp(-most, most).to(rewards)


def shuffled_in_groups(
    advantages: Float[Tensor, "g n *l"], generator: torch.Generator
) -> Float[Tensor, "g n *l"]:
    """Each sample with the advantage of a random one of its group: of the same size, and, since a
    group's sum is 0, without any relation to its own on average. The noise floor of a result."""
    order = torch.rand(advantages.shape[:2], generator=generator).argsort(1)
    return advantages[torch.arange(len(advantages))[:, None], order]


def preference_loss(
    margin: Float[Tensor, " p"], tied: Bool[Tensor, " p"] | None = None, *, ties: float = 5.0
) -> Float[Tensor, " p"]:
    """``-log p`` of the outcome of pairs under Bradley-Terry with ties (Rao & Kupper 1967).

    ``margin`` Δ is the winner's score less the loser's (of a tie in either order), k = ``ties``:
    ``p(win) = σ(Δ - log k)``, ``p(tie) = (k² - 1) σ(Δ - log k) σ(-Δ - log k)``; win, loss and tie
    sum to 1. k = 1 knows no ties. ValueError for k below 1, and for ties with k = 1.
    """
    if not ties >= 1:
        raise ValueError(f"ties is a number from 1, got {ties}")
    margin, log_k = margin.float(), math.log(ties)
    won = F.logsigmoid(margin - log_k)
    if tied is None or not bool(tied.any()):
        return -won
    if ties == 1:
        raise ValueError("with ties 1 no pair is a tie, and some are: expected a number above 1")
    tie = won + F.logsigmoid(-margin - log_k) + math.log(ties**2 - 1)
    return -torch.where(tied, tie, won)


def flow_dpo_loss(
    winner: Float[Tensor, " p"],
    loser: Float[Tensor, " p"],
    reference_winner: Float[Tensor, " p"],
    reference_loser: Float[Tensor, " p"],
    *,
    beta: float,
    tied: Bool[Tensor, " p"] | None = None,
    ties: float = 1.0,
) -> Float[Tensor, " p"]:
    """`preference_loss` of ``Δ = -β/2 [(e_w - e_w^ref) - (e_l - e_l^ref)]``.

    Each e is the mean squared flow error of a video, of the network or of the frozen reference,
    with one noise and one t inside a pair. Equal networks have log(1 + k), without ties log 2.
    """
    difference = (winner - reference_winner).float() - (loser - reference_loser).float()
    return preference_loss(-0.5 * beta * difference, tied, ties=ties)
