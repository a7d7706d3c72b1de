"""The place of a rank among all ranks: which data it reads, who shares them, what it draws.

The ranks of a *sequence group* hold parts of the same samples: they read the same batch and draw
the same noise. Each group has one *data rank*; other data ranks read other batches. Weights are
sharded over the *shard group*, which is all ranks. All of it follows from the number of ranks, the
size of a sequence group and the rank; parallel/trainer.py takes the three from a trainer.
"""

from dataclasses import dataclass

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

VALIDATION = 1_000_000
"""Added to the data rank of draws in validation, which differ from those of training."""
ALL_RANKS = 999_999
"""Stands for the data rank in draws that all ranks share."""


@dataclass(frozen=True)
class Layout:
    """One rank of ``world_size``. Ranks of a sequence group have consecutive numbers.

    ValueError unless groups of ``sequence_size`` divide the ranks, and the rank is one of them.
    """

    world_size: int = 1
    rank: int = 0
    sequence_size: int = 1

    def __post_init__(self) -> None:
        if self.sequence_size < 1 or self.world_size % self.sequence_size:
            raise ValueError(
                f"{self.world_size} ranks do not form sequence groups of {self.sequence_size}"
            )
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"a rank of {self.world_size} is 0 or more, got {self.rank}")

    @property
    def data_rank(self) -> int:
        """The number of the sequence group, which decides what is read and drawn."""
        return self.rank // self.sequence_size

    @property
    def num_data_ranks(self) -> int:
        return self.world_size // self.sequence_size

    @property
    def sequence_rank(self) -> int:
        """The place within the sequence group."""
        return self.rank % self.sequence_size

    @property
    def sequence_group(self) -> range:
        """Ranks that hold parts of the same samples."""
        first = self.data_rank * self.sequence_size
        return range(first, first + self.sequence_size)

    @property
    def shard_group(self) -> range:
        """Ranks that hold parts of one copy of the weights, and average their gradients."""
        return range(self.world_size)


def shard_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The shard group of a strategy's mesh, as a mesh of one dimension."""
    if mesh["tensor_parallel"].size() == 1:
        return mesh["data_parallel"]
    return init_device_mesh(mesh.device_type, (mesh.size(),), mesh_dim_names=("shard",))


def own_generator(
    seed: int, layout: Layout, index: int, *, validation: bool = False
) -> torch.Generator:
    """Draws of the samples of batch ``index``: alike in a sequence group, different between data
    ranks, and the same in every run."""
    return step_generator(seed, layout.data_rank + VALIDATION * validation, index)


def common_generator(seed: int, index: int, *, validation: bool = False) -> torch.Generator:
    """Draws of batch ``index`` that decide which parts of the networks run: alike on all ranks."""
    return step_generator(seed, ALL_RANKS + VALIDATION * validation, index)


def step_generator(seed: int, data_rank: int, index: int) -> torch.Generator:
    """The generator of one batch of one data rank."""
    mixed = (seed * 1_000_003 + data_rank) * 2_147_483_659 + index
    return torch.Generator().manual_seed(mixed % 2**63)
