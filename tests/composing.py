"""The work of the ranks in numerics/test_composing.py: pairs of what wraps or changes a network.

One set of processes computes every pair. Each pass has 3 frames of 15 tokens, which no rank
divides, and reads its reference from a cache, so odd lengths and the cache are part of every pair.
These processes run without the run-time type checks of pytest, which a compiler cannot trace.
"""

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from avatar_v.models.dit import AvatarDiT
from avatar_v.models.layers import narrow
from avatar_v.models.lora import add_factors, merged
from avatar_v.parallel.apply import shard, shard_frozen
from avatar_v.parallel.mesh import Layout
from avatar_v.parallel.offload import Residency
from avatar_v.parallel.sequence import sequence_mesh, spread
from fake_streams import FakeStreams
from forked import spawn
from random_models import make_dit
from sequence_ranks import config, difference, inputs, velocity
from shard_ranks import Collectives

NUM_RANKS, NUM_HEADS = 2, 2
PAIRS = (
    ("usp", "offload", "lora"),
    ("offload", "refiner"),
    ("offload", "lora", "bf16"),
    ("refiner", "lora", "compile", "bf16"),
)
"""Those that no other test computes, several together; docs/architecture.md says which tests the
others have."""
BROKEN = (("usp", "compile"), ("fsdp2", "compile"), ("offload", "compile"))
"""Where graphs end at every block, which generation refuses or gains little by: the compiler takes
half a minute for each."""
SHARDED = (("usp",), ("offload", "usp"), ("lora",), ("refiner",), ("bf16",))
"""What is computed with weights in shards as generation shards them, and with whole ones."""


def plain(pair: tuple[str, ...]) -> AvatarDiT:
    """The network of a pair; what LoRA learned lies in its factors."""
    changes: dict[str, Any] = {}
    if "refiner" in pair:
        changes |= {"temporal_window": 1, "refines_from": 0.6}
    if "compile" in pair:  # each block is a graph of its own, and takes seconds
        changes |= {"num_layers": 1}
    dit = make_dit(config(NUM_HEADS, **changes))
    if "lora" in pair:
        add_factors(dit, rank=2, alpha=3.0)
        draw = torch.Generator().manual_seed(7)
        for name, parameter in dit.named_parameters():
            if "lora_" in name:
                nn.init.normal_(parameter, std=0.1, generator=draw)
    return dit.requires_grad_(False)


def wrapped(dit: AvatarDiT, pair: tuple[str, ...]) -> Any:
    """``dit`` in the ways of a pair, in the order that is used: precision, shards or offloading,
    ranks, and the compiler last."""
    if "bf16" in pair:
        narrow(dit, torch.bfloat16)
    if "fsdp2" in pair:
        shard(dit, init_device_mesh("cpu", (NUM_RANKS,)), compute_dtype=torch.float32)
    if "offload" in pair:
        Residency({"dit": dit}, FakeStreams())
    if "usp" in pair:
        layout = Layout(NUM_RANKS, dist.get_rank(), NUM_RANKS)
        spread(dit, sequence_mesh(layout, NUM_HEADS, "cpu"))
    if "compile" in pair:
        return torch.compile(dit, backend="eager")
    return dit


@torch.no_grad()
def compare(pair: tuple[str, ...]) -> tuple[float, float]:
    """How far the velocity of a pair is from that of the plain network with the same weights in
    fp32, and with bf16 in the pair how far the plain network itself is in bf16."""
    dit, alone = plain(pair), merged(plain(pair))
    x, t, cond = inputs(dit, seed=0)
    want, own = velocity(alone, x, t, cond), 0.0
    precision = contextlib.nullcontext()
    if "bf16" in pair:
        precision = torch.autocast("cpu", dtype=torch.bfloat16)
        with precision:
            own = difference(velocity(alone, x, t, cond).float(), want)
    with precision:
        network = wrapped(dit, pair)
        got = [velocity(network, x, t, cond).float() for _ in range(2)]
    assert torch.equal(*got), "a second pass gives the same"
    return difference(got[0], want), own


@torch.inference_mode()
def sharded(ways: tuple[str, ...]) -> dict[str, Any]:
    """A network in some ways with its weights in shards, beside the same with whole weights:
    whether three passes are the same; the share of the weights that this rank has, those that it
    has whole behind the passes, and inside beside one of its two blocks; how often the last pass
    gathers, and the calls that FSDP2 notes."""
    made = [plain(ways) for _ in range(2)]
    for dit in made:
        if "bf16" in ways:
            narrow(dit, torch.bfloat16)
    mesh = init_device_mesh("cpu", (NUM_RANKS,))
    shard_frozen(made[1], mesh, offload="offload" in ways)
    if "usp" in ways:
        for dit in made:
            spread(dit, sequence_mesh(Layout(NUM_RANKS, dist.get_rank(), NUM_RANKS), 2, "cpu"))
    x, t, cond = inputs(made[0], seed=0)
    num, inside = sum(p.numel() for p in made[0].parameters()), []
    for block in made[1].blocks:
        block.get_submodule("ffn").register_forward_hook(lambda *_: inside.append(whole(made[1])))
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled="bf16" in ways):
        want = velocity(made[0], x, t, cond)
        got = [velocity(made[1], x, t, cond) for _ in range(2)]
        cond = dataclasses.replace(cond, reference=None, reference_keep=None)
        want_alone = made[0](x, t, cond)
        with Collectives() as counted:
            got_alone = made[1](x, t, cond)
    parts = [p for p in made[1].parameters() if isinstance(p, DTensor)]
    assert isinstance(made[1], FSDPModule)
    state = made[1]._get_fsdp_state()
    return {
        "same": all(torch.equal(want, y) for y in got) and torch.equal(want_alone, got_alone),
        "share": sum(p.to_local().numel() for p in parts) / num,
        "whole": whole(made[1]),
        "whole inside": max(inside) + sum(p.numel() for p in made[0].blocks[1].parameters()) - num,
        "gathered": sum(n for name, n in counted.num.items() if "allgather" in name),
        "noted": len(state._comm_ctx.post_forward_order),
    }


def whole(network: nn.Module) -> int:
    """Elements of the weights that this rank has whole at this moment."""
    return sum(p.numel() for p in network.parameters() if not isinstance(p, DTensor))


def refused() -> str:
    """What the library says to shards that are to be offloaded."""
    dit = plain(("fsdp2", "offload"))
    shard(dit, init_device_mesh("cpu", (NUM_RANKS,)), compute_dtype=torch.float32)
    try:
        Residency({"dit": dit}, FakeStreams())
    except ValueError as error:
        return str(error)
    return ""


def work(rank: int, folder: Path, pairs: tuple[tuple[str, ...], ...]) -> None:
    torch.set_num_threads(1)
    place = (folder / "store").as_uri()
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=NUM_RANKS)
    found: dict[str, Any] = {}
    for pair in pairs:
        if rank == 0 or {"usp", "fsdp2"} & set(pair):  # the others need no second rank
            found[" ".join(pair)] = compare(pair)
    if pairs == PAIRS:
        for ways in SHARDED:
            found["sharded " + " ".join(ways)] = sharded(ways)
        found["refused"] = refused()
    if rank == 0:
        torch.save(found, folder / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


def main(folder: Path, pairs: tuple[tuple[str, ...], ...] = PAIRS) -> dict[str, Any]:
    os.environ["OMP_NUM_THREADS"] = "1"
    spawn(work, (folder, pairs), NUM_RANKS)
    return torch.load(folder / "found.pt")
