"""Marks of other libraries in frames of 64 px: the reason why ours is its own.

blind-watermark 0.4.4 and invisible-watermark 0.2.0 mark pictures, so each frame gets the same 32
bits, and the guesses of all frames are averaged. Neither says whether there is a mark. The second
refuses pictures below 256 x 256; its methods are called behind that check. Neither is a dependency:
``pip install --no-deps blind-watermark invisible-watermark PyWavelets opencv-python-headless``.
"""

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8

from avatar_v_eval.cases import Video, drawn_clips, video_of
from avatar_v_eval.intervals import mean_of
from avatar_v_eval.processes import mapped
from avatar_v_eval.protocol import Findings, Reading, Readings
from avatar_v_eval.studies.watermark import ATTACKS, attacked, psnr, written

PEERS = {
    "blind": "blind-watermark",
    "dwt_dct_svd": "invisible-watermark, dwtDctSvd",
    "dwt_dct": "invisible-watermark, dwtDct",
}
ATTACKED = ("none", "crf_18", "crf_23", "crf_28", "light")
"""Without those that change the size, which no peer here can undo."""
Picture = UInt8[np.ndarray, "h w 3"]
Bits = Int[np.ndarray, "32"]


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--persons", type=int, default=8)
    add("--first", type=int, default=9500, help="number of the first test person")
    add("--frames", type=int, default=75)


def measure(options: argparse.Namespace) -> Findings:
    torch.set_num_threads(1)
    clips = drawn_clips("test", options.persons, first=options.first, num_frames=options.frames)
    bits = np.random.default_rng(0).integers(0, 2, 32)

    def read(i: int) -> Reading:
        reading = {}
        for name in PEERS:
            reading |= read_peer(name, video_of(clips[i]), bits)
        return reading

    readings = Readings({"": mapped(read, len(clips), "drawn clips", 1)})
    numbers = {}
    for name, words in PEERS.items():
        mean = mean_of(readings.values("", f"psnr_{name}"))
        numbers[f"psnr_{name}"] = mean.described(f"{words}: PSNR of the marked frames", unit="dB")
        for attack in ATTACKED:
            mean = mean_of(readings.values("", f"bits_{name}_{attack}"))
            label = f"{words}: right bits, {ATTACKS[attack]}"
            numbers[f"bits_{name}_{attack}"] = mean.described(label)
    return Findings(
        "Marks of other libraries in frames of 64 px",
        numbers,
        notes=[
            f"{options.persons} TEST persons from number {options.first} on, {options.frames} "
            "frames each; a half of the bits is chance",
        ],
    )


def read_peer(name: str, video: Video, bits: Bits) -> dict[str, float]:
    """The share of right bits after each attack, and the PSNR."""
    draw, guess = _peer(name, bits)
    pictures = video.permute(0, 2, 3, 1).flip(3).contiguous().numpy()  # BGR
    drawn = np.stack([draw(picture) for picture in pictures]).round().clip(0, 255)
    marked = torch.from_numpy(drawn.astype(np.uint8)).flip(3).permute(0, 3, 1, 2).contiguous()
    reading = {f"psnr_{name}": psnr(marked, video)}
    whole = written(marked)
    for attack in ATTACKED:
        left = attacked(attack, whole).permute(0, 2, 3, 1).flip(3).contiguous().numpy()
        mean = np.mean([guess(picture) for picture in left], axis=0)
        reading[f"bits_{name}_{attack}"] = float(((mean > 0.5) == bits).mean())
    return reading


def _peer(
    name: str, bits: Bits
) -> tuple[Callable[[Picture], Any], Callable[[Picture], Float[np.ndarray, "32"]]]:
    """Functions that draw ``bits`` into a BGR picture, and that guess them."""
    if name == "blind":
        core = importlib.import_module("blind_watermark.bwm_core").WaterMarkCore

        def draw(picture: Picture) -> Any:
            mark = core()
            mark.read_img_arr(picture)
            mark.read_wm(bits)
            return mark.embed()

        return draw, lambda picture: core().extract(picture.astype(np.float32), (32,))
    module, kind = {
        "dwt_dct_svd": ("imwatermark.dwtDctSvd", "EmbedDwtDctSvd"),
        "dwt_dct": ("imwatermark.maxDct", "EmbedMaxDct"),
    }[name]
    mark = getattr(importlib.import_module(module), kind)
    return (
        lambda picture: mark(list(bits), 32).encode(picture.copy()),
        lambda picture: np.array(mark([], 32).decode(picture.copy()), np.float64),
    )
