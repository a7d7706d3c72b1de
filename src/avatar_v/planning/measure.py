"""What a computation costs, found by running it on tensors that have no memory.

torch's FakeTensorMode runs the real code of the networks, forward and backward, on tensors of the
real shapes without values: nothing is computed, and 14 billion parameters need no memory.
Operations are counted by torch's own formulas, bytes by following every tensor from its making to
its end. What kernels allocate inside themselves is not seen.
"""

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from avatar_v.base.flops import FORMULAS
from avatar_v.kernels import backends
from avatar_v.models.layers import forget_grids
from avatar_v.parallel.traffic import sent_elements

Number = int | float


@dataclass(frozen=True)
class Event:
    """A message to other ranks sets off, or its answer is read for the first time (no ``size``),
    when so much has been computed."""

    message: int
    size: Number  # bytes
    flops: Number
    moved: Number


@dataclass(frozen=True)
class Cost:
    """Of one computation. Costs of computations one after another are not summed here: their
    operations add up, their peaks do not."""

    flops: Number  # forward, backward, and what is computed again
    saved: Number  # bytes that wait for the backward pass, without weights
    peak: Number  # most bytes alive at once, without weights and their gradients
    attention: Number = 0  # of the operations, those of attention; the others are of products
    moved: Number = 0  # bytes that the operators read and write, each by itself
    sent: Number = 0  # bytes that this rank gives to others
    events: tuple[Event, ...] = ()  # of what is sent, in order

    def mixed(self, other: "Cost", factor: Number) -> "Cost":
        """self + factor · other, of every number; without events."""
        names = [field.name for field in dataclasses.fields(self) if field.name != "events"]
        return Cost(*(getattr(self, name) + factor * getattr(other, name) for name in names))


@contextlib.contextmanager
def pretending() -> Iterator[FakeTensorMode]:
    """Within the block tensors have no memory, and networks that are made in it neither."""
    forget_grids()
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            yield mode
    finally:
        forget_grids()


@contextlib.contextmanager
def as_on_gpus() -> Iterator[None]:
    """Within the block attention never holds its scores, which it may do on a CPU alone."""
    with backends.using("sdpa"):
        yield


def cost_of(run: Callable[[], Tensor | None], *, bf16: bool, trains: bool) -> Cost:
    """Of ``run``, and with ``trains`` of the backward pass from the sum of what it returns.

    ``bf16``: under autocast. Gradients of weights are dropped where they arrive. Call it within
    `pretending`, or on real tensors to see what a real step keeps.
    """
    saved: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        if not isinstance(x._base if x._is_view() else x, nn.Parameter):
            storage = x.untyped_storage()
            saved[storage._cdata] = storage.nbytes()
        return x

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x)
    counter = Counter()
    with torch.set_grad_enabled(trains), counter:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16), hooks:
            out = run()
        if trains:
            assert out is not None, "a pass with gradients returns something"
            out.float().sum().backward()
    return Cost(
        counter.flops, sum(saved.values()), counter.peak,
        attention=counter.attention, moved=counter.moved, sent=counter.sent,
        events=tuple(counter.events),
    )  # fmt: skip


def without_values(module: nn.Module, dtype: torch.dtype) -> None:
    """Give a module of the meta device weights of the CPU within `pretending`, as ``dtype``, whose
    gradients are dropped."""
    for part in module.modules():
        for name, old in part._parameters.items():
            if old is None:
                continue
            new = nn.Parameter(torch.empty(old.shape, dtype=dtype), requires_grad=old.requires_grad)
            if new.requires_grad:
                new.register_post_accumulate_grad_hook(_drop_gradient)
            part._parameters[name] = new
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None


class Counter(TorchDispatchMode):
    """Counts operations by torch's formulas, what operators read, write and send, and follows the
    memory of every tensor that is made. (torch's FlopCounterMode makes cycles of modules and
    tensors, so that memory stays.)"""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.attention = self.moved = self.sent = self.now = self.peak = 0
        self.events: list[Event] = []
        self._num_messages = 0
        self._coming: dict[int, int] = {}  # id of a storage that nobody has read → its message
        self._counts = True
        self._known: set[int] = set()  # ids of storages that are alive

    def cost(self) -> Cost:
        """What has been counted so far."""
        return Cost(
            self.flops, 0, self.peak, attention=self.attention, moved=self.moved, sent=self.sent,
            events=tuple(self.events),
        )  # fmt: skip

    def count(self, cost: Cost) -> None:
        """Add a computation that is not run: its peak lies on what is alive now."""
        first = self._num_messages
        self.events += [
            Event(e.message + first, e.size, e.flops + self.flops, e.moved + self.moved)
            for e in cost.events
        ]
        self._num_messages += sum(e.size > 0 for e in cost.events)
        self.flops += cost.flops
        self.attention += cost.attention
        self.moved += cost.moved
        self.sent += cost.sent
        self.peak = max(self.peak, self.now + cost.peak)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within the block nothing is counted."""
        self._counts = False
        try:
            yield
        finally:
            self._counts = True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if func is torch.ops.prim.device.default:  # no operator, and two thirds of all calls
            return func(*args)
        if func in _ASKED and isinstance(args[0], FakeTensor):
            return _ASKED[func]()
        if not self._counts:
            return func(*args, **(kwargs or {}))
        given = _tensors((args, kwargs))
        before = {id(x.untyped_storage()) for x in given}
        for key in before & self._coming.keys():
            self.events.append(Event(self._coming.pop(key), 0, self.flops, self.moved))
        out = func(*args, **(kwargs or {}))
        found = _tensors(out)
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            flops = formula(*args, **(kwargs or {}), out_val=out)
            self.flops += flops
            self.attention += flops if "attention" in func.name() else 0
        written = [x for x in found if id(x.untyped_storage()) not in before]
        if func._schema.is_mutable:
            written = found
        if (written or func._schema.is_mutable) and "empty" not in func.name():  # no view
            self.moved += sum(map(_bytes, given)) + sum(map(_bytes, written))
        sent = sent_elements(func, args)
        if sent:
            size = sent * given[1].element_size()
            self.sent += size
            self.events.append(Event(self._num_messages, size, self.flops, self.moved))
            self._coming[id(given[0].untyped_storage())] = self._num_messages
            self._num_messages += 1
        for x in found:
            storage = x.untyped_storage()
            if id(storage) not in before and id(storage) not in self._known:
                self._made(storage)
        return out

    def _made(self, storage: torch.UntypedStorage) -> None:
        size = storage.nbytes()
        self._known.add(id(storage))
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._gone, id(storage), size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._coming.pop(key, None)
        self.now -= size


_ASKED: dict[Any, Callable[[], Any]] = {
    torch.ops.aten.all.default: lambda: torch.tensor(True),
    torch.ops.aten.any.default: lambda: torch.tensor(False),
    torch.ops.aten._local_scalar_dense.default: lambda: 0,
}
"""What is said of tensors without values when a step checks them: all is as it should be."""


def _tensors(values: Any) -> list[Tensor]:
    """Those in what an operator is given or gives. (torch's tree_map takes a quarter of a plan.)"""
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return []
    return [x for value in values for x in _tensors(value)]


def _bytes(x: Tensor) -> int:
    """What reading ``x`` once takes: of an expanded tensor what lies in memory."""
    return min(x.numel() * x.element_size(), x.untyped_storage().nbytes())
