"""How the parts of a Ulysses exchange travel, and when a rank waits for them.

An exchange is begun, and waited for where its result is read (`begun`); what is computed in between
hides it. Forward and backward are each other's adjoint, so gradients overlap in the same way. Which
of these `Way`s a network takes is asked for by the environment's AVATAR_V_EXCHANGE, or `using`:

- ``blocking``: queries, keys and values go in one exchange, which is waited for at once, and so are
  the outputs;
- ``asynchronous``: each of the three begins when it is projected, while the next one is projected;
- ``tiled``: the same, and the outputs of some heads begin when they are attended, while the next
  heads attend;
- ``symmetric``: as tiled, through memory that the GPUs share (symmetric.py);
- ``auto``: on GPUs the fastest of the first three by a short measurement (fastest.py). On CPUs,
  where the same cores move and compute, ``blocking``.

All ways give the same bits: they compute the same, at other times. `NAME:HEADS` sets the heads of a
tile (1 by default), `NAME:HEADS:SMS` the streaming multiprocessors that NCCL may take for an
exchange, as far as NCCL keeps to its ``max_ctas``. Copy engines need none.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from torch import Tensor

# pyright: reportIncompatibleMethodOverride=false

VARIABLE = "AVATAR_V_EXCHANGE"
NAMES = ("auto", "blocking", "asynchronous", "tiled", "symmetric")
Arrived = Callable[[], Tensor]
"""Waits for an exchange and gives what came."""


@dataclass(frozen=True)
class Way:
    """How a network exchanges. ``heads`` of a tile of outputs; 0: all heads in one."""

    overlaps: bool = False
    heads: int = 0

    def __str__(self) -> str:
        if not self.overlaps:
            return "blocking"
        return f"tiled:{self.heads}" if self.heads else "asynchronous"


BLOCKING, ASYNCHRONOUS = Way(), Way(overlaps=True)


@dataclass(frozen=True)
class Asked:
    """What AVATAR_V_EXCHANGE says."""

    name: str = "auto"
    heads: int = 1
    sms: int = 0  # 0: as many as NCCL takes

    @property
    def way(self) -> Way | None:
        """None for ``auto``."""
        if self.name == "auto":
            return None
        return Way(self.name != "blocking", self.heads if self.name in NAMES[3:] else 0)


_named: str = os.environ.get(VARIABLE) or "auto"


@contextlib.contextmanager
def using(name: str) -> Iterator[None]:
    """Within the block exchanges are as ``name`` says, whatever the environment says."""
    global _named
    before, _named = _named, name
    try:
        yield
    finally:
        _named = before


def asked() -> Asked:
    """ValueError for words in AVATAR_V_EXCHANGE that say nothing."""
    name, *numbers = _named.split(":")
    if name not in NAMES or len(numbers) > 2 or not all(n.isdecimal() for n in numbers if n):
        raise ValueError(
            f"{VARIABLE} is NAME, NAME:HEADS or NAME:HEADS:SMS with a NAME of {', '.join(NAMES)}, "
            f"got {_named}"
        )
    heads, sms = (int(n or 0) for n in (*numbers, "", "")[:2])
    if heads and name not in NAMES[3:]:
        raise ValueError(f"{VARIABLE}: {name} has no tiles, got {_named}")
    return Asked(name, heads or 1, sms)


def check_named(device: torch.device) -> None:
    """ValueError for an AVATAR_V_EXCHANGE that says nothing or cannot be on ``device``."""
    said = asked()
    if device.type != "cuda" and (said.name == "symmetric" or said.sms):
        what = "symmetric memory" if said.name == "symmetric" else "a number of multiprocessors"
        raise ValueError(f"{VARIABLE} is {_named}: {what} is for CUDA GPUs, not for {device.type}")


def told(device: torch.device) -> str:
    """How exchanges are made on ``device``, in words."""
    if _named != "auto":
        return f"{VARIABLE} asks for {_named}"
    return "the fastest of three, measured at the start" if device.type == "cuda" else "blocking"


def sms_options(device_type: str) -> Any:
    """Of NCCL, for groups whose exchanges may take so many multiprocessors; None: as it likes."""
    sms = asked().sms
    if sms == 0 or device_type != "cuda":
        return None
    options = dist.ProcessGroupNCCL.Options()
    options.config.min_ctas, options.config.max_ctas = 1, sms
    return options


@runtime_checkable
class Transport(Protocol):
    """What moves parts between the ranks of a group. All ranks begin exchanges in one order."""

    def begin(self, x: Tensor) -> tuple[Tensor, Callable[[], None]]:
        """Part i of the first axis of ``x`` sets off to rank i. What the ranks sent comes into the
        first result, which may be read behind a call of the second one."""
        ...


class Collective:
    """By torch's all-to-all: NCCL moves on a stream of its own, gloo in threads."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def begin(self, x: Tensor) -> tuple[Tensor, Callable[[], None]]:
        received = torch.empty_like(x)
        work = dist.all_to_all_single(received, x, group=self._group, async_op=True)
        assert work is not None
        return received, lambda: _awaited(work, x)


def _awaited(work: dist.Work, _sent: Tensor) -> None:
    """What is sent stays in memory until here."""
    work.wait()


def begun(x: Tensor, transport: Transport) -> Arrived:
    """Part i of the first axis of ``x`` sets off to rank i; the result waits for what came from
    each rank in its place."""
    travel = _Travel(transport)
    received = _Begin.apply(x, travel)
    return lambda: _End.apply(received, travel)


class _Travel:
    """One exchange, and the one of its gradient on the way back."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.wait: Callable[[], None] | None = None
        self.back: _Travel | None = None


class _Begin(torch.autograd.Function):
    """What it gives is read by `_End` alone."""

    @staticmethod
    def forward(ctx, x: Tensor, travel: _Travel) -> Tensor:
        ctx.travel = travel
        received, travel.wait = travel.transport.begin(x.contiguous())
        return received

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        assert ctx.travel.back is not None
        return _End.apply(grad, ctx.travel.back), None


class _End(torch.autograd.Function):
    @staticmethod
    def forward(ctx, received: Tensor, travel: _Travel) -> Tensor:
        ctx.travel = travel
        assert travel.wait is not None
        travel.wait()
        travel.wait = None
        return received.view(received.shape)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        ctx.travel.back = _Travel(ctx.travel.transport)
        return _Begin.apply(grad, ctx.travel.back), None
