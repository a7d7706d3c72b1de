"""Muon whose Newton-Schulz products are batched over all matrices of one shape, on a CPU.

``torch.optim.Muon`` orthogonalises one matrix at a time, which suits GPUs; on a CPU one product
over a stack costs less than many small ones. The products are in bf16 as torch's, or in fp32 on a
processor that emulates bf16. State and hyper-parameters are torch's, and so is the whole step of
any group with a matrix that is not a plain CPU tensor (a GPU's, or FSDP2's DTensor).
"""

from collections import defaultdict

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor

from avatar_v.device import emulates_bf16


class BatchedMuon(torch.optim.Muon):
    """``torch.optim.Muon`` with ``adjust_lr_fn="match_rms_adamw"`` and Nesterov momentum."""

    @torch.no_grad()
    def step(self, closure=None):
        """One step. Parameters without a gradient stay as they are."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self.param_groups
        plain = [all(_is_plain(p) for p in group["params"]) for group in groups]
        for group in (g for g, is_plain in zip(groups, plain, strict=True) if is_plain):
            self._step_batched(group)
        self.param_groups = [g for g, is_plain in zip(groups, plain, strict=True) if not is_plain]
        super().step()
        self.param_groups = groups
        return loss

    def _step_batched(self, group: dict) -> None:
        by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                by_shape[parameter.shape].append(parameter)
        for shape, parameters in by_shape.items():
            update = orthogonalise(
                torch.stack([self._direction(p, group["momentum"]) for p in parameters]),
                coefficients=group["ns_coefficients"],
                num_steps=group["ns_steps"],
                eps=group["eps"],
            )
            size = 0.2 * max(shape) ** 0.5  # of an AdamW update (Moonlight, arXiv 2502.16982)
            for parameter, change in zip(parameters, update, strict=True):
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(change, alpha=-group["lr"] * size)

    def _direction(self, parameter: Tensor, momentum: float) -> Tensor:
        """Nesterov momentum of the gradient; the buffer keeps torch's name."""
        state, grad = self.state[parameter], parameter.grad
        assert grad is not None
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(parameter)
        buffer = state["momentum_buffer"].lerp_(grad, 1 - momentum)
        return grad.lerp(buffer, momentum)


def orthogonalise(
    matrices: Float[Tensor, "n rows columns"],
    *,
    coefficients: tuple[float, float, float],
    num_steps: int,
    eps: float,
) -> Float[Tensor, "n rows columns"]:
    """Each matrix with its singular values brought near 1, by the quintic Newton-Schulz iteration
    ``X ← a X + (b X Xᵀ + c (X Xᵀ)²) X`` in bf16, or fp32 where bf16 is
    emulated; the iteration corrects its own rounding."""
    a, b, c = coefficients
    tall = matrices.shape[1] > matrices.shape[2]
    dtype = torch.float32 if emulates_bf16(matrices.device) else torch.bfloat16
    x = (matrices.mT if tall else matrices).to(dtype)
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(num_steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


def _is_plain(parameter: Tensor) -> bool:
    return parameter.device.type == "cpu" and not isinstance(parameter, DTensor)
