"""What a long reference costs: Sparse Reference Attention against two ways without it, in turns.

``python -m avatar_v_eval.speed_reference`` times one pass of the small preset's DiT over G
generated and R reference tokens, R / G = 1 … 32: ours (the reference within its segments, the
generated tokens over all), naive concatenation (everything looks at everything), and dense
attention under the block mask; and what a pass of each takes of memory. What the cache of the
reference saves over many passes is speed_cache.py's. Writes
``eval/results/reference_attention.json`` and ``.png``.
"""

import argparse
import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from avatar_v.generate.record import peak_rss_mib
from avatar_v.models import attention
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import segments
from avatar_v.testing import randomise
from avatar_v.types import Cond, Reference
from avatar_v_eval import records
from avatar_v_eval.records import Number, as_command, median_of_repeats

RATIOS = (1, 2, 4, 8, 16, 32)
GENERATED_LATENTS = 13
GRID = (4, 4)  # tokens of a latent frame of 64 px
TEXT_TOKENS = 64
WAYS = ("ours", "naive", "masked")
MEMORY_RATIOS = (8, 32)
LABELS = {
    "ours": "Sparse Reference Attention",
    "naive": "naive concatenation",
    "masked": "dense attention with the block mask",
}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    parser.add_argument("--grown", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.grown is not None:
        way, trains, ratio = options.grown
        print(grown_mib(way, trains == "train", int(ratio)))
        return
    times = attention_times(options.repeats)
    few = max(1, options.repeats // 2)
    numbers = attention_numbers(times) | memory_numbers(few)
    result = records.make_result(
        "reference_attention",
        "What a long reference costs",
        numbers,
        notes=[
            f"one pass of the small preset without audio, {GENERATED_LATENTS} generated latents, "
            f"fp32, batch 1; median of {options.repeats} turns, with the lowest and the highest",
        ],
    )
    out = Path(options.out)
    print(records.write_result(result, out))
    save_plot(out / "reference_attention.png", times)
    for number in numbers.values():
        print(f"{number.label:76s} {number.value:9.3f}  [{number.low}, {number.high}]")


class Peers:
    """The small preset's DiT over generated and reference latents, three ways."""

    def __init__(self, ratio: int) -> None:
        self.dit = make_small()
        config = self.dit.config
        draw = torch.Generator().manual_seed(1)
        size = (config.latent_channels, GRID[0] * config.patch, GRID[1] * config.patch)
        frames = ratio * GENERATED_LATENTS
        self.x = torch.randn(1, GENERATED_LATENTS, *size, generator=draw)
        self.t = torch.full((1, GENERATED_LATENTS), 0.5)
        self.reference = torch.randn(1, frames, *size, generator=draw)
        text = torch.randn(1, TEXT_TOKENS, config.text_dim, generator=draw)
        self.text = Cond(text=text)
        valid = torch.ones(1, frames, dtype=torch.bool)
        self.cond = Cond(
            text=text, reference=Reference(self.reference, valid, segments(frames)[None])
        )
        tokens = GRID[0] * GRID[1]
        number = torch.cat([segments(frames) + 1, torch.zeros(GENERATED_LATENTS, dtype=torch.long)])
        number = number.repeat_interleave(tokens)
        self.mask = (number[:, None] == number[None]) | (number[:, None] == 0)

    def ours(self) -> Tensor:
        return self.dit(self.x, self.t, self.cond)

    def naive(self) -> Tensor:
        """One sequence in which everything looks at everything; the reference is clean."""
        x = torch.cat([self.reference, self.x], dim=1)
        t = torch.cat([self.t.new_zeros(self.reference.shape[:2]), self.t], dim=1)
        return self.dit(x, t, self.text)[:, -GENERATED_LATENTS:]

    def masked(self) -> Tensor:
        """The same sequence under the block mask of our segments, made beforehand."""
        plain = attention.attend

        def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
            if key.shape[1] != len(self.mask):
                return plain(query, key, value, mask)  # text
            q, k, v = (x.transpose(1, 2) for x in (query, key, value))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask).transpose(1, 2)

        attention.attend = attend
        try:
            return self.naive()
        finally:
            attention.attend = plain


def make_small() -> AvatarDiT:
    """The small preset with weights that are all in use."""
    dit = AvatarDiT(DiTConfig.small()).eval()
    randomise(dit)
    return dit


def attention_times(repeats: int) -> dict[tuple[str, bool, int], list[float]]:
    """Seconds by way, with backward or not, and R / G. The ways take turns; the first warms up."""
    times: dict[tuple[str, bool, int], list[float]] = {}
    for ratio in RATIOS:
        peers = Peers(ratio)
        for turn in range(repeats + 1):
            for way in WAYS:
                for trains in (False, True):
                    took = seconds(partial(_run, peers, getattr(peers, way), trains))
                    if turn > 0:
                        times.setdefault((way, trains, ratio), []).append(took)
    return times


def attention_numbers(times: dict[tuple[str, bool, int], list[float]]) -> dict[str, Number]:
    """Ratios within each turn, and how straight our cost is in R."""
    numbers = {}
    for trains, word in ((False, "forward"), (True, "forward and backward")):
        for ratio in RATIOS:
            ours = times["ours", trains, ratio]
            for way in WAYS[1:]:
                ratios = [t / o for t, o in zip(times[way, trains, ratio], ours, strict=True)]
                wanted = way == "naive" and not trains and ratio == 32
                numbers[f"{way}_{'train' if trains else 'forward'}_{ratio}"] = median_of_repeats(
                    ratios
                ).described(
                    f"{LABELS[way]} / ours, {word}, R/G = {ratio}", target="≥ 3.9" if wanted else ""
                )
        median = np.array([np.median(times["ours", trains, ratio]) for ratio in RATIOS])
        line = np.polynomial.Polynomial.fit(np.array(RATIOS), median, 1)
        off = np.abs(line(np.array(RATIOS)) - median).max() / median.max()
        numbers[f"linear_{'train' if trains else 'forward'}"] = Number(
            float(off), len(RATIOS)
        ).described(
            f"our cost against R, {word}: largest distance from a line / largest cost",
            target="< 0.1",
        )
    return numbers


def memory_numbers(repeats: int) -> dict[str, Number]:
    """What one pass adds to the peak memory of a process of its own, and how ours compares."""
    numbers = {}
    for way, trains, ratio in itertools.product(WAYS, ("forward", "train"), MEMORY_RATIOS):
        words = ["--grown", way, trains, str(ratio)]
        command = [sys.executable, "-m", "avatar_v_eval.speed_reference", *words]
        grown = [
            float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            for _ in range(repeats)
        ]
        word = "forward" if trains == "forward" else "forward and backward"
        numbers[f"memory_{way}_{trains}_{ratio}"] = median_of_repeats(grown).described(
            f"memory of a pass, {LABELS[way]}, {word}, R/G = {ratio}", unit="MiB"
        )
    return numbers


def grown_mib(way: str, trains: bool, ratio: int) -> float:
    """By how much one pass raises the peak memory of this process."""
    _run(Peers(1), Peers(1).ours, trains)  # libraries load here
    peers = Peers(ratio)
    before = peak_rss_mib()
    _run(peers, getattr(peers, way), trains)
    return peak_rss_mib() - before


def save_plot(path: Path, times: dict[tuple[str, bool, int], list[float]]) -> None:
    """Milliseconds against R / G, forward, all three ways."""
    figure = Figure(figsize=(6.4, 3.6), dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for way, label, colour in (
        ("masked", "dense with block mask", "#9aa5b1"),
        ("naive", "naive concatenation", "#5b6770"),
        ("ours", "Sparse Reference Attention", "#d1495b"),
    ):
        rows = [np.array(times[way, False, ratio]) * 1e3 for ratio in RATIOS]
        axes.plot(RATIOS, [np.median(row) for row in rows], color=colour, label=label, lw=1.8)
        low, high = [row.min() for row in rows], [row.max() for row in rows]
        axes.fill_between(RATIOS, low, high, color=colour, alpha=0.2, lw=0)
    axes.set_xlabel("reference tokens per generated token, R / G")
    axes.set_ylabel("one pass, forward, ms")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path)


def seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def _run(peers: Peers, way: Callable[[], Tensor], trains: bool) -> None:
    if not trains:
        with torch.inference_mode():
            way()
        return
    peers.dit.zero_grad()
    way().mean().backward()


if __name__ == "__main__":
    as_command(main)
