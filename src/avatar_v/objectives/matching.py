"""The fake score of distribution matching: its numbers, its role, its turn beside the student, what
both scores look at, and what is logged of the student.

Shared by the distillation of video (distribution_matching.py) and motion (distill_motion.py).
"""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from avatar_v import flow
from avatar_v.base import checks
from avatar_v.flow import State
from avatar_v.training.batch import Logs, NoisySample, noise_like, noisy
from avatar_v.training.optim import MAX_LR, Optim
from avatar_v.training.roles import Role, Updates, constant

FAKE, REAL = "fake", "real"
"""Names of the roles beside the student."""


@dataclass(frozen=True)
class Scores:
    """Numbers of both scores."""

    fake_updates: int = 5  # updates of the fake score for one of the student
    fake_lr: float = 4e-7
    fake_betas: tuple[float, float] = (0.0, 0.999)
    min_t: float = 0.02  # times at which both scores look at what the student made: uniform, then
    max_t: float = 0.98  # shifted as in training, and kept within the two

    def __post_init__(self) -> None:
        checks.count("fake_updates", self.fake_updates)
        checks.positive("fake_lr", self.fake_lr, most=MAX_LR)
        checks.entries(checks.decay, "fake_betas", self.fake_betas)
        if not 0 < self.min_t <= self.max_t <= 1:
            raise ValueError(
                f"times are 0 < min_t <= max_t <= 1, got {self.min_t} and {self.max_t}"
            )

    def noisy(
        self, clean: State, scored: Bool[Tensor, "b l"], *, shift: float, generator: torch.Generator
    ) -> NoisySample:
        """``clean`` at one time a sample; what is not ``scored``, on its device, stays clean."""
        times = flow.shift_time(torch.rand(len(clean), generator=generator), shift)
        times = times.clamp(self.min_t, self.max_t)
        noise = noise_like(clean, generator)
        return noisy(clean, noise, times.to(clean.device)[:, None] * scored, scored)

    def fake_role(self, modules: tuple[str, ...], student: Optim, clip: float | None) -> Role:
        """The fake score's role: one learning rate, the student's kind of optimiser."""
        optim = constant(self.fake_lr, self.fake_betas)
        optim = dataclasses.replace(optim, hidden=student.hidden)
        return Role(modules, optim, gradient_clip=clip, updates_per_step=self.fake_updates)

    def is_due(self, num_backward: int, updates: Updates) -> bool:
        """Whether the student is trained on the next batch: one of the last of ``fake_updates``
        updates of the fake score, which made ``num_backward`` backward passes so far."""
        group = num_backward // updates.accumulate_grad_batches
        return group % self.fake_updates == self.fake_updates - 1


def compared(made: State, true: State, num_given: int) -> Logs:
    """Spread and motion of what the student made over those of the truth, both near 1, behind the
    latent frames that were given. Students that saturate, and students that freeze, show there
    first."""
    made, true = made[:, num_given:].float(), true[:, num_given:].float()
    moved, truly = (x.diff(dim=1).abs().mean() for x in (made, true))
    return {"spread": made.std() / true.std(), "energy": moved / truly}
