"""The progress bar of a run: steps out of all, the loss, the time that is left."""

from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from avatar_v.training.engine import steps_made

EVERY_NUM_BATCHES = 10
"""The numbers beside the bar are fetched from the device so often."""


class StepProgress(ProgressBar):
    """One bar for all of ``max_steps``, whatever the epochs; another one while it validates.

    Beside it stand the numbers that the stage logs with ``prog_bar``. It writes to stderr, on
    rank 0, and shows only its last state where that is no terminal.
    """

    def __init__(self) -> None:
        super().__init__()
        self._bar: Progress | None = None
        self._enabled = True

    def disable(self) -> None:
        """Lightning calls this on all ranks but the first."""
        self._enabled = False

    def enable(self) -> None:
        self._enabled = True

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._open()
        self._train = self._add("training", trainer.estimated_stepping_batches)
        self._update(self._train, completed=steps_made(trainer, pl_module))

    def on_train_batch_end(self, trainer, pl_module, outputs: Any, batch, batch_idx) -> None:
        step = steps_made(trainer, pl_module)
        changed: dict[str, Any] = {"completed": step}
        if batch_idx % EVERY_NUM_BATCHES == 0 or step == trainer.max_steps:
            changed["numbers"] = self._numbers(trainer, pl_module)
        self._update(self._train, **changed)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._open()
        total = sum(trainer.num_val_batches) if trainer.num_val_batches else None
        self._validation = self._add("validation", total)

    def on_validation_batch_end(
        self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0
    ) -> None:
        self._update(self._validation, advance=1)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._bar is None:
            return
        self._bar.remove_task(self._validation)
        if trainer.state.fn == "validate":
            self._close()
        else:
            self._update(self._train, numbers=self._numbers(trainer, pl_module))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer, pl_module, exception: BaseException) -> None:
        self._close()

    def _open(self) -> None:
        if self._bar is not None or not self._enabled:
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=Console(stderr=True),
        )
        self._bar.start()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _add(self, name: str, total: int | float | None) -> Any:
        if self._bar is None:
            return None
        return self._bar.add_task(name, total=total, numbers="")

    def _update(self, task: Any, **changed: Any) -> None:
        if self._bar is not None and task is not None:
            self._bar.update(task, **changed)

    def _numbers(self, trainer: L.Trainer, pl_module: L.LightningModule) -> str:
        numbers = self.get_metrics(trainer, pl_module)
        numbers.pop("v_num", None)
        return " ".join(
            f"{name.removeprefix('train/').removeprefix('speed/')} {value:.4g}"
            for name, value in numbers.items()
            if isinstance(value, int | float)
        )
