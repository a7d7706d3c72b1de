"""What a step of training works on: the draws of a batch, its windows and their conditions."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v import flow
from avatar_v.flow import State
from avatar_v.training.windows import Windows
from avatar_v.types import Batch, Cond, MotionCond

Logs = dict[str, Tensor]
Condition = TypeVar("Condition", bound=Cond | MotionCond, covariant=True)


@dataclass(frozen=True)
class Draws:
    """The generators of one batch, on the CPU, and the step that schedules go by.

    Draws that decide which parts of the networks run come from ``common``: sharded, ranks that run
    other parts wait for each other for ever.
    """

    own: torch.Generator  # of the samples of this data rank
    common: torch.Generator  # alike on all ranks
    step: int  # updates of the student so far


@dataclass(frozen=True)
class TrainBatch(Generic[Condition]):
    """Windows of clips as a loss takes them."""

    clips: Batch
    windows: Windows
    clean: State  # "n l *rest", the true latents or motion of the windows
    cond: Condition
    draws: Draws
    num_tokens: int  # of the generated stream, on this rank

    @property
    def size(self) -> int:
        return len(self.clean)

    @property
    def scored(self) -> Bool[Tensor, "n l"]:
        """True for the latents that are to be generated, on the device of ``clean``."""
        return self.windows.scored().to(self.clean.device)


@dataclass(frozen=True)
class NoisySample:
    """Inputs of the network in a step, and the velocity it should predict."""

    x_t: Float[Tensor, "b l *rest"]
    t: Float[Tensor, "b l"]  # 0 on what is given clean
    times: Float[Tensor, " b"]  # of what is not; on the CPU
    velocity: Float[Tensor, "b l *rest"]
    scored: Bool[Tensor, "b l"]  # False on what is given clean


def noisy(
    clean: State, noise: State, times: Float[Tensor, "b l"], scored: Bool[Tensor, "b l"]
) -> NoisySample:
    """``clean`` with ``noise`` at ``times``, which are 0 where it is given."""
    t = times.to(clean.device)
    x_t, velocity = flow.interpolate(clean, noise, t), flow.velocity(clean, noise)
    return NoisySample(x_t, t, times.amax(1), velocity, scored.to(clean.device))


def noise_like(clean: State, generator: torch.Generator) -> State:
    """Noise drawn on the CPU, so that every device has the same."""
    return torch.randn(clean.shape, generator=generator).to(clean)
