"""A device as offloading sees it: a queue of computations, a queue of copies, events between them.

A protocol, and its CUDA form; what is copied when is offload.py's business.
"""

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

Event = Any
"""Something that happens on the device; only the ``Streams`` that made it look inside."""


@runtime_checkable
class Streams(Protocol):
    """A device with two queues: computations, which whoever computes fills, and copies to it."""

    device: torch.device

    def pin(self, num_bytes: int) -> Tensor:
        """Host memory, uint8, from which copies travel beside the computations."""
        ...

    def fetch(self, host: Tensor) -> tuple[Tensor, Event]:
        """Queue a copy to the device; the event happens when it is complete."""
        ...

    def wait(self, copied: Event) -> None:
        """Computations queued from now on begin after ``copied``."""
        ...

    def mark(self) -> Event:
        """Happens when all computations queued so far have ended."""
        ...

    def drop(self, there: Tensor, used: Event | None) -> None:
        """Copies queued from now on may overwrite ``there``, but begin after ``used``."""
        ...


class CudaStreams:
    """A GPU: the caller's current stream computes, a stream of this object copies."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._copies = torch.cuda.Stream(device)

    def pin(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def fetch(self, host: Tensor) -> tuple[Tensor, Event]:
        with torch.cuda.stream(self._copies):  # memory taken here is given to copies alone
            there = torch.empty(host.shape, dtype=host.dtype, device=self.device)
            there.copy_(host, non_blocking=True)
            return there, self._copies.record_event()

    def wait(self, copied: Event) -> None:
        torch.cuda.current_stream(self.device).wait_event(copied)

    def mark(self) -> Event:
        return torch.cuda.current_stream(self.device).record_event()

    def drop(self, there: Tensor, used: Event | None) -> None:
        if used is not None:
            self._copies.wait_event(used)


def open_streams(device: torch.device) -> Streams:
    """The queues of a GPU; ValueError for another device (``check_offload``)."""
    check_offload(device)
    return CudaStreams(device)


def check_offload(device: torch.device) -> None:
    """ValueError for a device that shares the main memory, or that is not supported."""
    if device.type != "cuda":
        raise ValueError(
            f"--offload keeps weights in main memory, from where they visit a CUDA GPU; the device "
            f"is {device.type}: leave it out"
        )
