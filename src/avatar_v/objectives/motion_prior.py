"""The motion network, from motion and sound alone (shards need no pictures).

Times are uniform over the sampler's steps: what is decided close to t = 1 is hardly ever seen at
logit-normal ones. Its windows are training/motion.py's.
"""

import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor

from avatar_v.flow import shift_time
from avatar_v.losses.flow import motion_flow_loss
from avatar_v.models.motion_net import HEARING_LAYERS, MotionNet
from avatar_v.training.batch import Logs, TrainBatch, noise_like, noisy
from avatar_v.training.engine import Engine
from avatar_v.training.motion import (
    MotionSubject,
    MotionTraining,
    get_motion_net,
    select_motion_net,
)
from avatar_v.training.optim import Optim
from avatar_v.training.roles import STUDENT, Role
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable
from avatar_v.types import MotionCond
from avatar_v.weights.presets import preset

HEARING = ("listening",)
"""The part of a motion network that hears somebody else."""


class MotionPrior(Engine[TrainBatch[MotionCond]]):
    """Rectified flow on windows of motion.

    Args:
        motion: how many windows, whose style, which components count most.
        trainable: all of the motion network, LoRA factors on that of the start, or ("new") what
            hears somebody else alone: then nothing changes where nobody else is heard.
    """

    subject: MotionSubject

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        motion: MotionTraining,
        seed: int = 0,
        trainable: Trainable | None = None,
    ) -> None:
        super().__init__(MotionSubject(models, objective, motion), optim, seed, trainable)

    def roles(self) -> Mapping[str, Role]:
        return {STUDENT: Role(("conditioner",), self.optim, ema=True, export=True)}

    def build_roles(self) -> None:
        """A fresh motion network, unless the weights have one, which may have to learn to hear
        somebody else. ValueError for LoRA of what is fresh: its matrices know nothing."""
        net, of_lora = self.conditioner.motion_net, self.trainable.parts == "lora"
        if net is not None:
            if self.subject.training.hears:
                if of_lora and not net.config.hears:
                    raise ValueError(
                        "trainable.parts lora: this motion network hears nobody else yet; train it "
                        "whole first (recipes/3_listening.yaml, parts: all)"
                    )
                with torch.random.fork_rng(devices=[]):
                    torch.manual_seed(self.seed)
                    self.conditioner.motion_net = net.hearing()
            return
        if of_lora:
            raise ValueError(
                "trainable.parts lora: the weights that the stage starts from have no motion "
                "network; train it whole first (recipes/3_motion.yaml, parts: all)"
            )
        audio_dim = self.conditioner.audio_encoder.dim
        config = preset(self.subject.models.preset).motion(audio_dim)
        if self.subject.training.hears:
            config = dataclasses.replace(config, hearing_layers=HEARING_LAYERS)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.conditioner.motion_net = MotionNet(config)

    def select_trainable(self) -> None:
        hears = self.subject.training.hears
        new = HEARING if hears and self.trainable.parts == "new" else ()
        select_motion_net(self, self.trainable, self.seed, hears=hears, new=new)

    def loss(self, batch: TrainBatch[MotionCond]) -> tuple[Tensor, Logs]:
        """Flow-matching loss of the motion between the given ends, where the face is seen."""
        own, scored = batch.draws.own, batch.windows.scored()
        times = torch.rand(batch.size, 1, generator=own)
        times = torch.where(scored, shift_time(times, self.subject.objective.shift), 0.0)
        noised = noisy(batch.clean, noise_like(batch.clean, own), times, scored)
        v = get_motion_net(self)(noised.x_t, noised.t, batch.cond)
        weights = self.subject.window_weights(batch)
        return motion_flow_loss(v, noised.velocity, self.subject.seen(batch), weights), {}
