"""RecipeCLI: LightningCLI with the project's conventions; loaded only when training starts.

A run lives in ``trainer.default_root_dir``: ``recipe.yaml`` (all values, defaults included),
``checkpoints/`` and what the callbacks and the stage write. The folder appears when training
begins, so a recipe that fails before that leaves none. Errors of a recipe are ValueErrors of one
line instead of a usage page or a traceback.
"""

import argparse
import logging
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import lightning as L
import torch
import yaml
from jsonargparse import get_loader, set_loader, set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ModelCheckpoint, ProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.trainer.states import TrainerStatus

from avatar_v.base import trust
from avatar_v.base.device import emulates_bf16
from avatar_v.base.interrupts import ignore, interrupted, is_ignored
from avatar_v.base.outside import check_yaml
from avatar_v.base.words import notice
from avatar_v.parallel.launched import Follower, no_rank_alone, watch_ranks
from avatar_v.recipe.before import (
    check_devices,
    check_experiment_log,
    check_trainer,
    check_warmup,
)
from avatar_v.recipe.checkpoint_file import check_checkpoint, check_layout, check_left, newest_whole
from avatar_v.recipe.checkpoint_writer import WholeCheckpoints
from avatar_v.recipe.closing import checkpoints, last_checkpoint, what_is_left, where_to_go_on
from avatar_v.recipe.keys import Misspelt
from avatar_v.recipe.messages import located, readable
from avatar_v.recipe.outputs import check_outputs
from avatar_v.recipe.run_folder import ReplacesRun, check_unused, training_in
from avatar_v.recipe.weights_there import MadeBy, check_weights


class SaveRecipe(SaveConfigCallback):
    """The complete recipe beside what it made, once training begins:
    ``default_root_dir/recipe.yaml``."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Nothing is written before the networks are built."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        path = Path(trainer.default_root_dir) / "recipe.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        self.parser.save(self.config, str(path), skip_none=False, overwrite=True, multifile=False)


class RecipeCLI(LightningCLI):
    """``RecipeCLI(["fit", "-c", "recipe.yaml", "--trainer.max_steps", "10"])``."""

    def __init__(
        self,
        words: Sequence[str],
        callbacks: Sequence[L.Callback] = (),
        callbacks_behind: Sequence[L.Callback] = (),
        made_by: MadeBy = lambda folder: None,
        misspelt: Misspelt = lambda options: None,
        overwrite: bool = False,
        follower: Follower | None = None,
    ) -> None:
        """``callbacks`` stand in front of the recipe's; a progress bar among them is left out where
        the recipe wants none; ``callbacks_behind`` stand behind them. ``made_by``: the command that
        makes a folder of weights.
        ``misspelt``: what is said of a key that is none of the parser's options (keys.py).
        ``overwrite``: a run from the beginning may replace the one in its folder. ``follower``:
        this process, where another rank has started it."""
        strict = {"exit_on_error": False, "allow_abbrev": False}
        self._first_callbacks, self._made_by = list(callbacks), made_by
        self._callbacks_behind = callbacks_behind
        self._overwrite, self._follower = overwrite, follower
        if overwrite:
            self._first_callbacks.append(ReplacesRun())
        try:
            super().__init__(
                L.LightningModule,
                L.LightningDataModule,
                subclass_mode_model=True,
                subclass_mode_data=True,
                save_config_callback=SaveRecipe,
                seed_everything_default=0,
                auto_configure_optimizers=False,
                parser_kwargs={**strict, "fit": dict(strict), "validate": dict(strict)},
                args=list(words),
            )
        except argparse.ArgumentError as error:
            wrong = misspelt(self._parser(words[0]).get_defaults().keys())
            raise ValueError(wrong or readable(str(error))) from error

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Checkpoints are always read as weights alone, so that is no option."""
        return {
            "fit": {"model", "train_dataloaders", "val_dataloaders", "datamodule", "weights_only"},
            "validate": {"model", "dataloaders", "datamodule", "weights_only"},
        }

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse; nothing is imported but what a recipe may name, and nothing is built by now."""
        set_parsing_settings(
            import_path_denylist=["*"],
            import_path_allowlist=trust.names_for_parser(),
            instantiate_subclass_spec_in_any=False,
        )
        set_loader("yaml", _read_text, exceptions=(yaml.YAMLError,))
        self.config = parser.parse_args(args)
        settings = self._settings()
        trust.check_names(settings)
        check_outputs(settings, args)

    def _parse_ckpt_path(self) -> None:
        """A checkpoint says nothing about the recipe. (LightningCLI reads settings from it.)"""

    def before_instantiate_classes(self) -> None:
        settings = self._settings()
        trainer = settings["trainer"]
        check_trainer(trainer, trains=self.subcommand == "fit")
        if self.subcommand == "fit":
            check_warmup(settings["model"], trainer["max_steps"])
        check_devices(trainer)
        self._avoid_emulated_bf16()

    def instantiate_classes(self) -> None:
        """Build everything but the networks; what a constructor refuses is one line."""
        try:
            super().instantiate_classes()
        except (ValueError, TypeError, MisconfigurationException) as error:
            raise ValueError(located(readable(str(error)), self._settings())) from error

    def _avoid_emulated_bf16(self) -> None:
        """fp32 in place of bf16 on a processor that emulates it; recipe.yaml says 32-true then."""
        trainer = self.config[str(self.subcommand)].trainer
        on_cpu, bf16 = trainer.accelerator == "cpu", trainer.precision in ("bf16", "bf16-mixed")
        if on_cpu and bf16 and emulates_bf16(torch.device("cpu")):
            trainer.precision = "32-true"
            print("precision 32-true: this processor has no AVX-512, bf16 would be far slower",
                  file=sys.stderr)  # fmt: skip

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        config = self._get(self.config_init, "trainer")
        own = config["callbacks"] or []
        own = own if isinstance(own, list) else [own]
        has_bar = any(isinstance(callback, ProgressBar) for callback in own)
        no_bar = has_bar or config["enable_progress_bar"] is False
        first = [c for c in self._first_callbacks if not (no_bar and isinstance(c, ProgressBar))]
        trainer = super().instantiate_trainer(
            callbacks=[*first, *own, *self._callbacks_behind], **kwargs
        )
        watch_ranks(trainer)
        return trainer

    def after_instantiate_classes(self) -> None:
        """Checkpoints lie in the run's folder unless the recipe says otherwise, so that
        ``--ckpt_path last`` finds them."""
        for callback in self.trainer.checkpoint_callbacks:
            if isinstance(callback, ModelCheckpoint) and callback.dirpath is None:
                callback.dirpath = str(Path(self.trainer.default_root_dir) / "checkpoints")
        self.trainer.strategy.checkpoint_io = WholeCheckpoints()

    def before_fit(self) -> None:
        """What the run reads and writes is there, before data and networks are."""
        settings = self._settings()
        check_weights({name: settings[name] for name in ("model", "data")}, self._made_by)
        check_experiment_log(settings["trainer"]["logger"])
        path = settings["ckpt_path"]
        if path == "last":
            self._go_on_from_last()
        elif path not in (None, "best", "hpc"):
            check_checkpoint(str(path))
            check_layout(Path(path), self.trainer)
        check_left(self.trainer.default_root_dir)

    before_validate = before_fit

    def _go_on_from_last(self) -> None:
        """A damaged last checkpoint is passed over with a warning: ``ckpt_path`` becomes the newest
        that is whole. Where none is, the ValueError is of the last."""
        found, root = checkpoints(self.trainer), self.trainer.default_root_dir
        if not found:
            notice(f"warning: ckpt_path last: no checkpoint in {root}; it begins anew")
            return
        path, damages = newest_whole(found)
        for damage in damages:
            notice(f"warning: {damage}; going on from {path}")
        check_layout(path, self.trainer)
        if damages:
            self.config_init[str(self.subcommand)].ckpt_path = str(path)

    def fit(self, **kwargs: Any) -> None:
        """Train, and say where everything is, or how to go on."""
        begin, root = time.time(), Path(self.trainer.default_root_dir)
        with training_in(root) if self.trainer.is_global_zero else nullcontext():
            self._check_folder(kwargs["ckpt_path"])
            with self._answering(kwargs["ckpt_path"]), _terminated_as_interrupted():
                self.trainer.fit(weights_only=True, **kwargs)
        if self.trainer.is_global_zero:
            print(what_is_left(self.trainer, self.model, begin))

    def _check_folder(self, ckpt_path: str | None) -> None:
        """ValueError for a run that would replace another one."""
        if self._overwrite and ckpt_path is not None:
            raise ValueError(f"--overwrite begins anew, --ckpt_path {ckpt_path} goes on: pass one")
        goes_on = ckpt_path not in (None, "last") or last_checkpoint(self.trainer) is not None
        if not self._overwrite and not (ckpt_path and goes_on):
            check_unused(self.trainer, self.model)

    def validate(self, **kwargs: Any) -> None:
        with self._answering(kwargs["ckpt_path"]):
            self.trainer.validate(weights_only=True, **kwargs)

    @contextmanager
    def _answering(self, ckpt_path: str | None) -> Iterator[None]:
        """Lightning's errors of a run as the project's: an interrupt, or a foreign checkpoint."""
        try:
            with no_rank_alone(self.trainer, self._follower):
                yield
        except SystemExit as error:
            if self.trainer.state.status != TrainerStatus.INTERRUPTED:
                raise
            if self.trainer.is_global_zero and self.subcommand == "fit":
                print(where_to_go_on(self.trainer))
            raise KeyboardInterrupt from error
        except MisconfigurationException as error:
            raise ValueError(str(error)) from error
        except RuntimeError as error:
            why = " ".join(str(error).split())
            if why.startswith("DataLoader worker"):  # as the system ends one that takes too much
                raise ChildProcessError(f"{why} data.init_args.num_workers: fewer") from error
            if ckpt_path is None or not why.startswith("Error(s) in loading state_dict"):
                raise
            why = why.partition(": ")[2][:120]
            raise ValueError(f"ckpt_path: {ckpt_path} does not fit the recipe ({why})") from error

    def _settings(self) -> dict[str, Any]:
        """The values of the recipe and the command line, as plain mappings."""
        return self.config[self.config.subcommand].as_dict()


_yaml_of_parser = get_loader("yaml")


def _read_text(text: str) -> Any:
    """A value of YAML within a recipe or on the command line, bounded as its file is."""
    check_yaml(text)
    return _yaml_of_parser(text)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """SIGTERM ends a run like Ctrl-C, before training (then callbacks/terminated.py answers it)
    and after."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupted)
    try:
        yield
    finally:
        if is_ignored(signal.SIGTERM):  # of a run that has stopped; Lightning has put a handler
            ignore(signal.SIGTERM)  # back, which Python itself would take away at its end
        else:
            signal.signal(signal.SIGTERM, before)


def quiet() -> None:
    """Keep the progress bar and real warnings; drop Lightning's and MLflow's routine messages."""
    for name in ("lightning.pytorch", "lightning.fabric", "mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    for message in (
        ".*does not have many workers.*",
        ".*`srun` command is available on your system but is not used.*",  # one machine is meant
        ".*Checkpoint directory .* exists and is not empty.*",
        ".*LeafSpec.*deprecated.*",
        ".*resuming from a checkpoint that ended before the epoch ended.*",  # ShardData resumes
        ".*Using ModelCheckpoint with manual optimization.*",  # it is to save updated weights
        ".*FSDP2-wrapped module .* returned a view tensor.*",  # nothing writes into keys and values
        ".*module\\(s\\) in eval mode at the start of training.*",  # the frozen VAE
    ):
        warnings.filterwarnings("ignore", message=message)
