"""A recipe as `avatar-v run` reads it, without a trainer and without weights."""

import copy
import dataclasses
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import lightning as L
import torch

from avatar_v.parallel.mesh import Layout
from avatar_v.recipe.before import check_trainer
from avatar_v.recipe.cli import merge_recipes, misspelt_in, written
from avatar_v.recipe.lightning_cli import RecipeCLI, quiet
from avatar_v.training.engine import Engine, subject_of, trains_clips
from avatar_v.training.video import VideoSubject

SHARDED = ("ShardedStrategy", "ModelParallelStrategy")
"""Strategies that shard; any other class keeps whole copies."""
DEVICES = 8
"""Of a recipe that takes what there is (auto, -1)."""


class RecipeReader(RecipeCLI):
    """Parses and checks a recipe and builds stage and data: no trainer, no networks, no run."""

    def before_instantiate_classes(self) -> None:
        """All checks of `run` but those of this machine."""
        self.settings = self._settings()
        check_trainer(self.settings["trainer"], trains=True)
        trainer = self.config[str(self.subcommand)].trainer
        trainer.logger, trainer.callbacks, trainer.strategy = False, None, "auto"

    def instantiate_trainer(self, **kwargs: Any) -> L.Trainer:
        """One that trains nothing: the recipe's own may need devices that are not here."""
        return L.Trainer(accelerator="cpu", devices=1, logger=False, enable_progress_bar=False)

    def after_instantiate_classes(self) -> None:
        """There is no run whose folder checkpoints would lie in."""

    def _run_subcommand(self, subcommand: str) -> None:
        """Nothing is trained."""


@dataclass(frozen=True)
class Spread:
    """How ranks share a run: whole copies ("ddp"), shards ("fsdp"), or one rank "alone"."""

    kind: Literal["alone", "ddp", "fsdp"]
    layout: Layout

    @property
    def shards(self) -> int:
        """Parts that sharded weights are in."""
        return self.layout.world_size if self.kind == "fsdp" else 1

    def over(self, num_ranks: int, sequence_size: int | None = None) -> "Spread":
        """The same on another number of ranks. ValueError for ranks that form no groups."""
        size = self.layout.sequence_size if sequence_size is None else sequence_size
        kind = self.kind
        if kind == "alone" and num_ranks > 1:
            kind = "ddp"
        return Spread(kind, Layout(num_ranks, 0, size))


@dataclass(frozen=True)
class Recipe:
    """A recipe that is read: settings of all parts, the stage without networks, and its data."""

    name: str
    settings: Mapping[str, Any]
    model: L.LightningModule
    data: Any

    @property
    def trainer(self) -> Mapping[str, Any]:
        return self.settings["trainer"]

    @property
    def bf16(self) -> bool:
        return "bf16" in str(self.trainer["precision"])

    @property
    def averages(self) -> bool:
        """Whether callbacks/ema.py is among the callbacks."""
        found = self.trainer["callbacks"] or []
        found = found if isinstance(found, list) else [found]
        return any(one["class_path"].endswith("ema.EMA") for one in found)

    @property
    def spread(self) -> Spread:
        """The ranks that the recipe asks for."""
        trainer = self.trainer
        node = self.devices_of_node
        num = node * int(trainer["num_nodes"])
        strategy = trainer["strategy"]
        if isinstance(strategy, Mapping):
            if not strategy["class_path"].endswith(SHARDED):
                return Spread("alone" if num == 1 else "ddp", Layout(num))
            size = (strategy.get("init_args") or {}).get("tensor_parallel_size", 1)
            return Spread("fsdp", Layout(num, 0, node if size == "auto" else int(size)))
        return Spread("alone" if num == 1 else "ddp", Layout(num))

    @property
    def devices_of_node(self) -> int:
        """Ranks on each node: a number, a list, "0,1", or what is there, which is `DEVICES` GPUs
        and one CPU."""
        devices = self.trainer["devices"]
        if isinstance(devices, list):
            return len(devices)
        if self.takes_all_devices:
            return 1 if self.trainer["accelerator"] == "cpu" else DEVICES
        return (
            len([d for d in str(devices).split(",") if d]) if "," in str(devices) else int(devices)
        )

    @property
    def takes_all_devices(self) -> bool:
        return str(self.trainer["devices"]) in ("auto", "-1")

    def fresh_stage(self, *, checkpoints: bool | None = None, lora: bool = False) -> Engine:
        """A copy of the stage without networks, perhaps with other settings."""
        stage = copy.deepcopy(self.model)
        assert trains_clips(stage)
        if checkpoints is not None:
            subject = subject_of(stage)
            subject.models = dataclasses.replace(subject.models, checkpoint_activations=checkpoints)
        if lora:
            assert isinstance(stage.subject, VideoSubject)
            stage.trainable = dataclasses.replace(stage.trainable, parts="lora")
        return stage


def read_recipe(recipes: Sequence[str], options: Sequence[str] = ()) -> Recipe:
    """The recipe and its overlays, with ``options`` of the command line. ValueError as `run`."""
    quiet()
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        words = ["fit", "-c", written(merge_recipes(recipes), Path(folder)), *options]
        reader = RecipeReader(words, misspelt=lambda known: misspelt_in(recipes, words, known))
    return Recipe(" ".join(recipes), reader.settings, reader.model, reader.datamodule)
