"""Throughput and latency: drawing, training, generation and decoding, each repeated.

A value is the median of the repeats, its spread the lowest and the highest. Named peers are
measured in turns with ours, in the same process. Memory is the measurement `memory`, a live sound
the measurement `live`.
"""

import argparse
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml

from avatar_v.callbacks.throughput import Throughput, Totals
from avatar_v.recipe.cli import merge_recipes
from avatar_v.recipe.lightning_cli import RecipeCLI
from avatar_v.types import FRAME_RATE_HZ
from avatar_v.weights.card import ASSETS
from avatar_v_eval.cases import drawn_clips, first_case
from avatar_v_eval.generated import build_inputs
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import AVATAR_V, AVATAR_V_DATA, Rollout, add_sampling_options
from avatar_v_eval.speed.peers import decode_numbers, dit_numbers, muon_numbers
from avatar_v_eval.turns import seconds, turns_note

CLIP_FRAMES = 101
GENERATED_FRAMES = 93  # two chunks of the small preset
TRAINING_STEPS = 40
RECIPES = ("recipes/2_a2v.yaml", "recipes/small.yaml")


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="speed")
    add_sampling_options(parser)
    add = parser.add_argument
    add("--repeats", type=int, default=5)
    add("--training-repeats", type=int, default=3)
    add("--vae", help="folder of the VAE for training; default: the shipped one")
    add("--recipes", nargs="+", default=RECIPES, help="training to be timed")


def measure(options: argparse.Namespace) -> Findings:
    rollout = Rollout.load(options.weights, options)
    numbers = world_numbers(options.repeats)
    numbers |= generation_numbers(rollout, options.repeats)
    numbers |= decode_numbers(rollout.vae, options.repeats)
    numbers |= dit_numbers(rollout.pipeline.dit, options.repeats)
    numbers |= muon_numbers(rollout.pipeline.dit, options.repeats)
    numbers |= training_numbers(options)
    return Findings(
        "Speed",
        numbers,
        recipe=rollout.recipe,
        weights=rollout.hashes(),
        notes=[
            turns_note(options.repeats, "repeats"),
            rollout.described(),
            f"training: {TRAINING_STEPS} steps of recipes/2_a2v.yaml with recipes/small.yaml",
        ],
    )


def world_numbers(repeats: int) -> dict[str, Number]:
    """Clips with sound, motion and picture, on one core, as a loader's worker makes them."""

    def draw(index: int) -> None:
        drawn_clips("test", 1, first=index, num_frames=CLIP_FRAMES)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rates = [CLIP_FRAMES / seconds(partial(draw, index)) for index in range(repeats)]
    finally:
        torch.set_num_threads(threads)
    return {
        "world": median_of_repeats(rates).described(
            "world: clips with sound, 64 px, one core", unit="frames/s", target="≥ 25"
        )
    }


def generation_numbers(rollout: Rollout, repeats: int) -> dict[str, Number]:
    """From tensors to frames: the streaming loop after files are read and weights are loaded. The
    person is known by the first frame alone."""
    case = first_case(num_frames=GENERATED_FRAMES, reference_frames=1, size=rollout.size)
    inputs = build_inputs(rollout, case, 0, "none")
    request = rollout.request_for(case.person_id, case.prompt)
    total_s, first_s = [], []
    for _ in range(repeats + 1):
        start_s = time.perf_counter()
        blocks = rollout.pipeline.stream(inputs, request)
        next(blocks)
        first_s.append(time.perf_counter() - start_s)
        for _ in blocks:
            pass
        total_s.append(time.perf_counter() - start_s)
    length_s = case.num_frames / FRAME_RATE_HZ
    return {
        "generate": median_of_repeats([t / length_s for t in total_s[1:]]).described(
            "generating one second of video", unit="s"
        ),
        "first_frame": median_of_repeats(first_s[1:]).described(
            "time to first frame, weights loaded", unit="s"
        ),
    }


def training_numbers(options: argparse.Namespace) -> dict[str, Number]:
    """Tokens a second and the loader's wait of a stage's own recipe, on freshly made shards.

    The weights are untrained: their values do not change the speed.
    """
    totals: list[Totals] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        vae = options.vae or str(ASSETS / "small" / "vae")
        video, encoded = str(folder / "video"), str(folder / "latents")
        _silently(*AVATAR_V_DATA, "world", "--out", video, "--clips", "64")
        _silently(*AVATAR_V, "shards", "encode", "--shards", video, "--out", encoded, "--vae", vae)
        recipe = folder / "recipe.yaml"
        merged = merge_recipes([str(path) for path in options.recipes])
        recipe.write_text(yaml.safe_dump(for_timing(merged, encoded, vae)))
        for _ in range(options.training_repeats):
            root = ["--trainer.default_root_dir", str(folder / "run")]
            cli = RecipeCLI(["fit", "-c", str(recipe), *root])
            timers = [c for c in cli.trainer.callbacks if isinstance(c, Throughput)]  # pyright: ignore
            totals.append(timers[0].totals)
    rates = [total.rates() for total in totals]
    return {
        "tokens": median_of_repeats([r["tokens_per_s"] for r in rates]).described(
            "training: video tokens", unit="tokens/s"
        ),
        "step": median_of_repeats([r["step_s"] for r in rates]).described(
            "training: one step", unit="s"
        ),
        "loader": median_of_repeats([r["loader_share"] for r in rates]).described(
            "training: share of a step spent waiting for the loader", target="< 0.05"
        ),
    }


def for_timing(recipe: dict[str, Any], shards: str, vae: str) -> dict[str, Any]:
    """The recipe on other shards, for a few steps, with the timer as its only callback."""
    models = {**recipe["model"]["init_args"]["models"], "init_from": None, "vae": vae}
    model = {**recipe["model"]["init_args"], "models": models}
    data = {**recipe["data"]["init_args"], "train": shards, "validation": None}
    trainer = {
        **recipe["trainer"],
        "max_steps": TRAINING_STEPS,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "limit_val_batches": 0,
        "callbacks": [{"class_path": "avatar_v.callbacks.throughput.Throughput"}],
    }
    return {
        **recipe,
        "model": {**recipe["model"], "init_args": model},
        "data": {**recipe["data"], "init_args": data},
        "trainer": trainer,
    }


def _silently(*words: str) -> None:
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
