"""Sparse Reference Attention against attention without segments, by the length of the reference.

One pass of the small preset's DiT over G generated and R reference tokens, R / G = 1 … 32: ours
(the reference within its segments, the generated tokens over all), naive concatenation (everything
looks at everything), and dense attention under the block mask; and the memory of a pass of each.
The measurement `cache` tells how much the cache of the reference saves over many passes.
"""

import argparse
import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from avatar_v.generate.record import peak_rss_mib
from avatar_v.kernels.key_mask import KeyMask
from avatar_v.models import attention
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import segments
from avatar_v.testing import randomise
from avatar_v.types import Cond, Reference
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.plots import GREY, RED, band, panels
from avatar_v_eval.processes import in_a_process
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.turns import in_turns, turns_note

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


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="reference_attention")
    parser.add_argument("--repeats", type=int, default=5)


def measure(options: argparse.Namespace) -> Findings:
    times = attention_times(options.repeats)
    return Findings(
        "The cost of a long reference",
        attention_numbers(times) | memory_numbers(max(1, options.repeats // 2)),
        notes=[
            f"one pass of the small preset without audio, {GENERATED_LATENTS} generated latents, "
            f"fp32, batch 1; {turns_note(options.repeats)}",
        ],
        figures={"": draw(times)},
    )


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
        assert self.cond.reference is not None
        past = self.dit.encode_reference(self.cond.reference)
        return self.dit(self.x, self.t, self.cond, past=past)

    def naive(self) -> Tensor:
        """One sequence in which everything looks at everything; the reference is clean."""
        x = torch.cat([self.reference, self.x], dim=1)
        t = torch.cat([self.t.new_zeros(self.reference.shape[:2]), self.t], dim=1)
        return self.dit(x, t, self.text)[:, -GENERATED_LATENTS:]

    def masked(self) -> Tensor:
        """The same sequence under the block mask of our segments, made beforehand."""
        plain = attention.attend

        def attend(
            query: Tensor, key: Tensor, value: Tensor, mask: KeyMask | None = None
        ) -> Tensor:
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
    times = {}
    for num in RATIOS:
        peers = Peers(num)
        ways = {(way, trains): partial(_run, peers, getattr(peers, way), trains)
                for way in WAYS for trains in (False, True)}  # fmt: skip
        found = in_turns({f"{way} {trains}": call for (way, trains), call in ways.items()}, repeats)
        times |= {(way, trains, num): found[f"{way} {trains}"] for way, trains in ways}
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
    """The growth of the peak memory of a process by one pass, for each of the ways."""
    numbers = {}
    for way, trains, ratio in itertools.product(WAYS, ("forward", "train"), MEMORY_RATIOS):
        grown = [in_a_process(grown_mib, way, trains == "train", ratio) for _ in range(repeats)]
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


def draw(times: dict[tuple[str, bool, int], list[float]]) -> Figure:
    """Milliseconds against R / G, forward, all three ways."""
    figure, (ax,) = panels(1, width=6.4, height=3.6)
    for way, label, colour in (
        ("masked", "dense with block mask", "#9aa5b1"),
        ("naive", "naive concatenation", GREY),
        ("ours", "Sparse Reference Attention", RED),
    ):
        rows = [np.array(times[way, False, ratio]) * 1e3 for ratio in RATIOS]
        low, high = [row.min() for row in rows], [row.max() for row in rows]
        band(ax, RATIOS, [np.median(row) for row in rows], low, high, colour=colour, label=label)
    ax.set_xlabel("reference tokens per generated token, R / G")
    ax.set_ylabel("one pass, forward, ms")
    ax.legend(frameon=False)
    return figure


def _run(peers: Peers, way: Callable[[], Tensor], trains: bool) -> None:
    if not trains:
        with torch.inference_mode():
            way()
        return
    peers.dit.zero_grad()
    way().mean().backward()
