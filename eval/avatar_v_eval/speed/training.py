"""Training speed at full size: tokens a second, and the share of the GPU's peak that is reached.

Some steps of each stage on one device, all of the network or LoRA, random weights, one clip a step
at the sizes of the recipe, nothing waits for data. Operations are those of the plan
(`avatar-v plan`) without what activation checkpointing computes again: their number over time and
peak is the model FLOPs utilisation (MFU, arXiv 2204.02311). The peak is that of the GPU's maker.
"""

import argparse
import dataclasses
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from avatar_v.base.device import chosen_device
from avatar_v.parallel.mesh import Layout
from avatar_v.planning.encoders import text_flops
from avatar_v.planning.gpus import GPUS
from avatar_v.planning.memory import frames_of, plan_of
from avatar_v.planning.recipe import Spread
from avatar_v.planning.steps import Clips
from avatar_v.recipe.lightning_cli import quiet
from avatar_v.types import num_frames
from avatar_v.weights.random import make_batch
from avatar_v_eval.processes import in_a_process
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.speed.full_networks import import_random, ready_stage, recipe_of
from avatar_v_eval.speed.full_size import ON_GPU, Size
from avatar_v_eval.speed.full_training import Repeated, Watch, trainer_of

STAGES = ("2_a2v", "3_sft")
WARM_UP = 2
"""Steps before those that are timed."""


@dataclass(frozen=True)
class Speed:
    """Of the steps of one stage."""

    took_s: tuple[float, ...]
    tokens: int  # of a step
    tflop: float  # of a step, without what is computed again
    peak_gib: float  # of the GPU


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", default="cuda", help="cuda, or cpu for a trial (%(default)s)")
    add("--preset", default="wan_1_3b", choices=("tiny", "wan_1_3b"))
    add("--stages", nargs="+", default=list(STAGES), choices=STAGES)
    add("--parts", nargs="+", default=["all", "lora"], choices=("all", "lora"))
    add("--dit", help="an imported DiT to measure with (default: random weights)")
    add("--side", type=int, default=ON_GPU[0], help="pixels (%(default)s)")
    add("--latents", type=int, default=ON_GPU[1], help="of a window (%(default)s)")
    add("--steps", type=int, default=8, help=f"timed, after {WARM_UP} of warm-up (%(default)s)")


def measure(options: argparse.Namespace) -> Findings:
    device = chosen_device(options.device)
    size = Size(options.preset, options.side, options.latents, str(device))
    numbers: dict[str, Number] = {}
    with tempfile.TemporaryDirectory() as name:
        dit = Path(options.dit or in_a_process(import_random, size.preset, Path(name)))
        for stage in options.stages:
            for parts in options.parts:
                print(f"{stage}, {parts} …", flush=True)
                found = in_a_process(steps_of, stage, parts, size, dit, options.steps)
                numbers |= speed_numbers(stage, parts, found, peak_tflops(device))
    return Findings(
        "Training speed at full size",
        numbers,
        recipe="the full-size recipes of the stages",
        notes=[
            f"{size.preset}, random weights, on {device.type}: one clip a step, windows of "
            f"{size.latents} latents ({num_frames(size.latents)} frames) at {size.side} px, bf16 "
            "autocast, activation checkpointing, one process for each row",
            f"median of {options.steps} steps after {WARM_UP}, with the fastest and the slowest; "
            "encodings of prompts are drawn, nothing is read",
        ],
    )


def peak_tflops(device: torch.device) -> float | None:
    """The dense bf16 peak of a GPU that planning/gpus.py knows."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    known = sorted(GPUS.values(), key=lambda gpu: -len(gpu.name))
    return next((gpu.bf16_tflops for gpu in known if gpu.name in name), None)


def steps_of(stage_name: str, parts: str, size: Size, dit: Path, num_steps: int) -> Speed:
    """So many steps, in a process of their own."""
    quiet()
    recipe = recipe_of(stage_name, size.preset, size.latents, parts=parts)
    frames = frames_of(recipe.fresh_stage(), size.latents)
    fresh = dataclasses.replace(recipe, model=recipe.fresh_stage(checkpoints=False))
    plan = plan_of(fresh, Clips(1, frames, size.side), Spread("alone", Layout()))
    stage = ready_stage(recipe, size.preset, dit)
    own = 0.0 if size.preset == "tiny" else text_flops(stage)  # which is not run here
    batch = make_batch(
        1,
        frames,
        size.side,
        latent_channels=None if recipe.data.decode_video else stage.dit.config.latent_channels,
        has_reference=recipe.data.pairs,
    )
    watch, num = Watch(), num_steps + WARM_UP
    trainer_of(
        recipe, size.device, [watch], automatic=stage.automatic_optimization, num_steps=num
    ).fit(stage, DataLoader(Repeated(batch, num), batch_size=None))
    on_gpu = torch.device(size.device).type == "cuda"
    peak = torch.cuda.max_memory_allocated() / 2**30 if on_gpu else 0.0
    cells = (size.side // stage.token_side) ** 2
    flops = float(plan.flops) - own
    return Speed(tuple(watch.took_s[WARM_UP:]), size.latents * cells, flops / 1e12, peak)


def speed_numbers(stage: str, parts: str, found: Speed, peak: float | None) -> dict[str, Number]:
    """The rows of one stage. ``peak``: TFLOP/s of the GPU; None: unknown, and no MFU is told."""
    label, key = f"{stage}, {'all parts' if parts == 'all' else 'LoRA'}", f"{stage}_{parts}"
    spread = (max(found.took_s), min(found.took_s))

    def rate(amount: float) -> Number:
        value = amount / statistics.median(found.took_s)
        slowest, fastest = (amount / s for s in spread)
        return Number(value, len(found.took_s), slowest, fastest)

    numbers = {
        f"tokens_{key}": rate(found.tokens).described(f"{label}: video tokens", unit="tokens/s"),
        f"tflops_{key}": rate(found.tflop).described(f"{label}: reached", unit="TFLOP/s"),
    }
    if found.peak_gib:
        numbers[f"gib_{key}"] = Number(found.peak_gib, 1).described(
            f"{label}: peak of the GPU", unit="GiB"
        )
    if peak is not None:
        numbers[f"mfu_{key}"] = rate(found.tflop / peak).described(f"{label}: MFU")
    return numbers
