"""The last words of a run: where weights, checkpoints, log and pictures are, or how to go on."""

import time
from pathlib import Path

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint

from avatar_v.base.words import counted
from avatar_v.objectives.critic import TrainCritic
from avatar_v.training.engine import steps_made

PLACES = {
    "weights": ("weights", "vae"),
    "adapter": ("adapter",),
    "checkpoints": ("checkpoints",),
    "log": ("loss.csv",),
    "plot": ("loss.png",),
    "samples": ("samples",),
    "recipe": ("recipe.yaml",),
}
"""What a run leaves, and the names it may have in the folder of the run."""


def what_is_left(trainer: L.Trainer, module: L.LightningModule, began_s: float) -> str:
    """One line about a run that began at the time ``began_s`` and has ended by itself."""
    places = left_in(Path(trainer.default_root_dir), began_s)
    if isinstance(module, TrainCritic):
        places = {**places, "weights": module.export, "log": module.export / "log.csv"}
    took = duration(time.time() - began_s)
    said = [f"{kind} in {path}" for kind, path in places.items()]
    num_steps = steps_made(trainer, module)
    return f"{counted(num_steps, 'step')} in {took}: " + (
        ", ".join(said) or "the run had ended before, nothing was written"
    )


def where_to_go_on(trainer: L.Trainer) -> str:
    """One line about a run that was interrupted."""
    last = last_checkpoint(trainer)
    said = f"interrupted at step {steps_made(trainer, trainer.lightning_module)}"
    if last is None:
        return f"{said}: no checkpoint was written yet, the same command begins again"
    name = "last" if last.stem == "last" else last
    return f"{said}: the same command with --ckpt_path {name} goes on from its last checkpoint"


def left_in(root: Path, since_s: float) -> dict[str, Path]:
    """What of `PLACES` was written in ``root`` since the time ``since_s``."""
    found = {}
    for kind, names in PLACES.items():
        for path in (root / name for name in names):
            written_s = [p.stat().st_mtime for p in (path, *path.glob("*")) if p.exists()]
            if max(written_s, default=0.0) >= since_s - 1:  # clocks of disks are coarse
                found[kind] = path
    return found


def last_checkpoint(trainer: L.Trainer) -> Path | None:
    """The newest checkpoint of the run: the one that goes by last, or else any."""
    return next(iter(checkpoints(trainer)), None)


def checkpoints(trainer: L.Trainer) -> list[Path]:
    """All checkpoints of the run: those that go by last, then the others, the newest first."""
    found = [path for folder in checkpoint_folders(trainer) for path in folder.glob("[!.]*.ckpt")]
    by_age = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    return sorted(by_age, key=lambda path: not path.name.startswith("last"))


def checkpoint_folders(trainer: L.Trainer) -> list[Path]:
    """Where the run writes its checkpoints."""
    return [
        Path(callback.dirpath)
        for callback in trainer.checkpoint_callbacks
        if isinstance(callback, ModelCheckpoint) and callback.dirpath is not None
    ]


def duration(seconds: float) -> str:
    """``1:02:03``, and with tenths below a minute: ``4.2 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
