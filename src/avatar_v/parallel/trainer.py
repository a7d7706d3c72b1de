"""What a stage asks of its trainer: its place among the ranks, and whether it can train several
roles. Apart from mesh.py, since Lightning is slow to import and generation does without."""

import lightning as L
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy

from avatar_v.parallel.mesh import Layout


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
    """For a stage whose backward passes do not reach all that it trains, such as one of several
    roles. DDP averages gradients once all weights have one. ValueError for DDP that does not look
    for the weights without a gradient."""
    if trainer is None or not isinstance(trainer.strategy, DDPStrategy):
        return
    if not trainer.strategy._ddp_kwargs.get("find_unused_parameters"):
        raise ValueError(
            "not every backward pass of this stage reaches all weights: use strategy "
            "ddp_find_unused_parameters_true, not ddp"
        )


def check_steps(trainer: L.Trainer) -> None:
    """For a stage of several trained roles, which makes its own updates: Lightning knows neither
    how many an epoch has, so that learning rates would not reach their end, nor does it write
    checkpoints by the clock. ValueError where either is asked for."""
    if trainer.max_steps == -1:
        raise ValueError(
            "this stage trains several roles, and its length is by steps: give trainer.max_steps"
        )
    savers = [one for one in trainer.checkpoint_callbacks if isinstance(one, ModelCheckpoint)]
    if any(one._train_time_interval for one in savers):
        raise ValueError(
            "this stage trains several roles, and its checkpoints are by steps: set "
            "every_n_train_steps of ModelCheckpoint in place of train_time_interval"
        )
