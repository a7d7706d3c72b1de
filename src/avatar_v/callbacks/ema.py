"""Exponential moving average of the trained weights: in a stage, of the roles that ask for it.

The average is kept in fp32 beside each parameter, with its sharding: under FSDP2 every rank
averages its own shards. Checkpoints hold it whole, on rank 0, so that a run saved on 2 ranks
continues on 1. Validation, samples and the exported weights use the average. (Lightning's own
callback copies the module and breaks under FSDP2.)
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from avatar_v import checks
from avatar_v.stages.role_module import RoleModule, step_of


class EMA(L.Callback):
    """``average += (1 - d) (weight - average)`` after every step (of a stage: of its student).

    ``d = min(decay, (1 + n) / (10 + n))`` at update n, so that the start is forgotten quickly.
    """

    def __init__(self, decay: float = 0.9999) -> None:
        """ValueError unless 0 <= decay < 1."""
        checks.decay("decay", decay)
        self.decay = decay
        self.num_updates = 0
        self.average: dict[str, Tensor] = {}
        self._stored: dict[str, Tensor] | None = None  # from a checkpoint, not yet on the device
        self._swapped: dict[str, Tensor] | None = None

    @contextlib.contextmanager
    def applied(self, module: nn.Module) -> Iterator[None]:
        """Within the block ``module`` has the averaged weights. Nested use is one use."""
        if self._swapped is not None or not self._ready(module):
            yield
            return
        self._swap_in(module)
        try:
            yield
        finally:
            self._swap_out(module)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not self._ready(pl_module):
            self.average = {n: p.detach().float().clone() for n, p in _averaged(pl_module)}
        self._last_step = step_of(trainer, pl_module)

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
        step = step_of(trainer, pl_module)
        if step == self._last_step:  # gradients are still accumulating
            return
        self._last_step = step
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        self.num_updates += 1
        with torch.no_grad():
            for name, parameter in _averaged(pl_module):
                self.average[name].lerp_(parameter.detach().float(), 1 - decay)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._ready(pl_module):
            self._swap_in(pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._swapped is not None:
            self._swap_out(pl_module)

    def on_exception(self, trainer, pl_module, exception) -> None:
        """A checkpoint saved on the way out must hold the trained weights, not their average."""
        if self._swapped is not None:
            self._swap_out(pl_module)

    def state_dict(self) -> dict[str, Any]:
        """Called on all ranks; the tensors are whole, and empty away from rank 0."""
        source = self._stored if self._stored is not None else self.average
        return {
            "num_updates": self.num_updates,
            "average": {name: _whole(tensor) for name, tensor in source.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_updates = state_dict["num_updates"]
        self._stored = state_dict["average"]

    def _ready(self, module: nn.Module) -> bool:
        """Whether there is an average; one from a checkpoint is first placed like the weights."""
        if self._stored is not None:
            trainable = dict(_averaged(module))
            if trainable.keys() != self._stored.keys():
                odd = sorted(trainable.keys() ^ self._stored.keys())
                raise ValueError(f"the checkpoint's EMA does not fit the model: {odd[:5]}")
            self.average = {n: _like(self._stored[n], p) for n, p in trainable.items()}
            self._stored = None
        return bool(self.average)

    @torch.no_grad()
    def _swap_in(self, module: nn.Module) -> None:
        _reshard(module)
        self._swapped = {name: p.detach().clone() for name, p in _averaged(module)}
        for name, parameter in _averaged(module):
            parameter.copy_(self.average[name])

    @torch.no_grad()
    def _swap_out(self, module: nn.Module) -> None:
        assert self._swapped is not None, "no weights are put aside"
        _reshard(module)
        for name, parameter in _averaged(module):
            parameter.copy_(self._swapped[name])
        self._swapped = None


def averaged(trainer: L.Trainer, module: nn.Module) -> contextlib.AbstractContextManager[None]:
    """The trainer's EMA applied to ``module``, or nothing where the recipe has no EMA."""
    for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
        if isinstance(callback, EMA):
            return callback.applied(module)
    return contextlib.nullcontext()


def _reshard(module: nn.Module) -> None:
    """A forward pass without backward leaves some of FSDP2's weights gathered; put them back, so
    that a change of the shards is seen by the next pass."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.reshard()


def _averaged(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The weights of a stage's averaged roles; of any other module all that are trained."""
    if isinstance(module, RoleModule):
        return ((name, module.get_parameter(name)) for name in module.averaged_names())
    return ((name, p) for name, p in module.named_parameters() if p.requires_grad)


def _whole(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, DTensor):
        return tensor.detach().cpu()
    full = tensor.full_tensor()
    return full.cpu() if torch.distributed.get_rank() == 0 else full.new_empty(0, device="cpu")


def _like(whole: Tensor, parameter: nn.Parameter) -> Tensor:
    if isinstance(parameter, DTensor):
        whole = whole.to(parameter.device, torch.float32)
        return distribute_tensor(whole, parameter.device_mesh, parameter.placements)
    return whole.to(parameter.device, torch.float32).clone()
