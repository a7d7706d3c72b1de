"""The processes that make one video together: rank 0 leads, the others follow.

Rank 0 is the user's own process: it reads the files, decodes and writes. It hands the others what
the DiT is to see, the person and then the sound of each chunk. All of them sample that chunk, every
rank with its share of the tokens (parallel/sequence.py), and decode it; with causal weights every
rank makes its own steps of all blocks (parallel/timestep.py). Followers write nothing.

Rank 0 starts them (``--devices N``), or torchrun or srun starts all of them. One that ends before
its time is one error on rank 0: what waits for it is woken by the closed connection, or, where that
does not help (NCCL), the process ends. Followers end with rank 0.
"""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import ProcessGroup, Store
from torch.distributed.fsdp import FSDPModule

from avatar_v.base.device import chosen_device
from avatar_v.base.interrupts import interrupts_deferred
from avatar_v.base.words import notice
from avatar_v.generate.resume import KeptChunks
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.vae import VideoVAE
from avatar_v.parallel.apply import shard_frozen
from avatar_v.parallel.deaths import PATIENCE_S, death_among
from avatar_v.parallel.mesh import Layout
from avatar_v.parallel.numa import stay_near
from avatar_v.parallel.sequence import sequence_mesh, spread
from avatar_v.parallel.strips import StripDecoder, Strips
from avatar_v.parallel.timestep import ENDED, STOPPED, Line, Stopped, steps_of_ranks
from avatar_v.request.request import Weights
from avatar_v.sampling.rollout import States

HOST = "127.0.0.1"
MOST_ON_CPU = 8
NO_LIMIT = timedelta(days=7)
"""A follower may wait for its next video as long as rank 0 lives."""
GOES_ON = "goes on"


class Ranks:
    """This process among ``size``. Collective: all ranks call the same methods in one order."""

    def __init__(
        self, rank: int, size: int, device: torch.device, processes: Mapping[int, BaseProcess]
    ) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._processes = dict(processes)
        self._busy = self._closed = False
        objects = dist.new_group(backend="gloo", timeout=NO_LIMIT)
        assert isinstance(objects, ProcessGroup)
        self._objects = objects
        self._strips = Strips()
        if processes:
            threading.Thread(target=self._watch, name="ranks", daemon=True).start()

    def spread(self, *dits: AvatarDiT, vae: VideoVAE) -> None:
        """Let all ranks compute each of these together, and decode with ``vae``."""
        layout = Layout(self.size, self.rank, self.size)
        with self.watched():
            for dit in dits:
                spread(dit, sequence_mesh(layout, dit.config.num_heads, self.device.type))
        self._strips.spread(vae)

    def shard(self, *networks: nn.Module, offload: bool) -> None:
        """Let each rank keep its part of the weights of these, in main memory with ``offload``.
        All ranks run them together."""
        with self.watched():
            mesh = init_device_mesh(self.device.type, (self.size,), mesh_dim_names=("shard",))
            for network in networks:
                shard_frozen(network, mesh, offload=offload)

    def decoder(self, vae: VideoVAE) -> "LedDecoder":
        """Decodes a video by strips, on the ``vae`` of `spread`."""
        return LedDecoder(StripDecoder(vae, self._strips, clamp=False), self)

    def line(self, num_steps: int) -> Line:
        """All ranks in a line, for a video of ``num_steps`` steps. ValueError for fewer steps than
        ranks."""
        return Line(self._objects, steps_of_ranks(num_steps, self.size))

    def share(self, value: Any = None) -> Any:
        """The ``value`` of rank 0."""
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._objects)
        return values[0]

    def shared(self, items: Iterator[Any]) -> Iterator[Any]:
        """The items of rank 0, on all ranks. A follower raises Stopped where rank 0 does not want
        the rest."""
        if self.rank > 0:
            while (message := self.share())[0] != ENDED:
                if message[0] == STOPPED:
                    raise Stopped
                yield message[1]
            return
        end = STOPPED
        try:
            for item in items:
                self.share(("item", item))
                yield item
            end = ENDED
        finally:
            if not self._closed:
                with suppress(RuntimeError):  # a rank that is gone is told of by `watched`
                    self.share((end, None))

    def drained(self, made: Generator[Any, None, None], line: Line) -> Generator[Any, None, None]:
        """``made`` on rank 0 of a ``line``. When it ends or is closed, and with it its threads,
        nothing is on the way between ranks any more."""
        try:
            yield from made
        finally:
            if not self._closed:
                with suppress(RuntimeError):  # a rank that is gone is told of by `watched`
                    line.stop()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """An error that a follower's death causes in here becomes a ChildProcessError; where there
        is none after some seconds, the process ends with the same words."""
        self._busy = True
        try:
            yield
        except RuntimeError as error:
            if text := self._death(wait_s=2.0):
                raise ChildProcessError(text) from error
            raise
        finally:
            self._busy = False

    def close(self) -> None:
        """End the followers, which only read. Those of a launcher are told to end themselves."""
        self._closed = True
        for process in self._processes.values():
            process.kill()
            process.join()
        if not self._processes and self.rank == 0:
            with suppress(RuntimeError):  # they have gone already
                self.share()
        dist.destroy_process_group()

    def _watch(self) -> None:
        wait([process.sentinel for process in self._processes.values()])
        time.sleep(PATIENCE_S)
        if self._busy and not self._closed:
            notice(f"avatar-v: error: {self._death()}")
            os._exit(1)

    def _death(self, wait_s: float = 0.0) -> str:
        """`death_of` the followers, after at most ``wait_s`` seconds without one."""
        ready = wait([process.sentinel for process in self._processes.values()], timeout=wait_s)
        for process in self._processes.values():
            if process.sentinel in ready:
                process.join(1.0)  # its pipe closes a moment before its status is there
        return death_of(self._processes)


class LedDecoder:
    """A decoder that waits on all ranks until rank 0 wants more, which it may not."""

    def __init__(self, decoder: StripDecoder, ranks: Ranks) -> None:
        self._decoder, self._ranks = decoder, ranks

    def push(self, latents: Tensor) -> Tensor:
        """As StripDecoder.push. A follower raises Stopped where rank 0 does not want the rest."""
        if self._ranks.share((GOES_ON, None))[0] == STOPPED:
            raise Stopped
        return self._decoder.push(latents)


class SharedChunks:
    """``KeptChunks`` of rank 0, from which all ranks learn which chunks there are already."""

    def __init__(self, kept: KeptChunks | None, ranks: Ranks) -> None:
        self._kept, self._ranks = kept, ranks

    def states(self, chunk: int, make: Callable[[], States]) -> States:
        found = None if self._kept is None else self._kept.found(chunk)
        found = self._ranks.share(found)
        if found is not None:
            return found
        states = make()
        return states if self._kept is None else self._kept.keep(chunk, states)


def death_of(processes: Mapping[int, BaseProcess]) -> str:
    """One sentence about a process that has ended; "" where all live."""
    codes = {rank: p.exitcode for rank, p in processes.items() if p.exitcode is not None}
    death = death_among(codes, len(processes) + 1)
    return death and f"{death}; the video cannot be made without it"


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
    if shard and not hasattr(FSDPModule, "reset_iter_state"):
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


def follow_launched(weights: Weights) -> int:
    """The whole work of a rank above 0 that a launcher has started."""
    from avatar_v.generate.stored_pipeline import (
        StoredPipeline,  # which leads and follows through here
    )

    rank, size = launched_as()
    device = place_of(chosen_device(weights.device), int(os.environ["LOCAL_RANK"]))
    StoredPipeline(weights).load(_joined(rank, size, device, {}, store=None)).follow()
    return 0


def leading(weights: Weights, device: torch.device) -> Ranks | None:
    """Rank 0 of as many ranks as ``weights`` asks for, or a launcher has started; None for one.
    Followers load their weights meanwhile."""
    rank, launched = launched_as()
    if launched > 1:
        return _joined(rank, launched, place_of(device, rank), {}, store=None)
    if weights.devices == 1:
        return None
    device = place_of(device, 0)
    context = multiprocessing.get_context("spawn")
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    _share_threads(weights.devices, device)
    processes = {
        rank: context.Process(
            target=_follow, args=(rank, weights, store.port), name=f"rank {rank}", daemon=True
        )
        for rank in range(1, weights.devices)
    }
    with interrupts_deferred():
        for process in processes.values():
            process.start()
    while any(not store.check([f"rank {rank}"]) for rank in processes):
        if text := death_of(processes):
            raise ChildProcessError(text)
        time.sleep(0.05)
    return _joined(0, weights.devices, device, processes, store)


def place_of(device: torch.device, local_rank: int) -> torch.device:
    """The device of a rank: GPUs in order."""
    return torch.device("cuda", local_rank) if device.type == "cuda" else device


def _follow(rank: int, weights: Weights, port: int) -> None:
    """The process of a follower: it serves until rank 0 ends."""
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    from avatar_v.generate.stored_pipeline import (
        StoredPipeline,  # which leads and follows through here
    )

    device = place_of(chosen_device(weights.device), rank)
    _share_threads(weights.devices, device)
    store = TCPStore(HOST, port, is_master=False)
    store.set(f"rank {rank}", "here")
    try:
        ranks = _joined(rank, weights.devices, device, {}, store)
        own = replace(weights, device=str(device))
        StoredPipeline(own).load(ranks).follow()
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
