"""A few steps of a stage, and the terms that each logs."""

from typing import Any

import lightning as L
from torch.utils.data import DataLoader

from avatar_v.training.engine import Engine
from avatar_v.types import Batch


def step_terms(stage: Engine[Any], batch: Batch, num_steps: int) -> list[dict[str, float]]:
    """The terms of every step on ``batch``."""
    seen: list[dict[str, float]] = []

    class Terms(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
            seen.append({name: float(value) for name, value in outputs["terms"].items()})

    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_steps=num_steps, max_epochs=-1, callbacks=[Terms()],
        enable_checkpointing=False, logger=False, enable_progress_bar=False,
        enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(stage, DataLoader([batch] * num_steps, batch_size=None))
    return seen
