"""The refiner's second phase: one step, against a discriminator.

The squared error alone gives the mean of all details that fit, which is blurred. Here every sample
starts at σ, as in generation, and a discriminator of latent cells tells refined cells from true
ones; the mouth counts most (Avatar V §4.6: "particularly the mouth area"). The discriminator is a
role of its own: it is updated before the refiner in every batch, neither averaged nor exported.
First phase: objectives/refiner.py.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from avatar_v.losses.adversarial import discriminator_loss, generator_loss, r1_loss
from avatar_v.models.discriminator import PatchDiscriminator
from avatar_v.objectives.refiner import LowVideoSubject, Refined, Refinement, RefinerParts
from avatar_v.training.adversarial import DISCRIMINATOR, Adversarial
from avatar_v.training.batch import Logs, TrainBatch, noise_like
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.roles import STUDENT, Role, Updates, whole_pipeline
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable
from avatar_v.training.video import Regions
from avatar_v.training.windows import value_at
from avatar_v.types import Cond


class AdversarialRefiner(Engine[TrainBatch[Cond]]):
    """One-step distillation of a trained refiner.

    Args:
        adversarial: the discriminator, and how much its term counts.
        updates: accumulation and clipping, which the trainer leaves to a stage of two roles.
        refinement: as in the first phase.
        trainable: as in the first phase.
        face_boost: as in stage 2.
        mouth_boost: as in stage 2.
    """

    subject: LowVideoSubject
    discriminator: PatchDiscriminator

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        face_boost: float,
        mouth_boost: float,
        refinement: Refinement,
        adversarial: Adversarial,
        updates: Updates | None = None,
        seed: int = 0,
        trainable: Trainable | None = None,
    ) -> None:
        video = LowVideoSubject(models, objective, Regions(face_boost, mouth_boost), refinement)
        super().__init__(video, optim, seed, trainable, updates)
        self.parts = RefinerParts(refinement, trainable, seed)
        self.adversarial = adversarial

    def roles(self) -> Mapping[str, Role]:
        student = whole_pipeline(self.optim)[STUDENT]
        student = replace(student, gradient_clip=self.updates.gradient_clip_val)
        return {STUDENT: student, DISCRIMINATOR: self.adversarial.role()}

    def build_roles(self) -> None:
        self.parts.build(self)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.discriminator = PatchDiscriminator(
                self.dit.config.latent_channels,
                width=self.adversarial.width,
                num_layers=self.adversarial.num_layers,
            )

    def select_trainable(self) -> None:
        self.parts.select(self)

    def iterate(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        """One update of the discriminator, then one of the refiner against it."""
        refined = self.subject.from_sigma(self, batch)
        with self.only(DISCRIMINATOR):
            learned = self.discriminator_loss(refined, batch.draws.own)
            self.update(DISCRIMINATOR, learned)
        with self.only(STUDENT):
            loss, logs = self.refiner_loss(refined)
            self.update(STUDENT, loss)
        return loss, {**logs, "discriminator": learned}

    def loss(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        return self.refiner_loss(self.subject.from_sigma(self, batch))

    def refiner_loss(self, refined: Refined) -> tuple[Tensor, Logs]:
        """Squared error and the adversarial term; each of them to log."""
        made = self.discriminator(refined.predicted, refined.low)
        logs = {"error": refined.error, "generator": generator_loss(made, refined.weight)}
        weight = value_at(self.adversarial.weight, self.step)
        return logs["error"] + weight * logs["generator"], logs

    def discriminator_loss(self, refined: Refined, generator: torch.Generator) -> Tensor:
        """Hinge loss of true and refined cells, and the approximated R1."""
        noise = noise_like(refined.clean, generator)
        noisy = refined.clean + self.adversarial.r1_noise * noise
        real = self.discriminator(refined.clean, refined.low)
        fake = self.discriminator(refined.predicted.detach(), refined.low)
        loss = discriminator_loss(real, fake, refined.weight)
        r1 = r1_loss(real, self.discriminator(noisy, refined.low), refined.weight)
        return loss + self.adversarial.r1_weight * r1
