"""planning/step.py: a step without values costs what a step with values does."""

import contextlib
from collections.abc import Iterator

import pytest
import torch

from avatar_v.models.dit import AvatarDiT
from avatar_v.parallel.apply import checkpoint_blocks
from avatar_v.planning import step
from avatar_v.planning.batches import Clips, largest_batch
from avatar_v.planning.measure import as_on_gpus
from avatar_v.planning.networks import build_networks
from avatar_v.planning.recipe import Recipe, read_recipe
from avatar_v.planning.replay import Replay
from avatar_v.planning.report import clips_of
from avatar_v.planning.step import BatchCost, step_cost
from avatar_v.training.engine import Engine
from avatar_v.types import Batch
from avatar_v.weights.random import motion_stats
from random_models import randomise
from tiny_run import RECIPES

RECIPES_OF_EACH_KIND = ("3_sft", "4c_distill_motion", "5a_grpo")
MORE_RECIPES = (
    "1_t2v", "4a_distill_cfg", "4b_distill_dmd", "4e_self_forcing --model.student.gradients=blocks",
    "5a_grpo_video", "5b_dpo", "5b_dpo_video", "refiner_adversarial",
)  # fmt: skip


def tiny(name: str, *options: str) -> Recipe:
    return read_recipe([str(RECIPES / f"{file}.yaml") for file in (name, "tiny")], options)


def planned(recipe: Recipe) -> BatchCost:
    stage = recipe.fresh_stage()
    build_networks(stage)
    with as_on_gpus():
        return step_cost(stage, recipe, clips_of(recipe, None, None), recipe.spread, with_time=True)


def with_values(stage: Engine, dtype: torch.dtype) -> None:
    """Random weights in memory."""
    stage.to_empty(device="cpu")
    randomise(stage)
    for buffer in stage.buffers():
        buffer.fill_(1)
    stage.conditioner.motion_stats = motion_stats()
    for module in stage.modules():
        if isinstance(module, AvatarDiT):
            module.motion_stats = motion_stats()
    for parameter in stage.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))


def run_each(stage: Engine, replay: Replay) -> None:
    """Nothing is replayed."""
    for module in stage.modules():
        if isinstance(module, AvatarDiT) and stage.subject.checkpoint_activations:
            checkpoint_blocks(module)


@contextlib.contextmanager
def in_memory() -> Iterator[None]:
    yield


def of_zeros(stage: Engine, recipe: Recipe, clips: Clips) -> Batch:
    batch = largest_batch(stage, recipe, clips)
    return batch.map(lambda x: torch.zeros_like(x) if x.is_floating_point() else x)


@pytest.mark.parametrize(
    "name",
    [*RECIPES_OF_EACH_KIND, *(pytest.param(n, marks=pytest.mark.slow) for n in MORE_RECIPES)],
)
def test_a_step_without_values_costs_what_a_real_one_does(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the last block of a reference the keys alone are used, and a real step drops the rest:
    with the two blocks of the tiny size that is a sixth of the memory."""
    recipe = tiny(*name.split())
    monkeypatch.setattr(step, "NUM_BATCHES", 2)
    without = planned(recipe)
    monkeypatch.setattr(step, "_take_memory", with_values)
    monkeypatch.setattr(step, "_replay", run_each)
    monkeypatch.setattr(step, "pretending", in_memory)
    monkeypatch.setattr(step, "largest_batch", of_zeros)
    real = planned(recipe)
    assert without.flops == pytest.approx(real.flops, rel=0.05)
    assert without.peak == pytest.approx(real.peak, rel=0.2)
    assert (without.num_tokens, without.batch_bytes) == (real.num_tokens, real.batch_bytes)
    assert without.batches_per_step == real.batches_per_step
