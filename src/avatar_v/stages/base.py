"""Stage: what every training stage over the DiT shares. Wiring only; mathematics is elsewhere.

`Stage.begin` draws a window of each clip of a batch and encodes it; `Stage.loss` takes what it
gives. Every draw comes from CPU generators seeded by (seed, data rank, batch index), so a resumed
run repeats the next loss exactly, on any device. Draws that decide which parts of the network run
come from ``self.common``, which is the same on all ranks: sharded, ranks that run other parts wait
for each other for ever. A stage overrides ``conditions`` (what it sees) and ``loss`` (what it is
trained on); a stage that trains several networks overrides ``roles`` and ``iterate`` too
(stages/role_module.py). ``self.step`` counts the student's updates; all schedules go by it.
"""

import dataclasses
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from avatar_v import flow
from avatar_v.base import checks
from avatar_v.losses.flow import flow_loss
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.text import ByteTextEncoder
from avatar_v.motion.stats import MotionStats
from avatar_v.parallel.apply import checkpoint_blocks
from avatar_v.parallel.mesh import common_generator, own_generator, shard_mesh
from avatar_v.parallel.sequence import sequence_mesh, spread
from avatar_v.sampling.settings import Settings
from avatar_v.shards.datamodule import ShardData
from avatar_v.shards.motion_stats import stats_of_folder
from avatar_v.stages.optim import Optim
from avatar_v.stages.role_module import (
    RoleModule,
    keep_frozen_out_of_checkpoints,
    set_aside,
)
from avatar_v.stages.roles import STUDENT, Role
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.trainable import Trainable, select
from avatar_v.stages.windows import Windows, draw_window_times, draw_windows, reduced, value_at
from avatar_v.types import Batch, Cond, MotionCond, num_latents
from avatar_v.weights.presets import build
from avatar_v.weights.weights import find_stats, load_dit, load_pipeline

Logs = dict[str, Tensor]


@dataclass(frozen=True)
class Noised:
    """What a step gives the model, and what the model should say."""

    x_t: Float[Tensor, "b l *rest"]
    t: Float[Tensor, "b l"]  # 0 on prefix and suffix
    times: Float[Tensor, " b"]  # of the others; on the CPU
    velocity: Float[Tensor, "b l *rest"]
    scored: Bool[Tensor, "b l"]  # False on prefix and suffix


@dataclass(frozen=True)
class Begun:
    """A batch with the draws of its step, as `Stage.loss` takes it."""

    windows: Windows
    clean: Tensor
    cond: Cond | MotionCond
    generator: torch.Generator  # of the draws that follow


class Stage(RoleModule, ABC):
    """Base of the stages. ``seed`` is that of fresh weights and of the draws of every step,
    ``trainable`` says which parts of the network are trained (None: all)."""

    dit: AvatarDiT
    conditioner: Conditioner

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        seed: int = 0,
        trainable: Trainable | None = None,
    ) -> None:
        super().__init__()
        checks.seed("seed", seed)
        self.models = models
        self.optim = optim
        self.objective = objective
        self.seed = seed
        self.trainable = trainable or Trainable()
        self.is_built = False
        self.begin_batch(0)

    def roles(self) -> Mapping[str, Role]:
        """The student alone, in stages that train nothing beside it."""
        return {STUDENT: Role(("dit", "conditioner"), self.optim, ema=True, export=True)}

    def configure_model(self) -> None:
        """Build or load the models; Lightning calls this once the devices are known."""
        if self.is_built:
            return
        self.load_networks()
        self.set_motion_stats()
        self.settle_networks()
        self.is_built = True
        keep_frozen_out_of_checkpoints(self)
        if self.models.checkpoint_activations:
            for module in self.modules():
                if isinstance(module, AvatarDiT):
                    checkpoint_blocks(module)
        if self.device_mesh is not None:  # of ModelParallelStrategy
            self.shard_roles(shard_mesh(self.device_mesh))
        self.spread_videos()

    def load_networks(self) -> None:
        """The DiT and the conditioner that the stage starts from, with their weights."""
        m = self.models
        if m.init_from is None:
            dit = None if m.dit is None else load_dit(m.dit)
            self.dit, self.conditioner = build(
                m.preset, seed=self.seed, dit=dit, vae=m.vae, text=m.text, audio=m.audio
            )
        else:
            self.dit, self.conditioner = load_pipeline(m.init_from, preset=m.preset, vae=m.vae)

    def settle_networks(self) -> None:
        """Make those that this stage trains of what is there, and settle whose each weight is."""
        self.adapt()
        self.train()
        if self.conditioner.motion_net is not None:  # it has learned to read what the encoder says
            self.conditioner.motion_net.requires_grad_(False)
            self.conditioner.audio_encoder.requires_grad_(False)
        self.select_trainable()
        self.settle_roles()

    def set_pictures_aside(self) -> None:
        """For stages of motion alone: DiT, VAE and text encoder, which no step runs, are kept to be
        exported and do not move to the device of the stage."""
        set_aside(self, "dit")
        set_aside(self.conditioner, "vae", "text_encoder")

    def spread_videos(self) -> None:
        """Let the ranks of a sequence group compute each video together."""
        if self.layout.sequence_size == 1 or self.device_mesh is None:
            return
        meshes: dict[int, DeviceMesh] = {}
        for module in self.modules():
            if isinstance(module, AvatarDiT):
                heads = module.config.num_heads
                if heads not in meshes:
                    device = self.device_mesh.device_type
                    meshes[heads] = sequence_mesh(self.layout, heads, device)
                spread(module, meshes[heads])

    def set_motion_stats(self) -> None:
        """Give the networks the statistics that motion is normalised by: those of the recipe, else
        those of the weights that the stage starts from, else those of the training clips. They are
        part of a checkpoint: a run that goes on keeps them."""
        stats, given = self.conditioner.motion_stats, self.models.motion_stats
        if given is not None:
            stats = find_stats(given)
        elif stats is None and self.knows_motion:
            data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
            if not isinstance(data, ShardData):
                raise ValueError("models.motion_stats: expected a file of motion statistics")
            stats = stats_of_folder(data.train_folder)
        self.dit.motion_stats = self.conditioner.motion_stats = stats

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_save_checkpoint(checkpoint)
        stats = self.conditioner.motion_stats
        checkpoint["motion_stats"] = None if stats is None else dataclasses.asdict(stats)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        super().on_load_checkpoint(checkpoint)
        stats = checkpoint["motion_stats"]
        stats = None if stats is None else MotionStats(**stats)
        self.dit.motion_stats = self.conditioner.motion_stats = stats

    @property
    def knows_motion(self) -> bool:
        """Whether the stage reads motion."""
        return False

    def adapt(self) -> None:
        """Change the networks that were built or loaded into those this stage trains, and build
        those of its other roles."""

    def select_trainable(self) -> None:
        """Freeze what this stage does not train. The VAE is frozen already. Encoders train along
        with all of the DiT only."""
        if self.trainable.parts != "all":
            self.conditioner.requires_grad_(False)
        select(self.dit, self.trainable, new=self.new_parts, seed=self.seed)

    @property
    def new_parts(self) -> tuple[str, ...]:
        """In the names of those parameters of the DiT that the weights which the stage starts from
        do not know: they are trained whole, beside LoRA's factors."""
        return ()

    def on_fit_start(self) -> None:
        """Precomputed latents must come from the VAE that will decode them, and every window of
        the schedule must fit the clips."""
        data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(data, ShardData):
            data.require_vae(self.conditioner.vae.hash())
            data.require_length(self.longest_window)
            if isinstance(self.conditioner.text_encoder, ByteTextEncoder):
                data.require_captions(self.conditioner.text_encoder.num_bytes)
            if self.reads_stills:
                data.require_stills()
            if note := self.unlearned(data.most_latents, self.longest_window):
                warnings.warn(note, stacklevel=2)

    def unlearned(self, clip_latents: int, longest_window: int) -> str:
        """What a run cannot teach where no clip is longer than so many latents; empty: nothing."""
        if clip_latents > longest_window or self.objective.first_share == 1 or longest_window == 1:
            return ""
        return (
            f"no clip has more than the {clip_latents} latents of a window: all windows of that "
            "length begin their clip, and no later chunk of a video is trained; longer clips teach "
            f"it (objective.first_share is {self.objective.first_share:g})"
        )

    @abstractmethod
    def conditions(
        self, batch: Batch, windows: Windows, generator: torch.Generator | None = None
    ) -> Cond:
        """Everything this stage conditions on in these windows. What a stage draws of it comes
        from ``generator``; without one nothing is drawn and all is taken."""

    def encode(
        self, batch: Batch, windows: Windows, generator: torch.Generator
    ) -> tuple[Tensor, Cond]:
        """Clean latents of the windows, and their conditions after dropout."""
        cond = self.conditioner.drop(
            self.conditions(batch, windows, generator),
            text=self.objective.text_dropout,
            audio=self.objective.audio_dropout,
            reference=self.reference_dropout,
            generator=generator,
        )
        clean = self.conditioner.clean_latents(self.at_resolution(batch), windows.stop)
        return windows.crop(clean), cond

    @abstractmethod
    def loss(
        self,
        clean: Tensor,
        cond: Cond | MotionCond,
        windows: Windows,
        batch: Batch,
        generator: torch.Generator,
    ) -> tuple[Tensor, Logs]:
        """The loss of the windows and further scalars to log."""

    @property
    def reads_stills(self) -> bool:
        """Whether steps show whole frames of a reference for its video."""
        return False

    @property
    def reference_dropout(self) -> float:
        """Share of samples that lose their reference, in stages that have one."""
        return 0.0

    def iterate(
        self,
        clean: Tensor,
        cond: Cond | MotionCond,
        windows: Windows,
        batch: Batch,
        generator: torch.Generator,
    ) -> tuple[Tensor, Logs]:
        """One batch of training: the loss, and further scalars to log. Lightning makes the update
        from them. A stage of several trained roles overrides this with a call of `update` for each
        role that is due, and returns the student's loss."""
        return self.loss(clean, cond, windows, batch, generator)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor | int | Logs]:
        begun = self.begin(batch, self.trainer.fit_loop.total_batch_idx)
        rates = {name: o.param_groups[0]["lr"] for name, o in self.role_optimizers().items()}
        loss, logs = self.iterate(begun.clean, begun.cond, begun.windows, batch, begun.generator)
        logs = {name: value.detach() for name, value in logs.items()}
        size = len(begun.clean)
        self.log("train/loss", loss, prog_bar=True, batch_size=size)
        self.log_dict({f"train/{k}": v for k, v in logs.items()}, batch_size=size)
        for name, rate in rates.items():
            self.log("train/lr" if name == STUDENT else f"train/lr_{name}", rate)
        if not self.automatic_optimization:
            self.log("step", float(self.step))  # Lightning would count batches in its logs
        return {"loss": loss, "terms": logs, "num_tokens": self.num_tokens(begun.clean)}

    def begin_batch(self, index: int, *, validation: bool = False) -> torch.Generator:
        """The generator of this data rank's draws on a batch; ``common`` becomes that of all
        ranks."""
        self.common = common_generator(self.seed, index, validation=validation)
        return own_generator(self.seed, self.layout, index, validation=validation)

    def begin(self, batch: Batch, index: int, *, validation: bool = False) -> Begun:
        """The windows of ``batch`` that are drawn when it is the ``index``-th, encoded."""
        generator = self.begin_batch(index, validation=validation)
        windows = self.draw_windows(batch, generator)
        clean, cond = self.encode(batch, windows, generator)
        return Begun(windows, clean, cond, generator)

    def loss_at(self, batch: Batch, index: int, *, validation: bool = False) -> tuple[Tensor, Logs]:
        """The loss of ``batch`` as the ``index``-th one, and further scalars to log."""
        begun = self.begin(batch, index, validation=validation)
        return self.loss(begun.clean, begun.cond, begun.windows, batch, begun.generator)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """The training loss with draws that depend on the batch index alone."""
        loss, _ = self.loss_at(batch, batch_idx, validation=True)
        size = len(batch.motion)
        self.log("val/loss", loss, prog_bar=True, batch_size=size, sync_dist=True)

    def sampled_with(self, settings: Settings) -> Settings:
        """``settings`` as generation changes them for weights of this stage."""
        return settings

    def card_entries(self) -> dict[str, Any]:
        """What the card of this stage's weights says they can do (models.card.Capabilities)."""
        return {"shift": self.objective.shift}

    @property
    def token_side(self) -> int:
        """Pixels of the side of a token."""
        return self.conditioner.vae.spatial_factor * self.dit.config.patch

    @property
    def longest_window(self) -> int:
        """Latents of the longest window that this run draws."""
        windows, steps = self.objective.window_latents, self.trainer.max_steps
        return max(n for at, n in windows.items() if at < steps or steps < 0)

    @property
    def window_length(self) -> int:
        """Latents of a window at this step of the schedule."""
        return value_at(self.objective.window_latents, self.step)

    def at_resolution(self, batch: Batch) -> Batch:
        """``batch`` with its videos at this step's resolution."""
        share = value_at(self.objective.resolution, self.step)
        return reduced(batch, share, multiple=self.token_side)

    def draw_windows(self, batch: Batch, generator: torch.Generator) -> Windows:
        """This step's windows: one of each clip of ``batch``, where a stage draws no more."""
        return draw_windows(
            self.num_windows(batch),
            num_latents(batch.motion.shape[1]),
            self.window_length,
            first_share=self.objective.first_share,
            image_share=self.objective.image_share,
            suffix_share=self.objective.suffix_share,
            generator=generator,
        )

    def num_windows(self, batch: Batch) -> int:
        """Windows that a step draws from ``batch``."""
        return len(batch.motion)

    def flow_loss(
        self,
        windows: Windows,
        clean: Tensor,
        cond: Cond,
        generator: torch.Generator,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Rectified-flow loss on the ``clean`` latents of windows."""
        noised = self.noised(windows, clean, generator)
        v = self.dit(noised.x_t, noised.t, cond)
        return flow_loss(v, noised.velocity, noised.scored, weight)

    def noised(self, windows: Windows, clean: Tensor, generator: torch.Generator) -> Noised:
        """This step's noisy version of the ``clean`` latents of windows."""
        noise = torch.randn(clean.shape, generator=generator).to(clean)
        times = draw_window_times(windows, shift=self.objective.shift, generator=generator)
        t, scored = times.to(clean.device), windows.scored().to(clean.device)
        x_t, velocity = flow.interpolate(clean, noise, t), flow.velocity(clean, noise)
        return Noised(x_t, t, times.amax(1), velocity, scored)

    def num_tokens(self, clean: Tensor) -> int:
        """Tokens of the generated stream in one step of this rank."""
        patch = self.dit.config.patch
        length = self.window_length
        return clean.shape[0] * length * (clean.shape[3] // patch) * (clean.shape[4] // patch)


def happens(share: float, generator: torch.Generator) -> bool:
    """Whether this step is among ``share`` of all; nothing is drawn for 0."""
    return share > 0 and float(torch.rand((), generator=generator)) < share
