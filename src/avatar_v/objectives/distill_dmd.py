"""Stage 4b: few steps, by distribution matching (Avatar V §3.4; DMD2, arXiv 2405.14867;
Self-Forcing, arXiv 2506.08009).

The student makes a chunk in one to four steps, behind chunks of its own
(training/chunk_rollout.py), and is matched to the weights that the stage starts from
(distribution_matching.py). Motion is there before its video, as in generation.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from avatar_v.models.discriminator import TokenDiscriminator
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.lora import active, add_factors
from avatar_v.objectives.distill_cfg import GuidanceRanges
from avatar_v.objectives.distribution_matching import (
    DistributionMatching,
    Matching,
    validation_loss,
)
from avatar_v.objectives.matching import FAKE, REAL
from avatar_v.sampling.settings import Settings
from avatar_v.training.batch import Logs, TrainBatch
from avatar_v.training.chunk_rollout import ChunkRollout, SelfRollout, roll_out_chunk
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.personality import Personality
from avatar_v.training.roles import STUDENT, Role, Updates
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable
from avatar_v.training.video import Regions, VideoSubject
from avatar_v.types import Cond
from avatar_v.weights.card import read_card


class DistillDMD(Engine[TrainBatch[Cond]]):
    """A student of few steps.

    Args:
        matching: the scores, and the weights of the terms.
        rollout: the student's steps and the videos that it makes in training.
        guidance: ranges of the guidance weights that all networks take, where the weights that
            the stage starts from have guidance inside; within those that they were trained with.
        trainable: all of the student, or LoRA factors for student and fake score on one base.
        updates: accumulation and clipping, which the trainer leaves to a stage of two roles.
        personality: as in stage 3.
        face_boost: as in stage 2.
        mouth_boost: as in stage 2.
    """

    subject: VideoSubject
    fake: AvatarDiT
    real: AvatarDiT
    head: TokenDiscriminator

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        face_boost: float,
        mouth_boost: float,
        personality: Personality,
        matching: Matching,
        rollout: SelfRollout,
        guidance: GuidanceRanges,
        trainable: Trainable,
        updates: Updates | None = None,
        seed: int = 0,
    ) -> None:
        if trainable.parts == "new":
            raise ValueError("trainable.parts is all or lora: a student learns to make video")
        for steps in rollout.num_steps.values():
            if any(matching.regression.values()) and matching.teacher_steps % steps:
                raise ValueError(
                    f"matching.teacher_steps is a multiple of rollout.num_steps, got "
                    f"{matching.teacher_steps} and {steps}"
                )
        regions = Regions(face_boost, mouth_boost)
        video = VideoSubject(models, objective, regions, personality=personality, windows=rollout)
        super().__init__(video, optim, seed, trainable, updates)
        self.rollout = rollout
        self.matching = DistributionMatching(matching, objective.shift)
        self.guidance = guidance

    @property
    def has_adapters(self) -> bool:
        """Whether student and fake score are LoRA factors on the real score."""
        return self.trainable.parts == "lora"

    def roles(self) -> Mapping[str, Role]:
        return self.matching.roles(self.optim, self.updates, adapters=self.has_adapters)

    def build_roles(self) -> None:
        """All roles begin as the weights that the stage starts from. ValueError for a student of
        few steps, and for guidance outside the range of these weights."""
        start, numbers = self.subject.models.init_from, self.matching.numbers
        steps = None if start is None else read_card(start).can.num_steps
        if steps is not None:
            raise ValueError(
                f"{start} is a student of {steps} steps already; expected weights of stage 3 or 4a"
            )
        self.guidance.check_within(self.dit.config.guidance_ranges)
        if numbers.real_guidance and self.dit.config.has_guidance_inside:
            raise ValueError(
                "matching.real_guidance is for weights without guidance inside; these take "
                "theirs by the stage's guidance"
            )
        if self.has_adapters:
            rank, alpha = self.trainable.lora_rank, self.trainable.lora_alpha
            add_factors(self.dit, (STUDENT, FAKE), rank=rank, alpha=alpha, seed=self.seed)
        else:
            self.fake, self.real = (self.network_for(role, self.dit) for role in (FAKE, REAL))
        if numbers.has_head:
            size = self.layout.sequence_size
            self.head = self.matching.build_head(self.dit.config.dim, self.seed, size)

    def select_trainable(self) -> None:
        """The encoders stay as they are."""
        self.conditioner.requires_grad_(False)

    @contextlib.contextmanager
    def network(self, role: str) -> Iterator[AvatarDiT]:
        """The network of ``role``. A backward pass belongs inside the block: blocks that are
        computed again there read the factors that are active."""
        if not self.has_adapters:
            yield {STUDENT: self.dit, FAKE: self.fake, REAL: self.real}[role]
            return
        with active(self.dit, None if role == REAL else role, STUDENT):
            yield self.dit

    def iterate(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        """One backward pass of the fake score, and one of the student if its turn has come."""
        rollout, region = self.chunk(batch), self.subject.region(batch)
        return self.matching.iterate(self, batch, rollout, region)

    def chunk(self, batch: TrainBatch[Cond]) -> ChunkRollout:
        """The chunk that is to be made; the student makes those before it."""
        if self.dit.config.has_guidance_inside:
            weights = self.guidance.draw(batch.size, batch.draws.own).to(batch.clean.device)
            cond = dataclasses.replace(batch.cond, guidance=weights)
            batch = dataclasses.replace(batch, cond=cond)
        length = self.subject.window_length(self.step)
        with self.network(STUDENT) as student:
            return roll_out_chunk(student, self.conditioner, batch, self.rollout, length)

    def loss(self, batch: TrainBatch[Cond]) -> tuple[Tensor, Logs]:
        """The loss of validation."""
        rollout = self.chunk(batch)
        with self.network(STUDENT) as student:
            return validation_loss(rollout, student, batch, self.subject.region(batch))

    def card_entries(self) -> dict[str, Any]:
        return {**super().card_entries(), **self.rollout.card_entries()}

    def sampled_with(self, settings: Settings) -> Settings:
        return self.rollout.sampled_with(settings, self.step)
