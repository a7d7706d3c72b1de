"""The layout of ranks that a trainer stands for, and the strategy that shards over all ranks. Apart
from mesh.py, since Lightning is slow to import and generation does without."""

from pathlib import Path
from typing import Any, Literal

import lightning as L
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

from avatar_v.parallel.mesh import Layout
from avatar_v.parallel.numa import stay_near
from avatar_v.parallel.whole_shards import whole_shards


class ShardedStrategy(ModelParallelStrategy):
    """FSDP2 over all ranks of all nodes. ``data_parallel_size`` "auto" are the ranks that sequence
    groups of ``tensor_parallel_size`` leave; Lightning's own is the number of nodes, which fits no
    other group than a whole node. A sequence group is one rank unless told otherwise, where
    Lightning makes it a whole node."""

    def __init__(
        self,
        data_parallel_size: int | Literal["auto"] = "auto",
        tensor_parallel_size: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(data_parallel_size, tensor_parallel_size, **options)

    def setup_environment(self) -> None:
        """Each process stays near its GPU. ValueError for ranks that do not form such groups."""
        size = self._tensor_parallel_size
        if self._data_parallel_size == "auto" and isinstance(size, int):
            self._data_parallel_size = data_ranks(self.num_nodes * self.num_processes, size)
        super().setup_environment()
        stay_near(self.root_device)

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None
    ) -> None:
        """Shards come to their place once all ranks have written theirs."""
        if not self._save_distributed_checkpoint:
            super().save_checkpoint(checkpoint, filepath, storage_options)
            return
        path, first = Path(self.broadcast(filepath)), self.global_rank == 0
        with whole_shards(path, is_first=first, barrier=self.barrier) as partial:
            super().save_checkpoint(checkpoint, partial, storage_options)


def data_ranks(num_ranks: int, sequence_size: int) -> int:
    """Sequence groups of so many ranks. ValueError for ranks that do not form them."""
    return Layout(num_ranks, 0, sequence_size).num_data_ranks


def trainer_layout(trainer: L.Trainer | None) -> Layout:
    """The layout of a trainer's rank; sequence groups are the strategy's ``tensor_parallel_size``.
    Without a trainer there is one rank."""
    if trainer is None:
        return Layout()
    strategy, sequence_size = trainer.strategy, 1
    if isinstance(strategy, ModelParallelStrategy):
        sequence_size = strategy.device_mesh["tensor_parallel"].size()
    return Layout(trainer.world_size, trainer.global_rank, sequence_size)


def check_replicas(trainer: L.Trainer | None) -> None:
    """For a stage of several trained roles. DDP averages gradients once all weights have one, and a
    backward pass reaches the weights of one role. ValueError for DDP that does not look for the
    weights without a gradient."""
    if trainer is None or not isinstance(trainer.strategy, DDPStrategy):
        return
    if not trainer.strategy._ddp_kwargs.get("find_unused_parameters"):
        raise ValueError(
            "this stage trains several roles, one at a time: use strategy "
            "ddp_find_unused_parameters_true, not ddp"
        )
