"""What a run leaves behind: the loss of every step while it runs, the weights when it ends."""

import csv
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch
from torch import Tensor

from avatar_v.callbacks.ema import averaged
from avatar_v.models.weights import Card, save_pipeline
from avatar_v.parallel.apply import whole_state
from avatar_v.stages.base import Stage
from avatar_v.stages.trainable import merged


class LossCurve(L.Callback):
    """``default_root_dir/loss.csv`` with one row per optimiser step: step, loss.

    Losses are those of rank 0 and of a step's last batch. A resumed run drops the rows behind its
    checkpoint and goes on, so the file reads as if nothing had happened.
    """

    def __init__(self, flush_every_num_steps: int = 50) -> None:
        self.flush_every_num_steps = flush_every_num_steps
        self._rows: list[tuple[int, Tensor]] = []
        self._last_step = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._last_step = trainer.global_step
        self._path = loss_path(trainer)
        if not trainer.is_global_zero:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        kept = [row for row in read_losses(self._path) if row[0] <= trainer.global_step]
        with open(self._path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(("step", "loss"))
            writer.writerows((step, f"{loss:.9g}") for step, loss in kept)

    def on_train_batch_end(self, trainer, pl_module, outputs: Any, batch, batch_idx) -> None:
        if trainer.global_step == self._last_step:
            return
        self._last_step = trainer.global_step
        self._rows.append((trainer.global_step, outputs["loss"].detach()))
        if len(self._rows) >= self.flush_every_num_steps:
            self._flush(trainer)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint) -> None:
        self._flush(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._flush(trainer)

    def on_exception(self, trainer, pl_module, exception) -> None:
        self._flush(trainer)

    def _flush(self, trainer: L.Trainer) -> None:
        rows, self._rows = self._rows, []
        if not rows or not trainer.is_global_zero:
            return
        losses = torch.stack([loss.float() for _, loss in rows]).tolist()
        with open(self._path, "a", newline="", encoding="utf-8") as file:
            steps = (step for step, _ in rows)
            csv.writer(file).writerows(
                (s, f"{loss:.9g}") for s, loss in zip(steps, losses, strict=True)
            )


class Export(L.Callback):
    """At the end of training writes ``default_root_dir/weights``: the averaged weights as a
    pipeline folder, with the loss curve and the complete recipe beside them."""

    def __init__(
        self,
        recipe: str,
        dtype: Literal["float32", "float16", "bfloat16"] = "float32",
        guidance_audio: float = 2.0,
        guidance_motion: float = 1.0,
        motion_first: bool = False,
        stills_from_prompt: int = 0,
    ) -> None:
        """``recipe``: the files of the recipe, for the card of the weights; ``dtype``: of the
        stored weights; ``guidance_audio``: what generation takes where none is asked for;
        ``guidance_motion`` and ``motion_first``: how it makes motion; ``stills_from_prompt``: what
        it reads where no first frame is given (models.weights.Card)."""
        self.recipe = recipe
        self.guidance_audio, self.guidance_motion = guidance_audio, guidance_motion
        self.motion_first, self.stills_from_prompt = motion_first, stills_from_prompt
        self.dtype = {"float32": torch.float32, "float16": torch.float16}.get(dtype, torch.bfloat16)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not isinstance(pl_module, Stage):
            raise ValueError(f"Export serves the DiT stages, got {type(pl_module).__name__}")
        folder = Path(trainer.default_root_dir) / "weights"
        preset, can = pl_module.models.preset, pl_module.card_entries()
        card = Card(
            preset,
            self.recipe,
            commit(),
            "loss.csv",
            guidance_audio=self.guidance_audio,
            guidance_motion=self.guidance_motion,
            motion_first=self.motion_first,
            stills_from_prompt=self.stills_from_prompt,
            **can,
        )
        with averaged(trainer, pl_module), whole_state(pl_module):
            if not trainer.is_global_zero:
                return
            dit, conditioner = pl_module.dit, pl_module.conditioner
            save_pipeline(folder, merged(dit), conditioner, card, dtype=self.dtype, overwrite=True)
        for name in ("loss.csv", "recipe.yaml"):
            source = Path(trainer.default_root_dir) / name
            if source.is_file():
                (folder / name).write_bytes(source.read_bytes())


def commit() -> str:
    """The commit of the working directory, "+" behind it if files differ; "" outside git."""
    if shutil.which("git") is None:
        return ""
    words = ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def loss_path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "loss.csv"


def read_losses(path: Path) -> list[tuple[int, float]]:
    """(step, loss) rows of a loss curve; none if the file does not exist."""
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]
