"""Stage: what every training stage over the DiT shares. Wiring only; mathematics is elsewhere.

One step draws a window of each clip, then ``clean, cond = encode(batch, windows, generator)`` and
``loss, logs = loss(clean, cond, windows, batch, generator)``. Every draw of a step comes from CPU
generators seeded by (seed, rank, batch index), so a resumed run repeats the next loss exactly, on
any device. Draws that decide which parts of the network run come from ``self.common``, which is the
same on all ranks: sharded, ranks that run other parts wait for each other for ever. A stage
overrides ``conditions`` (what it sees) and ``loss`` (what it is trained on).
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v import flow
from avatar_v.losses.flow import flow_loss
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.presets import build
from avatar_v.models.weights import load_dit, load_pipeline
from avatar_v.parallel.apply import checkpoint_blocks, shard
from avatar_v.shards.datamodule import ShardData
from avatar_v.stages.optim import Optim, build_optimizer, warmup_cosine
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.windows import Windows, draw_window_times, draw_windows, reduced, value_at
from avatar_v.types import Batch, Cond, num_latents

Logs = dict[str, Tensor]
VALIDATION_RANK = 1_000_000
"""Keeps the draws of validation apart from those of every training rank."""
ALL_RANKS = 999_999
"""Stands for the rank in draws that all ranks share."""


@dataclass(frozen=True)
class Noised:
    """What a step gives the model, and what the model should say."""

    x_t: Float[Tensor, "b l c h w"]
    t: Float[Tensor, "b l"]  # 0 on prefix and suffix
    velocity: Float[Tensor, "b l c h w"]
    scored: Bool[Tensor, "b l"]  # False on prefix and suffix


class Stage(L.LightningModule, ABC):
    """Base of the stages. ``seed`` is that of fresh weights and of the draws of every step."""

    dit: AvatarDiT
    conditioner: Conditioner

    def __init__(self, models: Models, optim: Optim, objective: Objective, seed: int = 0) -> None:
        super().__init__()
        self.models = models
        self.optim = optim
        self.objective = objective
        self.seed = seed
        self.is_built = False
        self.begin_step(0, 0)

    def configure_model(self) -> None:
        """Build or load the models; Lightning calls this once the devices are known."""
        if self.is_built:
            return
        m = self.models
        if m.init_from is None:
            self.dit, self.conditioner = build(
                m.preset, seed=self.seed, vae=m.vae, text=m.text, audio=m.audio
            )
            if m.dit is not None:
                self.dit = load_dit(m.dit)
                self.conditioner.check_fits(self.dit.config)
        else:
            self.dit, self.conditioner = load_pipeline(m.init_from, preset=m.preset, vae=m.vae)
        self.adapt()
        self.train()
        self.select_trainable()
        self.is_built = True
        keep_frozen_out_of_checkpoints(self)
        if m.checkpoint_activations:
            checkpoint_blocks(self.dit)
        if self.device_mesh is not None:  # of ModelParallelStrategy
            # gathered weights must be of the type that the trainer computes in
            dtype = torch.bfloat16 if "bf16" in self.trainer.precision else torch.float32
            mesh = self.device_mesh["data_parallel"]
            shard(self.dit, self.conditioner, mesh, compute_dtype=dtype)

    def adapt(self) -> None:
        """Change the networks that were built or loaded into those this stage trains."""

    def select_trainable(self) -> None:
        """Freeze what this stage does not train. The VAE is frozen already."""

    def on_fit_start(self) -> None:
        """Precomputed latents must come from the VAE that will decode them."""
        data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(data, ShardData):
            data.require_vae(self.conditioner.vae.hash())

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
        return windows.crop(self.conditioner.clean_latents(self.at_resolution(batch))), cond

    @abstractmethod
    def loss(
        self, clean: Tensor, cond: Cond, windows: Windows, batch: Batch, generator: torch.Generator
    ) -> tuple[Tensor, Logs]:
        """The loss of the windows and further scalars to log."""

    @property
    def reference_dropout(self) -> float:
        """Share of samples that lose their reference, in stages that have one."""
        return 0.0

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor | int]:
        index = self.trainer.fit_loop.total_batch_idx
        generator = self.begin_step(0, index)
        windows = self.draw_windows(batch, generator)
        clean, cond = self.encode(batch, windows, generator)
        loss, logs = self.loss(clean, cond, windows, batch, generator)
        self.log("train/loss", loss, prog_bar=True, batch_size=clean.shape[0])
        self.log_dict({f"train/{k}": v for k, v in logs.items()}, batch_size=clean.shape[0])
        self.log("train/lr", self.optimizers().param_groups[0]["lr"])  # pyright: ignore
        return {"loss": loss, "num_tokens": self.num_tokens(clean)}

    def begin_step(self, base: int, index: int) -> torch.Generator:
        """The generator of this rank's draws on a batch; ``common`` becomes that of all ranks.
        ``base`` is the first rank's number: 0, in validation ``VALIDATION_RANK``."""
        self.common = step_generator(self.seed, base + ALL_RANKS, index)
        return step_generator(self.seed, base + self.global_rank, index)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """The training loss with draws that depend on the batch index alone."""
        generator = self.begin_step(VALIDATION_RANK, batch_idx)
        windows = self.draw_windows(batch, generator)
        clean, cond = self.encode(batch, windows, generator)
        loss, _ = self.loss(clean, cond, windows, batch, generator)
        size = clean.shape[0]
        self.log("val/loss", loss, prog_bar=True, batch_size=size, sync_dist=True)

    def configure_optimizers(self):
        optimizer = build_optimizer(self, self.optim)
        num_steps = int(self.trainer.estimated_stepping_batches)
        schedule = warmup_cosine(optimizer, self.optim, num_steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def card_entries(self) -> dict[str, Any]:
        """What the card of this stage's weights says they can do (models.weights.Card)."""
        return {}

    @property
    def window_length(self) -> int:
        """Latents of a window at this step of the schedule."""
        return value_at(self.objective.window_latents, self.global_step)

    def at_resolution(self, batch: Batch) -> Batch:
        """``batch`` with its videos at this step's resolution."""
        return reduced(batch, value_at(self.objective.resolution, self.global_step))

    def draw_windows(self, batch: Batch, generator: torch.Generator) -> Windows:
        """This step's window of each clip of ``batch``."""
        return draw_windows(
            batch.motion.shape[0],
            num_latents(batch.motion.shape[1]),
            self.window_length,
            first_share=self.objective.first_share,
            image_share=self.objective.image_share,
            suffix_share=self.objective.suffix_share,
            generator=generator,
        )

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
        t = draw_window_times(windows, shift=self.objective.shift, generator=generator)
        t = t.to(clean.device)
        scored = windows.scored().to(clean.device)
        return Noised(flow.interpolate(clean, noise, t), t, flow.velocity(clean, noise), scored)

    def num_tokens(self, clean: Tensor) -> int:
        """Tokens of the generated stream in one step of this rank."""
        patch = self.dit.config.patch
        length = self.window_length
        return clean.shape[0] * length * (clean.shape[3] // patch) * (clean.shape[4] // patch)


def step_generator(seed: int, rank: int, index: int) -> torch.Generator:
    """The generator of one batch of one rank, the same in every run."""
    mixed = (seed * 1_000_003 + rank) * 2_147_483_659 + index
    return torch.Generator().manual_seed(mixed % 2**63)


def happens(share: float, generator: torch.Generator) -> bool:
    """Whether this step is among ``share`` of all; nothing is drawn for 0."""
    return share > 0 and float(torch.rand((), generator=generator)) < share


def keep_frozen_out_of_checkpoints(module: torch.nn.Module) -> None:
    """Checkpoints hold what is trained. Frozen weights (VAE, full-size encoders) come from their
    folders; every other missing or unexpected key stays an error."""
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}

    def drop(_module, state_dict, prefix, _metadata) -> None:
        for name in frozen:
            state_dict.pop(prefix + name, None)

    def allow(_module, incompatible) -> None:
        missing = [key for key in incompatible.missing_keys if key not in frozen]
        incompatible.missing_keys[:] = missing

    module.register_state_dict_post_hook(drop)
    module.register_load_state_dict_post_hook(allow)
