"""The processes that make one video together: rank 0 leads, the others follow.

Rank 0 is the user's own process: it reads the files, decodes and writes. It hands the others what
the DiT is to see, the person and then the sound of each chunk. All of them sample that chunk, every
rank with its share of the tokens (parallel/sequence.py), and decode it; with causal weights every
rank makes its own steps of all blocks (parallel/timestep.py). Followers write nothing.

One that ends before its time is one error on rank 0: what waits for it is woken by the closed
connection, or, where that does not help (NCCL), the process ends. One that gives no sign of life
for some seconds, because it was stopped or cannot be reached, is ended. How they start is
launching.py's.
"""

import os
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import ProcessGroup

from avatar_v.base.words import notice
from avatar_v.generate.resume import ChunkCheckpoint
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.vae import VideoVAE
from avatar_v.parallel.deaths import PATIENCE_S, death_among
from avatar_v.parallel.mesh import Layout
from avatar_v.parallel.sequence import sequence_mesh, spread
from avatar_v.parallel.strips import StripDecoder, Strips
from avatar_v.parallel.timestep import ENDED, STOPPED, PipelineGroup, Stopped, steps_of_ranks
from avatar_v.sampling.rollout import States

NO_LIMIT = timedelta(days=7)
"""A follower may wait for its next video as long as rank 0 lives."""
GOES_ON = "goes on"
BEAT_S, MOST_MISSED = 1.0, 6
"""Followers give a sign of life so often; one that misses so many of them is ended."""


class Ranks:
    """This process among ``size``. Collective: all ranks call the same methods in one order."""

    def __init__(
        self, rank: int, size: int, device: torch.device, processes: Mapping[int, BaseProcess]
    ) -> None:
        self.rank, self.size, self.device = rank, size, device
        self._processes = dict(processes)
        self._busy = False
        self._closed = threading.Event()
        objects = dist.new_group(backend="gloo", timeout=NO_LIMIT)
        assert isinstance(objects, ProcessGroup)
        self._objects = objects
        self._strips = Strips()
        # a connection of its own: a rank that waits for others in the store holds the group's
        store = dist.distributed_c10d._get_default_store()
        self._store = store.clone()  # pyright: ignore[reportAttributeAccessIssue]  no stub has it
        self._lag = ""
        work = self._beat if rank else self._watch
        self._thread = threading.Thread(target=work, name="ranks", daemon=True)
        if size > 1:
            self._thread.start()

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
                from avatar_v.parallel.apply import shard_frozen  # FSDP2, a second of imports

                shard_frozen(network, mesh, offload=offload)

    def decoder(self, vae: VideoVAE) -> "DistributedDecoder":
        """Decodes a video by strips, on the ``vae`` of `spread`."""
        return DistributedDecoder(StripDecoder(vae, self._strips, clamp=False), self)

    def line(self, num_steps: int) -> PipelineGroup:
        """All ranks in a line, for a video of ``num_steps`` steps. ValueError for fewer steps than
        ranks."""
        return PipelineGroup(self._objects, steps_of_ranks(num_steps, self.size))

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
            if not self._closed.is_set():
                with suppress(RuntimeError):  # a rank that is gone is told of by `watched`
                    self.share((end, None))

    def drained(
        self, made: Generator[Any, None, None], line: PipelineGroup
    ) -> Generator[Any, None, None]:
        """``made`` on rank 0 of a ``line``. When it ends or is closed, and with it its threads,
        nothing is on the way between ranks any more."""
        try:
            yield from made
        finally:
            if not self._closed.is_set():
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
        self._closed.set()
        for process in self._processes.values():
            process.kill()
            process.join()
        if not self._processes and self.rank == 0:
            with suppress(RuntimeError):  # they have gone already
                self.share()
        if self._thread.is_alive():
            # in the store when Python ends, it would take the process down with SIGABRT
            self._thread.join(BEAT_S * MOST_MISSED)
        dist.destroy_process_group()

    def _beat(self) -> None:
        """A follower's signs of life."""
        with suppress(RuntimeError):  # rank 0 is gone
            while not self._closed.is_set():
                self._store.add(f"alive {self.rank}", 1)
                self._closed.wait(BEAT_S)

    def _watch(self) -> None:
        """On rank 0: until a follower ends."""
        sentinels = [process.sentinel for process in self._processes.values()]
        beats, missed = dict.fromkeys(range(1, self.size), 0), dict.fromkeys(range(1, self.size), 0)
        while not self._closed.is_set() and not self._has_ended(sentinels):
            for rank, before in beats.items():
                beats[rank] = self._store.add(f"alive {rank}", 0)
                missed[rank] = missed[rank] + 1 if beats[rank] == before else 0
                if missed[rank] == MOST_MISSED or (self._busy and missed[rank] > MOST_MISSED):
                    self._end(rank)
            if max(missed.values()) < MOST_MISSED:
                self._lag = ""
        if not self._closed.wait(PATIENCE_S) and self._busy:
            notice(f"avatar-v: error: {self._death()}")
            os._exit(1)

    def _has_ended(self, sentinels: list[int]) -> bool:
        """Whether a follower ends within a beat; those of a launcher are not ours to see."""
        return bool(wait(sentinels, timeout=BEAT_S)) if sentinels else self._closed.wait(BEAT_S)

    def _end(self, rank: int) -> None:
        """End a follower that gives no sign of life: whatever waits for it goes on."""
        seconds = MOST_MISSED * BEAT_S
        self._lag = f"rank {rank} of {self.size} gave no sign of life for {seconds:g} s"
        if rank in self._processes:
            self._processes[rank].kill()
        elif self._busy:
            notice(f"avatar-v: error: {self._lag}; the video cannot be made without it")
            os._exit(1)

    def _death(self, wait_s: float = 0.0) -> str:
        """`describe_death` the followers, after at most ``wait_s`` seconds without one."""
        ready = wait([process.sentinel for process in self._processes.values()], timeout=wait_s)
        for process in self._processes.values():
            if process.sentinel in ready:
                process.join(1.0)  # its pipe closes a moment before its status is there
        if self._lag:
            return f"{self._lag}; the video cannot be made without it"
        return describe_death(self._processes)


class DistributedDecoder:
    """A decoder that waits on all ranks until rank 0 wants more, which it may not."""

    def __init__(self, decoder: StripDecoder, ranks: Ranks) -> None:
        self._decoder, self._ranks = decoder, ranks

    def push(self, latents: Tensor) -> Tensor:
        """As StripDecoder.push. A follower raises Stopped where rank 0 does not want the rest."""
        if self._ranks.share((GOES_ON, None))[0] == STOPPED:
            raise Stopped
        return self._decoder.push(latents)


class SharedChunks:
    """``ChunkCheckpoint`` of rank 0, from which all ranks learn which chunks there are already."""

    def __init__(self, kept: ChunkCheckpoint | None, ranks: Ranks) -> None:
        self._kept, self._ranks = kept, ranks

    def states(self, chunk: int, make: Callable[[], States]) -> States:
        found = None if self._kept is None else self._kept.found(chunk)
        found = self._ranks.share(found)
        if found is not None:
            return found
        states = make()
        return states if self._kept is None else self._kept.keep(chunk, states)


def describe_death(processes: Mapping[int, BaseProcess]) -> str:
    """One sentence about a process that has ended; "" where all live."""
    codes = {rank: p.exitcode for rank, p in processes.items() if p.exitcode is not None}
    death = death_among(codes, len(processes) + 1)
    return death and f"{death}; the video cannot be made without it"
