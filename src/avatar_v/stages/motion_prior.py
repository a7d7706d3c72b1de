"""Stage: the motion network, from motion and sound alone (shards need no pictures).

How often a person blinks or how far they sway shows in many windows, and a window of motion costs a
token per latent frame where one of video costs hundreds and its reference besides. So every clip
gives several windows in a step, each shown the style of a run of its own of the person's other
clip. Times are uniform over the sampler's steps: what is decided close to t = 1 is hardly ever
seen at logit-normal ones.

The stage comes last: the network hears through the audio encoder of the weights that it is added
to, which stays as it is. The DiT, the VAE and the text encoder are there to be exported beside it.
They are not run, so they stay in main memory.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from avatar_v import flow
from avatar_v.base import checks
from avatar_v.flow import shift_time
from avatar_v.losses.flow import motion_flow_loss
from avatar_v.models.conditioner import Conditioner, latent_validity
from avatar_v.models.motion_net import MotionNet
from avatar_v.motion.own_units import style_of
from avatar_v.motion.style import motion_moments
from avatar_v.motion.vectors import component_weights
from avatar_v.stages.base import Logs, Stage
from avatar_v.stages.optim import Optim
from avatar_v.stages.roles import STUDENT, Role
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.trainable import Trainable, select
from avatar_v.stages.windows import Windows
from avatar_v.types import Batch, MotionCond
from avatar_v.weights.card import Capabilities, read_card
from avatar_v.weights.presets import preset


@dataclass(frozen=True)
class MotionTraining:
    """Numbers of the motion network's training."""

    num_windows: int = 8  # of each clip in a step
    max_reference_latents: int = 1_000_000  # of the run that the style is read from
    style_dropout: float = 0.15  # share of windows without a style, for guidance
    components: dict[str, float] = field(default_factory=dict)
    """Weights of motion's components by name in the loss; all others have 1."""

    def __post_init__(self) -> None:
        checks.each(checks.count, self, ("num_windows", "max_reference_latents"))
        checks.share("style_dropout", self.style_dropout)
        component_weights(self.components)


class MotionPrior(Stage):
    """Rectified flow on windows of motion.

    Args:
        motion: how many windows, whose style, which components count most.
        trainable: all of the motion network, or LoRA factors on that of the start.
    """

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        motion: MotionTraining,
        seed: int = 0,
        trainable: Trainable | None = None,
    ) -> None:
        super().__init__(models, optim, objective, seed, trainable)
        self.motion = motion

    @property
    def knows_motion(self) -> bool:
        return True

    def roles(self) -> Mapping[str, Role]:
        return {STUDENT: Role(("conditioner",), self.optim, ema=True, export=True)}

    def settle_networks(self) -> None:
        """Also keep what no step runs from moving to the device of the stage."""
        super().settle_networks()
        self.set_pictures_aside()

    def adapt(self) -> None:
        """A fresh motion network, unless the weights have one. ValueError for LoRA of a fresh one,
        whose matrices know nothing."""
        if self.conditioner.motion_net is not None:
            return
        if self.trainable.parts == "lora":
            raise ValueError(
                "trainable.parts lora: the weights that the stage starts from have no motion "
                "network; train it whole first (recipes/3_motion.yaml, parts: all)"
            )
        audio_dim = self.conditioner.audio_encoder.dim
        config = preset(self.models.preset).motion(audio_dim)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            self.conditioner.motion_net = MotionNet(config)

    def select_trainable(self) -> None:
        self.dit.requires_grad_(False)
        self.conditioner.requires_grad_(False)
        self.network.requires_grad_(True)
        select(self.network, self.trainable, new=(), seed=self.seed)

    @property
    def network(self) -> MotionNet:
        net = self.conditioner.motion_net
        assert net is not None, "made by adapt"
        return net

    def num_windows(self, batch: Batch) -> int:
        """Several of each clip, one clip's after another's."""
        return len(batch.motion) * self.motion.num_windows

    def clip_of_windows(self, batch: Batch) -> Int[Tensor, " n"]:
        """The number of the clip that each window is cut from."""
        return torch.arange(len(batch.motion)).repeat_interleave(self.motion.num_windows)

    def conditions(
        self, batch: Batch, windows: Windows, generator: torch.Generator | None = None
    ) -> MotionCond:
        """The sound of each window, and the style of a run of the person's other clip, without a
        generator of all of it. ValueError without a reference."""
        if batch.reference is None:
            raise ValueError("a style needs references: set data.init_args.pairs to true")
        clip, most = self.clip_of_windows(batch), self.motion.max_reference_latents
        with torch.no_grad():
            audio = windows.crop(self.conditioner.encode_audio(batch.audio)[clip])
        moments = run_moments(batch.reference, clip, self.conditioner, most, generator)
        style = style_of(moments, self.conditioner.known_stats)
        return MotionCond(audio=audio, style=style.to(audio.device))

    def encode(
        self, batch: Batch, windows: Windows, generator: torch.Generator
    ) -> tuple[Tensor, MotionCond]:
        """Clean motion of the windows, and their conditions after dropout."""
        cond, device = self.conditions(batch, windows, generator), self.device
        motion = self.conditioner.pack_motion(batch.motion)[self.clip_of_windows(batch)]
        kept = torch.rand(2, len(motion), generator=generator)
        cond = dataclasses.replace(
            cond,
            audio_keep=(kept[0] >= self.objective.audio_dropout).to(device),
            style_keep=(kept[1] >= self.motion.style_dropout).to(device),
        )
        return windows.crop(motion).to(device), cond

    def loss(
        self,
        clean: Tensor,
        cond: MotionCond,
        windows: Windows,
        batch: Batch,
        generator: torch.Generator,
    ) -> tuple[Tensor, Logs]:
        """Flow-matching loss of the motion between the given ends, where the face is seen."""
        times = torch.rand(len(clean), 1, generator=generator)
        hidden = windows.scored()
        t = torch.where(hidden, shift_time(times, self.objective.shift), 0.0).to(clean.device)
        noise = torch.randn(clean.shape, generator=generator).to(clean)
        v = self.network(flow.interpolate(clean, noise, t), t, cond)
        clip = self.clip_of_windows(batch)
        seen = windows.crop(latent_validity(batch.valid)[clip]).to(clean.device)
        target, scored = flow.velocity(clean, noise), hidden.to(clean.device) & seen
        return motion_flow_loss(v, target, scored, self.component_weights(batch)[clip]), {}

    def component_weights(self, batch: Batch) -> Float[Tensor, "b m"]:
        """The weight of each component in the loss of each clip; 0 where it was not read."""
        weights = component_weights(self.motion.components).expand(len(batch.motion), -1)
        return weights if batch.motion_known is None else weights * batch.motion_known.to(weights)

    def num_tokens(self, clean: Tensor) -> int:
        return len(clean) * self.window_length

    def card_entries(self) -> dict[str, Any]:
        """Those of the weights that the network is added to, which now know motion."""
        start = self.models.init_from
        can = Capabilities() if start is None else read_card(start).can
        return {**can.inherited(), "motion": True, "motion_steps": None}


def run_moments(
    reference: Batch,
    clip: Int[Tensor, " n"],
    conditioner: Conditioner,
    most: int,
    generator: torch.Generator | None,
) -> Float[Tensor, "n k"]:
    """The moments of a run of each of these clips of ``reference``, uniform in length from one
    latent to ``most``; without a generator those of the whole clips."""
    packed, valid = conditioner.pack_motion(reference.motion), latent_validity(reference.valid)
    known = None if reference.habits_known is None else reference.habits_known[clip]
    seen = valid[clip]
    if generator is not None:
        whole = packed.shape[1]
        uniform = torch.rand(2, len(clip), generator=generator)
        run = 1 + (uniform[0] * min(most, whole)).long()
        first = (uniform[1] * (whole - run + 1)).long()
        index = torch.arange(whole)
        inside = (index >= first[:, None]) & (index < (first + run)[:, None])
        seen = seen & inside.to(seen.device)
    return motion_moments(packed[clip], seen, conditioner.known_stats, known)
