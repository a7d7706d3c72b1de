"""Several sets of weights in one process: bytes, and what it costs to go from one to another.

In each turn each set makes the first frames of a short video twice: right after another set made
some, and right after it did so itself. The difference is what the change costs, with what it does
to the caches of the processor. On a CPU time is that of the processor, which other jobs do not hold
up. Beside it stands the loading of a set, which is the change where only one is held.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from avatar_v.base import checks
from avatar_v.base.pools import num_bytes
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.run import run
from avatar_v.generate.weight_sets import WeightSets
from avatar_v.media.writer import Mp4Writer, write_wav
from avatar_v.request.request import Request
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.weights.card import names_of
from avatar_v_eval.cases import drawn_clips, rendered_video
from avatar_v_eval.intervals import mean_interval
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.turns import seconds

CLIP_FRAMES = 101
SPEECH_FRAMES = 25


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    default = ["small_student", "small", "small_causal"]
    add("--weights", nargs="+", default=default, help="two or more: names, folders, NAME=DIR")
    add("--device", default="auto", help="cpu, cuda; auto: a GPU where there is one (%(default)s)")
    add("--repeats", type=int, default=20)


def measure(options: argparse.Namespace) -> Findings:
    checks.count("--repeats", options.repeats)
    names = names_of(options.weights)
    if len(names) < 2:
        raise ValueError("--weights wants two sets or more")
    numbers = bytes_numbers(names, options.device)
    sets = WeightSets.from_pretrained(*options.weights, device=options.device)
    numbers["together"] = Number(sets.num_bytes / 2**20, len(sets)).described(
        f"all {len(sets)} sets together", unit="MiB"
    )
    with tempfile.TemporaryDirectory() as folder:
        numbers |= change_numbers(sets, Path(folder), options.repeats)
    return Findings(
        "Several sets of weights in one process",
        numbers,
        notes=[
            f"on {sets[next(iter(sets))].device.type}; the first frames of {SPEECH_FRAMES} frames "
            "of speech in one step, the person known by one picture, files read before; on a CPU "
            "time of the processor",
            f"{options.repeats} turns of each set, behind one that warms up",
        ],
    )


def bytes_numbers(names: dict[str, str], device: str) -> dict[str, Number]:
    """Of each set alone, and the time to load it."""
    numbers, apart, took = {}, 0, []
    for name, where in names.items():
        load = partial(AvatarPipeline.from_pretrained, where, device=device)
        pipeline = load()
        took.append(seconds(load))  # the files are in the system's cache by now
        alone = num_bytes(*pipeline.networks)
        apart += alone
        numbers[f"alone_{name}"] = Number(alone / 2**20, 1).described(f"{name} alone", unit="MiB")
    numbers["load"] = mean_interval(np.array(took)).described("loading one set", unit="s")
    numbers["apart"] = Number(apart / 2**20, len(names)).described("the sum of them", unit="MiB")
    return numbers


def change_numbers(sets: WeightSets, folder: Path, repeats: int) -> dict[str, Number]:
    """First frames behind those of another set, over those behind the same one."""
    first = {name: first_frames(sets[name], folder) for name in sets}
    names, same, cost = list(sets), [], []
    on_cpu = sets[names[0]].device.type == "cpu"
    clock = time.process_time if on_cpu else time.perf_counter
    for turn in range(repeats + 1):
        for name, other in zip(names, names[1:] + names[:1], strict=True):
            first[other]()
            behind_other, behind_same = seconds(first[name], clock), seconds(first[name], clock)
            if turn:
                same.append(behind_same)
                cost.append(1e3 * (behind_other - behind_same))
    return {
        "same": mean_interval(np.array(same)).described(
            "first frames, by the set before", unit="s"
        ),
        "change": mean_interval(np.array(cost)).described(
            "longer behind another set", unit="ms", target="< 10"
        ),
    }


def first_frames(pipeline: AvatarPipeline, folder: Path) -> Callable[[], object]:
    """A call that makes the first frames of a video, for a drawn person."""
    (clip,) = drawn_clips("test", 1, num_frames=CLIP_FRAMES, size=pipeline.format.video.size)
    reference, speech = folder / "reference.mp4", folder / "speech.wav"
    with Mp4Writer(reference, clip.audio) as writer:
        writer.write(rendered_video(clip))
    write_wav(speech, clip.audio[: SPEECH_FRAMES * SAMPLES_PER_FRAME])
    request = Request.of(reference=str(reference), audio=str(speech), num_steps=1, reference_s=0)
    making = run(request, pipeline)

    def call() -> object:
        with closing(pipeline.clips(making.inputs, request)) as clips:
            return next(clips)

    return call
