"""Rollouts that explore: some steps add fresh noise and are kept, all others follow the ODE.

Noise costs quality, most of all late (the last of few steps must not have any), so that a window of
steps has it in the first part of the trajectory. What is kept of those steps is all that a policy
gradient needs: where each began, its mean, its noise level and where it ended
(losses/align.py has the objective). Flow-GRPO's SDE or the CPS sampler (solver.py); a student of
few steps adds noise in all steps but the last already, and explores by it. Pure functions.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.flow import State, schedule
from avatar_v.sampling.solver import (
    Draw,
    SolverStep,
    Step,
    VelocityFn,
    again,
    coefficient_preserving,
    euler,
    flow_sde,
    renoise,
    trajectory,
)

MAX_SHIFT = 1000.0


@dataclass(frozen=True)
class Exploration:
    """How a rollout goes from noise to a sample, and where it tries something else."""

    num_steps: int = 16
    shift: float = 1.0  # of the sampling times (flow.shift_time)
    sampler: Literal["flow_sde", "cps", "student"] = "flow_sde"
    """"student": every step is solver.renoise, as a student of few steps makes its samples.
    ``noise`` and ``noise_share`` then say nothing."""
    noise: float = 0.3
    """a of solver.flow_sde, or η of solver.coefficient_preserving. Much noise changes the level of
    what is sampled, so that a reward hardly sees the fault of the ODE."""
    window: int = 2  # steps that are explored, one behind the other
    noise_share: float = 0.5  # of the steps, from the first: the window lies among them

    def __post_init__(self) -> None:
        checks.count("num_steps", self.num_steps, least=2)
        checks.positive("shift", self.shift, most=MAX_SHIFT)
        checks.positive("noise", self.noise, most=1 if self.sampler == "cps" else 10)
        checks.count("window", self.window)
        checks.share("noise_share", self.noise_share)
        if self.window > self.num_noisy:
            share = "" if self.of_student else f"noise_share {self.noise_share} "
            raise ValueError(
                f"window is at most {self.num_noisy}, the first steps that may have noise "
                f"({share}of {self.num_steps}, never the last), got {self.window}"
            )

    @property
    def of_student(self) -> bool:
        return self.sampler == "student"

    @property
    def num_noisy(self) -> int:
        """The first steps that may have noise."""
        share = 1.0 if self.of_student else self.noise_share
        return min(round(share * self.num_steps), self.num_steps - 1)

    @property
    def step(self) -> Step:
        """The step that is explored."""
        if self.of_student:
            return renoise
        return coefficient_preserving(self.noise) if self.sampler == "cps" else flow_sde(self.noise)

    @property
    def plain_step(self) -> Step:
        """All other steps."""
        return renoise if self.of_student else euler

    def draw_window(self, generator: torch.Generator) -> range:
        """The numbers of this rollout's steps with noise."""
        most = self.num_noisy - self.window
        first = int(torch.randint(most + 1, (), generator=generator))
        return range(first, first + self.window)


def explored(
    velocity: VelocityFn,
    noise: State,
    exploration: Exploration,
    window: range,
    draw: Draw | None,
    prefix: Float[Tensor, "b p *rest"] | None = None,
) -> tuple[State, list[SolverStep]]:
    """The sample, its clean ``prefix`` included, and the moves that ``window`` numbers. An empty
    window gives the sample of generation."""
    times = schedule(exploration.num_steps, shift=exploration.shift)
    plain, explore = exploration.plain_step, exploration.step
    steps = [explore if i in window else plain for i in range(exploration.num_steps)]
    moves = list(trajectory(velocity, noise, times, prefix=prefix, step=steps, draw=draw))
    made = moves[-1].after
    whole = made if prefix is None else torch.cat([prefix.to(made), made], dim=1)
    return whole, [moves[i] for i in window]


def mean_again(
    velocity: VelocityFn,
    move: SolverStep,
    exploration: Exploration,
    prefix: Float[Tensor, "b p *rest"] | None = None,
) -> State:
    """The mean of a noisy move by the weights as they are now."""
    return again(velocity, move, exploration.step, prefix=prefix)
