"""The policy's loss of a rollout: advantages from rewards, ratios and distances of noisy steps.

Credit is per latent frame and per group of components: rewards with the same ``credit`` share the
density of those components, its ratio, and the sum of their advantages. Rewards of a whole sample
count alike in all of its latent frames. Functions of tensors: the mathematics is losses/align.py's,
and which network made them is the stage's business.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.flow import State
from avatar_v.losses.align import (
    MAX_ADVANTAGE,
    PerLatent,
    clipped_policy_loss,
    gaussian_kl,
    group_advantages,
    guarded_log_ratio,
    log_density,
    per_latent,
    shuffled_in_groups,
)
from avatar_v.rewards.terms import RewardTerm, known
from avatar_v.sampling.solver import SolverStep
from avatar_v.training.batch import Logs
from avatar_v.training.policies import SampleLayout

Credit = tuple[str, ...]
"""The names of what rewards are about (RewardTerm.credit)."""


@dataclass(frozen=True)
class GRPO:
    """Numbers of groups, of the policy's loss and of what it stays near to."""

    group_size: int = 8
    clip: float = 1e-3  # of the ratio, to both sides of 1
    kl_weight: float = 0.004  # of the distance to the frozen weights
    hold: dict[str, float] = field(default_factory=dict)
    """Further weights of that distance, in parts named as in RewardTerm.credit: what no reward is
    about changes with what one is, since they share a network."""
    guard: bool = False  # GRPO-Guard's correction of the ratio
    max_lead: int = 0
    """Before a rollout up to so many chunks are made as generation makes them, so that it begins
    with an end of the policy's own: what goes wrong in a long video may not show behind a true
    one."""
    updates_per_rollout: int = 1  # with guidance 1: later ones are of another policy
    control: Literal["none", "random"] = "none"
    """"random" gives every sample the advantage of a random one of its group: the noise floor that
    a result has to beat."""

    def __post_init__(self) -> None:
        checks.count("group_size", self.group_size, least=2)
        checks.positive("clip", self.clip, most=1)
        checks.weight("kl_weight", self.kl_weight)
        for name, weight in self.hold.items():
            checks.weight(f"hold.{name}", weight)
        checks.count("max_lead", self.max_lead, least=0)
        checks.count("updates_per_rollout", self.updates_per_rollout)


@dataclass(frozen=True)
class Trajectory:
    """A rollout, as an update sees it."""

    moves: list[SolverStep]  # the noisy ones
    weights: dict[Credit, Tensor]  # how much each number counts for a credit
    old: list[dict[Credit, PerLatent]]  # log densities of each move, by credit
    frozen: list[State]  # means of each move by the weights that the stage started from
    held: list[tuple[float, Tensor]]  # GRPO.hold: weights, and how much each number counts for them
    values: dict[str, Tensor]  # what each reward says of the samples
    advantages: dict[Credit, PerLatent]
    logs: Logs


def compute_advantages(
    values: Mapping[str, Float[Tensor, "b *l"]],
    terms: Sequence[RewardTerm],
    layout: SampleLayout,
    numbers: GRPO,
    generator: torch.Generator,
) -> tuple[dict[Credit, PerLatent], Logs]:
    """The sum of the rewards' weighted advantages for every credit; and of every reward its raw
    mean, the size of its advantages and the share of its values that is missing."""
    total: dict[Credit, PerLatent] = {}
    logs: Logs = {"reward": torch.zeros((), device=next(iter(values.values())).device)}
    for term in terms:
        raw = values[term.label]
        raw = raw[:, layout.num_given :] if raw.dim() > 1 else raw[:, None]
        groups = raw.unflatten(0, (layout.num, -1)).transpose(0, 1)
        found = group_advantages(groups, by_spread=term.by_spread)
        if numbers.control == "random":
            found = shuffled_in_groups(found, generator)
        found = found.transpose(0, 1).flatten(0, 1).expand(-1, layout.length - layout.num_given)
        total[term.credit] = term.weight * found + total.get(term.credit, 0.0)
        logs[f"advantage_{term.label}"] = found.square().mean().sqrt()
        logs[f"missing_{term.label}"] = 1 - known(raw).float().mean()
        if bool(known(raw).any()):
            logs[f"reward_{term.label}"] = raw.nanmean()
            logs["reward"] = logs["reward"] + term.weight * raw.nanmean()
    return {c: a.clamp(-MAX_ADVANTAGE, MAX_ADVANTAGE) for c, a in total.items()}, logs


def densities(
    move: SolverStep, mean: State, weights: Mapping[Credit, Tensor]
) -> dict[Credit, PerLatent]:
    """The log density of where a move ended, for every credit."""
    each = log_density(move.after, mean, move.std)
    return {credit: per_latent(each, weight) for credit, weight in weights.items()}


def step_loss(
    trajectory: Trajectory, number: int, mean: State, numbers: GRPO, *, first: bool
) -> tuple[Tensor, Logs]:
    """The loss of one noisy move whose mean by the weights of now is ``mean``.

    RuntimeError where the ``first`` pass does not repeat the rollout exactly, so that the ratio
    would not be 1 before the update.
    """
    move = trajectory.moves[number]
    new, loss, ratios = densities(move, mean, trajectory.weights), mean.new_zeros(()), []
    for credit, advantage in trajectory.advantages.items():
        log_ratio = new[credit] - trajectory.old[number][credit]
        if first and bool((log_ratio != 0).any()):
            raise RuntimeError(
                "the ratio is not 1 before the update (log ratio "
                f"{float(log_ratio.detach().abs().max()):.2e}): rollout and update ran other "
                "kernels"
            )
        if numbers.guard:
            drift = per_latent(gaussian_kl(mean, move.mean, move.std), trajectory.weights[credit])
            log_ratio = guarded_log_ratio(log_ratio, drift, move.std)
        ratios.append(log_ratio.exp())
        loss = loss + clipped_policy_loss(ratios[-1], advantage, numbers.clip).mean()
    if numbers.guard:
        loss = loss / (move.t - move.t_next)
    distance = gaussian_kl(mean, trajectory.frozen[number], move.std)
    kl, held = distance.mean(), mean.new_zeros(())
    for weight, of in trajectory.held:
        held = held + weight * per_latent(distance, of).mean()
    off = (torch.stack(ratios) - 1).detach().abs()
    return loss + numbers.kl_weight * kl + held, {
        "objective": loss.detach(),
        "kl": kl.detach(),
        "held": held.detach(),
        "ratio": off.mean(),  # its distance from 1
        "clipped": (off > numbers.clip).float().mean(),
    }
