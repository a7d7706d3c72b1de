"""A device that refuses what a GPU would refuse or wait for, on a machine without one.

Tensors that are moved `there` claim another device and keep their numbers on the CPU. An operation
on such a tensor and a CPU tensor is an error, as it would be on a GPU; so is whatever makes the
host wait for the device: reading a number, a copy to the CPU, an index by booleans, nonzero.
Indices on the CPU and scalars are fine, as they are on a GPU.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

DEVICE = torch.device("meta")  # the one device besides the CPU that every build of torch knows
WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique_dim"}
MIXES = {"copy_", "_to_copy"}
INDEXES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_Module = TypeVar("_Module", bound=nn.Module)


class There(Tensor):
    """A tensor that claims `DEVICE`."""

    local: Tensor

    @staticmethod
    def __new__(cls, local: Tensor) -> "There":
        made = Tensor._make_wrapper_subclass(
            cls, local.shape, strides=local.stride(), storage_offset=local.storage_offset(),
            dtype=local.dtype, device=DEVICE, requires_grad=local.requires_grad,
        )  # fmt: skip
        made.local = local.detach()
        return made

    def __repr__(self) -> str:
        return f"There({tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None) -> Any:
        return _run(func, args, kwargs or {})


@contextlib.contextmanager
def elsewhere(*, waits: bool = False) -> Iterator[None]:
    """Within the block `DEVICE` exists: tensors are made there and moved there. It has no
    autocast. With ``waits`` the host may wait for it; mixtures stay errors."""
    autocast, enabled = torch.autocast, torch.is_autocast_enabled

    def cast(device_type: str, *args: Any, **kwargs: Any) -> Any:
        if device_type == DEVICE.type:
            return contextlib.nullcontext()
        return autocast(device_type, *args, **kwargs)

    def is_enabled(*device_type: str) -> bool:
        return device_type != (DEVICE.type,) and enabled(*device_type)

    with (
        mock.patch.object(torch, "autocast", cast),
        mock.patch.object(torch, "is_autocast_enabled", is_enabled),
        mock.patch.object(_Rules, "waits", waits),
        _Elsewhere(),
        _Numbers(),
    ):
        yield


class _Rules:
    waits = False


class _Elsewhere(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = kwargs or {}
        found = [x for x in _pytree.tree_leaves((args, kwargs)) if isinstance(x, There)]
        if found or kwargs.get("device") == DEVICE:
            return _run(func, args, kwargs)
        return func(*args, **kwargs)


class _Numbers(TorchFunctionMode):
    """Python numbers become tensors below the dispatcher: without their values on that device."""

    def __torch_function__(self, func, types, args=(), kwargs=None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.tensor and kwargs.get("device") is not None:
            where = torch.device(kwargs.pop("device"))
            return func(*args, **kwargs).to(where)
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            where = args[1] if isinstance(args[1], tuple) else (args[1],)
            where = tuple(torch.tensor(i) if isinstance(i, list) else i for i in where)
            args = (args[0], where, *args[2:])
        return func(*args, **kwargs)


def there(x: Tensor) -> Tensor:
    return There(x.contiguous())


def module_there(module: _Module) -> _Module:
    """``module`` with its weights and buffers on the device."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                moved = nn.Parameter(there(parameter.detach()), parameter.requires_grad)
                part._parameters[name] = moved
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = there(buffer)
    return module


def _run(func: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    name = func._schema.name.removeprefix("aten::")
    leaves = _pytree.tree_leaves((args, kwargs))
    remote = [x for x in leaves if isinstance(x, There)]
    local = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, There) and x.dim()]
    if any(x.device == DEVICE for x in local):
        raise RuntimeError(f"{name}: a tensor without numbers, which this device did not make")
    if name in INDEXES:
        local = local if not isinstance(args[0], There) else []
        if not _Rules.waits and any(
            x.dtype == torch.bool for x in _pytree.tree_leaves(args[1]) if isinstance(x, There)
        ):
            raise RuntimeError(f"{name} by booleans waits for the device")
    leaves_device = name == "_to_copy" and (kwargs.get("device") or DEVICE) != DEVICE
    if remote and not _Rules.waits and (name in WAITS or leaves_device):
        what = "a copy to the CPU" if leaves_device else name
        raise RuntimeError(f"{what} waits for the device")
    if remote and local and name not in MIXES:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device")
    kept = {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") == DEVICE else kwargs
    own = _pytree.tree_map_only(There, lambda x: x.local, (args, kept))
    out = func(*own[0], **own[1])
    if leaves_device:
        return out
    wrapped = _pytree.tree_map_only(Tensor, There, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)
