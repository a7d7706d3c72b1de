"""Training of the critics: what all share. Each critic is a subject of its own
(critic_motion.py, critic_face.py, critic_sync.py, critic_preference.py), which recipes name as
``critic``.

At the end of a fit the folder ``export`` holds weights, ``log.csv`` and ``card.json`` with the
validation numbers; the numbers on test persons are measured once, elsewhere
(eval/avatar_v_eval/studies/critics.py).
"""

import csv
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from avatar_v.base import checks
from avatar_v.base.paths import whole_file
from avatar_v.critics.frozen import PictureCritic, as_input
from avatar_v.critics.layers import augment
from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face import FaceCritic
from avatar_v.faces.face_reader import FaceReader
from avatar_v.rewards.preference import PreferenceModel
from avatar_v.training.batch import Draws, Logs
from avatar_v.training.engine import Engine
from avatar_v.training.finite import require_finite_weights
from avatar_v.training.optim import MAX_DECAY, MAX_LR, Optim
from avatar_v.training.roles import STUDENT, Role
from avatar_v.training.subject import Subject

INPUT_SIZE = PictureCritic.input_size
MAX_SIZE = 4096
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class CriticBatch:
    """Augmented inputs, and the batch with all else that changes."""

    inputs: Tensor
    shown: Any  # what the task's data gives, as LabelledFrames or SyncRuns

    @property
    def size(self) -> int:
        return len(self.inputs)

    @property
    def num_tokens(self) -> int:
        return len(self.inputs)


class CriticTask(Subject[CriticBatch]):
    """The task of one critic in training. ``networks`` is the engine; its ``model`` is exported."""

    modules: tuple[str, ...] = ("model",)
    """Names of the networks that `load` gives."""
    trained_on = "rendered frames of the world, persons, scenes and speech of TRAIN"

    def begin(self, networks: Any, batch: Any, draws: Draws) -> CriticBatch:
        """Augmented pictures "b 3 64 64" in [-1, 1]."""
        images = augment(as_input(batch.images, INPUT_SIZE).cpu(), draws.own)
        return CriticBatch(images.to(networks.device), batch)

    def prepare(self, networks: Any, data: Any) -> None:
        """Before the first step, what is read of all training data."""

    @abstractmethod
    def loss(self, networks: Any, batch: CriticBatch) -> Tensor: ...

    @abstractmethod
    def numbers(self, networks: Any, shown: list[Any]) -> dict[str, float]:
        """Validation numbers of the untouched pictures of all batches."""


class TrainCritic(Engine[CriticBatch]):
    """AdamW with a one-cycle rate, a log kept in memory, export at the end.

    Args:
        critic: what is learned.
        recipe: of the card.
        export: folder of the weights.
        lr: the largest learning rate.
        seed: of fresh weights and of every draw.
    """

    subject: CriticTask
    model: MotionMeter | FaceCritic | WorldSyncNet | PreferenceModel | FaceReader

    def __init__(
        self,
        critic: CriticTask,
        recipe: str,
        export: str,
        lr: float,
        weight_decay: float,
        seed: int = 0,
    ) -> None:
        checks.positive("lr", lr, most=MAX_LR)
        checks.number("weight_decay", weight_decay, least=0, most=MAX_DECAY)
        optim = Optim(lr, num_warmup_steps=0, weight_decay=weight_decay)
        super().__init__(critic, optim, seed)
        self.recipe, self.export = recipe, Path(export)
        self.rows: list[dict[str, float]] = []
        self.numbers: dict[str, float] = {}
        self._shown: list[Any] = []

    def roles(self) -> Mapping[str, Role]:
        return {STUDENT: Role(self.subject.modules, self.optim, export=True)}

    def optimizer_for(
        self, optim: Optim, names: tuple[str, ...], num_steps: int
    ) -> tuple[torch.optim.Optimizer, LRScheduler]:
        weights = [self.get_parameter(name) for name in names]
        optimizer = torch.optim.AdamW(weights, optim.lr, weight_decay=optim.weight_decay)
        return optimizer, OneCycleLR(
            optimizer, optim.lr, total_steps=num_steps, pct_start=0.1, final_div_factor=100
        )

    def on_fit_start(self) -> None:
        """The last validation must see the last weights: it is what the card says."""
        data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        steps, per_epoch = self.trainer.max_steps, data.batches_per_epoch
        if steps % per_epoch:
            raise ValueError(f"max_steps {steps} is no multiple of batches_per_epoch {per_epoch}")
        with self.trainer.precision_plugin.forward_context():
            self.subject.prepare(self, data)

    def loss(self, batch: CriticBatch) -> tuple[Tensor, Logs]:
        return self.subject.loss(self, batch), {}

    def iterate(self, batch: CriticBatch) -> tuple[Tensor, Logs]:
        loss, logs = self.loss(batch)
        self.rows.append({"step": self.step, "loss": float(loss.detach())})
        return loss, logs

    def on_validation_epoch_start(self) -> None:
        self._shown = []

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self._shown.append(batch)

    @torch.no_grad()
    def on_validation_epoch_end(self) -> None:
        if self.trainer.sanity_checking:
            return
        self.numbers = self.subject.numbers(self, self._shown)
        self.log_dict(self.numbers, prog_bar=True)
        self.rows.append({"step": self.step, **self.numbers})

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
            "steps": self.step,
            "validation": {k: round(v, 4) for k, v in self.numbers.items()},
            "trained_on": self.subject.trained_on,
        }
        text = json.dumps(card, indent=1) + "\n"
        with whole_file(self.export / "card.json") as partial:
            partial.write_text(text, encoding="utf-8")


def check_sizes(**sizes: int) -> None:
    """ValueError for a number of channels, heads or features that no critic has."""
    for name, size in sizes.items():
        checks.count(name, size, most=MAX_SIZE)


def fresh(seed: int, make: Callable[[], Network]) -> Network:
    """A network whose first weights are of this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()
