"""Losses and weights that are not finite end a run on all ranks, before anything is written.

Functions of tensors and of a trainer. callbacks/finite.py calls them while a run trains, and each
place that writes weights calls them again.
"""

from collections.abc import Iterable, Mapping

import lightning as L
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

NUM_NAMED = 8
"""Clips, tensors or terms that one message names."""


class EndedTogether(ValueError):
    """The error that all ranks raise with the same words, so that one of them has to say it."""


def require_finite_weights(
    trainer: L.Trainer, module: nn.Module, place: str, dtype: torch.dtype | None = None
) -> None:
    """EndedTogether unless all floating-point weights and buffers of ``module`` are finite, as
    numbers of ``dtype`` if one is given. All ranks call this function."""
    names = not_finite(module.state_dict(keep_vars=True), dtype)
    fault = f"{place}: weights are not finite: {listed(names)}; nothing is written"
    end_together(trainer, fault if names else None)


def end_together(trainer: L.Trainer, fault: str | None) -> None:
    """EndedTogether on every rank where any rank has a ``fault``, with the words of the first."""
    if trainer.strategy.reduce_boolean_decision(fault is None):
        return
    faults: list[str | None] = [fault]
    if trainer.world_size > 1:
        faults = [None] * trainer.world_size
        torch.distributed.all_gather_object(faults, fault)
    raise EndedTogether(next(words for words in faults if words is not None))


def not_finite(tensors: Mapping[str, object], dtype: torch.dtype | None = None) -> list[str]:
    """Names of the floating-point tensors that hold a NaN or an infinity, of sharded ones in this
    rank's part. The device is asked once for all of them."""
    local = {name: _local(x) for name, x in tensors.items() if isinstance(x, Tensor)}
    local = {name: x for name, x in local.items() if x.is_floating_point() and x.numel()}
    flags = [(x if dtype is None else x.to(dtype)).isfinite().all() for x in local.values()]
    if not flags:
        return []
    device = flags[-1].device
    good = torch.stack([flag.to(device) for flag in flags]).tolist()
    return [name for name, is_good in zip(local, good, strict=True) if not is_good]


def listed(names: Iterable[str]) -> str:
    """``a, b, c and 12 more``."""
    names = list(names)
    more = len(names) - NUM_NAMED
    return ", ".join(names[:NUM_NAMED]) + (f" and {more} more" if more > 0 else "")


def _local(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
