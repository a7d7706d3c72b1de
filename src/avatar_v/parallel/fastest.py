"""The fastest way to exchange for one shape of video, by a short measurement that all ranks share.

A self-attention of the network's shape, with weights of its own, runs a few times in each way. Of
each way counts the slowest rank of the sequence group, so that all ranks choose alike.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from avatar_v.base.words import notice
from avatar_v.models.attention import Core, SelfAttention, SendingCore
from avatar_v.parallel.exchange import ASYNCHRONOUS, BLOCKING, Way

TURNS = 3
"""In each of them every way runs once; one more warms up."""
LEAST_GAIN = 0.01
"""Of the blocking time: what gains less is not worth another way."""


@dataclass(frozen=True)
class Trial:
    """A self-attention of so many own tokens, positions, heads, and channels of a head."""

    sizes: tuple[int, int, int, int]
    device: torch.device
    core_of: Callable[[Way], Core | SendingCore]


def ways(own_heads: int) -> list[Way]:
    """Those to choose from: tiles of half a rank's heads, of a quarter, and of one."""
    sizes = {max(own_heads // 2, 1), max(own_heads // 4, 1), 1} - {own_heads}
    return [BLOCKING, ASYNCHRONOUS, *(Way(True, size) for size in sorted(sizes, reverse=True))]


def way_of(trial: Trial, num_ulysses: int, meshes: Sequence[DeviceMesh]) -> Way:
    """The fastest of `ways`. Collective in the groups of ``meshes``, whose product is the sequence
    group."""
    choice = ways(trial.sizes[2] // num_ulysses)
    times = torch.tensor(seconds(trial, choice), dtype=torch.float64, device=trial.device)
    for mesh in meshes:
        dist.all_reduce(times, dist.ReduceOp.MAX, group=mesh.get_group())
    times[0] *= 1 - LEAST_GAIN
    way = choice[int(times.argmin())]
    if dist.get_rank() == 0:
        took = ", ".join(f"{w} {1e3 * s:.2f}" for w, s in zip(choice, times.tolist(), strict=True))
        notice(f"exchanges between {num_ulysses} ranks: {way} (ms of an attention: {took})")
    return way


@torch.no_grad()
def seconds(trial: Trial, choice: Sequence[Way]) -> list[float]:
    """Of the attention in each way, the median of the turns."""
    num_tokens, positions, heads, width = trial.sizes
    device, dim = trial.device, heads * width
    autocast = torch.is_autocast_enabled(device.type)
    dtype = torch.get_autocast_dtype(device.type) if autocast else torch.bfloat16
    generator = torch.Generator(device).manual_seed(0)  # those of training are not touched
    with torch.device("meta"):
        layer = SelfAttention(dim, heads, 1e-6).to(dtype)
    layer.to_empty(device=device)
    for weight in layer.parameters():
        weight.normal_(std=dim**-0.5, generator=generator)
    x = torch.empty(1, num_tokens, dim, dtype=dtype, device=device).normal_(generator=generator)
    rotary = torch.ones(positions, 1, width // 2, 2, device=device)
    times: list[list[float]] = [[] for _ in choice]
    for _ in range(1 + TURNS):
        for way, found in zip(choice, times, strict=True):
            start_s = _now(device)
            layer(x, rotary, core=trial.core_of(way))
            found.append(_now(device) - start_s)
    return [statistics.median(found[1:]) for found in times]


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
