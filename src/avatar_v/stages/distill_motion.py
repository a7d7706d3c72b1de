"""Stage 4c: motion in one or two steps of one pass, by distribution matching.

The motion network of stage 3 takes 16 steps of up to three passes, and once video takes two it is a
third of the time of a chunk. The student starts as that network and has its guidance inside: the
real score is the network guided by several passes, at the guidance that generation takes. Updates
are those of stages/distill_dmd.py; windows begin with a clip, with or without its first frame, or
with the end of true motion before them.
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
from avatar_v.models.conditioner import latent_validity
from avatar_v.models.motion_net import MotionNet
from avatar_v.sampling.chunks import OVERLAP
from avatar_v.sampling.motion import guided_motion
from avatar_v.sampling.solver import VelocityFn, last_with_gradient, normal, renoise, sample
from avatar_v.stages.base import Logs, Noised
from avatar_v.stages.matching import FAKE, REAL, Scores, compared
from avatar_v.stages.motion_prior import MotionPrior, MotionTraining
from avatar_v.stages.optim import Optim
from avatar_v.stages.roles import STUDENT, Role, Updates
from avatar_v.stages.settings import MAX_GUIDANCE, Models, Objective
from avatar_v.stages.trainable import Trainable
from avatar_v.stages.windows import Windows, draw_windows
from avatar_v.types import TEMPORAL_FACTOR, Batch, MotionCond, num_latents
from avatar_v.weights.card import read_card

Motion = Float[Tensor, "b l md"]


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


class DistillMotion(MotionPrior):
    """A motion network of few steps.

    Args:
        matching: the student's steps, the guidance it takes over, the fake score.
        updates: accumulation and clipping, which the trainer leaves to a stage of two roles.
        trainable: all of the student, or LoRA factors; the fake score is trained whole.
    """

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
        super().__init__(models, optim, objective, motion, seed, trainable)
        self.matching = matching
        self.updates = updates or Updates()
        self.register_buffer("last_loss", torch.zeros(()), persistent=False)

    def roles(self) -> Mapping[str, Role]:
        clip, numbers = self.updates.gradient_clip_val, self.matching
        return {
            STUDENT: Role(("conditioner",), self.optim, ema=True, export=True, gradient_clip=clip),
            FAKE: numbers.fake_role((FAKE,), self.optim, clip),
            REAL: Role((REAL,)),
        }

    def adapt(self) -> None:
        """All roles begin as the motion network of the weights. ValueError for weights without one,
        or with a student already."""
        start = self.models.init_from
        if self.conditioner.motion_net is None:
            raise ValueError(f"{start} has no motion network: start from recipes/3_motion.yaml")
        steps = None if start is None else read_card(start).can.motion_steps
        if steps is not None:
            raise ValueError(f"the motion network of {start} is a student of {steps} steps already")
        self.fake, self.real = (self.network_for(role, self.network) for role in (FAKE, REAL))

    def select_trainable(self) -> None:
        super().select_trainable()
        self.fake.requires_grad_(True)

    def draw_windows(self, batch: Batch, generator: torch.Generator) -> Windows:
        """All of one kind: without anything before them, behind a first frame, or behind the end of
        a chunk, as often as chunks of generation are."""
        first, image = torch.rand(2, generator=self.common).tolist()
        is_first = first < self.objective.first_share
        windows = draw_windows(
            self.num_windows(batch),
            num_latents(batch.motion.shape[1]),
            self.window_length,
            first_share=float(is_first),
            image_share=float(image < self.objective.image_share),
            generator=generator,
        )
        if is_first or not bool((windows.start > 0).all()):  # a clip of one window has no inside
            return windows
        return dataclasses.replace(windows, prefix=torch.full_like(windows.prefix, OVERLAP))

    def iterate(
        self,
        clean: Tensor,
        cond: MotionCond,
        windows: Windows,
        batch: Batch,
        generator: torch.Generator,
    ) -> tuple[Tensor, Logs]:
        """One backward pass of the fake score, and one of the student if its turn has come."""
        due, logs = self.matching.is_due(self.num_backward[FAKE], self.updates), {}
        seen = windows.scored().to(clean.device)
        num_moves = 1 + int(torch.randint(self.matching.num_steps, (), generator=self.common))
        with torch.set_grad_enabled(due):
            made = self.made(self.network, clean, cond, windows, num_moves, generator)
        if due:
            loss = self.matching_term(made, cond, seen, batch, generator)
            logs["dmd"] = loss
            self.update(STUDENT, loss)
            self.last_loss = loss.detach()
        made = made.detach()
        noised = self.noised_motion(made, seen, generator)
        weights = self.component_weights(batch)[self.clip_of_windows(batch)]
        v = self.fake(noised.x_t, noised.t, cond)
        logs["fake"] = motion_flow_loss(v, noised.velocity, seen, weights)
        self.update(FAKE, logs["fake"])
        return self.last_loss, {**logs, **compared(made, clean, int(windows.prefix[0]))}

    def made(
        self,
        network: MotionNet,
        clean: Motion,
        cond: MotionCond,
        windows: Windows,
        num_moves: int,
        generator: torch.Generator,
    ) -> Motion:
        """Motion of the windows as it is seen after so many steps; the last alone takes a
        gradient."""
        times = flow.schedule(self.matching.num_steps, shift=self.objective.shift)
        noise = torch.randn(clean.shape, generator=generator).to(clean)
        return sample(
            last_with_gradient(lambda x, t: network(x, t, cond), num_moves),
            noise,
            torch.cat([times[:num_moves], times[-1:]]),
            prefix=clean[:, : int(windows.prefix[0])],
            step=renoise,
            draw=normal(generator),
        )

    def matching_term(
        self,
        made: Motion,
        cond: MotionCond,
        seen: Tensor,
        batch: Batch,
        generator: torch.Generator,
    ) -> Float[Tensor, ""]:
        """Half the squared distance to where both scores say the student should move to."""
        numbers = self.matching
        guided = guided_motion(
            self.real, cond, audio=numbers.guidance_audio, style=numbers.guidance_style
        )
        with torch.no_grad():
            noised = self.noised_motion(made.detach(), seen, generator)
            x_t, t = noised.x_t, noised.t

            def clean(velocity: VelocityFn) -> Motion:
                return flow.clean_from_velocity(x_t, velocity(x_t, t).float(), t)

            real, fake = clean(guided), clean(lambda x, t: self.fake(x, t, cond))
            g = distribution_matching_gradient(made, real, fake, seen)
        weights = self.component_weights(batch)[self.clip_of_windows(batch)]
        wide = weights.repeat(1, TEMPORAL_FACTOR)[:, None].to(made)
        return distribution_matching_loss(made, g, seen, wide).mean()

    def noised_motion(self, clean: Motion, scored: Tensor, generator: torch.Generator) -> Noised:
        """Motion as the scores see it; what is given stays clean."""
        return self.matching.noised(clean, scored, shift=self.objective.shift, generator=generator)

    def loss(
        self,
        clean: Tensor,
        cond: MotionCond,
        windows: Windows,
        batch: Batch,
        generator: torch.Generator,
    ) -> tuple[Tensor, Logs]:
        """Squared error of the student's motion against the clip's own, of validation."""
        made = self.made(self.network, clean, cond, windows, self.matching.num_steps, generator)
        clips = self.clip_of_windows(batch)
        seen = windows.crop(latent_validity(batch.valid)[clips]).to(clean.device)
        seen = seen & windows.scored().to(clean.device)
        return motion_flow_loss(made, clean, seen, self.component_weights(batch)[clips]), {}

    def card_entries(self) -> dict[str, Any]:
        return {**super().card_entries(), "motion_steps": self.matching.num_steps}
