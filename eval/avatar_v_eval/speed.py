"""How fast and how soon: ``python -m avatar_v_eval.speed`` (``make bench``).

World, training, generation and decoding, each repeated; a value is the median, its spread the
lowest and the highest. Peers are measured in turns with ours, in the same process. Writes
``eval/results/speed.json``. Memory is speed_memory.py's, live sound speed_live.py's.
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
from avatar_v.models.weights import ASSETS
from avatar_v.stages.cli import merge_recipes
from avatar_v.stages.recipe import RecipeCLI
from avatar_v.types import FRAME_RATE_HZ
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.splits import persons, scenes, sentences
from avatar_v_eval import records
from avatar_v_eval.cases import make_cases
from avatar_v_eval.records import Number, as_command, median_of_repeats
from avatar_v_eval.rollout import AVATAR_V, Rollout, add_sampling_options
from avatar_v_eval.speed_peers import decode_numbers, dit_numbers, muon_numbers, seconds

CLIP_FRAMES = 101
GENERATED_FRAMES = 93  # two chunks of the small preset
TRAINING_STEPS = 40
RECIPES = ("recipes/2_a2v.yaml", "recipes/small.yaml")


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    rollout = Rollout.load(options.weights, options)
    numbers = world_numbers(options.repeats)
    numbers |= generation_numbers(rollout, options)
    numbers |= decode_numbers(rollout.vae, options.repeats)
    numbers |= dit_numbers(rollout.pipeline.dit, options.repeats)
    numbers |= muon_numbers(rollout.pipeline.dit, options.repeats)
    numbers |= training_numbers(options)
    result = records.make_result(
        "speed",
        "Speed",
        numbers,
        recipe=rollout.recipe,
        weights=rollout.hashes(),
        notes=[
            f"median of {options.repeats} repeats, with the lowest and the highest",
            rollout.described(),
            f"training: {TRAINING_STEPS} steps of recipes/2_a2v.yaml with recipes/small.yaml",
        ],
    )
    print(records.write_result(result, options.out))
    for number in numbers.values():
        print(f"{number.label:60s} {number.value:10.3f}  [{number.low}, {number.high}]")


def world_numbers(repeats: int) -> dict[str, Number]:
    """Clips with sound, motion and picture, on one core, as a loader's worker makes them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rates = [CLIP_FRAMES / seconds(partial(_clip, index)) for index in range(repeats)]
    finally:
        torch.set_num_threads(threads)
    return {
        "world": median_of_repeats(rates).described(
            "world: clips with sound, 64 px, one core", unit="frames/s", target="≥ 25"
        )
    }


def generation_numbers(rollout: Rollout, options: argparse.Namespace) -> dict[str, Number]:
    """From tensors to frames: the streaming loop after files are read and weights are loaded."""
    case = make_cases(1, GENERATED_FRAMES, size=rollout.size)[0]
    total_s, first_s = [], []
    for _ in range(options.repeats + 1):
        start_s = time.perf_counter()
        blocks = rollout.blocks(case, case)
        next(blocks)
        first_s.append(time.perf_counter() - start_s)
        for _ in blocks:
            pass
        total_s.append(time.perf_counter() - start_s)
    total_s, first_s = total_s[1:], first_s[1:]  # the first run warms up
    seconds = len(case.video) / FRAME_RATE_HZ
    return {
        "generate": median_of_repeats([t / seconds for t in total_s]).described(
            "generating one second of video", unit="s"
        ),
        "first_frame": median_of_repeats(first_s).described(
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
        _avatar_v("shards", "world", "--out", video, "--clips", "64")
        _avatar_v("shards", "encode", "--shards", video, "--out", encoded, "--vae", vae)
        recipe = folder / "recipe.yaml"
        merged = merge_recipes([str(path) for path in options.recipes])
        recipe.write_text(yaml.safe_dump(for_timing(merged, encoded, vae, folder)))
        for _ in range(options.training_repeats):
            cli = RecipeCLI(["fit", "-c", str(recipe)])
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


def for_timing(recipe: dict[str, Any], shards: str, vae: str, folder: Path) -> dict[str, Any]:
    """The recipe on other shards, for a few steps, with the timer as its only callback."""
    models = {**recipe["model"]["init_args"]["models"], "init_from": None, "vae": vae}
    model = {**recipe["model"]["init_args"], "models": models}
    data = {**recipe["data"]["init_args"], "train": shards, "validation": None}
    trainer = {
        **recipe["trainer"],
        "default_root_dir": str(folder / "run"),
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


def _clip(index: int) -> WorldClip:
    ids = (take("test", 1, index)[0] for take in (persons, scenes, sentences))
    return make_clip(*ids, num_frames=CLIP_FRAMES, size=64)


def _avatar_v(*words: str) -> None:
    subprocess.run([*AVATAR_V, *words], check=True, stdout=subprocess.DEVNULL)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default="small", help="folder, or the name of shipped weights")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--training-repeats", type=int, default=3)
    parser.add_argument("--vae", help="folder of the VAE for training; default: the shipped one")
    parser.add_argument("--recipes", nargs="+", default=RECIPES, help="training to be timed")
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    add_sampling_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    as_command(main)
