"""Checkpoints of whole optimiser steps: none loses the gradients that wait for theirs.

Between two steps the weights and the optimisers are those of the last one. A checkpoint that is
asked for there (by a validation, an epoch or a clock) therefore says that the run stands at the
last step: the run that goes on reads the batches behind it again, and equals one without a break.
"""

from copy import deepcopy
from typing import Any

import lightning as L

from avatar_v.training.engine import Engine, steps_made

LOOP = "fit_loop"
"""Where a checkpoint's ``loops`` hold what training has done."""


class WholeSteps(L.Callback):
    """Puts the place of the last step into checkpoints between two. `RecipeCLI` adds this callback
    before those that save."""

    def __init__(self) -> None:
        self._place: dict[str, Any] | None = None  # of the last step, in the loop and in the data
        self._num_steps = 0
        self._waits = False

    def on_load_checkpoint(self, trainer, pl_module, checkpoint: dict[str, Any]) -> None:
        data = _data_key(trainer)
        place = {LOOP: checkpoint["loops"][LOOP], data: checkpoint.get(data)}
        self._place = deepcopy(place)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._num_steps, self._waits = steps_made(trainer, pl_module), False
        if self._place is None:
            self._place = _place(trainer)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        num_steps = steps_made(trainer, pl_module)
        stepped, self._num_steps = num_steps != self._num_steps, num_steps
        if isinstance(pl_module, Engine) and not pl_module.automatic_optimization:
            self._waits = pl_module.gradients_wait
        else:
            self._waits = not stepped
        if not self._waits:
            self._place = _place(trainer)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint: dict[str, Any]) -> None:
        if not self._waits:
            return
        assert self._place is not None
        place = deepcopy(self._place)
        checkpoint["loops"][LOOP] = place[LOOP]
        data = _data_key(trainer)
        if data in checkpoint:
            checkpoint[data] = place[data]


def _place(trainer: L.Trainer) -> dict[str, Any]:
    data = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
    state = None if data is None else data.state_dict()
    return deepcopy({LOOP: trainer.fit_loop.state_dict(), _data_key(trainer): state})


def _data_key(trainer: L.Trainer) -> str:
    """Where Lightning keeps the state of the data in a checkpoint."""
    return type(trainer.datamodule).__qualname__  # pyright: ignore[reportAttributeAccessIssue]
