"""How the processes start that make one video together, and where (ranks.py).

Rank 0 starts the others (``--devices N``), or torchrun or srun starts all of them. Followers end
with rank 0.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from multiprocessing.process import BaseProcess
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import Store

from avatar_v.base.device import chosen_device
from avatar_v.base.interrupts import interrupts_deferred
from avatar_v.generate.ranks import NO_LIMIT, Ranks, describe_death
from avatar_v.parallel.numa import stay_near
from avatar_v.request.request import Weights

HOST = "127.0.0.1"
MOST_ON_CPU = 8

Follow: TypeAlias = Callable[[Weights, Ranks], None]
"""All that a follower does; a function of a module, since it is sent to its process."""


def check_devices(num: int, device: torch.device, *, shard: bool = False) -> None:
    """ValueError for fewer than one device, for more GPUs than there are, for more processes of a
    CPU than cores, `MOST_ON_CPU` of which are always allowed, beside a launcher that
    has started another number, and for one device, or a torch before 2.13, where weights are to be
    sharded."""
    if num < 1:
        raise ValueError(f"--devices counts from 1, got {num}")
    _, launched = launched_as()
    if launched > 1 and num not in (1, launched):
        raise ValueError(f"--devices {num}: a launcher has started {launched} ranks: leave it out")
    most = max(MOST_ON_CPU, os.cpu_count() or 1)
    if device.type != "cuda" and num > most:
        raise ValueError(
            f"--devices {num}: processes on a CPU share its cores, expected at most {most}"
        )
    if num > 1 and device.type == "cuda" and num > torch.cuda.device_count():
        raise ValueError(f"--devices {num}: this machine has {torch.cuda.device_count()} GPUs")
    if shard and max(num, launched) == 1:
        raise ValueError(
            "--shard leaves each device a part of the weights: it needs --devices of 2 or more"
        )
    if shard:
        from torch.distributed.fsdp import FSDPModule  # a second of imports

        if not hasattr(FSDPModule, "reset_iter_state"):
            raise ValueError(f"--shard needs torch 2.13 or newer, this is {torch.__version__}")


def launched_as() -> tuple[int, int]:
    """The rank of this process and the number of ranks, of those that torchrun or srun has started;
    (0, 1) where there is no launcher. srun says neither where rank 0 listens, so MASTER_ADDR and
    MASTER_PORT are the user's."""
    names = os.environ
    if "SLURM_PROCID" in names and "MASTER_ADDR" in names and "RANK" not in names:
        for name, of_slurm in (("RANK", "PROCID"), ("WORLD_SIZE", "NTASKS")):
            names[name] = names[f"SLURM_{of_slurm}"]
        names["LOCAL_RANK"] = names["SLURM_LOCALID"]
    return int(names.get("RANK", 0)), int(names.get("WORLD_SIZE", 1))


def follow_launched(weights: Weights, follow: Follow) -> None:
    """The whole work of a rank above 0 that a launcher has started."""
    rank, size = launched_as()
    device = rank_device(chosen_device(weights.device), int(os.environ["LOCAL_RANK"]))
    follow(weights, _joined(rank, size, device, {}, store=None))


def leading(weights: Weights, device: torch.device, follow: Follow) -> Ranks | None:
    """Rank 0 of as many ranks as ``weights`` asks for, or a launcher has started; None for one,
    which stays near its GPU as ranks do. Followers load their weights meanwhile."""
    rank, launched = launched_as()
    if launched > 1:
        return _joined(rank, launched, rank_device(device, rank), {}, store=None)
    if weights.devices == 1:
        stay_near(device)
        return None
    device = rank_device(device, 0)
    context = multiprocessing.get_context("spawn")
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    _share_threads(weights.devices, device)
    processes = {
        rank: context.Process(
            target=_follow,
            args=(rank, weights, store.port, follow),
            name=f"rank {rank}",
            daemon=True,
        )
        for rank in range(1, weights.devices)
    }
    with interrupts_deferred():
        for process in processes.values():
            process.start()
    while any(not store.check([f"rank {rank}"]) for rank in processes):
        if text := describe_death(processes):
            raise ChildProcessError(text)
        time.sleep(0.05)
    return _joined(0, weights.devices, device, processes, store)


def rank_device(device: torch.device, local_rank: int) -> torch.device:
    """The device of a rank: GPUs in order."""
    return torch.device("cuda", local_rank) if device.type == "cuda" else device


def _follow(rank: int, weights: Weights, port: int, follow: Follow) -> None:
    """The process of a follower: it serves until rank 0 ends."""
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    device = rank_device(chosen_device(weights.device), rank)
    _share_threads(weights.devices, device)
    store = TCPStore(HOST, port, is_master=False)
    store.set(f"rank {rank}", "here")
    try:
        ranks = _joined(rank, weights.devices, device, {}, store)
        follow(replace(weights, device=str(device)), ranks)
    except RuntimeError as error:
        # another rank's end closes connections: it is rank 0 that says so
        if "onnection" not in str(error):
            raise
        os._exit(1)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def _joined(
    rank: int,
    size: int,
    device: torch.device,
    processes: Mapping[int, BaseProcess],
    store: Store | None,
) -> Ranks:
    backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
    if device.type == "cuda":
        torch.cuda.set_device(device)
        stay_near(device)
    if store is None:
        dist.init_process_group(backend, timeout=NO_LIMIT)
    else:
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=NO_LIMIT)
    return Ranks(rank, size, device, processes)


def _share_threads(size: int, device: torch.device) -> None:
    """Ranks on one CPU share its cores."""
    if device.type == "cpu":
        torch.set_num_threads(max(torch.get_num_threads() // size, 1))
