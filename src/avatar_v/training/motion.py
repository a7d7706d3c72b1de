"""Windows of motion, and what they are conditioned on: sound and a person's style.

How often a person blinks or how far they sway shows in many windows, and a window of motion costs a
token per latent frame where one of video costs hundreds and its reference besides. So every clip
gives several windows in a step, each shown the style of a run of its own of the person's other
clip.

The motion network is the last part of a pipeline: it reads the audio encoder of the weights
that it is added to, which stays as it is. The DiT, the VAE and the text encoder are there to be
exported beside it. They are not run, so they stay in main memory.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from avatar_v.base import checks
from avatar_v.models.conditioner import Conditioner, latent_validity
from avatar_v.models.motion_net import MotionNet
from avatar_v.motion.own_units import build_style
from avatar_v.motion.style import motion_moments
from avatar_v.motion.vectors import component_weights
from avatar_v.training.batch import Draws, TrainBatch
from avatar_v.training.settings import Models, Objective
from avatar_v.training.subject import ClipSubject, Networks, WindowSource
from avatar_v.training.trainable import Trainable, select
from avatar_v.training.windows import Windows
from avatar_v.types import Batch, MotionCond
from avatar_v.weights.card import Capabilities, read_card


@dataclass(frozen=True)
class MotionTraining:
    """Numbers of the motion network's training."""

    num_windows: int = 8  # of each clip in a step
    max_reference_latents: int = 1_000_000  # of the run that the style is read from
    style_dropout: float = 0.15  # share of windows without a style, for guidance
    hears: bool = False
    """The network becomes able to hear the voice of somebody else, which the shards' clips of
    dialogues have (`avatar-v-data world --dialogues`). Without it nobody else is heard, and what
    hears them is frozen."""
    heard_dropout: float = 0.0  # share of windows of dialogues that hear nobody else
    components: dict[str, float] = field(default_factory=dict)
    """Weights of motion's components by name in the loss; all others have 1."""

    def __post_init__(self) -> None:
        checks.each(checks.count, self, ("num_windows", "max_reference_latents"))
        checks.each(checks.share, self, ("style_dropout", "heard_dropout"))
        component_weights(self.components)


class MotionSubject(ClipSubject[MotionCond]):
    """Latents of motion: ``training`` says how many windows, whose style, which components count
    most."""

    knows_motion = True

    def __init__(
        self,
        models: Models,
        objective: Objective,
        training: MotionTraining,
        windows: WindowSource | None = None,
    ) -> None:
        super().__init__(models, objective, windows)
        self.training = training

    def set_aside(self, networks: Networks) -> None:
        set_pictures_aside(networks)

    def begin(self, networks: Networks, batch: Batch, draws: Draws) -> TrainBatch[MotionCond]:
        windows = self.draw_windows(batch, draws)
        clean, cond = self.encode(networks, batch, windows, draws)
        num_tokens = len(clean) * windows.length
        return TrainBatch(batch, windows, clean, cond, draws, num_tokens)

    def encode(
        self, networks: Networks, batch: Batch, windows: Windows, draws: Draws
    ) -> tuple[Float[Tensor, "n l md"], MotionCond]:
        """Clean motion of the windows, and their conditions after dropout."""
        cond = self.conditions(networks, batch, windows, draws)
        motion = networks.conditioner.pack_motion(batch.motion)[self.clip_of_windows(batch)]
        kept = torch.rand(2, len(motion), generator=draws.own)
        assert cond.audio is not None, "conditions has audio"
        device = cond.audio.device
        cond = dataclasses.replace(
            cond,
            audio_keep=(kept[0] >= self.objective.audio_dropout).to(device),
            style_keep=(kept[1] >= self.training.style_dropout).to(device),
        )
        if cond.heard_keep is not None:
            heard = torch.rand(len(motion), generator=draws.own) >= self.training.heard_dropout
            cond = dataclasses.replace(cond, heard_keep=cond.heard_keep & heard.to(device))
        return windows.crop(motion).to(device), cond

    def conditions(
        self,
        networks: Networks,
        batch: Batch,
        windows: Windows,
        draws: Draws | None = None,
        *,
        step: int = 0,
    ) -> MotionCond:
        """The sound of each window, that of the other side where there is one and the network
        hears it, and the style of a run of the person's other clip, without draws of all of it.
        ValueError without a reference."""
        if batch.reference is None:
            raise ValueError("a style needs references: set data.init_args.pairs to true")
        clip, conditioner = self.clip_of_windows(batch), networks.conditioner
        with torch.no_grad():
            audio = windows.crop(conditioner.encode_audio(batch.audio)[clip])
        net, heard, heard_keep = conditioner.motion_net, None, None
        if self.training.hears and net is not None and net.config.hears:
            if batch.heard is None:  # nobody, but all ranks train the same parameters
                heard, heard_keep = torch.zeros_like(audio), audio.new_zeros(len(audio)).bool()
            else:
                with torch.no_grad():
                    heard = windows.crop(conditioner.encode_audio(batch.heard)[clip])
                heard_keep = batch.heard.ne(0).any(1)[clip].to(audio.device)
        most, own = self.training.max_reference_latents, None if draws is None else draws.own
        moments = run_moments(batch.reference, clip, conditioner, most, own)
        style = build_style(moments, conditioner.known_stats)
        return MotionCond(audio, heard=heard, heard_keep=heard_keep, style=style.to(audio.device))

    def num_windows(self, batch: Batch) -> int:
        """Several of each clip, one clip's after another's."""
        return len(batch.motion) * self.training.num_windows

    def clip_of_windows(self, batch: Batch) -> Int[Tensor, " n"]:
        """The number of the clip that each window is cut from."""
        return torch.arange(len(batch.motion)).repeat_interleave(self.training.num_windows)

    def seen(self, batch: TrainBatch) -> Bool[Tensor, "n l"]:
        """True for the latents that are to be made, where the face is seen."""
        valid = latent_validity(batch.clips.valid)[self.clip_of_windows(batch.clips)]
        return batch.windows.crop(valid).to(batch.clean.device) & batch.scored

    def component_weights(self, batch: Batch) -> Float[Tensor, "b m"]:
        """The weight of each component in the loss of each clip; 0 where it was not read."""
        weights = component_weights(self.training.components).expand(len(batch.motion), -1)
        return weights if batch.motion_known is None else weights * batch.motion_known.to(weights)

    def window_weights(self, batch: TrainBatch) -> Float[Tensor, "n m"]:
        """`component_weights` for each window."""
        return self.component_weights(batch.clips)[self.clip_of_windows(batch.clips)]

    def card_entries(self, networks: Networks) -> dict[str, Any]:
        """Those of the weights that the network is added to, which now know motion."""
        return {**inherited(self.models), "motion": True, "motion_steps": None}


def get_motion_net(networks: Networks) -> MotionNet:
    """The motion network, which `Engine.build_roles` has made or found."""
    net = networks.conditioner.motion_net
    assert net is not None, "build_roles looks for it"
    return net


def select_motion_net(
    networks: Networks,
    trainable: Trainable,
    seed: int,
    *,
    hears: bool,
    new: tuple[str, ...] = (),
) -> None:
    """Freeze all but the motion network, or what is trained of it: parts "new" are those with one
    of ``new`` in their names. Without ``hears`` what hears somebody else is frozen."""
    networks.dit.requires_grad_(False)
    networks.conditioner.requires_grad_(False)
    net = get_motion_net(networks).requires_grad_(True)
    select(net, trainable, new=new, seed=seed)
    if not hears:
        freeze_listening(net)


def freeze_listening(net: MotionNet) -> None:
    """Freeze what hears somebody else: a stage that shows nobody runs it in no step, and weight
    decay would shrink it."""
    if net.listening is not None:
        net.listening.requires_grad_(False)


def set_pictures_aside(networks: Networks) -> None:
    """Where motion alone is made: DiT, VAE and text encoder are kept to be exported, and do not
    move to the device of the stage."""
    assert isinstance(networks, nn.Module)
    set_aside(networks, "dit")
    set_aside(networks.conditioner, "vae", "text_encoder")


def set_aside(module: nn.Module, *names: str) -> None:
    """Make these parts plain attributes: they are still there by their names, and nothing moves,
    shards, averages or stores them with ``module``."""
    for name in names:
        part = module.get_submodule(name)
        delattr(module, name)
        module.__dict__[name] = part


def inherited(models: Models) -> dict[str, Any]:
    """What a card says of the weights that a stage starts from, and of those that it makes."""
    start = models.init_from
    return (Capabilities() if start is None else read_card(start).can).inherited()


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
