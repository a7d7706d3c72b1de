"""Plans as text: whether it fits, what the memory holds, what a step costs, and what would help."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from avatar_v.base.video_format import VideoFormat
from avatar_v.objectives.refiner import LowVideoSubject
from avatar_v.planning.batches import Clips
from avatar_v.planning.gpus import GPU, RESERVE_GIB
from avatar_v.planning.measure import Number
from avatar_v.planning.memory import GIB, Plan, frames_of, plan_of
from avatar_v.planning.recipe import Recipe, Spread
from avatar_v.rewards.terms import Rewards
from avatar_v.shards.loader import read_folder
from avatar_v.training.engine import Engine, subject_of, trains_clips
from avatar_v.training.video import VideoSubject
from avatar_v.weights.presets import preset

FULL = VideoFormat(480, 480)
"""Pixels of the pictures that full sizes are trained on, as the recipes say."""


@dataclass(frozen=True)
class Machine:
    """What a plan is for. Without a ``gpu`` a recipe for CPUs is planned without time."""

    gpu: GPU | None
    mfu: float  # share of the peak that is reached


def clips_of(recipe: Recipe, video: VideoFormat | None, num_frames: int | None) -> Clips:
    """The largest clips of the training shards where these are, else of the usual size."""
    stage, batch_size = recipe.fresh_stage(), recipe.data.batch_size
    size_of = preset(subject_of(stage).models.preset)
    usual = FULL if size_of.embedded is None else size_of.format.video
    if isinstance(stage.subject, LowVideoSubject):
        usual = usual.scaled(stage.subject.refinement.factor)
    frames = frames_of(recipe)
    folder = recipe.data.train_folder
    there = Path(folder).exists()  # if not, `avatar-v doctor` says so; a URL is not asked
    found = [clip for clip, _ in read_folder(folder).kinds()] if there else []
    if found:
        height, width = max(((c.height, c.width) for c in found), key=math.prod)
        usual = usual.sized(height, width) if height else usual
        frames = max(frames, *(clip.num_frames for clip in found))
    return Clips(batch_size, num_frames or frames, video or usual)


def recipe_report(
    recipe: Recipe, machine: Machine, spread: Spread, clips: Clips | None, *, measures: bool
) -> str:
    """All that is said of one recipe; of one that trains neither DiT nor motion network why it
    needs no plan. With ``measures`` what would help is told where it fits, too."""
    if not trains_clips(recipe.model):
        kind = type(recipe.model).__name__
        return f"{recipe.name}: {kind} trains a network of a few million weights; it needs no plan"
    assert clips is not None
    plan = plan_of(recipe, clips, spread)
    lines = [_verdict(recipe, plan, machine, spread), *_work(plan, machine), *_table(plan, machine)]
    if measures or not _fits(plan.total, machine):
        lines += ["what would change it:", *_measures(recipe, plan, spread, clips)]
    if any(isinstance(part, Rewards) for part in vars(recipe.model).values()):
        lines.append("not counted: the networks of rewards")
    return "\n".join([lines[0], *(f"  {line}" for line in lines[1:])])


def table(parts: Mapping[str, Number], reserve_gib: Number) -> list[str]:
    """One line a part, in GiB, and their sum."""
    rows = {name: size / GIB for name, size in parts.items() if size > 0}
    if reserve_gib:
        rows["CUDA, NCCL, gaps (assumed)"] = reserve_gib
    rows["in all"] = sum(rows.values())
    return [f"{name:<32}{value:9.2f} GiB" for name, value in rows.items()]


def _verdict(recipe: Recipe, plan: Plan, machine: Machine, spread: Spread) -> str:
    ranks, gib = spread.layout.world_size, plan.total / GIB
    how = {"alone": "", "ddp": ", whole copies (DDP)", "fsdp": ", sharded (FSDP2)"}[spread.kind]
    if spread.layout.sequence_size > 1:
        how += f", {spread.layout.sequence_size} for each video"
    if machine.gpu is None:
        return f"{recipe.name}: needs {gib:.2f} GiB of memory"
    gib += RESERVE_GIB
    verdict = "fits" if _fits(plan.total, machine) else "does not fit"
    return (
        f"{recipe.name}: {verdict}: {gib:.0f} of {machine.gpu.memory_gib:.0f} GiB "
        f"on each of {ranks} {machine.gpu.name}{how}"
    )


def _fits(size: Number, machine: Machine) -> bool:
    return machine.gpu is None or size / GIB + RESERVE_GIB <= machine.gpu.memory_gib


def _work(plan: Plan, machine: Machine) -> list[str]:
    picture = f" at {plan.video}" if plan.video else ""
    lines = [
        f"trains {_count(plan.num_trained)} of {_count(plan.num_parameters)} parameters",
        f"a step: {plan.clips_per_step} clips, windows of {plan.window} latents{picture}, "
        f"{_count(plan.num_tokens)} tokens, {plan.flops:.2e} operations on each rank",
    ]
    if machine.gpu is not None:
        seconds = plan.flops / (machine.mfu * machine.gpu.bf16_tflops * 1e12)
        lines.append(
            f"{seconds:.2f} s a step at {machine.mfu:.0%} of {machine.gpu.bf16_tflops:.0f} "
            "TFLOP/s, if nothing waits"
        )
    return lines


def _table(plan: Plan, machine: Machine) -> list[str]:
    return table(plan.parts, 0 if machine.gpu is None else RESERVE_GIB)


def _measures(recipe: Recipe, plan: Plan, spread: Spread, clips: Clips) -> list[str]:
    stage, ranks = recipe.fresh_stage(), spread.layout.world_size
    tried: dict[str, Plan] = {}
    if not subject_of(stage).models.checkpoint_activations:
        tried["models.checkpoint_activations: true"] = plan_of(
            recipe, clips, spread, checkpoints=True, with_time=False
        )
    if _has_lora(stage) and stage.trainable.parts == "all":
        tried["trainable.parts: lora"] = plan_of(recipe, clips, spread, lora=True, with_time=False)
    if spread.kind == "fsdp":
        tried[f"{2 * ranks} GPUs"] = plan_of(recipe, clips, spread.over(2 * ranks), with_time=False)
        size = 2 * spread.layout.sequence_size
        if ranks % size == 0:
            tried[f"tensor_parallel_size: {size}, the GPUs of one video"] = plan_of(
                recipe, clips, spread.over(ranks, size), with_time=False
            )
    if clips.batch_size > 1:
        fewer = replace(clips, batch_size=clips.batch_size // 2)
        tried[f"batch_size: {fewer.batch_size}"] = plan_of(recipe, fewer, spread, with_time=False)
    return [
        f"{words}: {(other.total - plan.total) / GIB:+.1f} GiB" for words, other in tried.items()
    ] or ["fewer window_latents, a smaller picture"]


def _has_lora(stage: Engine) -> bool:
    """Whether the DiT of a stage can be trained by LoRA's factors."""
    return isinstance(stage.subject, VideoSubject) and stage.subject.personality is not None


def _count(number: Number) -> str:
    for size, word in ((1e9, " billion"), (1e6, " million")):
        if number >= size:
            return f"{number / size:.2f}{word}"
    return f"{number:.0f}"
