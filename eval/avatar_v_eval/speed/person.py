"""A person as a file: seconds until a person is known, from the clip and from the file; its bytes.

A turn reads the person once by each: the file is opened, faces are followed where it is a clip, and
what the networks see is encoded. The videos of both are compared frame by frame.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor

from avatar_v.base import checks
from avatar_v.generate.person_files import make_person
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.inputs.inputs import read_inputs
from avatar_v.inputs.live import LiveSound
from avatar_v.inputs.person_file import save_person
from avatar_v.media.writer import Mp4Writer, write_wav
from avatar_v.request.request import LIVE, PERSON_FILE, Request, Weights
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.weights.card import DEFAULT_WEIGHTS
from avatar_v_eval.cases import drawn_clips, rendered_video
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.turns import in_turns, ratio, turns_note

CLIP_FRAMES = 401
SPEECH_FRAMES = 50


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--weights", default=DEFAULT_WEIGHTS, help="folder, or the name of shipped weights")
    add("--reference", metavar="FILE", help="the clip (default: a drawn person, 16 s)")
    add("--device", default="auto", help="cpu, cuda; auto: a GPU where there is one (%(default)s)")
    add("--repeats", type=int, default=5)


def measure(options: argparse.Namespace) -> Findings:
    checks.count("--repeats", options.repeats)
    weights = Weights(options.weights, device=options.device)
    pipeline = AvatarPipeline.from_pretrained(options.weights, device=options.device)
    (clip,) = drawn_clips("test", 1, num_frames=CLIP_FRAMES, size=pipeline.format.video.size)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reference, speech = folder / "reference.mp4", folder / "speech.wav"
        if options.reference is None:
            with Mp4Writer(reference, clip.audio) as writer:
                writer.write(rendered_video(clip))
        else:
            reference = Path(options.reference)
        write_wav(speech, clip.audio[: SPEECH_FRAMES * SAMPLES_PER_FRAME])
        file = folder / f"me{PERSON_FILE}"
        person, _ = make_person(Request.of(reference=str(reference), audio=LIVE), weights)
        save_person(file, person)
        numbers = person_numbers(pipeline, {"clip": reference, "file": file}, options.repeats)
        numbers["bytes"] = Number(file.stat().st_size / 2**20, 1).described(
            "the person file", unit="MiB"
        )
        numbers["difference"] = difference(pipeline, reference, file, speech)
    shown = "a drawn person, 16 s" if options.reference is None else Path(options.reference).name
    return Findings(
        "A person as a file",
        numbers,
        recipe=pipeline.card.recipe,
        notes=[f"{shown}; weights {options.weights}", turns_note(options.repeats)],
    )


def person_numbers(
    pipeline: AvatarPipeline, ways: dict[str, Path], repeats: int
) -> dict[str, Number]:
    """Seconds until what the networks see of a person is there."""

    def known(path: Path) -> None:
        request = Request.of(reference=str(path), audio=LIVE)
        inputs = read_inputs(request, pipeline.input_spec(request), LiveSound(()))
        pipeline.person(inputs)
        if pipeline.device.type == "cuda":
            torch.cuda.synchronize()

    times = in_turns({way: lambda path=path: known(path) for way, path in ways.items()}, repeats)
    numbers = {
        way: median_of_repeats(times[way]).described(
            f"until the person is known, {words}", unit="s"
        )
        for way, words in (("clip", "from the clip"), ("file", "from the person file"))
    }
    numbers["ratio"] = ratio(times, "clip", "file").described("the clip's over the file's")
    return numbers


def difference(pipeline: AvatarPipeline, clip: Path, file: Path, speech: Path) -> Number:
    """The largest one between frames of the two."""

    def made(reference: Path) -> Tensor:
        how = {"audio": str(speech), "num_steps": 2}
        return torch.stack(list(pipeline(reference=str(reference), **how))).int()

    apart = (made(clip) - made(file)).abs()
    return Number(float(apart.max()), len(apart)).described(
        "largest difference of a pixel, of 255", target="≤ 0"
    )
