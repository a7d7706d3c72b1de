"""What `avatar-v plan` says of a training step, against a real one on this machine.

Each case is a process: a stage of the small size, untrained, takes steps on clips of noise. Planned
memory stands beside the most that torch's allocator had given away at any moment of the forward and
backward passes behind the first step: weights, gradients, states of the optimiser, an average, and
what waits for the backward pass. The profiler keeps the allocator's book; the size of the process
says less, since the C library keeps what was freed. Planned operations stand beside those of the
same draws, counted while they run.
"""

import argparse
import dataclasses
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from avatar_v.base.video_format import VideoFormat
from avatar_v.parallel.apply import checkpoint_blocks
from avatar_v.planning.batches import Clips
from avatar_v.planning.measure import cost_of
from avatar_v.planning.memory import plan_of
from avatar_v.planning.recipe import Recipe, read_recipe
from avatar_v.planning.step import NUM_BATCHES, NUM_LONGEST, last_step
from avatar_v.training.engine import subject_of
from avatar_v.training.optim import build_optimizer
from avatar_v.training.personality import longest_runs
from avatar_v.weights.presets import build
from avatar_v.weights.random import make_batch, motion_stats
from avatar_v_eval.processes import in_a_process
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

RECIPES = ("1_t2v", "2_a2v", "3_sft")
FRAMES, SIDE, LATENT_CHANNELS = 49, 64, 16
COUNTED = "counted"
MIB = 2**20


@dataclass(frozen=True)
class PlanCase:
    recipe: str
    batch_size: int
    checkpoints: bool

    @property
    def key(self) -> str:
        kept = "checkpointed" if self.checkpoints else "plain"
        return "_".join([self.recipe, str(self.batch_size), kept])

    @property
    def words(self) -> str:
        kept = "checkpointed" if self.checkpoints else "not checkpointed"
        clips = "1 clip" if self.batch_size == 1 else f"{self.batch_size} clips"
        return f"{self.recipe}, {clips}, {kept}"


@dataclass(frozen=True)
class StepCost:
    """Of a case: planned and real, in MiB and in operations."""

    planned_mib: float
    real_mib: float
    planned_flops: float
    real_flops: float


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="speed_plan")
    add = parser.add_argument
    add("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    add("--batch-sizes", type=int, nargs="+", default=[2, 8])


def measure(options: argparse.Namespace) -> Findings:
    cases = [
        PlanCase(name, size, checkpoints)
        for name in options.recipes
        for size in options.batch_sizes
        for checkpoints in (False, True)
    ]
    numbers: dict[str, Number] = {}
    for case in cases:
        step = in_a_process(one_step, case)
        key = case.key
        numbers[f"real_mib_{key}"] = Number(step.real_mib, 1).described(
            f"most memory of tensors: {case.words}", unit="MiB"
        )
        numbers[f"memory_{key}"] = Number(step.planned_mib / step.real_mib, 1).described(
            f"planned memory over real: {case.words}"
        )
        numbers[f"operations_{key}"] = Number(step.planned_flops / step.real_flops, 1).described(
            f"planned operations over real: {case.words}"
        )
    off = [abs(numbers[key].value - 1) for key in numbers if key.startswith("memory_")]
    numbers["within"] = Number(sum(x <= 0.1 for x in off), len(off)).described(
        "plans of memory within 10 % of the real step", target=f"≥ {len(off)}"
    )
    return Findings(
        "Plans against real steps",
        numbers,
        notes=[
            f"small preset, untrained; clips of noise, {FRAMES} frames at {SIDE} px as latents; "
            "one process for each case, fp32; operations: the mean of the batches that the plan "
            "draws; memory: the largest of batches with the longest references",
        ],
    )


def recipe_for(case: PlanCase) -> Recipe:
    """The recipe of a case, from nothing."""
    fresh = [f"--model.init_args.models.{name}" for name in ("init_from", "vae")]
    words = ["--data.init_args.batch_size", str(case.batch_size), "--trainer.precision", "32-true"]
    options = [*words, *(word for name in fresh for word in (name, "null"))]
    if case.recipe == "3_sft":  # clips of noise have no stills
        options += ["--model.init_args.personality.stills_share", "0.0"]
    return read_recipe([f"recipes/{case.recipe}.yaml", "recipes/small.yaml"], options)


def one_step(case: PlanCase) -> StepCost:
    """Plan the case, and take its steps."""
    recipe = recipe_for(case)
    stage = recipe.fresh_stage(checkpoints=case.checkpoints)
    subject = subject_of(stage)
    subject.models = dataclasses.replace(subject.models, init_from=None)
    torch.manual_seed(0)
    book = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
    book.start()
    stage.dit, stage.conditioner = build("small", motion_stats=motion_stats())
    stage.settle()
    if case.checkpoints:
        checkpoint_blocks(stage.dit)
    average = [p.detach().clone() for p in stage.parameters() if p.requires_grad]
    optimizer = build_optimizer(stage, stage.optim)
    clips = Clips(case.batch_size, FRAMES, VideoFormat(SIDE, SIDE))
    batch = make_batch(
        case.batch_size, FRAMES, SIDE, latent_channels=LATENT_CHANNELS,
        has_reference=recipe.data.pairs,
    )  # fmt: skip

    def batch_loss(index: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=recipe.bf16):
            return stage.loss_at(batch, index)[0]

    stage.step = last_step(recipe)
    batch_loss(0).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    with record_function(COUNTED), longest_runs():
        for index in range(NUM_BATCHES, NUM_BATCHES + NUM_LONGEST):
            batch_loss(index).backward()
    book.stop()
    drawn = [
        cost_of(partial(batch_loss, index), bf16=recipe.bf16, trains=True).flops
        for index in range(NUM_BATCHES)
    ]
    flops = sum(drawn) / len(drawn) * recipe.trainer["accumulate_grad_batches"]
    del average
    plan = plan_of(
        dataclasses.replace(recipe, model=recipe.fresh_stage(checkpoints=case.checkpoints)),
        clips,
        recipe.spread,
    )
    return StepCost(
        float(plan.total) / MIB, most_given(book) / MIB, float(plan.flops), float(flops)
    )


def most_given(book: profile) -> int:
    """The most bytes that the allocator had given away since the book began, at any moment within
    `COUNTED`."""
    assert book.profiler is not None
    assert book.profiler.kineto_results is not None
    events: list[Any] = book.profiler.kineto_results.events()
    (counted,) = (event for event in events if event.name() == COUNTED)
    given, most = 0, 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            given += event.nbytes()
            if counted.start_ns() <= event.start_ns() <= counted.end_ns():
                most = max(most, given)
    return most
