"""RecipeCLI: LightningCLI with the project's conventions; loaded only when training starts.

A run lives in ``trainer.default_root_dir``: ``recipe.yaml`` (all values, defaults included),
``checkpoints/`` and what the callbacks and the stage write. Errors of a recipe are ValueErrors of
one line instead of a usage page.
"""

import argparse
import logging
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback


class SaveRecipe(SaveConfigCallback):
    """The complete recipe beside what it made: ``default_root_dir/recipe.yaml``."""

    def save_config(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        path = Path(trainer.default_root_dir) / "recipe.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.parser.save(self.config, str(path), skip_none=False, overwrite=True, multifile=False)


class RecipeCLI(LightningCLI):
    """``RecipeCLI(["fit", "-c", "recipe.yaml", "--trainer.max_steps", "10"])``."""

    def __init__(self, words: Sequence[str]) -> None:
        strict = {"exit_on_error": False}
        try:
            super().__init__(
                L.LightningModule,
                L.LightningDataModule,
                subclass_mode_model=True,
                subclass_mode_data=True,
                save_config_callback=SaveRecipe,
                save_config_kwargs={"save_to_log_dir": False},
                seed_everything_default=0,
                auto_configure_optimizers=False,
                parser_kwargs={**strict, "fit": dict(strict), "validate": dict(strict)},
                args=list(words),
            )
        except argparse.ArgumentError as error:
            raise ValueError(readable(str(error))) from error

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {
            "fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule"},
            "validate": {"model", "dataloaders", "datamodule"},
        }

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parser.parse_args(args)

    def before_instantiate_classes(self) -> None:
        """The run's folder, before the logger opens its database beside it."""
        root = self.config[self.config.subcommand].trainer.default_root_dir
        if root is not None:
            Path(root).mkdir(parents=True, exist_ok=True)

    def after_instantiate_classes(self) -> None:
        """Checkpoints lie in the run's folder unless the recipe says otherwise, so that
        ``--ckpt_path last`` finds them."""
        for callback in self.trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(Path(self.trainer.default_root_dir) / "checkpoints")


def readable(message: str) -> str:
    """The cause in a jsonargparse error, without the list of everything else it tried."""
    if "Errors:" not in message:
        return message
    key = re.search(r'Parser key "([^"]+)"', message)
    causes = message.split("Errors:", 1)[1].split("Given value type:", 1)[0]
    lines = [line.strip(" -") for line in causes.splitlines() if line.strip()]
    kept = [line for line in lines if "NoneType" not in line and "Union subtypes" not in line]
    return f"{key.group(1) if key else 'recipe'}: {' '.join(kept)}"


def quiet() -> None:
    """Keep the progress bar and real warnings; drop Lightning's and MLflow's routine messages."""
    for name in ("lightning.pytorch", "lightning.fabric", "mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*LeafSpec.*deprecated.*",
        ".*resuming from a checkpoint that ended before the epoch ended.*",  # ShardData resumes
        ".*module\\(s\\) in eval mode at the start of training.*",  # the frozen VAE
    ):
        warnings.filterwarnings("ignore", message=message)
