"""Blocks that are alike cost alike: each kind of call is run once and then replayed.

A deep network repeats its blocks, and a training step repeats its passes. `Replay` runs the first
call of a kind by itself, forward and backward, on tensors that have no memory
(planning/measure.py), and keeps what it cost. Every call of that kind then gives tensors of the
same shapes, holds as many bytes for its backward pass, and counts the same operations. A call's
kind is what can change its cost: the shapes of the block's weights and which of them are trained,
the shapes of what it is given and what of that needs a gradient, and all arguments that are no
tensors.
"""

import copy
import dataclasses
import functools
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from avatar_v.models.lora import lora_layers
from avatar_v.planning.measure import Cost, Counter

MOST_VALUES = 4096
"""Masks of so many entries are told apart by their values."""


@dataclass(frozen=True)
class Shape:
    """A tensor that a call gives."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool


@dataclass(frozen=True)
class Call:
    """What a kind of call costs. Its bytes are its own: what it is given is there anyway."""

    forward: Cost
    backward: Cost
    held: int  # bytes of its own that wait for the backward pass, without what it gives
    kept: tuple[int, ...]  # which of the tensors that it is given wait for the backward pass
    shapes: tuple[Shape, ...]  # of the tensors without values in what it gives
    gives: Any  # that, with a Shape in the place of each of these tensors


class _Known(NamedTuple):
    """A module that is watched."""

    kind: Hashable  # its class and the shapes of its weights
    parameters: tuple[nn.Parameter, ...]
    factors: Sequence[Any]  # peft's layers

    def state(self) -> Hashable:
        """With what changes from call to call: what is trained, and which factors count."""
        active = tuple((f.disable_adapters, tuple(f.active_adapters)) for f in self.factors)
        return self.kind, tuple(p.requires_grad for p in self.parameters), active


class Replay:
    """Calls by kind, counted by ``counter``."""

    def __init__(self, counter: Counter) -> None:
        self.counter = counter
        self._known: dict[Hashable, Call] = {}

    def watch(self, module: nn.Module, *, trains: bool = True) -> None:
        """Replay ``module`` from its second call of a kind on; without ``trains`` only calls that
        need no gradient and that no hook looks into."""
        weights = tuple((tuple(p.shape), p.dtype) for p in module.parameters())
        named = (type(module).__qualname__, module.training, weights)
        factors = [layer for _, layer in lora_layers(module)]
        known = _Known(named, tuple(module.parameters()), factors)
        call = functools.partial(self._call, module.forward, known)
        module.forward = (
            call if trains else functools.partial(_quietly, module, module.forward, call)
        )

    def _call(
        self,
        forward: Callable[..., Any],
        module: "_Known",
        *args: Any,
        **keywords: Any,
    ) -> Any:
        given: list[Tensor] = []
        modes = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"))
        kind = (module.state(), modes, _signature((args, keywords), given))
        if kind not in self._known:
            self._known[kind] = self._measured(forward, args, keywords)
        call = self._known[kind]
        # a weight that is trained is why what the call gives needs a gradient
        source = next((p for p in module.parameters if p.requires_grad), module.parameters[0])
        outs = _Replayed.apply(self.counter, call, source, *given)
        rest = iter(outs)
        return _mapped(call.gives, lambda x: next(rest) if isinstance(x, Shape) else x)

    def _measured(
        self, forward: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Call:
        """Run a call of a kind by itself, on tensors like those that it is given."""
        given: list[Tensor] = []
        outer, own = self.counter, Counter()
        self.counter = own  # of calls inside this one
        with outer.paused():
            args, keywords = _mapped((args, keywords), lambda x: _alike(x, given))
            storages = [weakref.ref(x.untyped_storage()) for x in given]
            mine = {id(ref()) for ref in storages}
            given.clear()
            torch.clear_autocast_cache()
            with own:
                out = forward(*args, **keywords)
            torch.clear_autocast_cache()
            del args, keywords
            kept = tuple(i for i, ref in enumerate(storages) if ref() is not None)
            forward_cost = own.cost()
            outs: list[Tensor] = []
            gives = _mapped(out, lambda x: _shape_of(x, outs))
            del out
            shapes = tuple(Shape(tuple(x.shape), x.dtype, x.requires_grad) for x in outs)
            sizes = {id(s): s.nbytes() for s in (x.untyped_storage() for x in outs)}
            held = own.now - sum(size for key, size in sizes.items() if key not in mine)
            backward_cost = Cost(0, 0, 0)
            if any(shape.requires_grad for shape in shapes):
                ends = [x for x in outs if x.requires_grad]
                gradients = [torch.empty_like(x) for x in ends]
                before = dataclasses.replace(own.cost(), peak=own.now)
                own.peak = own.now
                with own:
                    torch.autograd.backward(ends, gradients)
                backward_cost = own.cost().mixed(before, -1)
        self.counter = outer
        return Call(forward_cost, backward_cost, max(held, 0), kept, shapes, gives)


class _Replayed(torch.autograd.Function):
    """A call that costs what its kind costs, and computes nothing."""

    @staticmethod
    def forward(ctx: Any, counter: Counter, call: Call, source: Tensor, *given: Tensor) -> Any:
        counter.count(call.forward)
        outs = tuple(source.new_empty(shape.shape, dtype=shape.dtype) for shape in call.shapes)
        held = source.new_empty(call.held, dtype=torch.uint8)
        if torch.is_grad_enabled() or any(shape.requires_grad for shape in call.shapes):
            ctx.save_for_backward(held, *(given[i] for i in call.kept))
        ctx.counter, ctx.call, ctx.needs = counter, call, [(x.shape, x.dtype) for x in given]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(
            *(x for x, shape in zip(outs, call.shapes, strict=True) if not shape.requires_grad)
        )
        return outs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        ctx.counter.count(ctx.call.backward)
        source = next(x for x in gradients if x is not None)
        back = [
            source.new_empty(shape, dtype=dtype) if needed else None
            for (shape, dtype), needed in zip(ctx.needs, ctx.needs_input_grad[3:], strict=True)
        ]
        return None, None, None, *back


def _alike(x: Tensor, given: list[Tensor]) -> Tensor:
    """A tensor like ``x``, no leaf, so that it lives as long as something waits for it; one with
    values is itself."""
    if not isinstance(x, FakeTensor):
        return x
    alike = torch.empty_like(x)
    if x.requires_grad and torch.is_grad_enabled():
        alike = alike.requires_grad_().clone()
    given.append(alike)
    return alike


def _shape_of(x: Tensor, outs: list[Tensor]) -> "Tensor | Shape":
    if not isinstance(x, FakeTensor):
        return x
    outs.append(x)
    return Shape(tuple(x.shape), x.dtype, x.requires_grad)


def _quietly(
    module: nn.Module,
    forward: Callable[..., Any],
    call: Callable[..., Any],
    *args: Any,
    **keywords: Any,
) -> Any:
    """Replay a whole network where nobody needs what it computes on the way."""
    seen = any(child._forward_pre_hooks or child._forward_hooks for child in module.children())
    if torch.is_grad_enabled() or seen:
        return forward(*args, **keywords)
    return call(*args, **keywords)


def _signature(value: Any, given: list[Tensor]) -> Hashable:
    """What of the arguments of a call can change its cost; its tensors go into ``given``. The
    values of masks say which keys are seen."""
    if isinstance(value, FakeTensor):
        given.append(value)
        return (tuple(value.shape), value.dtype, value.requires_grad, tuple(value.stride()))
    if isinstance(value, Tensor):
        mask = value.dtype == torch.bool and value.numel() <= MOST_VALUES
        return (tuple(value.shape), value.dtype, tuple(value.flatten().tolist()) if mask else ())
    if isinstance(value, dict):
        return tuple((key, _signature(item, given)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(_signature(item, given) for item in value))
    if _is_dataclass(value):
        fields = dataclasses.fields(value)
        return tuple(_signature(getattr(value, field.name), given) for field in fields)
    if callable(value):  # functions of attention, alike for all calls of one spread
        return getattr(value, "__qualname__", type(value).__qualname__)
    return value


def _mapped(value: Any, fn: Callable[..., Any]) -> Any:
    """The same with ``fn`` of every tensor and `Shape` in it, in the order of `_signature`."""
    if isinstance(value, Tensor | Shape):
        return fn(value)
    if isinstance(value, dict):
        return {key: _mapped(item, fn) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [_mapped(item, fn) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if not _is_dataclass(value):
        return value
    same = copy.copy(value)
    for field in dataclasses.fields(value):
        object.__setattr__(same, field.name, _mapped(getattr(value, field.name), fn))
    return same


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)
