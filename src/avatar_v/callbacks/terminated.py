"""SIGTERM ends a run: at once, or, of one that `avatar-v launch` started, behind a checkpoint."""

import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import distributed as dist

from avatar_v.base.interrupts import ignore, interrupted
from avatar_v.training.engine import steps_made


class StoppedAtTerm(Exception):
    """A launched run that was told to end has its checkpoint, and ends on all ranks."""


class Terminated(L.Callback):
    """Answers SIGTERM like Ctrl-C while a run trains.

    Lightning, which sets a handler of its own right before, would go on to the end of the epoch,
    and on several ranks call a collective inside the handler, where ranks wait for each other for
    ever. An interrupted rank ends those that it started; where it did not start them, it leaves
    their collectives, which then fail. `RecipeCLI` adds this callback in front of all others.
    """

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _listen(interrupted)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _listen(interrupted)


class CheckpointAtTerm(L.Callback):
    """Answers SIGTERM by a checkpoint behind the batch, in which all ranks end together; in a run
    that keeps none like Ctrl-C, since nothing is there to go on from.

    One rank that is told is enough: after every batch the ranks ask each other, on the CPU, so that
    no GPU is waited for. The signal waits for the end of a validation. `RecipeCLI` adds this
    callback behind the recipe's, whose averages and losses are then those of the batch.
    """

    def __init__(self) -> None:
        self._told = False
        self._group: Any = None

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        _listen(interrupted)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.world_size > 1:
            self._group = dist.new_group(backend="gloo")
        _listen(self._tell)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        told = torch.tensor(int(self._told))
        if self._group is not None:
            dist.all_reduce(told, dist.ReduceOp.MAX, group=self._group)
        if told:
            if not _saved(trainer):
                raise KeyboardInterrupt
            if threading.current_thread() is threading.main_thread():
                ignore(
                    signal.SIGTERM
                )  # those that end a rank which is a moment later tell it again
            raise StoppedAtTerm(f"stopped at step {steps_made(trainer, pl_module)}")

    def _tell(self, number: int, frame: FrameType | None) -> None:
        self._told = True


def _saved(trainer: L.Trainer) -> bool:
    """Write the last checkpoint of the run, which its own callback then replaces. False for a run
    that keeps none."""
    kept = [one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint)]
    if not kept or kept[0].dirpath is None:
        return False
    path = Path(kept[0].dirpath) / f"{kept[0].CHECKPOINT_NAME_LAST}{kept[0].FILE_EXTENSION}"
    kept[0].last_model_path = str(path)
    trainer.save_checkpoint(path)
    return True


def _listen(answer) -> None:
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, answer)
