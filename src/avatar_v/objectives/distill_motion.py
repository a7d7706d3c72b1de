"""Stage 4c: motion in one or two steps of one pass, by distribution matching.

The motion network of stage 3 takes 16 steps of up to three passes, and once video takes two it is a
third of the time of a chunk. The student starts as that network and has its guidance inside: the
real score is the network guided by several passes, at the guidance that generation takes. The turns
of student and fake score are those of video (distribution_matching.py); windows begin with a clip,
with or without its first frame, or with the end of true motion before them.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v import flow
from avatar_v.base import checks
from avatar_v.losses.distill import distribution_matching_gradient, distribution_matching_loss
from avatar_v.losses.flow import motion_flow_loss
from avatar_v.models.motion_net import MotionNet
from avatar_v.objectives.matching import FAKE, REAL, Scores, compared
from avatar_v.sampling.chunks import OVERLAP
from avatar_v.sampling.motion import guided_motion
from avatar_v.sampling.solver import VelocityFn, last_with_gradient, normal, renoise, sample
from avatar_v.training.batch import Draws, Logs, NoisySample, TrainBatch, noise_like
from avatar_v.training.engine import Engine
from avatar_v.training.motion import (
    MotionSubject,
    MotionTraining,
    freeze_listening,
    get_motion_net,
    select_motion_net,
)
from avatar_v.training.optim import Optim
from avatar_v.training.roles import STUDENT, Role, Updates
from avatar_v.training.settings import MAX_GUIDANCE, Models, Objective
from avatar_v.training.trainable import Trainable
from avatar_v.training.windows import Windows, draw_windows
from avatar_v.types import TEMPORAL_FACTOR, MotionCond
from avatar_v.weights.card import read_card

MotionLatents = Float[Tensor, "n l md"]


@dataclass(frozen=True)
class MotionMatching(Scores):
    """Numbers of distribution matching of motion."""

    num_steps: int = 2  # of the student
    guidance_audio: float = 1.0  # of the real score, and so inside the student
    guidance_style: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.count("num_steps", self.num_steps)
        for name in ("guidance_audio", "guidance_style"):
            checks.number(name, getattr(self, name), least=0, most=MAX_GUIDANCE)


@dataclass(frozen=True)
class ChunkWindows:
    """All of one kind: without anything before them, behind a first frame, or behind the end of a
    chunk, as often as chunks of generation are."""

    objective: Objective

    def draw(self, num: int, clip_latents: int, length: int, draws: Draws) -> Windows:
        first, image = torch.rand(2, generator=draws.common).tolist()
        is_first = first < self.objective.first_share
        windows = draw_windows(
            num,
            clip_latents,
            length,
            first_share=float(is_first),
            image_share=float(image < self.objective.image_share),
            generator=draws.own,
        )
        if is_first or not bool((windows.start > 0).all()):  # a clip of one window has no inside
            return windows
        return dataclasses.replace(windows, prefix=torch.full_like(windows.prefix, OVERLAP))

    def longest(self, length: int) -> int:
        return length


class DistillMotion(Engine[TrainBatch[MotionCond]]):
    """A motion network of few steps.

    Args:
        motion: as in stage 3's training of the motion network.
        matching: the student's steps, the guidance it takes over, the fake score.
        updates: accumulation and clipping, which the trainer leaves to a stage of two roles.
        trainable: all of the student, or LoRA factors; the fake score is trained whole.
    """

    subject: MotionSubject
    fake: MotionNet
    real: MotionNet

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        motion: MotionTraining,
        matching: MotionMatching,
        updates: Updates | None = None,
        seed: int = 0,
        trainable: Trainable | None = None,
    ) -> None:
        subject = MotionSubject(models, objective, motion, ChunkWindows(objective))
        super().__init__(subject, optim, seed, trainable, updates)
        self.matching = matching
        self.last_loss: Tensor | None = None

    def roles(self) -> Mapping[str, Role]:
        clip, numbers = self.updates.gradient_clip_val, self.matching
        return {
            STUDENT: Role(("conditioner",), self.optim, ema=True, export=True, gradient_clip=clip),
            FAKE: numbers.fake_role((FAKE,), self.optim, clip),
            REAL: Role((REAL,)),
        }

    def build_roles(self) -> None:
        """All roles begin as the motion network of the weights. ValueError for weights without one,
        or with a student already."""
        start = self.subject.models.init_from
        if self.conditioner.motion_net is None:
            raise ValueError(f"{start} has no motion network: start from recipes/3_motion.yaml")
        steps = None if start is None else read_card(start).can.motion_steps
        if steps is not None:
            raise ValueError(f"the motion network of {start} is a student of {steps} steps already")
        student = get_motion_net(self)
        self.fake, self.real = (self.network_for(role, student) for role in (FAKE, REAL))

    def select_trainable(self) -> None:
        hears = self.subject.training.hears
        select_motion_net(self, self.trainable, self.seed, hears=hears)
        self.fake.requires_grad_(True)
        if not hears:
            freeze_listening(self.fake)

    def iterate(self, batch: TrainBatch[MotionCond]) -> tuple[Tensor, Logs]:
        """One backward pass of the fake score, and one of the student if its turn has come."""
        due, logs = self.matching.is_due(self.num_backward[FAKE], self.updates), Logs()
        drawn = torch.randint(self.matching.num_steps, (), generator=batch.draws.common)
        with torch.set_grad_enabled(due):
            made = self.made(batch, 1 + int(drawn))
        if due:
            loss = self.matching_term(made, batch)
            logs["dmd"] = loss
            self.update(STUDENT, loss)
            self.last_loss = loss.detach()
        made = made.detach()
        noised = self.noisy(made, batch)
        v = self.fake(noised.x_t, noised.t, batch.cond)
        weights = self.subject.window_weights(batch)
        logs["fake"] = motion_flow_loss(v, noised.velocity, noised.scored, weights)
        self.update(FAKE, logs["fake"])
        logs |= compared(made, batch.clean, int(batch.windows.prefix[0]))
        return made.new_zeros(()) if self.last_loss is None else self.last_loss, logs

    def made(self, batch: TrainBatch[MotionCond], num_moves: int) -> MotionLatents:
        """The student's motion of the windows as it is seen after so many steps; the last alone
        takes a gradient."""
        network, own = get_motion_net(self), batch.draws.own
        times = flow.schedule(self.matching.num_steps, shift=self.subject.objective.shift)
        return sample(
            last_with_gradient(lambda x, t: network(x, t, batch.cond), num_moves),
            noise_like(batch.clean, own),
            torch.cat([times[:num_moves], times[-1:]]),
            prefix=batch.clean[:, : int(batch.windows.prefix[0])],
            step=renoise,
            draw=normal(own),
        )

    def matching_term(
        self, made: MotionLatents, batch: TrainBatch[MotionCond]
    ) -> Float[Tensor, ""]:
        """Half the squared distance to where both scores say the student should move to."""
        numbers = self.matching
        guided = guided_motion(
            self.real, batch.cond, audio=numbers.guidance_audio, style=numbers.guidance_style
        )
        with torch.no_grad():
            noised = self.noisy(made.detach(), batch)
            x_t, t = noised.x_t, noised.t

            def clean(velocity: VelocityFn) -> MotionLatents:
                return flow.clean_from_velocity(x_t, velocity(x_t, t).float(), t)

            real, fake = clean(guided), clean(lambda x, t: self.fake(x, t, batch.cond))
            g = distribution_matching_gradient(made, real, fake, noised.scored)
        weights = self.subject.window_weights(batch)
        wide = weights.repeat(1, TEMPORAL_FACTOR)[:, None].to(made)
        return distribution_matching_loss(made, g, noised.scored, wide).mean()

    def noisy(self, clean: MotionLatents, batch: TrainBatch[MotionCond]) -> NoisySample:
        """Motion as the scores see it; what is given stays clean."""
        shift = self.subject.objective.shift
        return self.matching.noisy(clean, batch.scored, shift=shift, generator=batch.draws.own)

    def loss(self, batch: TrainBatch[MotionCond]) -> tuple[Tensor, Logs]:
        """Squared error of the student's motion against the clip's own, of validation."""
        made = self.made(batch, self.matching.num_steps)
        weights = self.subject.window_weights(batch)
        return motion_flow_loss(made, batch.clean, self.subject.seen(batch), weights), {}

    def card_entries(self) -> dict[str, Any]:
        return {**super().card_entries(), "motion_steps": self.matching.num_steps}
