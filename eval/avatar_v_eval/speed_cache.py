"""What caching the reference saves: one chunk sampled with its keys kept, and without, in turns.

``python -m avatar_v_eval.speed_cache`` samples a chunk of random latents through the sampler of
``avatar-v generate``, all steps of it, at R / G = 1 … 32 reference latents per generated one. With
the cache the reference goes through the network once; without, in every step, beside the generated
latents. Both give the same latents, which is measured too. Nothing is extrapolated: each time is
that of a whole sampling, and a ratio is taken within each turn. Writes
``eval/results/speed_cache.json``.
"""

import argparse
import statistics
from functools import partial

import torch
from torch import Tensor

from avatar_v.flow import schedule
from avatar_v.generate.formats import FORMATS
from avatar_v.generate.sampler import sample
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.presets import preset
from avatar_v.models.reference import segments
from avatar_v.testing import randomise
from avatar_v.types import Cond, Reference
from avatar_v_eval import records
from avatar_v_eval.records import Number, as_command, median_of_repeats
from avatar_v_eval.speed_peers import seconds

RATIOS = (1, 2, 4, 8, 16, 32)
GRID = (4, 4)  # tokens of a latent frame of 64 px
TEXT_TOKENS = 64


class Chunk:
    """A chunk to sample, under text, sound and a reference of ``ratio`` times its length."""

    def __init__(self, name: str, ratio: int, num_steps: int) -> None:
        config, chunk = preset(name), FORMATS[name]
        self.dit = AvatarDiT(config).eval()
        randomise(self.dit)
        self.times = schedule(num_steps, shift=chunk.shift)
        draw = torch.Generator().manual_seed(1)
        size = (config.latent_channels, GRID[0] * config.patch, GRID[1] * config.patch)
        num = chunk.chunk_latents
        self.noise = torch.randn(1, num, *size, generator=draw)
        self.cond = Cond(
            text=torch.randn(1, TEXT_TOKENS, config.text_dim, generator=draw),
            audio=torch.randn(1, num, config.num_audio_tokens, config.audio_dim, generator=draw),
        )
        self.reference = Reference(
            torch.randn(1, ratio * num, *size, generator=draw),
            torch.ones(1, ratio * num, dtype=torch.bool),
            segments(ratio * num)[None],
        )

    def cached(self) -> Tensor:
        cache = self.dit.encode_reference(self.reference)
        assert cache is not None
        cache = self.dit.turned(cache)
        return sample(
            lambda x, t: self.dit(x, t, self.cond, reference_cache=cache), self.noise, self.times
        )

    def uncached(self) -> Tensor:
        cond = Cond(self.cond.text, self.cond.audio, reference=self.reference)
        return sample(lambda x, t: self.dit(x, t, cond), self.noise, self.times)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="small", choices=("tiny", "small"))
    parser.add_argument("--ratios", type=int, nargs="+", default=list(RATIOS))
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    options = parser.parse_args(arguments)
    numbers: dict[str, Number] = {}
    with torch.inference_mode():
        for ratio in options.ratios:
            numbers |= cache_numbers(options.preset, ratio, options.steps, options.repeats)
    result = records.make_result(
        "speed_cache",
        "What caching the reference saves",
        numbers,
        notes=[
            f"{options.preset} preset, untrained; a chunk of "
            f"{FORMATS[options.preset].chunk_latents} latents with text and sound, one pass a step "
            f"(no guidance), fp32, batch 1, {options.steps} steps; no video is decoded",
            f"warm-up: a sampling with the cache and one of a single step without; then median of "
            f"{options.repeats} turns, with the lowest and the highest",
        ],
    )
    print(records.write_result(result, options.out))
    for number in numbers.values():
        print(f"{number.label:76s} {number.value:9.4g}  [{number.low}, {number.high}]")


def cache_numbers(name: str, ratio: int, num_steps: int, repeats: int) -> dict[str, Number]:
    """Ratio of the times within each turn, both times, and how far the results are apart."""
    chunk = Chunk(name, ratio, num_steps)
    chunk.cached()
    Chunk(name, ratio, 1).uncached()
    found: dict[str, Tensor] = {}
    turns = []
    for turn in range(repeats):
        ways = ("cached", "uncached") if turn % 2 == 0 else ("uncached", "cached")
        times = {way: seconds(partial(_keep, found, way, chunk)) for way in ways}
        turns.append((times["cached"], times["uncached"]))
    cached, uncached = zip(*turns, strict=True)
    apart = float((found["cached"] - found["uncached"]).abs().max())
    words = f"R/G = {ratio}"
    return {
        f"ratio_{ratio}": median_of_repeats([u / c for c, u in turns]).described(
            f"{num_steps} steps without the reference cache / with it, {words}",
            target="≥ 5" if ratio == 32 else "",
        ),
        f"cached_{ratio}": median_of_repeats(cached).described(
            f"sampling a chunk with the cache, {words}", unit="s"
        ),
        f"uncached_{ratio}": median_of_repeats(uncached).described(
            f"sampling a chunk without the cache, {words}", unit="s"
        ),
        f"apart_{ratio}": Number(apart / statistics.pstdev(found["cached"].flatten().tolist()), 1)
        .described(f"largest difference of the latents in their deviations, {words}"),
    }  # fmt: skip


def _keep(found: dict[str, Tensor], way: str, chunk: Chunk) -> None:
    found[way] = chunk.cached() if way == "cached" else chunk.uncached()


if __name__ == "__main__":
    as_command(main)
