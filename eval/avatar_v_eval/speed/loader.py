"""What the loader takes at scale: memory and time of an index, and a clip against a planned step.

The index is one of made-up clips, of the size and members that `shards encode --stills` leaves. It
is read as a folder's is; pairs and the order of an epoch are made for all ranks of two nodes, and
counted. Clips of full size are read on one core, as video and as latents: those of ``--shards``,
or drawn and enlarged ones. What a step takes is not measured here: it is the plan's, at its share
of the peak.
"""

import argparse
import dataclasses
import json
import math
import os
import resource
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from avatar_v.commands.planning import LEAST_MFU
from avatar_v.planning.gpus import gpu_of
from avatar_v.planning.memory import plan_of
from avatar_v.planning.recipe import read_recipe
from avatar_v.planning.steps import Clips
from avatar_v.shards.buckets import BatchPlan, Bucket, Partners, plan_epoch
from avatar_v.shards.datamodule import sorted_clips
from avatar_v.shards.loader import ClipReader, load_clips, read_folder
from avatar_v.shards.schema import SCHEMA_VERSION
from avatar_v.shards.table import ClipTable
from avatar_v.shards.writer import parse_index, write_shard
from avatar_v.types import num_latents
from avatar_v_data.world_set import WorldSettings, make_sample
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.processes import in_a_process
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.turns import seconds

CLIPS_PER_SHARD = 1000
NODES, GPUS_PER_NODE = 2, 8
RECIPES = ("1_t2v", "2_a2v", "3_sft")
DRAWN_SIZE = 64
LATENT_SHAPE = (16, 8)
"""Channels, and pixels a latent."""


@dataclass(frozen=True)
class Indexed:
    """An index of made-up clips: time, and memory of the process."""

    columns: float  # bytes a clip
    grown: float  # bytes a clip by which the process grew, with pairs and the plan of an epoch
    most: float  # the same at its largest
    read_s: float
    pairs_s: float
    plan_s: float
    once: float  # share of clips that all ranks together read exactly once in an epoch


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--clips", type=int, default=1_000_000, help="of the index")
    add("--batch-size", type=int, default=8, help="a rank")
    add("--shards", help="folder of full-size clips to read; default: drawn, enlarged ones")
    add("--size", type=int, default=480)
    add("--frames", type=int, default=161)
    add("--repeats", type=int, default=5, help="clips to read")
    add("--recipes", nargs="+", default=list(RECIPES), choices=RECIPES)
    add("--gpu", default="h100", help="that the steps are planned for")
    add("--mfu", type=float, default=0.4)


def measure(options: argparse.Namespace) -> Findings:
    if not LEAST_MFU <= options.mfu <= 1:
        raise ValueError(f"--mfu is from {LEAST_MFU} to 1, got {options.mfu}")
    gpu_of(options.gpu)
    index = in_a_process(indexed, options.clips, options.batch_size)
    numbers = index_numbers(index, options.clips)
    with tempfile.TemporaryDirectory() as name:
        folder = options.shards or make_shards(Path(name), options)
        numbers |= reading_numbers(str(folder), options.repeats)
    numbers |= waiting_numbers(numbers, options)
    return Findings(
        "The loader at scale",
        numbers,
        notes=[
            f"index: {options.clips:,} made-up clips, the memory of one process of its own; "
            f"{NODES} nodes of {GPUS_PER_NODE} ranks, batches of {options.batch_size}",
            f"clips: {options.shards or f'drawn, enlarged to {options.size} px'}, "
            f"{options.frames} frames; one core, median of {options.repeats} clips, "
            "with the fastest and the slowest; the files lie in the memory of the machine",
            f"steps as planned for {options.gpu} at {options.mfu:.0%} of its peak, not measured",
        ],
    )


def indexed(num_clips: int, batch_size: int) -> Indexed:
    """Read an index, pair its clips and plan an epoch; to be called in a process of its own."""
    list(ClipTable(_index(0)))
    before, start_s = _resident_bytes(), time.perf_counter()
    table = ClipTable(c for n in range(0, num_clips, CLIPS_PER_SHARD) for c in _index(n))
    read_s, start_s = time.perf_counter() - start_s, time.perf_counter()
    members = sorted_clips(table, None, uses_latents=True)
    partners = {b: Partners(table, own, same_scene=False) for b, own in members.items()}
    pairs_s, start_s = time.perf_counter() - start_s, time.perf_counter()
    num_ranks = NODES * GPUS_PER_NODE
    plan = partial(
        plan_epoch,
        members,
        batch_size=batch_size,
        seed=0,
        epoch=0,
        num_ranks=num_ranks,
        shuffle=True,
        fill=True,
        partners=partners,
    )
    kept = plan(rank=0)
    plan_s, grown = time.perf_counter() - start_s, _resident_bytes() - before
    most = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    times = np.zeros(len(table), np.int32)
    for rank in range(num_ranks):
        for batch in kept if rank == 0 else plan(rank=rank):
            np.add.at(times, list(batch.clips), 1)
    num = len(table)
    once = float((times == 1).mean())
    return Indexed(table.num_bytes / num, grown / num, most / num, read_s, pairs_s, plan_s, once)


def index_numbers(index: Indexed, num_clips: int) -> dict[str, Number]:
    def one(value: float, label: str, unit: str = "", target: str = "") -> Number:
        return Number(value, 1).described(label, unit=unit, target=target)

    million = 1e6 / num_clips
    return {
        "columns": one(index.columns, "index of clips in memory", "bytes/clip", "< 200"),
        "process": one(index.grown, "growth of the process, with pairs and an epoch", "bytes/clip"),
        "most": one(index.most, "the same while indexes are read", "bytes/clip"),
        "read": one(index.read_s * million, "reading the indexes of a million clips", "s"),
        "pairs": one(index.pairs_s * million, "finding the pairs of a million clips", "s"),
        "plan": one(index.plan_s * million, "the order of an epoch of a million clips", "s"),
        "once": one(index.once, "clips that come exactly once in an epoch of all ranks"),
    }


def make_shards(folder: Path, options: argparse.Namespace) -> Path:
    """Drawn clips, enlarged to full size (to draw them so takes minutes), with latents of noise."""
    settings = WorldSettings(
        split="test", num_clips=2 * options.repeats, num_frames=options.frames, size=DRAWN_SIZE
    )
    channels, factor = LATENT_SHAPE
    side, draw = options.size // factor, torch.Generator().manual_seed(0)
    samples = []
    for sample in (make_sample(settings, number) for number in range(options.repeats)):
        latents = torch.randn(num_latents(options.frames), channels, side, side, generator=draw)
        assert sample.video is not None
        meta = dataclasses.replace(
            sample.meta, height=options.size, width=options.size, vae_hash="noise"
        )
        video = interpolate(sample.video.float(), (options.size, options.size), mode="bilinear")
        parts = {"meta": meta, "latents": latents.half(), "video": video.round().to(torch.uint8)}
        samples.append(dataclasses.replace(sample, **parts))
    write_shard(folder / "clips.tar", samples)
    return folder


def reading_numbers(folder: str, repeats: int) -> dict[str, Number]:
    """Seconds from the tar to a batch of one clip, on one core, as a loader's worker reads it."""
    clips = read_folder(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    numbers = {}
    try:
        for name, video in (("video", True), ("latents", False)):
            if not all(c.has_video if video else c.has_latents for c in clips):
                continue
            reader = ClipReader(clips, decode_video=video, use_latents=not video)

            def load(index: int, read: ClipReader = reader) -> None:
                clip = clips[index]
                bucket = Bucket(clip.height, clip.width, clip.num_frames)
                load_clips(BatchPlan(bucket, (index,), None, (0,)), read)

            load(0)
            took = [seconds(partial(load, index % len(clips))) for index in range(repeats)]
            numbers[f"clip_{name}"] = median_of_repeats(took).described(
                f"reading a clip on one core: {name}", unit="s"
            )
    finally:
        torch.set_num_threads(threads)
    return numbers


def waiting_numbers(numbers: dict[str, Number], options: argparse.Namespace) -> dict[str, Number]:
    """By the plan of each recipe: the workers that a rank needs so as to read the clips of a step
    within it, and the share of a step that one worker makes it wait. A clip has a reference where
    the recipe pairs."""
    found = {}
    for name in options.recipes:
        recipe = read_recipe([f"recipes/{name}.yaml"], [])
        clips = Clips(recipe.data.batch_size, options.frames, options.size)
        plan = plan_of(recipe, clips, recipe.spread)
        step_s = float(plan.flops) / (options.mfu * gpu_of(options.gpu).bf16_tflops * 1e12)
        found[f"step_{name}"] = Number(step_s, 1).described(f"{name}: a step as planned", unit="s")
        num = plan.clips_per_step // recipe.spread.layout.num_data_ranks  # of all its batches
        num *= 2 if recipe.data.pairs else 1
        for kind in ("video", "latents"):
            if f"clip_{kind}" not in numbers:
                continue
            read_s = num * numbers[f"clip_{kind}"].value
            found[f"workers_{name}_{kind}"] = Number(math.ceil(read_s / step_s), 1).described(
                f"{name}: workers a rank that read {kind} without a wait"
            )
            found[f"wait_{name}_{kind}"] = Number(waiting_share(read_s, step_s, 1), 1).described(
                f"{name}: share of a step spent waiting for one worker, {kind}", target="< 0.05"
            )
    return found


def waiting_share(read_s: float, step_s: float, num_workers: int) -> float:
    """Of the time between two steps, when one worker takes ``read_s`` for the clips of one."""
    return max(0.0, 1 - step_s * num_workers / read_s)


def _index(first: int) -> tuple:
    """The clips of one shard's index, from its text."""
    names = ("audio.flac", "face.npz", "json", "latents.npy", "motion.npy", "stills.npz")
    rows = [
        {
            "key": f"an-interview-{n // 8:07d}-{n % 8:03d}",
            "person": f"an-interview-{n // 16:07d}",
            "scene": f"an-interview-{n // 8:07d}",
            "num_frames": 161, "height": 480, "width": 480, "vae_hash": "0123456789abcdef",
            "members": {m: [9_000_000 * (n - first) + i, 512, n] for i, m in enumerate(names)},
        }
        for n in range(first, first + CLIPS_PER_SHARD)
    ]  # fmt: skip
    fields = {
        "schema_version": SCHEMA_VERSION, "shard": f"import-{first:09d}.tar", "num_bytes": 10**11,
        "clips": rows, "failures": [],
    }  # fmt: skip
    return parse_index(json.dumps(fields).encode(), "made up", str).clips


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
