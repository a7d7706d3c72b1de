"""The folder of a run: one process trains there at a time, and no run replaces another unasked.

What lies there is named in closing.py. Several ranks are one run: its rank 0 alone calls
`training_in`.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import lightning as L

from avatar_v.base.locks import exclusive
from avatar_v.base.words import notice
from avatar_v.objectives.critic import TrainCritic
from avatar_v.recipe.closing import PLACES, checkpoint_folders, last_checkpoint

LOCK = ".lock"
_held: set[int] = set()
"""Descriptors of locks. A forked child, a worker of a loader, closes them: it may live on where the
run is killed."""


def _forget() -> None:
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget)


@contextlib.contextmanager
def training_in(folder: Path) -> Iterator[None]:
    """Within the block ``folder`` belongs to this process; the system frees it with the process. A
    folder that is made for it goes if nothing was written to it. ValueError where another process
    has it."""
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    lock = _locked(folder / LOCK)
    _held.add(lock)
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        for path in made:
            if path.exists() and not any(path.iterdir()):
                path.rmdir()
        _held.discard(lock)
        os.close(lock)


def check_unused(trainer: L.Trainer, module: L.LightningModule) -> None:
    """ValueError for a run from the beginning where checkpoints or weights of another lie."""
    last, there = last_checkpoint(trainer), [str(path) for path in _weights(trainer, module)]
    there += [] if last is None else [str(last.parent)]
    if there:
        on = "" if last is None else "--ckpt_path last goes on from its last checkpoint, "
        raise ValueError(
            f"{' and '.join(there)} of another run would be replaced: {on}"
            "--trainer.default_root_dir names another folder, --overwrite replaces them"
        )


class ReplacesRun(L.Callback):
    """Removes the checkpoints of the run before as training begins, so that ``--ckpt_path last``
    finds none of them. Its weights lie there until there are others."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        for path in (
            found for folder in checkpoint_folders(trainer) for found in folder.glob("*.ckpt")
        ):
            if path.is_dir():  # of FSDP2
                shutil.rmtree(path)
            else:
                path.unlink()


def _weights(trainer: L.Trainer, module: L.LightningModule) -> list[Path]:
    if isinstance(module, TrainCritic):
        return [module.export] if module.export.exists() else []
    root = Path(trainer.default_root_dir)
    return [root / name for name in PLACES["weights"] if (root / name).exists()]


def _locked(path: Path) -> int:
    """A descriptor that holds the lock in ``path``."""
    while True:
        try:
            lock = exclusive(
                path,
                f"{path.parent}: another process trains there; wait until it ends, or give this "
                "run another folder with --trainer.default_root_dir",
            )
        except OSError as error:
            notice(
                f"warning: {path.parent} cannot be locked ({error.strerror}): no second run "
                "there is noticed"
            )
            return os.open(path, os.O_RDWR)
        if path.exists() and os.path.samestat(os.fstat(lock), path.stat()):
            return lock
        os.close(lock)  # the run before has ended, and has removed its file
