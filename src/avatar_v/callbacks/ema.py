"""Exponential moving average of the trained weights: in a stage, of the roles that ask for it.

The average is kept in fp32 beside each parameter, with its sharding: under FSDP2 every rank
averages its own shards, and a sharded checkpoint holds them beside those of the weights, where
another number of ranks can read them. A checkpoint of one file has it whole, from rank 0.
Validation, samples and the exported weights use the average. (Lightning's own callback copies the
module and breaks under FSDP2.)
"""

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

import lightning as L
import torch
import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.utils.hooks import RemovableHandle

from avatar_v.base import checks
from avatar_v.stages.role_module import RoleModule

SHARDED = "sharded"
"""Key under which a sharded checkpoint lists the names of the averaged weights."""
PLACE = "average."
"""The averages are among the checkpoint's tensors, each under its name behind this prefix."""


class EMA(L.Callback):
    """``average += (1 - d) (weight - average)`` after every step of the optimiser that updates the
    weights (of a stage: of its student), however many of them a batch makes.

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
        self._hooks: list[RemovableHandle] = []

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
        weights = {id(p) for _, p in _averaged(pl_module)}
        for optimizer in trainer.optimizers:
            if any(id(p) in weights for group in optimizer.param_groups for p in group["params"]):
                hook = optimizer.register_step_post_hook(lambda *_: self._update(pl_module))
                self._hooks.append(hook)
        assert self._hooks, "no optimiser updates the weights that are averaged"

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    @torch.no_grad()
    def _update(self, module: nn.Module) -> None:
        decay = min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))
        self.num_updates += 1
        for name, parameter in _averaged(module):
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
        """The averages as they lie on this rank; `on_save_checkpoint` takes shards out of it."""
        source = self._stored if self._stored is not None else self.average
        average = {name: _own(tensor) for name, tensor in source.items()}
        return {"num_updates": self.num_updates, "average": average}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.num_updates = state_dict["num_updates"]
        if SHARDED not in state_dict:
            self._stored = state_dict["average"]

    def on_save_checkpoint(self, trainer, pl_module, checkpoint: dict[str, Any]) -> None:
        """A sharded checkpoint keeps what is beside tensors of the weights in one file of rank 0:
        move the averages to the tensors. Without shards they stay."""
        state = checkpoint["callbacks"][self.state_key]
        if not any(isinstance(tensor, DTensor) for tensor in state["average"].values()):
            return
        assert isinstance(trainer.strategy, ModelParallelStrategy)
        if not trainer.strategy._save_distributed_checkpoint:  # one file, of rank 0
            state["average"] = {name: _whole(x) for name, x in state["average"].items()}
            return
        average, state["average"] = state["average"], {}
        state[SHARDED] = sorted(average)
        checkpoint["state_dict"].update({PLACE + name: x for name, x in average.items()})

    def on_load_checkpoint(self, trainer, pl_module, checkpoint: dict[str, Any]) -> None:
        """Read the shards of this rank. ValueError for averages of other weights."""
        names = checkpoint["callbacks"].get(self.state_key, {}).get(SHARDED)
        if names is None:
            return
        trainable = dict(_averaged(pl_module))
        _check_names(trainable.keys(), names)
        self.average = {
            name: torch.zeros_like(p, dtype=torch.float32, requires_grad=False)
            for name, p in trainable.items()
        }
        wanted = {"state_dict": {PLACE + name: x for name, x in self.average.items()}}
        load(wanted, checkpoint_id=trainer.strategy.broadcast(trainer.ckpt_path))

    def _ready(self, module: nn.Module) -> bool:
        """Whether there is an average; one from a checkpoint is first placed like the weights."""
        if self._stored is not None:
            trainable = dict(_averaged(module))
            _check_names(trainable.keys(), self._stored)
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


def _check_names(trainable: Collection[str], stored: Collection[str]) -> None:
    odd = sorted(set(trainable) ^ set(stored))
    if odd:
        raise ValueError(f"the checkpoint's EMA does not fit the model: {odd[:5]}")


def _whole(tensor: Tensor) -> Tensor:
    """On rank 0, which writes it; nothing elsewhere. All ranks take part."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.cpu() if dist.get_rank() == 0 else whole.new_empty(0, device="cpu")


def _own(tensor: Tensor) -> Tensor:
    """The shard of this rank, or the whole on the CPU."""
    return tensor.detach() if isinstance(tensor, DTensor) else tensor.detach().cpu()


def _like(whole: Tensor, parameter: nn.Parameter) -> Tensor:
    if isinstance(parameter, DTensor):
        whole = whole.to(parameter.device, torch.float32)
        return distribute_tensor(whole, parameter.device_mesh, parameter.placements)
    return whole.to(parameter.device, torch.float32).clone()
