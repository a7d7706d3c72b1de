"""A device of parallel/streams.py on the CPU: a simulated clock, and memory that shows misuse.

The host takes no time, as if it queued everything ahead. Copies take ``copy_s`` each, computations
what ``Timed`` says. Memory on the "device" is NaN until computations wait for its copy, and again
once it is dropped, so that a block that computes too early or too late computes nonsense; a copy
that begins before what it may overwrite was read for the last time fails at once.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from random_models import randomise

X = torch.linspace(-1, 1, 8).reshape(2, 4)


@dataclass(frozen=True)
class Span:
    """When something ran, in simulated seconds."""

    name: str
    begin: float
    end: float


@dataclass
class Place:
    """Memory of the device that holds one block."""

    name: str
    memory: Tensor
    copied: Span
    source: Tensor | None  # what the copy brings; None once it has been waited for
    read_until: float = 0.0


@dataclass
class FakeStreams:
    copy_s: float = 1.0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    copies: list[Span] = field(default_factory=list)
    computations: list[Span] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)  # in use
    peak: int = 0
    names: dict[int, str] = field(default_factory=dict)  # host memory: the block's name
    _copying_s: float = 0.0  # until when each queue is busy
    _computing_s: float = 0.0
    _host_s: float = 0.0
    _free_s: float = 0.0  # when the last dropped memory had been read

    def pin(self, num_bytes: int) -> Tensor:
        host = torch.zeros(num_bytes, dtype=torch.uint8)
        self.names[host.data_ptr()] = f"{len(self.names)}"
        return host

    def fetch(self, host: Tensor) -> tuple[Tensor, Place]:
        begin = max(self._copying_s, self._host_s)
        assert begin >= self._free_s, f"a copy at {begin} overwrites what is read at {self._free_s}"
        name, self._copying_s = self.names[host.data_ptr()], begin + self.copy_s
        self.copies.append(Span(name, begin, self._copying_s))
        place = Place(name, torch.full_like(host, 255), self.copies[-1], host)
        self.places.append(place)
        self.peak = max(self.peak, len(self.places))
        return place.memory, place

    def wait(self, copied: Place) -> None:
        self._computing_s = max(self._computing_s, copied.copied.end)
        if copied.source is not None:
            copied.memory.copy_(copied.source)
            copied.source = None

    def mark(self) -> float:
        return self._computing_s

    def drop(self, there: Tensor, used: float | None) -> None:
        place = next(place for place in self.places if place.memory is there)
        self.places.remove(place)
        self._copying_s = max(self._copying_s, used or 0.0)
        self._free_s = max(self._free_s, place.read_until)
        there.fill_(255)

    def compute(self, module: nn.Module, seconds: float) -> None:
        """``module`` computes for so long, with the weights that its parameters point to."""
        (address,) = {p.untyped_storage().data_ptr() for p in module.parameters()}
        place = next(p for p in self.places if p.memory.data_ptr() == address)
        begin = max(self._computing_s, self._host_s)
        self._computing_s = place.read_until = begin + seconds
        self.computations.append(Span(place.name, begin, self._computing_s))

    def synchronize(self) -> float:
        """The host waits for the computations; the time since the beginning."""
        self._host_s = self._computing_s
        return self._host_s


class Timed(nn.Module):
    """A layer that takes simulated time; none without ``streams``."""

    def __init__(self, streams: FakeStreams | None, seconds: float) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.streams, self.seconds = streams, seconds

    def forward(self, x: Tensor) -> Tensor:
        if self.streams is not None:
            self.streams.compute(self, self.seconds)
        return torch.tanh(self.layer(x))


class Stack(nn.Module):
    """Blocks between two layers that stay on the device."""

    def __init__(self, streams: FakeStreams | None, num_blocks: int, seconds: float = 2.0) -> None:
        super().__init__()
        self.before = nn.Linear(4, 4)
        self.blocks = nn.ModuleList(Timed(streams, seconds) for _ in range(num_blocks))
        self.after = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        for block in self.blocks:
            x = block(x)
        return self.after(x)


def stacks(streams: FakeStreams, num_blocks: int, seconds: float = 2.0) -> tuple[Stack, Stack]:
    """The same network twice: on the simulated device, and as it is."""
    timed, plain = Stack(streams, num_blocks, seconds), Stack(None, num_blocks)
    randomise(plain, seed=num_blocks)
    timed.load_state_dict(plain.state_dict())
    return timed, plain
