"""Training of the critics on rendered frames of the world: what all share, motion meter and face.

Started by recipes/critic_motion.yaml and recipes/critic_face.yaml; the sync critic's own part is in
critic_sync.py, the preference model's in critic_preference.py. At the end of a fit the folder
``export`` holds weights, ``log.csv`` and ``card.json`` with the validation numbers; the numbers on
test persons are measured once, elsewhere (eval/avatar_v_eval/studies/critics.py).
"""

import csv
import json
import math
from abc import ABC, abstractmethod
from pathlib import Path

import lightning as L
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.base.finite import require_finite_weights
from avatar_v.base.paths import whole_file
from avatar_v.critics.frozen import PictureCritic, as_input
from avatar_v.critics.layers import Backbone, augment
from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face import FaceCritic, contrastive_loss, identification
from avatar_v.motion.vectors import component_weights
from avatar_v.rewards.preference import PreferenceModel
from avatar_v.rewards.preference_data import JudgedFeatures
from avatar_v.stages.critic_data import LabelledFrames
from avatar_v.stages.optim import MAX_DECAY, MAX_LR
from avatar_v.stages.sync_data import SyncRuns
from avatar_v.types import MOTION_NAMES

Pictures = LabelledFrames | SyncRuns | JudgedFeatures

INPUT_SIZE = PictureCritic.input_size
MAX_SIZE = 4096


class CriticStage(L.LightningModule, ABC):
    """AdamW with a one-cycle rate, augmented pictures, a log kept in memory, export at the end."""

    model: MotionMeter | FaceCritic | WorldSyncNet | PreferenceModel
    trained_on = "rendered frames of the world, persons, scenes and speech of TRAIN"

    def __init__(self, recipe: str, lr: float, weight_decay: float, export: str, seed: int) -> None:
        super().__init__()
        checks.positive("lr", lr, most=MAX_LR)
        checks.number("weight_decay", weight_decay, least=0, most=MAX_DECAY)
        checks.seed("seed", seed)
        self.recipe = recipe
        self.lr = lr
        self.weight_decay = weight_decay
        self.export = Path(export)
        self.seed = seed
        self.rows: list[dict[str, float]] = []
        self.numbers: dict[str, float] = {}

    def augmented(self, batch: Pictures, generator: torch.Generator) -> tuple[Tensor, Pictures]:
        """Augmented pictures "b 3 64 64" in [-1, 1], and the batch with all else that changes."""
        assert not isinstance(batch, JudgedFeatures)  # whose stage has its own
        images = as_input(batch.images, INPUT_SIZE).cpu()
        return augment(images, generator).to(self.device), batch

    @abstractmethod
    def critic_loss(self, images: Tensor, batch: Pictures) -> Tensor:
        """The loss of augmented pictures in [-1, 1]."""

    @abstractmethod
    def critic_numbers(self, frames: list[Pictures]) -> dict[str, float]:
        """Validation numbers of the untouched pictures of all batches."""

    def on_fit_start(self) -> None:
        """The last validation must see the last weights: it is what the card says."""
        steps, per_epoch = self.trainer.max_steps, self.trainer.datamodule.batches_per_epoch  # pyright: ignore
        if steps % per_epoch:
            raise ValueError(f"max_steps {steps} is no multiple of batches_per_epoch {per_epoch}")

    def training_step(self, batch: Pictures, batch_idx: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.global_step)
        images, batch = self.augmented(batch, generator)
        loss = self.critic_loss(images, batch)
        self.log("loss", loss, prog_bar=True)
        self.rows.append({"step": self.global_step, "loss": float(loss.detach())})
        return loss

    def on_validation_epoch_start(self) -> None:
        self._seen: list[Pictures] = []

    def validation_step(self, batch: Pictures, batch_idx: int) -> None:
        self._seen.append(batch)

    def on_validation_epoch_end(self) -> None:
        if self.trainer.sanity_checking:
            return
        self.numbers = self.critic_numbers(self._seen)
        self.log_dict(self.numbers, prog_bar=True)
        self.rows.append({"step": self.global_step, **self.numbers})

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.lr, weight_decay=self.weight_decay)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.lr, total_steps=steps, pct_start=0.1, final_div_factor=100
        )
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def on_train_end(self) -> None:
        require_finite_weights(self.trainer, self.model, f"export to {self.export}", torch.float16)
        self.model.eval().half().float()  # what ships is stored as float16, and hashed as such
        self.model.save_pretrained(self.export, torch.float16)
        names = ["step", "loss", *self.numbers]
        with (
            whole_file(self.export / "log.csv") as partial,
            open(partial, "w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.DictWriter(file, names, restval="")
            writer.writeheader()
            rounded = [{k: f"{v:.6g}" for k, v in row.items()} for row in self.rows]
            writer.writerows(rounded)
        card = {
            "critic": self.model.name,
            "weights_hash": self.model.hash(),
            "recipe": self.recipe,
            "steps": self.global_step,
            "validation": {k: round(v, 4) for k, v in self.numbers.items()},
            "trained_on": self.trained_on,
        }
        text = json.dumps(card, indent=1) + "\n"
        with whole_file(self.export / "card.json") as partial:
            partial.write_text(text, encoding="utf-8")


class MotionStage(CriticStage):
    """Regression of the motion vector, each component in units of its spread."""

    model: MotionMeter

    def __init__(
        self,
        recipe: str,
        export: str,
        lr: float,
        weight_decay: float,
        components: dict[str, float],
        width: int = 24,
        num_heads: int = 10,
        init_from: str | None = None,
        backbone: Backbone = "residual",
        held_out: bool = False,
        seed: int = 0,
    ) -> None:
        """``components``: their weights in the loss by name; every other one has 1.
        ``init_from``: the folder of a meter to go on from, in place of fresh weights."""
        super().__init__(recipe, lr, weight_decay, export, seed)
        check_sizes(width=width, num_heads=num_heads)
        self.init_from = init_from
        if init_from is None:
            self.model = MotionMeter(width, num_heads, backbone, held_out)
        else:
            self.model = MotionMeter.from_pretrained(init_from).requires_grad_(True).train()
        self.register_buffer("weights", component_weights(components))

    def on_fit_start(self) -> None:
        super().on_fit_start()
        if self.init_from is not None:
            return
        motion = self.trainer.datamodule.train_frames.motion  # pyright: ignore
        self.model.center.copy_(motion.mean(0))
        self.model.scale.copy_(motion.std(0).clamp_min(1e-3))  # one that never moves stays finite

    def critic_loss(self, images: Tensor, batch: LabelledFrames) -> Tensor:
        error = (self.model(images) - batch.motion) / self.model.scale
        return (error.square() * self.weights).mean()

    def critic_numbers(self, frames: list[LabelledFrames]) -> dict[str, float]:
        read = torch.cat([self.model.measure(part.images).values for part in frames])
        truth = torch.cat([part.motion for part in frames])
        moves = (truth.std(0) > 0).nonzero()[:, 0].tolist()
        scores = r_squared(read.double()[:, moves], truth.double()[:, moves])
        return {f"r2_{MOTION_NAMES[i]}": float(s) for i, s in zip(moves, scores, strict=True)}


class FaceStage(CriticStage):
    """Supervised contrastive learning over grids of persons times scenes."""

    model: FaceCritic

    def __init__(
        self,
        recipe: str,
        export: str,
        lr: float,
        weight_decay: float,
        width: int = 36,
        num_heads: int = 12,
        num_dims: int = 64,
        temperature: float = 0.1,
        backbone: Backbone = "residual",
        held_out: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(recipe, lr, weight_decay, export, seed)
        check_sizes(width=width, num_heads=num_heads, num_dims=num_dims)
        checks.positive("temperature", temperature)
        self.model = FaceCritic(width, num_heads, num_dims, backbone, held_out)
        self.temperature = temperature

    def critic_loss(self, images: Tensor, batch: LabelledFrames) -> Tensor:
        embeddings = self.model(images).float()
        return contrastive_loss(embeddings, batch.person, batch.scene, self.temperature)

    def critic_numbers(self, frames: list[LabelledFrames]) -> dict[str, float]:
        embedded = torch.cat([self.model.measure(part.images).values for part in frames])
        person = torch.cat([part.person for part in frames])
        scene = torch.cat([part.scene for part in frames])
        return identity_across_scenes(embedded, person, scene)


def check_sizes(**sizes: int) -> None:
    """ValueError for a number of channels, heads or features that no critic has."""
    for name, size in sizes.items():
        checks.count(name, size, most=MAX_SIZE)


def identity_across_scenes(
    embedded: Float[Tensor, "n d"], person: Tensor, scene: Tensor
) -> dict[str, float]:
    """One frame in one scene against a gallery of one frame per person in another scene.

    All persons are in one gallery; the query scene is the first of each person, the gallery's the
    second. ``top1``: the nearest is the right person. ``pairwise``: share of other persons that
    are farther.
    """
    queries, gallery = [], []
    for who in person.unique():
        mine = (person == who).nonzero()[:, 0]
        elsewhere = mine[scene[mine] != scene[mine[0]]]
        queries.append(embedded[mine[0]])
        gallery.append(embedded[elsewhere[0]])
    nearest, pairwise = identification(torch.stack(queries), torch.stack(gallery))
    return {"top1": float(nearest.float().mean()), "pairwise": float(pairwise.mean())}


def r_squared(read: Float[Tensor, "n c"], truth: Float[Tensor, "n c"]) -> Float[Tensor, " c"]:
    """1 - residual / total sum of squares, per column; can be negative."""
    total = (truth - truth.mean(0)).square().sum(0)
    if not math.isfinite(float(total.sum())) or bool((total == 0).any()):
        raise ValueError(f"r² needs columns that vary, got total squares {total.tolist()}")
    return 1 - (read - truth).square().sum(0) / total
