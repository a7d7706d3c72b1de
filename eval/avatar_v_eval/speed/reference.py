"""Sparse Reference Attention against attention without segments, by the length of the reference.

One pass of the small preset's DiT over G generated and R reference tokens, R / G = 1 … 32: ours
(the reference within its segments, the generated tokens over all), naive concatenation (everything
looks at everything), and dense attention under the block mask; and the memory of a pass of each.
The measurement `cache` tells how much the cache of the reference saves over many passes. On a GPU
(`--device cuda --preset wan_1_3b --grid 30 --ways ours naive`) passes run under bf16 autocast, and
memory is the GPU's.
"""

import argparse
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import Tensor

from avatar_v.base.device import chosen_device
from avatar_v.kernels.key_mask import KeyMask
from avatar_v.models import attention
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import segments
from avatar_v.request.record import peak_rss_mib
from avatar_v.types import Cond, Reference
from avatar_v.weights.presets import preset
from avatar_v.weights.random import randomise
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.plots import GREY, RED, band, panels
from avatar_v_eval.processes import in_a_process
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.turns import in_turns, turns_note

RATIOS = (1, 2, 4, 8, 16, 32)
GENERATED_LATENTS = 13
GRID = 4  # tokens of a side of a latent frame of 64 px
TEXT_TOKENS = 64
WAYS = ("ours", "naive", "masked")
MEMORY_RATIOS = (8, 32)
Taken = dict[tuple[str, bool, int], list[float]]
"""Seconds of each turn by way, with backward or not, and R / G."""
LABELS = {
    "ours": "Sparse Reference Attention",
    "naive": "naive concatenation",
    "masked": "dense attention with the block mask",
}


@dataclass(frozen=True)
class Setting:
    """Which network, over how many tokens of a latent frame, and where."""

    preset: str = "small"
    grid: int = GRID
    device: str = "cpu"

    @property
    def on_gpu(self) -> bool:
        return torch.device(self.device).type == "cuda"


SMALL = Setting()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="reference_attention")
    add = parser.add_argument
    add("--repeats", type=int, default=5)
    add("--device", default="cpu", help="cpu, cuda (%(default)s)")
    add("--preset", default="small", choices=("tiny", "small", "wan_1_3b"))
    add("--grid", type=int, default=GRID, help="tokens of a side; 30: 480 px (%(default)s)")
    add("--ways", nargs="+", default=list(WAYS), choices=WAYS, help="beside ours, the others")
    add("--ratios", type=int, nargs="+", default=list(RATIOS), choices=RATIOS, metavar="R/G")


def measure(options: argparse.Namespace) -> Findings:
    setting = Setting(options.preset, options.grid, str(chosen_device(options.device)))
    ways = [way for way in WAYS if way == "ours" or way in options.ways]
    times = attention_times(setting, ways, options.ratios, options.repeats)
    return Findings(
        "The cost of a long reference",
        attention_numbers(times, ways, options.ratios)
        | memory_numbers(setting, ways, options.ratios, max(1, options.repeats // 2)),
        notes=[
            f"one pass of the {setting.preset} preset without audio, {GENERATED_LATENTS} generated "
            f"latents of {setting.grid} x {setting.grid} tokens, "
            f"{'bf16' if setting.on_gpu else 'fp32'}, batch 1; {turns_note(options.repeats)}",
        ],
        figures={"": draw(times, ways, options.ratios)},
    )


class Peers:
    """The DiT of a preset over generated and reference latents, three ways."""

    def __init__(self, ratio: int, setting: Setting = SMALL) -> None:
        self.dit = make_dit_of(setting.preset).to(setting.device)
        config = self.dit.config
        draw = torch.Generator().manual_seed(1)
        size = (config.latent_channels, setting.grid * config.patch, setting.grid * config.patch)
        frames = ratio * GENERATED_LATENTS
        self.x = torch.randn(1, GENERATED_LATENTS, *size, generator=draw).to(setting.device)
        self.t = torch.full((1, GENERATED_LATENTS), 0.5, device=setting.device)
        self.reference = torch.randn(1, frames, *size, generator=draw).to(setting.device)
        text = torch.randn(1, TEXT_TOKENS, config.text_dim, generator=draw).to(setting.device)
        self.text = Cond(text=text)
        valid = torch.ones(1, frames, dtype=torch.bool)
        self.cond = Cond(
            text=text, reference=Reference(self.reference, valid, segments(frames)[None])
        ).to(setting.device)
        tokens = setting.grid**2
        number = torch.cat([segments(frames) + 1, torch.zeros(GENERATED_LATENTS, dtype=torch.long)])
        self.number = number.repeat_interleave(tokens).to(setting.device)

    @functools.cached_property
    def mask(self) -> Tensor:
        """Which token sees which: a reference's its own segment, a generated one all."""
        return (self.number[:, None] == self.number[None]) | (self.number[:, None] == 0)

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


def make_dit_of(name: str) -> AvatarDiT:
    """A preset with weights that are all in use."""
    dit = AvatarDiT(preset(name).dit).eval()
    randomise(dit)
    return dit


def attention_times(
    setting: Setting, ways: Sequence[str], ratios: Sequence[int], repeats: int
) -> Taken:
    """Seconds by way, with backward or not, and R / G. The ways take turns; the first warms up."""
    times = {}
    for num in ratios:
        peers = Peers(num, setting)
        calls = {(way, trains): partial(_run, peers, getattr(peers, way), trains)
                 for way in ways for trains in (False, True)}  # fmt: skip
        found = in_turns({f"{way} {trains}": c for (way, trains), c in calls.items()}, repeats)
        times |= {(way, trains, num): found[f"{way} {trains}"] for way, trains in calls}
    return times


def attention_numbers(
    times: Taken, ways: Sequence[str], ratios: Sequence[int]
) -> dict[str, Number]:
    """Ratios within each turn, and how straight our cost is in R."""
    numbers = {}
    for trains, word in ((False, "forward"), (True, "forward and backward")):
        for ratio in ratios:
            ours = times["ours", trains, ratio]
            for way in ways[1:]:
                over = [t / o for t, o in zip(times[way, trains, ratio], ours, strict=True)]
                wanted = way == "naive" and not trains and ratio == 32
                numbers[f"{way}_{'train' if trains else 'forward'}_{ratio}"] = median_of_repeats(
                    over
                ).described(
                    f"{LABELS[way]} / ours, {word}, R/G = {ratio}", target="≥ 3.9" if wanted else ""
                )
        if len(ratios) < 3:  # two points always lie on a line
            continue
        median = np.array([np.median(times["ours", trains, ratio]) for ratio in ratios])
        line = np.polynomial.Polynomial.fit(np.array(ratios), median, 1)
        off = np.abs(line(np.array(ratios)) - median).max() / median.max()
        numbers[f"linear_{'train' if trains else 'forward'}"] = Number(
            float(off), len(ratios)
        ).described(
            f"our cost against R, {word}: largest distance from a line / largest cost",
            target="< 0.1",
        )
    return numbers


def memory_numbers(
    setting: Setting, ways: Sequence[str], ratios: Sequence[int], repeats: int
) -> dict[str, Number]:
    """The growth of the peak memory of a process by one pass, for each of the ways."""
    numbers, some = {}, [ratio for ratio in MEMORY_RATIOS if ratio in ratios]
    for way, trains, ratio in itertools.product(ways, ("forward", "train"), some):
        grown = [
            in_a_process(grown_mib, way, trains == "train", ratio, setting) for _ in range(repeats)
        ]
        word = "forward" if trains == "forward" else "forward and backward"
        numbers[f"memory_{way}_{trains}_{ratio}"] = median_of_repeats(grown).described(
            f"memory of a pass, {LABELS[way]}, {word}, R/G = {ratio}", unit="MiB"
        )
    return numbers


def grown_mib(way: str, trains: bool, ratio: int, setting: Setting) -> float:
    """By how much one pass raises the peak memory of this process, or of the GPU."""
    first = Peers(1, setting)
    _run(first, first.ours, trains)  # libraries load here
    del first
    peers = Peers(ratio, setting)
    if setting.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    before = _peak_mib(setting)
    _run(peers, getattr(peers, way), trains)
    return _peak_mib(setting) - before


def _peak_mib(setting: Setting) -> float:
    return torch.cuda.max_memory_allocated() / 2**20 if setting.on_gpu else peak_rss_mib()


def draw(times: Taken, ways: Sequence[str], ratios: Sequence[int]) -> Figure:
    """Milliseconds against R / G, forward, all ways."""
    figure, (ax,) = panels(1, width=6.4, height=3.6)
    for way, label, colour in (
        ("masked", "dense with block mask", "#9aa5b1"),
        ("naive", "naive concatenation", GREY),
        ("ours", "Sparse Reference Attention", RED),
    ):
        if way not in ways:
            continue
        rows = [np.array(times[way, False, ratio]) * 1e3 for ratio in ratios]
        low, high = [row.min() for row in rows], [row.max() for row in rows]
        band(ax, ratios, [np.median(row) for row in rows], low, high, colour=colour, label=label)
    ax.set_xlabel("reference tokens per generated token, R / G")
    ax.set_ylabel("one pass, forward, ms")
    ax.legend(frameon=False)
    return figure


def _run(peers: Peers, way: Callable[[], Tensor], trains: bool) -> None:
    device = peers.x.device.type
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        if trains:
            peers.dit.zero_grad()
            way().float().mean().backward()
        else:
            with torch.inference_mode():
                way()
    if device == "cuda":
        torch.cuda.synchronize()
