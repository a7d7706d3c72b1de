"""The refiner's second phase: one step, judged by a discriminator.

The squared error alone gives the mean of all details that fit, which is blurred. Here every sample
starts at σ, as in generation, and a judge of latent cells says where the result looks made; the
mouth counts most (Avatar V §4.6: "particularly the mouth area"). The judge learns in the same
step, with an optimiser of its own, and is not exported. First phase: stages/refiner.py.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from avatar_v.losses.adversarial import deceive_loss, judge_loss, smoothness_loss
from avatar_v.models.discriminator import PatchDiscriminator
from avatar_v.stages.base import Logs
from avatar_v.stages.optim import Optim
from avatar_v.stages.refiner import Latents, Refined, Refinement, Refiner
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.windows import Windows, value_at
from avatar_v.types import Batch, Cond

JUDGE = "judge_optimizer"


@dataclass(frozen=True)
class Game:
    """Numbers of the judge and of what it may say."""

    weight: dict[int, float]
    """Of the adversarial term beside the squared error, {step: weight from that step on}."""
    width: int = 64  # channels of the judge
    num_layers: int = 3
    lr: float = 2e-4
    betas: tuple[float, float] = (0.5, 0.9)
    smoothness: float = 1.0  # of losses/adversarial.smoothness_loss
    disturbance: float = 0.1  # its noise; latents have a variance of 1

    def __post_init__(self) -> None:
        if 0 not in self.weight or min(self.weight.values()) < 0:
            raise ValueError(f"weight needs values >= 0 from step 0 on, got {self.weight}")
        if self.lr <= 0 or self.smoothness < 0 or self.disturbance <= 0:
            raise ValueError("lr and disturbance are above 0, smoothness is not negative")


class AdversarialRefiner(Refiner):
    """One-step distillation of a trained refiner.

    Args:
        game: the judge, and how much what it says counts.
    """

    judge: PatchDiscriminator

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        face_boost: float,
        mouth_boost: float,
        refinement: Refinement,
        game: Game,
        seed: int = 0,
    ) -> None:
        super().__init__(models, optim, objective, face_boost, mouth_boost, refinement, seed)
        self.game = game

    def configure_model(self) -> None:
        """The refiner's networks, and the judge: frozen but for its own update, so the optimiser
        and the average of the refiner's weights leave it alone."""
        if self.is_built:
            return
        super().configure_model()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.judge = PatchDiscriminator(
                self.dit.config.latent_channels,
                width=self.game.width,
                num_layers=self.game.num_layers,
            )
        self.judge.requires_grad_(False).to(self.dit.patch_embed.weight.device)
        self._judge_optimizer = torch.optim.Adam(
            self.judge.parameters(), lr=self.game.lr, betas=self.game.betas
        )

    def loss(
        self, clean: Tensor, cond: Cond, windows: Windows, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        """Squared error of x̂_0 from t = σ, and what the judge, taught first, says of it."""
        t = clean.new_full(clean.shape[:2], self.refinement.sigma)
        refined = self.refined(clean, cond, t, windows, batch, generator)
        logs = {"error": self.error(refined.predicted, refined)}
        if self.training:
            logs["judge"] = self.teach(refined, generator)
        said = self.judge(refined.predicted, refined.low)
        logs["deceive"] = deceive_loss(said, refined.weight)
        weight = value_at(self.game.weight, self.global_step)
        return logs["error"] + weight * logs["deceive"], logs

    def teach(self, refined: Refined, generator: torch.Generator) -> Tensor:
        """One update of the judge; its loss before it."""
        noise = torch.randn(refined.clean.shape, generator=generator).to(refined.clean)
        self.judge.requires_grad_(True)
        loss = self._judge_loss(refined, refined.clean + self.game.disturbance * noise)
        loss.backward()
        average_gradients(self.judge)
        self._judge_optimizer.step()
        self._judge_optimizer.zero_grad(set_to_none=True)
        self.judge.requires_grad_(False)
        return loss.detach()

    def _judge_loss(self, refined: Refined, disturbed: Latents) -> Tensor:
        real = self.judge(refined.clean, refined.low)
        made = self.judge(refined.predicted.detach(), refined.low)
        loss = judge_loss(real, made, refined.weight)
        smooth = smoothness_loss(real, self.judge(disturbed, refined.low), refined.weight)
        return loss + self.game.smoothness * smooth

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint[JUDGE] = self._judge_optimizer.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._judge_optimizer.load_state_dict(checkpoint[JUDGE])


def average_gradients(module: torch.nn.Module) -> None:
    """The mean over all ranks, for a module that no strategy wraps."""
    if not torch.distributed.is_initialized() or torch.distributed.get_world_size() == 1:
        return
    for parameter in module.parameters():
        if parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= torch.distributed.get_world_size()
