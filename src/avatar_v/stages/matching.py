"""The fake score of distribution matching: its numbers, its role, and its turn beside the student.

Shared by the distillation of video (stages/distill_dmd.py) and motion (stages/distill_motion.py).
"""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v import checks, flow
from avatar_v.stages.optim import MAX_LR, Optim
from avatar_v.stages.roles import Role, Updates, constant

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

    def draw_times(
        self, num: int, *, shift: float, generator: torch.Generator
    ) -> Float[Tensor, " num"]:
        """One time for each sample."""
        times = flow.shift_time(torch.rand(num, generator=generator), shift)
        return times.clamp(self.min_t, self.max_t)

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
