"""The warning about people whom the weights do not know: false alarms and detections.

False alarms: TEST persons, whom the weights that ship know the like of, each as a picture and as
an H.264 clip at three sizes, read as `generate` reads them. Detection: real faces in ``--real``
files, of each its best frame.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor

from avatar_v.base.progress import track
from avatar_v.inputs.best_frame import best_frame
from avatar_v.inputs.reference_check import check_reference
from avatar_v.media.outputs import build_output
from avatar_v.media.writer import Writer
from avatar_v.models.vae import VideoVAE
from avatar_v.weights.card import ASSETS, DEFAULT_WEIGHTS, read_card
from avatar_v_eval.cases import drawn_clips, rendered_video
from avatar_v_eval.intervals import rate
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

SIZES = (64, 128, 256)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--weights", default=str(ASSETS / DEFAULT_WEIGHTS), help="folder of a pipeline")
    add("--persons", type=int, default=64)
    add("--first", type=int, default=0, help="number of the first test person")
    add("--real", nargs="+", default=[], help="videos or pictures of real faces")


def measure(options: argparse.Namespace) -> Findings:
    torch.set_num_threads(1)
    check = KnownPeopleCheck(Path(options.weights))
    numbers = check.false_alarms(options.persons, options.first)
    notes = [f"TEST persons from number {options.first} on; a clip is H.264 as generate writes it"]
    if options.real:
        more, left_out = check.detections(options.real)
        numbers |= more
        notes += left_out
    return Findings(
        "The warning about people whom the weights do not know",
        numbers,
        weights={"vae": check.vae.hash()},
        notes=notes,
    )


class KnownPeopleCheck:
    """The check of `generate`, with the weights of a folder."""

    def __init__(self, weights: Path) -> None:
        self.vae = VideoVAE.from_pretrained(weights / "vae").eval()
        can = read_card(weights).can
        if can.video is None or self.vae.known is None:
            raise ValueError(f"{weights} does not say which pictures it knows (vae/known.json)")
        self.video, self.people = can.video, can.people

    def warns(self, picture: UInt8[Tensor, "3 h w"]) -> bool:
        """Whether `generate` would warn of a reference with this best frame."""
        pictures = [("picture", picture)]
        _, warnings = check_reference(pictures, self.vae, video=self.video, people=self.people)
        return bool(warnings)

    def false_alarms(self, num: int, first: int) -> dict[str, Number]:
        """The share of drawn people that are warned of, at every size, as a picture and a clip."""
        rows: dict[str, list[bool]] = {}
        with tempfile.TemporaryDirectory() as folder:
            for i in track(range(num), "drawn people"):
                for size in SIZES:
                    (clip,) = drawn_clips("test", 1, first=first + i, num_frames=9, size=size)
                    path = Path(folder) / "clip.mp4"
                    with Writer(build_output(str(path))) as writer:
                        writer.write(rendered_video(clip), clip.audio)
                    image = best_frame(path, video=self.video, face_crop=True, drawn=True).image
                    rows.setdefault(f"{size}_picture", []).append(
                        self.warns(rendered_video(clip)[0])
                    )
                    rows.setdefault(f"{size}_clip", []).append(self.warns(image))
        return {
            f"false_{name}": rate(sum(found), len(found)).described(
                f"drawn people warned of, {name.replace('_', ' px, ')}", target="≤ 0.05"
            )
            for name, found in rows.items()
        }

    def detections(self, paths: list[str]) -> tuple[dict[str, Number], list[str]]:
        """The share of real faces that are warned of, and notes about files without a face."""
        found, notes = [], []
        for path in paths:
            try:
                found.append(self.warns(best_frame(path, video=self.video, face_crop=True).image))
            except ValueError as error:
                notes.append(f"left out: {Path(path).name} ({str(error).split(': ', 1)[-1]})")
        number = rate(sum(found), len(found))
        return {"real": number.described("real faces warned of", target="≥ 0.9")}, notes
