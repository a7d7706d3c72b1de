"""Operations of what runs, by torch's own formulas: matrix products, convolutions and attention,
forward and backward."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count


class FlopCount(TorchDispatchMode):
    """Counts those of what runs inside. (torch's own counter also follows modules, and refuses
    losses that take gradients of a part.)"""

    num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = FORMULAS.get(func._overloadpacket)
        if formula is not None:
            self.num += int(formula(*args, **(kwargs or {}), out_val=out))
        return out


def _attention(query, key, value, *args: Any, out_val: Any = None, **named: Any) -> int:
    return sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(
    grad, query, key, value, *args: Any, out_val: Any = None, **named: Any
) -> int:
    return sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape)


FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_registry,
    # torch knows the kernels of GPUs; that of a CPU keeps and computes the same
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}
"""Of an operator, given what it is called with and what it returns."""
