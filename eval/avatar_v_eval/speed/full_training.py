"""A few steps of a stage by Lightning's trainer, as `avatar-v run` makes them, on one device and
one batch: a part of the measurements `full_size` and `training`."""

import time
from collections.abc import Sequence
from typing import Any

import lightning as L
import torch
from torch.utils.data import Dataset

from avatar_v.planning.recipe import Recipe
from avatar_v.types import Batch


class Repeated(Dataset[Batch]):
    """The same batch so many times."""

    def __init__(self, batch: Batch, times: int) -> None:
        self.batch, self.times = batch, times

    def __len__(self) -> int:
        return self.times

    def __getitem__(self, index: int) -> Batch:
        return self.batch


class Watch(L.Callback):
    """Seconds of each batch of training."""

    def __init__(self) -> None:
        self.took_s: list[float] = []

    def on_train_batch_start(self, *_: Any) -> None:
        self._begin = time.perf_counter()

    def on_train_batch_end(self, *_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.took_s.append(time.perf_counter() - self._begin)


def trainer_of(
    recipe: Recipe,
    device: str,
    callbacks: Sequence[L.Callback],
    *,
    automatic: bool,
    num_steps: int,
) -> L.Trainer:
    """A trainer of ``num_steps`` steps on one device. A stage of several roles clips by itself."""
    return L.Trainer(
        accelerator="cpu" if torch.device(device).type == "cpu" else "gpu",
        devices=1,
        precision="bf16-mixed",
        max_steps=num_steps,
        limit_val_batches=0,
        gradient_clip_val=recipe.trainer["gradient_clip_val"] if automatic else None,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=list(callbacks),
    )
