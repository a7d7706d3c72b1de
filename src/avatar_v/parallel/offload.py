"""Model residency: weights wait in pinned host memory and visit the device block by block.

Block i + 1 travels on a stream of its own while block i computes, at most
``num_blocks`` are on the device, whichever models they belong to, and leaving costs nothing, since
inference changes no weight. A block is an element of an outermost ``ModuleList``, or an embedding;
what a model has besides is small and stays on the device. Inference only: buffers that a forward
changes, LoRA and averages are out of scope, and so is compiling what is wrapped here. Shards that
wait in main memory are FSDP2's own (parallel/apply.py).

Why not diffusers' group offloading (0.42): its hooks hang on the forward of the whole model, so
that ``AvatarDiT.encode_reference`` finds weights on the wrong side; it moves a block twice where it
runs twice (video, then motion), and what is no block there and back, unpinned, at every call; the
host waits for the device at each block; and an error leaves weights on the device.

torch pins memory in powers of two unless PYTORCH_ALLOC_CONF has pinned_max_round_threshold_mb.
"""

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.parallel.blocks import find_blocks, list_tensors
from avatar_v.parallel.streams import Event, Streams

ALIGNMENT = 256
"""Bytes between which a weight begins in its block, as in memory of its own."""


def offload_models(
    models: Sequence[tuple[AvatarDiT, Conditioner]], streams: Streams, *, num_blocks: int = 2
) -> "Residency":
    """All networks of a pipeline take turns, those of its refiner too; where code asks them for
    their device, it is that of ``streams``."""
    modules: dict[str, nn.Module] = {}
    for i, (dit, conditioner) in enumerate(models):
        core, suffix = conditioner.vae.core, f" {i + 1}" if i else ""
        modules |= {
            f"dit{suffix}": dit,
            f"vae encoder{suffix}": core.encoder,
            f"vae decoder{suffix}": core.decoder,
            f"text{suffix}": conditioner.text_encoder,
            f"audio{suffix}": conditioner.audio_encoder,
        }
    residency = Residency(modules, streams, num_blocks=num_blocks)
    for _, conditioner in models:
        residency.settle(conditioner)
    return residency


class Residency:
    """Modules whose blocks share ``num_blocks`` places on a device, in any number of threads.

    Their ``forward`` and that of their blocks is wrapped: it takes a turn, which others wait for,
    and finds its weights on the device. Between calls the blocks' parameters lie in host memory.
    A block may run several times in a row, but no other block inside it. ValueError for fewer than
    two places (one block computes while the next travels), and for weights that FSDP2 has sharded.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], streams: Streams, *, num_blocks: int = 2
    ) -> None:
        if num_blocks < 2:
            raise ValueError(f"offloading needs places for 2 blocks or more, got {num_blocks}")
        for name, module in modules.items():
            if any(isinstance(p, DTensor) for p in module.parameters()):
                raise ValueError(f"offloading needs whole weights, and those of {name} are sharded")
        self._streams = streams
        self._num_blocks = num_blocks
        self._turns = _Turns()
        self._resident: OrderedDict[_OffloadedBlock, None] = (
            OrderedDict()
        )  # fetched ahead, …, last used
        self._last: dict[str, _OffloadedBlock] = {}  # which block of each module was called last
        self._packed: set[int] = set()  # ids of the tensors in blocks
        outside = {
            id(tensor)
            for module in modules.values()
            for tensor in list_tensors(module, besides=find_blocks(module))
        }
        for name, module in modules.items():
            module.requires_grad_(False)  # else autocast may keep its cast of every weight
            self._add(name, module, outside)
        for module in modules.values():
            self.settle(module)

    @contextmanager
    def use(self, name: str) -> Iterator[None]:
        """The turn of module ``name``, for as long as the context lasts; its first block sets off.

        ``forward`` does this itself: use it where several calls belong together. Turns come in the
        order asked for, and a thread may nest them. An error takes every block off the device.
        """
        with self._turn():
            if name in self._last:
                self._fetch(self._last[name].after)
            yield

    def release(self) -> None:
        """Take every block off the device, except one that computes at this moment."""
        with self._turns.taken():
            for block in [block for block in self._resident if not block.computes]:
                self._drop(block)

    def settle(self, module: nn.Module) -> None:
        """Move what ``module`` has besides blocks to the device, where it stays."""
        for tensor in list_tensors(module):
            if id(tensor) not in self._packed:
                tensor.data = tensor.data.to(self._streams.device)

    def _add(self, name: str, module: nn.Module, outside: set[int]) -> None:
        """Pack the blocks of ``module``. What stays outside one, in any module, goes into none;
        blocks that are the same tensors (tied embeddings) are one."""
        blocks: dict[tuple[int, ...], _OffloadedBlock] = {}
        for part in find_blocks(module):
            tensors = [tensor for tensor in list_tensors(part) if id(tensor) not in outside]
            ids = tuple(map(id, tensors))
            if not tensors:
                continue
            if ids not in blocks:
                blocks[ids] = _OffloadedBlock(name, tensors, self._streams)
            self._packed.update(ids)
            for method in ("forward", "context_keys"):
                if hasattr(part, method):
                    _wrap(part, functools.partial(self._visit, blocks[ids]), method)
        order = list(blocks.values())
        for block, after in zip(order, [*order[1:], *order[:1]], strict=True):
            block.after = after
            self._last[name] = block
        _wrap(module, functools.partial(self.use, name))

    @contextmanager
    def _turn(self) -> Iterator[None]:
        with self._turns.taken():
            try:
                yield
            except BaseException:
                self.release()
                raise

    @contextmanager
    def _visit(self, block: "_OffloadedBlock") -> Iterator[None]:
        """Around one call of ``block``: its weights are there, and those of the next set off."""
        with self._turn():
            self._fetch(block)
            self._resident.move_to_end(block)
            last = self._last[block.module]
            if last is not block:  # a block may run twice before the next one
                last.after = block
            self._last[block.module] = block
            block.arrive()
            try:
                self._fetch(block.after)
                yield
            finally:
                block.leave()

    def _fetch(self, block: "_OffloadedBlock") -> None:
        if block not in self._resident:
            self._make_room()
            block.fetch()
            self._resident[block] = None
            self._resident.move_to_end(block, last=False)

    def _make_room(self) -> None:
        """Drop blocks until a place is free: those fetched in vain, then the longest unused."""
        while len(self._resident) >= self._num_blocks:
            self._drop(next(block for block in self._resident if not block.computes))

    def _drop(self, block: "_OffloadedBlock") -> None:
        del self._resident[block]
        block.drop()


class _OffloadedBlock:
    """The weights of one block, packed in host memory and, for a while, on the device as well."""

    def __init__(self, module: str, tensors: list[Tensor], streams: Streams) -> None:
        self.module = module
        self.after = self  # what is called next; the order is learned
        self.computes = False
        self._streams = streams
        self._tensors = tensors
        self._starts, num_bytes = [], 0
        for tensor in tensors:
            self._starts.append(num_bytes)
            num_bytes += -(-tensor.numel() * tensor.itemsize // ALIGNMENT) * ALIGNMENT
        self._host = streams.pin(num_bytes)
        self._at_home = self._views(self._host)
        for tensor, view in zip(tensors, self._at_home, strict=True):
            view.copy_(tensor)
        self._point_to(self._at_home)
        self._there: Tensor | None = None
        self._away: list[Tensor] = []
        self._copied: Event = None
        self._used: Event | None = None

    def fetch(self) -> None:
        """Set off for the device."""
        with torch.inference_mode(False):  # parameters never become inference tensors
            self._there, self._copied = self._streams.fetch(self._host)
            self._away = self._views(self._there)

    def arrive(self) -> None:
        """Computations that are queued from now on read the device's copy, once it is complete."""
        self._streams.wait(self._copied)
        self._point_to(self._away)
        self.computes = True

    def leave(self) -> None:
        """The last computation is queued: parameters point to the host again."""
        self._point_to(self._at_home)
        self._used = self._streams.mark()
        self.computes = False

    def drop(self) -> None:
        """Give the device's memory back, for copies that begin behind the last computation."""
        assert self._there is not None
        self._streams.drop(self._there, self._used)
        self._there, self._away, self._copied, self._used = None, [], None, None

    def _point_to(self, views: list[Tensor]) -> None:
        for tensor, view in zip(self._tensors, views, strict=True):
            tensor.data = view

    def _views(self, flat: Tensor) -> list[Tensor]:
        """``flat`` as the tensors' shapes, in the layouts that they came in."""
        views = []
        for tensor, start in zip(self._tensors, self._starts, strict=True):
            piece = flat[start : start + tensor.numel() * tensor.itemsize].view(tensor.dtype)
            strides = torch.empty_like(tensor, device="meta").stride()
            views.append(piece.as_strided(tensor.shape, strides))
        return views


class _Turns:
    """A lock that is given in the order asked for, and again to the thread that has it: a plain one
    goes back to whoever has just released it, and a decoder would wait for a whole chunk."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: list[int] = []  # threads, the one whose turn it is in front

    @contextmanager
    def taken(self) -> Iterator[None]:
        me = threading.get_ident()
        with self._changed:
            nested = self._line[:1] == [me]
            if not nested:
                self._line.append(me)
        try:
            with self._changed:
                self._changed.wait_for(lambda: self._line[0] == me)
            yield
        finally:
            if not nested:
                with self._changed:
                    self._line.remove(me)
                    self._changed.notify_all()


def _wrap(
    module: nn.Module,
    context: Callable[[], AbstractContextManager[None]],
    method: str = "forward",
) -> None:
    """``module`` computes inside ``context``."""
    compute = getattr(module, method)

    @functools.wraps(compute)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with context():
            return compute(*args, **kwargs)

    setattr(module, method, inside)
