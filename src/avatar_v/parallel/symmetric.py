"""Exchanges through symmetric memory: each GPU writes its parts into the others' memory.

Parts go over NVLink by copy engines, which take no multiprocessor from computing, and each one is
followed by a signal, so a rank reads the first parts while others travel. By torch's private
``_symmetric_memory``. **No GPU has run this yet**; tests run it on threads with main memory
(tests/numerics/test_sequence.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory
from torch import Tensor

ARRIVED, READ = 0, 1
"""Channels of signals: a part is there; what was there has been read."""


@dataclass
class _Slot:
    """Memory of one exchange at a time, that all ranks of the group can write to."""

    memory: Tensor
    handle: Any
    is_used: bool = False


class Symmetric:
    """A `Transport` (exchange.py). ValueError for a group whose GPUs do not reach one another."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        lacks = lacking(group)
        if lacks is not None:
            raise ValueError(f"exchanges through symmetric memory need {lacks}")
        self._group, self._rank, self._size = group, group.rank(), group.size()
        self._copies = torch.cuda.Stream()
        self._free: dict[Any, list[_Slot]] = {}

    def begin(self, x: Tensor) -> tuple[Tensor, Callable[[], None]]:
        kind = (tuple(x.shape), x.dtype)
        free = self._free.setdefault(kind, [])
        slot = free.pop(0) if free else self._made(x)
        received = torch.empty_like(x)
        self._copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copies):
            for to in self._others():
                if slot.is_used:
                    slot.handle.wait_signal(to, READ)
                there = slot.handle.get_buffer(to, x.shape, x.dtype)
                there[self._rank].copy_(x[to], non_blocking=True)
                slot.handle.put_signal(to, ARRIVED)
        x.record_stream(self._copies)
        slot.is_used = True

        def wait() -> None:
            received[self._rank].copy_(x[self._rank])
            for source in self._others():
                slot.handle.wait_signal(source, ARRIVED)
                received[source].copy_(slot.memory[source])
                slot.handle.put_signal(source, READ)
            free.append(slot)

        return received, wait

    def _made(self, x: Tensor) -> _Slot:
        """Collective: exchanges begin in one order on all ranks, so their slots are the same."""
        memory = symmetric_memory.empty(*x.shape, dtype=x.dtype, device=x.device)
        return _Slot(memory, symmetric_memory.rendezvous(memory, self._group))

    def _others(self) -> list[int]:
        """The next rank first: no two ranks write to one at the same time."""
        return [(self._rank + step) % self._size for step in range(1, self._size)]


def lacking(group: dist.ProcessGroup) -> str | None:
    """What there has to be; None: GPUs of one node, with access to each other's memory."""
    if not torch.cuda.is_available():
        return "CUDA GPUs"
    own, num = torch.cuda.current_device(), torch.cuda.device_count()
    ranks = dist.get_process_group_ranks(group)
    if len({rank // num for rank in ranks}) > 1:
        return f"all {len(ranks)} GPUs of a Ulysses group in one node, and this one has {num}"
    others = {rank % num for rank in ranks} - {own}
    far = [i for i in sorted(others) if not torch.cuda.can_device_access_peer(own, i)]
    return f"NVLink, or PCIe between peers, from GPU {own} to {far[0]}" if far else None
