"""`avatar-v demo` as a whole command, and its picture.

Runs the command as a user does, times it, and keeps its contact sheet and its record. One person
and one sentence: a picture to look at. The study `learning` measures the weights.
"""

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import matplotlib.image
from matplotlib.figure import Figure

from avatar_v.demo.showcase import NUM_SHUFFLES
from avatar_v.types import FRAME_RATE_HZ
from avatar_v.weights.card import DEFAULT_WEIGHTS
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import AVATAR_V

MAX_COMMAND_S = 180


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--weights", default=DEFAULT_WEIGHTS, help="shipped name or folder")
    parser.add_argument("options", nargs="*", help="further options of avatar-v demo, behind --")


def measure(options: argparse.Namespace) -> Findings:
    with tempfile.TemporaryDirectory() as folder:
        words = ["demo", "--out", folder, "--weights", options.weights, *options.options]
        start_s = time.perf_counter()
        subprocess.run([*AVATAR_V, *words], check=True)
        wall_s = time.perf_counter() - start_s
        record = json.loads((Path(folder) / "out.json").read_text(encoding="utf-8"))
        sheet = _figure_of(Path(folder) / "sheet.png")
    return Findings(
        "avatar-v demo",
        numbers(record, wall_s),
        weights={"pipeline": record["weights_hash"], "motion": record["meter_hash"]},
        notes=["one person, one sentence, one run"],
        figures={"_sheet": sheet},
    )


def _figure_of(path: Path, dpi: int = 150) -> Figure:
    """A figure of the pixels of a picture, when it is saved with ``dpi``."""
    pixels = matplotlib.image.imread(path)
    height, width = pixels.shape[:2]
    figure = Figure(figsize=(width / dpi, height / dpi), dpi=dpi)
    figure.figimage(pixels)
    return figure


def numbers(record: dict[str, Any], wall_s: float) -> dict[str, Number]:
    """The contents of out.json as numbers; ``wall_s`` is that of the whole command."""
    sync, timing = record["lip_sync"], record["timing"]
    mean, std = sync["shuffled_mean"], sync["shuffled_std"]
    return {
        "length": Number(record["num_frames"] / FRAME_RATE_HZ, 1).described(
            "demo: length of the video", unit="s", target="≥ 8"
        ),
        "sync": Number(sync["generated"], 1).described("demo: mouth against its own speech, r"),
        "sync_shuffled": Number(mean, NUM_SHUFFLES, mean - std, mean + std).described(
            "demo: mouth against shuffled speech, r (± a deviation)"
        ),
        "sync_true": Number(sync["true_video"], 1).described("demo: the true video's r"),
        "wall": Number(wall_s, 1).described(
            "demo: whole command, 2 cores", unit="s", target=f"< {MAX_COMMAND_S}"
        ),
        "first_frame": Number(timing["first_frame_s"], 1).described(
            "demo: first frame after loading", unit="s"
        ),
    }
