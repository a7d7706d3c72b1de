"""Causal weights by ranks with steps of their own, and by one process, in turns, on CPU cores.

A line of ranks with one thread each makes the video of one process with one thread, and of one with
as many threads as there are ranks, which is the other way to use as many cores. Blocks are counted
up to the latents, which is what the line shares out, and up to the frames: rank 0 decodes them all.
The weights are those that ship under a causal mask, so pictures are no good and times are real.
"""

import argparse
import dataclasses
import tempfile
from functools import partial
from pathlib import Path

import torch

from avatar_v.base import checks
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.inputs.inputs import Inputs
from avatar_v.models.base import hash_folder
from avatar_v.models.causal import as_causal
from avatar_v.parallel.timestep import steps_of_ranks
from avatar_v.request.request import Request
from avatar_v.sampling.blocks import blocks_of, check_chunks
from avatar_v.sampling.chunks import plan
from avatar_v.weights.card import read_card, weights_folder
from avatar_v.weights.weights import load_pipeline, save_pipeline
from avatar_v_eval.cases import first_case
from avatar_v_eval.generated import inputs_of
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout
from avatar_v_eval.turns import Times, in_turns, ratio, turns_note

BLOCK, WINDOW = 3, 4
"""Of recipes/4d_causal_forcing.yaml."""
REFERENCE_FRAMES = 101
PARTS = {"sampled": "latents", "made": "frames"}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="speed_timestep")
    add = parser.add_argument
    add("--weights", default="small", help="folder, or the name of shipped weights (%(default)s)")
    add(
        "--ranks", type=int, default=2, help="of the line, and threads of one process (%(default)s)"
    )
    add("--steps", type=int, default=4, help="of the sampler (%(default)s)")
    add("--chunk-latents", type=int, default=5, help="2 + 3 k (%(default)s)")
    add("--frames", type=int, default=241, help="of the video (%(default)s)")
    add("--repeats", type=int, default=5)


def measure(options: argparse.Namespace) -> Findings:
    for name in ("ranks", "steps", "frames", "repeats"):
        checks.count(f"--{name}", getattr(options, name), most=100_000)
    steps_of_ranks(options.steps, options.ranks)
    check_chunks(BLOCK, options.chunk_latents)
    source = weights_folder(options.weights)
    with tempfile.TemporaryDirectory() as name:
        folder = causal_weights(source, Path(name) / "causal")
        times = times_of(folder, options)
    chunks = plan(options.frames, chunk_latents=options.chunk_latents).chunks
    return Findings(
        "Steps over ranks",
        numbers_of(times, options.ranks, sum(len(blocks_of(chunk, BLOCK)) for chunk in chunks)),
        weights={"pipeline": hash_folder(source)},
        notes=[
            turns_note(options.repeats),
            f"{options.weights} under a causal mask, blocks of {BLOCK} latents that see {WINDOW} "
            f"before them; {options.steps} steps without guidance of the sound, fp32, chunks of "
            f"{options.chunk_latents} latents, a video of {options.frames} frames from inputs "
            f"already read, {REFERENCE_FRAMES} frames of reference; of every time a part is the "
            "encoding of the person, which nobody shares out",
        ],
    )


def causal_weights(source: Path, folder: Path) -> Path:
    """The weights of ``source`` as causal ones in ``folder``."""
    dit, conditioner = load_pipeline(source)
    card = read_card(source)
    card = dataclasses.replace(card, can=dataclasses.replace(card.can, causal_block=BLOCK))
    save_pipeline(folder, as_causal(dit, block=BLOCK, window=WINDOW), conditioner, card)
    return folder


def times_of(folder: Path, options: argparse.Namespace) -> Times:
    """Seconds of the video by each way, up to latents and to frames."""
    torch.set_num_threads(options.ranks)
    alone = AvatarPipeline.from_pretrained(folder, device="cpu", precision="fp32")
    line = AvatarPipeline.from_pretrained(
        folder, device="cpu", precision="fp32", devices=options.ranks
    )
    try:
        request = Request.of(
            reference="",
            audio="",
            num_steps=options.steps,
            chunk_latents=options.chunk_latents,
            guidance_audio=1.0,
        )
        inputs = inputs_for(alone, request, options.frames)
        made = {
            "one": (alone, 1),
            "threads": (alone, options.ranks),
            "line": (line, 1),
        }
        ways = {
            f"{way}_{part}": partial(carry_out, pipe, threads, part, inputs, request)
            for part in PARTS
            for way, (pipe, threads) in made.items()
        }
        return in_turns(ways, options.repeats)
    finally:
        line.close()


def inputs_for(pipeline: AvatarPipeline, request: Request, num_frames: int) -> Inputs:
    """One TEST person's, with speech of so many frames."""
    case = first_case(num_frames=num_frames, reference_frames=REFERENCE_FRAMES, size=pipeline.side)
    return inputs_of(Rollout(pipeline, request), case, REFERENCE_FRAMES, "meter")


def carry_out(
    pipeline: AvatarPipeline, num_threads: int, part: str, inputs: Inputs, request: Request
) -> None:
    """The video up to its latents or its frames, by ``num_threads`` threads of this process."""
    torch.set_num_threads(num_threads)
    made = pipeline.latents if part == "sampled" else pipeline.stream
    for _ in made(inputs, request):
        pass


def numbers_of(times: Times, num_ranks: int, num_blocks: int) -> dict[str, Number]:
    """Blocks a second of each way, and the times of one process over those of the line."""
    labels = {
        "one": "one process of 1 thread",
        "threads": f"one process of {num_ranks} threads",
        "line": f"a line of {num_ranks} ranks of 1 thread",
    }
    numbers: dict[str, Number] = {}
    for part, what in PARTS.items():
        for way, label in labels.items():
            each = [num_blocks / s for s in times[f"{way}_{part}"]]
            numbers[f"{part}_{way}"] = median_of_repeats(each).described(
                f"blocks to {what}: {label}", unit="blocks/s"
            )
        for way in ("one", "threads"):
            over = ratio(times, f"{way}_{part}", f"line_{part}")
            numbers[f"{part}_{way}_over_line"] = over.described(
                f"time to {what}: {labels[way]} / {labels['line']}"
            )
    return numbers
