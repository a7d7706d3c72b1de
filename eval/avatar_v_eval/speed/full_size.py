"""Full size on this machine: a step of each stage, a chunk, and a checkpoint over ranks.

Each row runs in a process of its own, so that its peak of memory is its own; on a CPU that is the
largest resident size (VmHWM), reading of the weights included, on a GPU the most that torch's
allocator gave away. Weights are random, in the layout of Wan; stages train LoRA's factors and what
is new, under bf16 autocast, with activation checkpointing. Of `--steps` steps
the last is timed; the first makes some things once. The pictures are as small and the windows as
short as `--side` and `--latents` say: on a CPU few, on a GPU those of the recipes.
Where a row does not fit, the command says so before it begins.
"""

import argparse
import dataclasses
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from avatar_v.base.device import chosen_device
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.reference_clip import ReferenceClip
from avatar_v.models.causal import as_causal
from avatar_v.models.dit import AvatarDiT
from avatar_v.planning.memory import frames_of
from avatar_v.recipe.lightning_cli import quiet
from avatar_v.request.record import peak_rss_mib
from avatar_v.request.request import Request
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME, num_frames
from avatar_v.weights.card import Capabilities, Card
from avatar_v.weights.presets import preset
from avatar_v.weights.random import make_batch
from avatar_v_eval.processes import in_a_process
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.speed import sharded
from avatar_v_eval.speed.full_networks import (
    EMBEDDED,
    conditioner_for,
    import_random,
    motion_net_for,
    narrow_dit,
    ready_stage,
    recipe_of,
    umt5,
)
from avatar_v_eval.speed.full_training import Repeated, Watch, trainer_of

STAGES = ("2_a2v", "3_sft", "4a_distill_cfg", "4b_distill_dmd")
GENERATED = ("chunk", "student", "causal")
ROWS = ("text", *STAGES, *GENERATED, "meta", "sharded")
NEEDED_GIB = {"text": 13, "2_a2v": 9, "3_sft": 8, "4a_distill_cfg": 12, "4b_distill_dmd": 10,
              "chunk": 8, "student": 8, "causal": 14, "meta": 1, "sharded": 20}  # fmt: skip
"""Of main memory by row, for the full sizes on a CPU: measured, and a reserve."""
ON_CPU, ON_GPU = (64, 5), (480, 41)
"""Pixels of a side, and latents of a window."""
WRITERS, READERS = 8, (4, 1)
PROMPT_TOKENS = 64
CHUNK_STEPS = 4
BLOCK, HISTORY = 3, 4
"""Latents of a block of the causal student, and blocks before its own that it sees."""


@dataclass(frozen=True)
class Size:
    """How large the pictures and how long the windows are, and where it runs."""

    preset: str
    side: int
    latents: int
    device: str
    num_steps: int = 1  # of a stage


@dataclass(frozen=True)
class Row:
    """Of one process."""

    took_s: float
    peak_gib: float
    more: dict[str, float] = dataclasses.field(default_factory=dict)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    add("--device", default="auto", help="cpu, cuda; auto: a GPU where there is one (%(default)s)")
    add("--preset", default="wan_1_3b", choices=("tiny", "wan_1_3b"), help="of steps and chunk")
    add("--side", type=int, help=f"pixels; default: {ON_CPU[0]}, on a GPU {ON_GPU[0]}")
    add("--latents", type=int, help=f"of a window; default: {ON_CPU[1]}, on a GPU {ON_GPU[1]}")
    add("--steps", type=int, default=1, help="of each stage; the last is timed (%(default)s)")
    add("--dit", help="an imported DiT to measure with (default: random weights)")
    add("--large", default="wan_14b", choices=("tiny", "wan_14b"), help="of the checkpoint")
    add("--depth", type=int, default=1, help="blocks of the checkpoint's network (%(default)s)")


def measure(options: argparse.Namespace) -> Findings:
    device = chosen_device(options.device)
    side, latents = ON_CPU if device.type == "cpu" else ON_GPU
    size = Size(
        options.preset,
        options.side or side,
        options.latents or latents,
        str(device),
        options.steps,
    )
    if options.preset not in EMBEDDED:
        check_memory(options.rows)
    numbers: dict[str, Number] = {}
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), list(options.rows)
        dit = Path(options.dit) if options.dit else folder / "dit"
        if not options.dit and any(row in (*STAGES, *GENERATED) for row in rows):
            rows.insert(0, "import")
        for row in rows:
            begin = time.perf_counter()
            print(f"{row} …", flush=True)
            if row == "meta":
                found = meta_numbers(options.large)
            elif row == "sharded":
                found = sharded_numbers(options.large, options.depth, folder / "sharded")
            else:
                found = row_numbers(row, in_a_process(one_row, row, size, str(dit)))
            numbers |= found
            words = ", ".join(f"{n.value:.4g} {n.unit}".strip() for n in found.values())
            print(f"{row}: {words} ({time.perf_counter() - begin:.0f} s in all)", flush=True)
    return Findings(
        "Full size on this machine",
        numbers,
        recipe="their own full-size recipes, with trainable.parts lora",
        notes=[
            f"{size.preset}, random weights in Wan's layout, on {device.type}: windows of "
            f"{size.latents} latents ({num_frames(size.latents)} frames) at {size.side} px, one "
            "clip a step, references of as many latents, encodings of prompts drawn",
            "frozen weights in bf16, trained ones in fp32, bf16 autocast, activation "
            f"checkpointing; the last of {size.num_steps} steps, without waiting for data",
            "peak: the largest resident size of the row's own process (VmHWM), reading of the "
            "weights included"
            + ("" if device.type == "cpu" else "; of the GPU, torch's allocator's largest"),
            f"checkpoint: {options.large}'s width in {options.depth} blocks, fp32 weights and the "
            "optimiser's states, FSDP2 over gloo processes on one machine",
        ],
    )


def check_memory(rows: list[str]) -> None:
    """ValueError, before anything starts, where the machine has too little free memory."""
    free = free_gib()
    worst = max(rows, key=lambda row: NEEDED_GIB[row])
    if free < NEEDED_GIB[worst]:
        fits = [row for row in ROWS if NEEDED_GIB[row] <= free]
        raise ValueError(
            f"row {worst} needs about {NEEDED_GIB[worst]} GiB of free memory, this machine has "
            f"{free:.1f}: leave it out (--rows {' '.join(fits)})"
        )


def free_gib() -> float:
    """Main memory that can be had without swapping."""
    told = Path("/proc/meminfo").read_text(encoding="ascii")
    return int(told.split("MemAvailable:")[1].split()[0]) / 2**20


def row_numbers(row: str, found: Row) -> dict[str, Number]:
    """Time and peak of a row, and what else it told."""
    label = LABELS[row]
    numbers = {
        f"{row}_s": Number(found.took_s, 1).described(f"{label}: time", unit="s"),
        f"{row}_gib": Number(found.peak_gib, 1).described(f"{label}: peak", unit="GiB"),
    }
    for key, value in found.more.items():
        words, unit = MORE[key]
        numbers[f"{row}_{key}"] = Number(value, 1).described(f"{label}: {words}", unit=unit)
    return numbers


LABELS = {
    "import": "weights drawn and imported",
    "text": "UMT5-XXL in bf16, one prompt",
    "2_a2v": "stage 2, one step",
    "3_sft": "stage 3, one step",
    "4a_distill_cfg": "stage 4a, one step",
    "4b_distill_dmd": "stage 4b, one step of student and fake score",
    "chunk": "one chunk generated, 4 steps of 2 passes",
    "student": "one chunk generated, 4 steps of 1 pass",
    "causal": f"causal, blocks of {BLOCK} latents, 4 steps of 1 pass",
}
MORE = {
    "trained": ("trained parameters", "million"),
    "gpu_gib": ("peak of the GPU", "GiB"),
    "parameters": ("parameters", "billion"),
    "frame_s": ("time to its first frame", "s"),
    "rate": ("frames a second", "frames/s"),
}


def one_row(row: str, size: Size, dit: str) -> Row:
    """A row, in a process of its own."""
    quiet()
    work: Callable[[], tuple[float, dict[str, float]]]
    if row == "import":
        work = lambda: _imported(size, Path(dit))  # noqa: E731
    elif row == "text":
        work = _text
    elif row in GENERATED:
        work = lambda: _generated(row, size, Path(dit))  # noqa: E731
    else:
        work = lambda: _step(row, size, Path(dit))  # noqa: E731
    took_s, more = work()
    if torch.device(size.device).type == "cuda":
        more = {**more, "gpu_gib": torch.cuda.max_memory_allocated() / 2**30}
    return Row(took_s, peak_rss_mib() / 2**10, more)


def _imported(size: Size, dit: Path) -> tuple[float, dict[str, float]]:
    begin = time.perf_counter()
    import_random(size.preset, dit.parent)
    took_s = time.perf_counter() - begin
    with torch.device("meta"):
        num = sum(p.numel() for p in AvatarDiT(preset(size.preset).dit).parameters())
    return took_s, {"parameters": num / 1e9}


@torch.inference_mode()
def _text() -> tuple[float, dict[str, float]]:
    encoder = umt5()
    ids = torch.randint(256_384, (1, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0))
    begin = time.perf_counter()
    encoder.model(ids, torch.ones_like(ids))
    took_s = time.perf_counter() - begin
    return took_s, {"parameters": sum(p.numel() for p in encoder.parameters()) / 1e9}


def _step(row: str, size: Size, dit: Path) -> tuple[float, dict[str, float]]:
    """Steps of a stage by Lightning's trainer, as `avatar-v run` makes them."""
    recipe = recipe_of(row, size.preset, size.latents)
    stage = ready_stage(recipe, size.preset, dit)
    batch = make_batch(
        1,
        frames_of(stage, size.latents),
        size.side,
        latent_channels=None if recipe.data.decode_video else stage.dit.config.latent_channels,
        has_reference=recipe.data.pairs,
    )
    watch = Watch()
    trainer_of(
        recipe,
        size.device,
        [watch],
        automatic=stage.automatic_optimization,
        num_steps=size.num_steps,
    ).fit(stage, DataLoader(Repeated(batch, size.num_steps), batch_size=None))
    num = sum(p.numel() for p in stage.parameters() if p.requires_grad)
    assert all(bool(p.isfinite().all()) for p in stage.parameters() if p.requires_grad)
    return watch.took_s[-1], {"trained": num / 1e6}


def _generated(row: str, size: Size, folder: Path) -> tuple[float, dict[str, float]]:
    """From tensors to frames by the loop of `avatar-v generate`: one chunk, or causal ones and
    their rate after the first. A GPU makes it twice, and the second time counts."""
    dit, is_causal = narrow_dit(folder), row == "causal"
    if is_causal:
        dit = as_causal(dit.float(), block=BLOCK, window=HISTORY)
        size = dataclasses.replace(size, latents=size.latents + 2 * BLOCK)
    conditioner = conditioner_for(size.preset, dit)
    conditioner.motion_net = motion_net_for(size.preset, conditioner)
    can = Capabilities(
        side=size.side,
        window_latents=size.latents,
        reference=True,
        motion=True,
        shift=3.0,
        causal_block=BLOCK if is_causal else None,
    )
    pipe = AvatarPipeline(
        dit, conditioner, Card(size.preset, can=can), device=size.device, precision="bf16"
    )
    request = Request.of(reference="", audio="", prompt="a room", num_steps=CHUNK_STEPS)
    if row != "chunk":
        request = request.changed(guidance_audio=1.0, guidance_motion=1.0)
    if is_causal:
        request = request.changed(chunk_latents=2 + BLOCK)
    inputs = speech(size)
    if pipe.device.type == "cuda":
        for _ in pipe.stream(inputs, request):
            pass
    numbers, times = [], []
    begin = time.perf_counter()
    for frames in pipe.stream(inputs, request):
        numbers.append(len(frames))
        times.append(time.perf_counter() - begin)
    assert sum(numbers) == num_frames(size.latents), "all frames were made"
    first, since = (1, times[0]) if is_causal else (0, 0.0)
    rate = sum(numbers[first:]) / (times[-1] - since)
    return times[-1], {"frame_s": times[0], "rate": rate}


def speech(size: Size) -> Inputs:
    """A chunk's length of noise to speak, and as much reference."""
    draw, num = torch.Generator().manual_seed(0), num_frames(size.latents)
    shape = (num, 3, size.side, size.side)
    video = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
    sound = 0.1 * torch.randn(num * SAMPLES_PER_FRAME, generator=draw)
    motion = 0.3 * torch.rand(num, len(MOTION_NAMES), generator=draw)
    clip = ReferenceClip(video, torch.ones(num, dtype=torch.bool), sound, motion)
    return Inputs(video[0], sound, num, None, (), (clip,), motion[0])


def meta_numbers(name: str) -> dict[str, Number]:
    """The large preset without memory: how many parameters it has."""
    with torch.device("meta"):
        num = sum(p.numel() for p in AvatarDiT(preset(name).dit).parameters())
    return {"large": Number(num / 1e9, 1).described(f"{name} on meta: parameters", unit="billion")}


def sharded_numbers(name: str, depth: int, folder: Path) -> dict[str, Number]:
    """A checkpoint by `WRITERS` ranks, read by fewer."""
    runs = {f"written by {WRITERS} ranks": sharded.written(name, depth, WRITERS, folder)}
    for num in READERS:
        runs[f"read by {num}"] = sharded.read(name, depth, num, folder)
    numbers = {
        "sharded_file": Number(sharded.checkpoint_gib(folder), 1).described(
            "checkpoint: size of the files", unit="GiB"
        )
    }
    for words, found in runs.items():
        key, label = f"sharded_{words.split(' by ')[1].split()[0]}", f"checkpoint, {words}"
        numbers |= {
            f"{key}_s": Number(found.took_s, 1).described(f"{label}: time", unit="s"),
            f"{key}_gib": Number(found.most_gib, 1).described(
                f"{label}: peak of the largest rank", unit="GiB"
            ),
            f"{key}_wrong": Number(found.num_wrong, found.num_values).described(
                f"{label}: values that differ (n: values)", target="≤ 0"
            ),
        }
    return numbers
