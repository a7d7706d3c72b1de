"""Exchanges of sequence parallelism beside computing: blocking, asynchronous, in tiles of heads.

Processes of one thread each make the passes of a small DiT over one video. What they send really
travels (gloo), but arrives when links of a given bandwidth, latency and jitter would bring it. The
bandwidth is chosen so that links take a given share of the computing of a pass. Of the links counts
what a rank really waits for; waiting for a rank that is late does not. Beside it stands what the
model of `avatar-v plan` says of the same passes.

The last rows are that model's alone: a chunk of plain Wan 2.1 14B on 8 H100.
"""

import argparse
import dataclasses
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.parallel import exchange
from avatar_v.parallel.exchange import Transport
from avatar_v.parallel.mesh import Layout
from avatar_v.parallel.sequence import SequenceGroup, sequence_mesh, spread
from avatar_v.planning.gpus import GPU, GPUS, LINK_SHARE, MEMORY_SHARE
from avatar_v.planning.measure import Cost, as_on_gpus
from avatar_v.planning.passes import Pass, pass_cost
from avatar_v.planning.scaling import exposed_links, spread_over, step_time
from avatar_v.types import Cond
from avatar_v.weights.presets import PRESETS
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.turns import in_turns, turns_note

WAYS = ("blocking", "asynchronous", "tiled:2", "tiled:1")
SHARES = (13 / 210, 0.3)
"""Seconds of links beside one of computing: as planned for large GPUs, and five times slower."""
FRAMES, SIDE = 6, 32
"""Of the video, in latents: 1,536 tokens."""
SIZES = DiTConfig(
    dim=256, num_heads=8, num_layers=2, ffn_dim=768, latent_channels=4,
    text_dim=8, audio_dim=8, freq_dim=16, motion_dim=64,
)  # fmt: skip
PLANNED_WAYS = ("blocking", "asynchronous", "tiled:1")
PLANNED = Pass(1, 21, (60, 104), audio=False)
"""81 frames of 832 x 480, as a student without guidance sees them."""


@dataclasses.dataclass(frozen=True)
class Links:
    """What joins a rank to the others: bytes a second, seconds of a message, and seconds that it
    may take in addition, evenly drawn."""

    rate: float
    latency_s: float = 0.0
    jitter_s: float = 0.0


FREE = Links(float("inf"))
Turn = tuple[float, ...]
"""Seconds of a pass: of its links, and of them those that ranks wait for."""


@dataclasses.dataclass(frozen=True)
class Found:
    """Of links that take ``share`` of the computing: the turns of each way."""

    share: float
    compute_s: float
    turns: dict[str, list[Turn]]


class SimulatedLinks:
    """A `Transport` over another one, which is as fast as ``links``. One message after another; one
    sets off when the last rank has begun it."""

    def __init__(self, inner: Transport, group: dist.ProcessGroup, links: Links, seed: int) -> None:
        self._inner, self._group, self._links = inner, group, links
        self._draws, self._free_s = random.Random(seed), 0.0
        self.links_s = self.exposed_s = 0.0
        self.calls: list[str] = []

    def begin(self, x: Tensor) -> tuple[Tensor, Callable[[], None]]:
        number, size = self.calls.count("begin"), self._group.size()
        self.calls.append("begin")
        received, arrive = self._inner.begin(x)
        own = torch.tensor([time.monotonic()], dtype=torch.float64)
        begins = [torch.empty_like(own) for _ in range(size)]
        told = dist.all_gather(begins, own, group=self._group, async_op=True)
        assert told is not None
        travels = x.numel() * x.element_size() * (size - 1) / size / self._links.rate
        travels += self._links.latency_s + self._links.jitter_s * self._draws.random()
        self.links_s += travels

        def wait() -> None:
            asked_s = time.monotonic()
            arrive()
            told.wait()
            last_s = max(map(float, begins))
            self._free_s = max(last_s, self._free_s) + travels
            self.exposed_s += max(self._free_s - max(asked_s, last_s), 0.0)
            time.sleep(max(self._free_s - time.monotonic(), 0.0))
            self.calls.append(f"wait {number}")

        return received, wait


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ranks", type=int, default=2, help="processes of one thread (%(default)s)")
    add("--repeats", type=int, default=7)
    add("--latency-ms", type=float, default=0.05, help="of a message (%(default)s)")
    add("--jitter-ms", type=float, default=0.05, help="at most, in addition (%(default)s)")


def measure(options: argparse.Namespace) -> Findings:
    if SIZES.num_heads % options.ranks or options.ranks < 2 or options.repeats < 1:
        raise ValueError(f"expected --ranks 2, 4 or 8 and --repeats from 1, got {options.ranks}")
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(  # pyright: ignore[reportPrivateImportUsage]
            _work, (options, Path(folder)), options.ranks, start_method="spawn"
        )
        found: list[Found] = torch.load(Path(folder) / "found.pt", weights_only=False)
    numbers: dict[str, Number] = {}
    for one in found:
        numbers |= _measured(one, options.ranks)
    return Findings(
        "Exchanges beside computing",
        numbers | _planned(),
        notes=[
            f"{options.ranks} processes of one thread, {FRAMES} latents of {SIDE} x {SIDE}, width "
            f"{SIZES.dim}, {SIZES.num_heads} heads, {SIZES.num_layers} blocks, fp32",
            f"simulated links: {options.latency_ms:g} ms a message and up to "
            f"{options.jitter_ms:g} ms more; of the rank that is last the "
            f"{turns_note(options.repeats)}",
            f"planned: wan_14b, {PLANNED.latents} latents of 60 x 104, one pass, 8 H100",
        ],
    )


def _measured(found: "Found", num_ranks: int) -> dict[str, Number]:
    numbers: dict[str, Number] = {}
    for way, turns in found.turns.items():
        words = f"links {found.share:.2g} of computing"
        key = f"{found.share:.2g}_{way.replace(':', '_')}"
        links = statistics.median(turn[0] for turn in turns)
        model = model_of(num_ranks, way, links / found.compute_s)
        numbers |= {
            f"left_{key}": median_of_repeats([b / a for a, b in turns]).described(
                f"{words}, {way}: part of the links' time that ranks wait for"
            ),
            f"model_{key}": Number(model, 1).described(f"{words}, {way}: the same by plan"),
        }
    return numbers


def model_of(num_ranks: int, way: str, share: float) -> float:
    """The exposed part of the links by plan, for links and a processor that fit the measurement:
    computing takes one second, and links ``share`` of one."""
    cost = _cost(SIZES, Pass(1, FRAMES, (SIDE, SIDE), audio=False, text_tokens=8), num_ranks, way)
    flops, sent = cost.flops / 1e12, cost.sent / share / LINK_SHARE / 1e9
    gpu = GPU("simulated", 0.0, flops, 1e12, sent)
    return exposed_links(cost, gpu, 1.0) / step_time(cost, gpu, 1.0).links


def _planned() -> dict[str, Number]:
    """Milliseconds of a step: at the rates that plans assume, and at all that a GPU has."""
    h100, numbers = GPUS["h100"], dict[str, Number]()
    whole = dataclasses.replace(
        h100, memory_gb_s=h100.memory_gb_s / MEMORY_SHARE, nvlink_gb_s=h100.nvlink_gb_s / LINK_SHARE
    )
    costs = {way: _cost(PRESETS["wan_14b"].dit, PLANNED, 8, way) for way in PLANNED_WAYS}
    for name, gpu, mfu in (("assumed", h100, 0.4), ("whole", whole, 1.0)):
        times = step_time(costs["blocking"], gpu, mfu)
        left = {f"links not hidden, {way}": exposed_links(x, gpu, mfu) for way, x in costs.items()}
        for i, (words, value) in enumerate({"computing": times.compute, **left}.items()):
            numbers[f"plan_{name}_{i}"] = Number(1e3 * value, 1).described(
                f"planned, {name} rates of 8 H100: {words}", unit="ms"
            )
    return numbers


def _cost(config: DiTConfig, of: Pass, num_ranks: int, way: str) -> Cost:
    with torch.device("meta"):
        dit = AvatarDiT(config)
    with as_on_gpus(), exchange.using(way), spread_over(num_ranks, dit):
        return pass_cost(dit, of)


def _work(rank: int, options: argparse.Namespace, folder: Path) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    num = options.ranks
    place = (folder / "store").as_uri()
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=num)
    torch.manual_seed(0)
    dit = AvatarDiT(SIZES).eval().requires_grad_(False)
    spread(dit, sequence_mesh(Layout(num, rank, num), SIZES.num_heads, "cpu"))
    group = dit.spread
    assert isinstance(group, SequenceGroup)
    cond = Cond(text=torch.zeros(1, 8, SIZES.text_dim))
    x = torch.zeros(1, FRAMES, SIZES.latent_channels, SIDE, SIDE)
    inner, mesh = group.transport, group.ulysses.get_group()

    def turn(way: str, links: Links) -> Turn:
        simulated = SimulatedLinks(inner, mesh, links, seed=rank)
        group.transport = simulated
        dist.barrier()
        with exchange.using(way), torch.inference_mode():
            dit(x, torch.zeros(1, FRAMES), cond)
        return tuple(_most((simulated.links_s, simulated.exposed_s)))

    alone = in_turns({"pass": lambda: turn("blocking", FREE)}, options.repeats)["pass"]
    (compute_s,) = _most((statistics.median(alone),))  # one bandwidth for all ranks
    found = [_found(turn, share, compute_s, options) for share in SHARES]
    if rank == 0:
        torch.save(found, folder / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


def _found(
    turn: Callable[[str, Links], Turn], share: float, compute_s: float, options: argparse.Namespace
) -> Found:
    """The ways in turns over links that take ``share`` of the computing where exchanges block."""
    latency_s, jitter_s = options.latency_ms / 1e3, options.jitter_ms / 1e3
    messages_s = 2 * SIZES.num_layers * (latency_s + jitter_s / 2)
    rate = _sent_bytes(options.ranks) / max(share * compute_s - messages_s, 1e-6)
    turns: dict[str, list[Turn]] = {way: [] for way in WAYS}
    for i in range(options.repeats):
        for way in WAYS if i % 2 else reversed(WAYS):
            turns[way].append(turn(way, Links(rate, latency_s, jitter_s)))
    return Found(share, compute_s, turns)


def _sent_bytes(num_ranks: int) -> float:
    """Bytes that a rank sends around self-attention in a pass, in fp32."""
    tokens = FRAMES * (SIDE // SIZES.patch) ** 2
    return 4 * 4 * SIZES.num_layers * tokens * SIZES.dim * (num_ranks - 1) / num_ranks**2


def _most(values: tuple[float, ...]) -> list[float]:
    """Of each value the largest of the ranks."""
    most = torch.tensor(values, dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.tolist()
