"""A sharded checkpoint written by some ranks and read by fewer: a part of `full_size`.

A network of the preset's width and few blocks is sharded by FSDP2 over gloo processes of the CPU,
with the optimiser of training. Each value of weights and states follows from its tensor's name and
its place in the whole tensor, so every reader can tell on its own whether each value of its shards
is the one that was written, to the last bit.
"""

import json
import time
import zlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.multiprocessing.spawn import spawn

from avatar_v.models.dit import AvatarDiT
from avatar_v.parallel.apply import shard
from avatar_v.request.record import peak_rss_mib
from avatar_v.stages.optim import MuonAdamW, Optim, build_optimizer
from avatar_v.weights.presets import preset

PLACE = "checkpoint"


@dataclass(frozen=True)
class Shared:
    """What all ranks of a group found together."""

    took_s: float  # of the slowest
    most_gib: float  # of the largest rank
    all_gib: float  # sum of all ranks' largest
    num_values: int  # of the whole checkpoint
    num_wrong: int


def written(name: str, depth: int, num_ranks: int, folder: Path) -> Shared:
    """Write a checkpoint of ``num_ranks`` ranks into ``folder``."""
    return _together(name, depth, num_ranks, folder, writes=True)


def read(name: str, depth: int, num_ranks: int, folder: Path) -> Shared:
    """Read it with another number of ranks, and compare every value."""
    return _together(name, depth, num_ranks, folder, writes=False)


def checkpoint_gib(folder: Path) -> float:
    return sum(path.stat().st_size for path in (folder / PLACE).iterdir()) / 2**30


def _together(name: str, depth: int, num_ranks: int, folder: Path, *, writes: bool) -> Shared:
    meeting = folder / f"{'write' if writes else 'read'}_{num_ranks}"
    meeting.mkdir(parents=True)
    spawn(_work, (num_ranks, name, depth, folder, meeting, writes), nprocs=num_ranks)
    found = [json.loads((meeting / f"{rank}.json").read_text()) for rank in range(num_ranks)]
    return Shared(
        max(each["took_s"] for each in found),
        max(each["peak_gib"] for each in found),
        sum(each["peak_gib"] for each in found),
        sum(each["num"] for each in found),
        sum(each["wrong"] for each in found),
    )


def _work(
    rank: int, num_ranks: int, name: str, depth: int, folder: Path, meeting: Path, writes: bool
) -> None:
    torch.set_num_threads(1)
    store = (meeting / "store").as_uri()
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=num_ranks)
    dit, optimizer = _empty(name, depth)
    if writes:
        for key, x in _tensors(dit, optimizer).items():
            _local(x).copy_(_expected(x, key))
    begin = time.perf_counter()
    state: dict[str, Any] = {"state_dict": dit.state_dict()}
    state["optimizer"] = get_optimizer_state_dict(dit, optimizer)
    if writes:
        save(state, checkpoint_id=folder / PLACE)
    else:
        load(state, checkpoint_id=folder / PLACE)
        set_optimizer_state_dict(dit, optimizer, state["optimizer"])
    took_s = time.perf_counter() - begin
    num = wrong = 0
    for key, x in _tensors(dit, optimizer).items():
        num += _local(x).numel()
        wrong += int((_local(x) != _expected(x, key)).sum())
    found = {"took_s": took_s, "peak_gib": peak_rss_mib() / 2**10, "num": num, "wrong": wrong}
    (meeting / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def _empty(name: str, depth: int) -> tuple[AvatarDiT, MuonAdamW]:
    """The rank's shards, all 0, of a network of ``depth`` blocks, and the optimiser."""
    with torch.device("meta"):
        dit = AvatarDiT(replace(preset(name).dit, num_layers=depth))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    shard(dit, mesh, compute_dtype=torch.bfloat16)
    dit.to_empty(device="cpu")
    for parameter in dit.parameters():
        _local(parameter).zero_()
    return dit, build_optimizer(dit, Optim(lr=1e-5, num_warmup_steps=0))


def _tensors(dit: AvatarDiT, optimizer: MuonAdamW) -> dict[str, Tensor]:
    """All weights, and all states of theirs but the counts of steps."""
    found: dict[str, Tensor] = {}
    for name, parameter in dit.named_parameters():
        found[name] = parameter
        for key, x in optimizer.state[parameter].items():
            if isinstance(x, DTensor):
                found[f"{name} {key}"] = x
    return found


def _local(x: Tensor) -> Tensor:
    return x.to_local().detach() if isinstance(x, DTensor) else x.detach()


def _expected(x: Tensor, key: str) -> Tensor:
    """What this rank's shard of ``x`` holds: numbers in [-1, 1) that fp32 holds exactly."""
    assert isinstance(x, DTensor)
    shape, offset = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    first = offset[0] * x[0].numel() if x.dim() else 0
    place = torch.arange(first, first + _local(x).numel())
    place.mul_(2_654_435_761).add_(zlib.crc32(key.encode())).remainder_(2**24).sub_(2**23)
    return (place.float() / 2**23).view(shape)
