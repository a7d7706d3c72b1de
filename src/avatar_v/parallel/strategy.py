"""ShardedStrategy: the strategy of recipes that shards weights over all ranks."""

from pathlib import Path
from typing import Any, Literal

from lightning.pytorch.strategies import ModelParallelStrategy

from avatar_v.parallel.mesh import Layout
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
        """ValueError for ranks that do not form such groups."""
        size = self._tensor_parallel_size
        if self._data_parallel_size == "auto" and isinstance(size, int):
            self._data_parallel_size = data_ranks(self.num_nodes * self.num_processes, size)
        super().setup_environment()

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
