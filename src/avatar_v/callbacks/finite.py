"""The guard of every run: a loss that is not finite ends it, and no bad weight is ever saved."""

from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from torch import Tensor

from avatar_v.base import checks
from avatar_v.training.engine import steps_made
from avatar_v.training.finite import (
    end_together,
    listed,
    not_finite,
    require_finite_weights,
)


@dataclass(frozen=True)
class PendingLosses:
    """A batch whose losses have not been looked at yet."""

    step: int  # counted from 1
    keys: tuple[str, ...]  # of its clips; none for the critics' batches
    terms: dict[str, Tensor]


class FiniteTraining(L.Callback):
    """Ends the run with an error that names step, terms and clips where a loss is not finite.

    A batch of ``training_step`` is judged by its ``loss`` and by its ``terms``, a mapping of
    scalars. On one CPU every batch is looked at as it ends. A GPU would have to wait for that, and
    several ranks for each other: there the batches are looked at every ``every_num_batches``, and
    before each validation, checkpoint and export. Weights are looked at before each checkpoint.
    `RecipeCLI` adds this callback in front of all others.
    """

    def __init__(self, every_num_batches: int = 20) -> None:
        checks.count("every_num_batches", every_num_batches)
        self.every_num_batches = every_num_batches
        self._seen: list[PendingLosses] = []
        self._num_steps = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._num_steps = steps_made(trainer, pl_module)

    def on_train_batch_end(self, trainer, pl_module, outputs: Any, batch, batch_idx) -> None:
        terms = {"loss": outputs["loss"].detach(), **outputs.get("terms", {})}
        num_steps = steps_made(trainer, pl_module)
        step = num_steps + (num_steps == self._num_steps)  # gradients may be accumulating
        self._num_steps = num_steps
        self._seen.append(PendingLosses(step, tuple(getattr(batch, "key", ())), terms))
        is_free = terms["loss"].device.type == "cpu" and trainer.world_size == 1
        if is_free or len(self._seen) >= self.every_num_batches:
            self._look(trainer)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._look(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The numbers of a validation, also of `avatar-v validate`."""
        metrics = trainer.callback_metrics
        names = not_finite(metrics)
        numbers = listed(f"{name} {float(metrics[name])}" for name in names)
        fault = f"validation at step {steps_made(trainer, pl_module)}: not finite: {numbers}"
        end_together(trainer, fault if names else None)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint) -> None:
        self._look(trainer)
        place = f"checkpoint of step {steps_made(trainer, pl_module)}"
        require_finite_weights(trainer, pl_module, place)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._look(trainer)

    def _look(self, trainer: L.Trainer) -> None:
        seen, self._seen = self._seen, []
        end_together(trainer, find_fault(seen))


def find_fault(seen: list[PendingLosses]) -> str | None:
    """The words about the first batch that is not finite, or None. The device is asked once."""
    values = [value.float().reshape(()) for batch in seen for value in batch.terms.values()]
    if not values or bool(torch.stack(values).isfinite().all()):
        return None
    batch = next(batch for batch in seen if not_finite(batch.terms))
    bad = listed(f"{name} {float(batch.terms[name])}" for name in not_finite(batch.terms))
    clips = f"; clips of the batch: {listed(batch.keys)}" if batch.keys else ""
    return (
        f"step {batch.step}: not finite: {bad}{clips}; nothing is exported, the last checkpoint "
        "stays"
    )
