"""The layout of ranks that a trainer stands for. Apart from mesh.py, since Lightning is slow to
import and generation does without."""

import lightning as L
from lightning.pytorch.strategies import ModelParallelStrategy

from avatar_v.parallel.mesh import Layout


def layout_of(trainer: L.Trainer | None) -> Layout:
    """The layout of a trainer's rank; sequence groups are the strategy's ``tensor_parallel_size``.
    Without a trainer there is one rank."""
    if trainer is None:
        return Layout()
    strategy, sequence_size = trainer.strategy, 1
    if isinstance(strategy, ModelParallelStrategy):
        sequence_size = strategy.device_mesh["tensor_parallel"].size()
    return Layout(trainer.world_size, trainer.global_rank, sequence_size)
