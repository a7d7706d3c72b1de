"""How far the frames of two folders of weights lie apart, with the same seeds, in fp32.

For weights that were compressed (`avatar-v weights slim`): TEST persons, each once from a first
frame and once from the reference alone, as whole commands of `generate` would make them.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from avatar_v.app.example import SPEECH_FRAMES, draw_person
from avatar_v.base import checks
from avatar_v.base.progress import track
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.media.reading import read_audio
from avatar_v.media.writer import write_wav
from avatar_v.models.base import hash_folder
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.weights.card import DEFAULT_WEIGHTS, weights_folder
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

Video = UInt8[Tensor, "f 3 h w"]


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--weights", default=DEFAULT_WEIGHTS, help="name or folder (%(default)s)")
    add("--before", required=True, help="folder of what they were before")
    add("--refine", metavar="NAME|DIR", help="both are refiners, of the frames of these weights")
    add("--persons", type=int, default=4)
    add("--frames", type=int, default=61, help="of each video (%(default)s)")
    add("--first", type=int, default=0, help="number of the first test person")


def measure(options: argparse.Namespace) -> Findings:
    checks.count("--persons", options.persons, most=1_000)
    checks.count("--frames", options.frames, most=SPEECH_FRAMES)
    folders = {"weights": weights_folder(options.weights), "before": Path(options.before)}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        files = [
            draw_person(Path(name) / str(i), options.first + i) for i in range(options.persons)
        ]
        for _, speech in files:
            write_wav(speech, read_audio(speech)[: options.frames * SAMPLES_PER_FRAME])
        made = {key: videos_of(folder, options.refine, files) for key, folder in folders.items()}
    return Findings(
        "Frames of weights before and after they were compressed",
        numbers_of(made["weights"], made["before"]),
        weights={f"pipeline_{key}": hash_folder(folder) for key, folder in folders.items()},
        notes=[
            f"TEST persons from number {options.first} on, {options.frames} frames each, "
            "once from a first frame and once from the reference alone; fp32",
            *([f"refined frames of {options.refine}"] if options.refine else []),
        ],
    )


def videos_of(folder: Path, refine: str | None, files: list[tuple[Path, Path]]) -> list[Video]:
    """Of each person's clip and speech a video from a first frame, and one without."""
    refiner = None if refine is None else folder
    pipeline = AvatarPipeline.from_pretrained(
        folder if refine is None else refine, device="cpu", precision="fp32", refiner=refiner
    )
    videos = []
    for clip, speech in track(files, folder.name):
        for from_prompt in (False, True):
            frames = pipeline(
                reference=clip, audio=speech, face_crop=False, from_prompt=from_prompt
            )
            videos.append(torch.stack(list(frames)))
    return videos


def numbers_of(one: list[Video], other: list[Video]) -> dict[str, Number]:
    """Over all frames: the largest difference, the mean, and the share of values beyond 1."""
    apart = [(a.int() - b.int()).abs() for a, b in zip(one, other, strict=True)]
    beyond = [(each > 1).double().mean().item() for each in apart]
    means = [each.double().mean().item() for each in apart]
    largest = float(max(each.max().item() for each in apart))
    num = len(apart)
    return {
        "largest": Number(largest, num, unit="grey levels", label="largest difference of a value"),
        "mean": Number(sum(means) / num, num, unit="grey levels", label="mean difference"),
        "beyond": Number(sum(beyond) / num, num, label="share of values more than 1 apart"),
    }
