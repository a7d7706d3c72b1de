"""Sampling with the cached keys and values of the reference, and without, in turns.

A chunk of random latents goes through the sampler of ``avatar-v generate``, all steps of it, at
R / G = 1 … 32 reference latents per generated one. With the cache the reference goes through the
network once; without, in every step, beside the generated latents. Both give the same latents,
which is measured too. Nothing is extrapolated: each time is that of a whole sampling. On a GPU
(`--device cuda --preset wan_1_3b --grid 30`) passes run under bf16 autocast.
"""

import argparse
import statistics
from functools import partial

import torch
from torch import Tensor

from avatar_v.base.device import chosen_device
from avatar_v.flow import schedule
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import segments
from avatar_v.sampling.solver import sample
from avatar_v.types import Cond, Reference
from avatar_v.weights.presets import PRESETS, preset
from avatar_v.weights.random import randomise
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.turns import in_turns, ratio, turns_note

RATIOS = (1, 2, 4, 8, 16, 32)
GRID = 4  # tokens of a side of a latent frame of 64 px
TEXT_TOKENS = 64


class Chunk:
    """A chunk to sample, under text, sound and a reference of ``ratio`` times its length."""

    def __init__(
        self, name: str, ratio: int, num_steps: int, grid: int, device: torch.device
    ) -> None:
        config, chunk = preset(name).dit, PRESETS[name].format
        self.dit = AvatarDiT(config).eval()
        randomise(self.dit)
        self.dit.to(device)
        self.times = schedule(num_steps, shift=chunk.shift)
        draw = torch.Generator().manual_seed(1)
        size = (config.latent_channels, grid * config.patch, grid * config.patch)
        num = chunk.chunk_latents
        self.noise = torch.randn(1, num, *size, generator=draw).to(device)
        self.cond = Cond(
            text=torch.randn(1, TEXT_TOKENS, config.text_dim, generator=draw),
            audio=torch.randn(1, num, config.num_audio_tokens, config.audio_dim, generator=draw),
        ).to(device)
        self.reference = Reference(
            torch.randn(1, ratio * num, *size, generator=draw),
            torch.ones(1, ratio * num, dtype=torch.bool),
            segments(ratio * num)[None],
        ).to(device)

    def cached(self) -> Tensor:
        cache = self.dit.encode_reference(self.reference)
        assert cache is not None
        cache = cache.rotated()
        return sample(lambda x, t: self.dit(x, t, self.cond, past=cache), self.noise, self.times)

    def uncached(self) -> Tensor:
        cond = Cond(self.cond.text, self.cond.audio, reference=self.reference)
        encode = self.dit.encode_reference
        return sample(
            lambda x, t: self.dit(x, t, cond, past=encode(self.reference)), self.noise, self.times
        )


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--device", default="cpu", help="cpu, cuda (%(default)s)")
    add("--preset", default="small", choices=("tiny", "small", "wan_1_3b"))
    add("--grid", type=int, default=GRID, help="tokens of a side; 30: 480 px (%(default)s)")
    add("--ratios", type=int, nargs="+", default=list(RATIOS))
    add("--steps", type=int, default=24)
    add("--repeats", type=int, default=3)


def measure(options: argparse.Namespace) -> Findings:
    device, numbers = chosen_device(options.device), {}
    bf16 = device.type == "cuda"
    with torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        for num in options.ratios:
            chunk = Chunk(options.preset, num, options.steps, options.grid, device)
            numbers |= cache_numbers(chunk, num, options.steps, options.repeats)
    return Findings(
        "Sampling with the reference cache",
        numbers,
        notes=[
            f"{options.preset} preset, untrained; a chunk of "
            f"{PRESETS[options.preset].format.chunk_latents} latents with text and sound, one pass "
            f"a step (no guidance), {'bf16' if bf16 else 'fp32'}, batch 1, {options.steps} steps; "
            f"no video is decoded; {options.grid} x {options.grid} tokens a latent, on "
            f"{device.type}",
            turns_note(options.repeats),
        ],
    )


def cache_numbers(chunk: Chunk, num: int, num_steps: int, repeats: int) -> dict[str, Number]:
    """Ratio of the times within each turn, both times, and the difference of the results."""
    found: dict[str, Tensor] = {}

    def keep(way: str) -> None:
        found[way] = getattr(chunk, way)().float().cpu()  # waits for a GPU

    ways = ("cached", "uncached")
    times = in_turns({way: partial(keep, way) for way in ways}, repeats)
    apart = float((found["cached"] - found["uncached"]).abs().max())
    deviation = statistics.pstdev(found["cached"].flatten().tolist())
    words = f"R/G = {num}"
    return {
        f"ratio_{num}": ratio(times, "uncached", "cached").described(
            f"{num_steps} steps without the reference cache / with it, {words}",
            target="≥ 5" if num == 32 else "",
        ),
        f"cached_{num}": median_of_repeats(times["cached"]).described(
            f"sampling a chunk with the cache, {words}", unit="s"
        ),
        f"uncached_{num}": median_of_repeats(times["uncached"]).described(
            f"sampling a chunk without the cache, {words}", unit="s"
        ),
        f"apart_{num}": Number(apart / deviation, 1).described(
            f"largest difference of the latents in their deviations, {words}"
        ),
    }
