"""RMS norm and rotation of q and k, with hand-written backward passes.

Both compute in fp32 and give back the dtype they were given. Autograd through the same formulas
(`rms_norm_plain`, `rotate_plain`: the specification) keeps many fp32 intermediates and costs three
to four times as much on a CPU. Gradients are first order only.
"""

import torch
from jaxtyping import Float
from torch import Tensor

# pyright: reportIncompatibleMethodOverride=false


def rms_norm(
    x: Float[Tensor, "*any d"], weight: Float[Tensor, " d"], eps: float
) -> Float[Tensor, "*any d"]:
    """x / √(mean x² + eps) · weight over the last axis."""
    if torch.compiler.is_compiling():  # which fuses the formula and its gradient itself
        return rms_norm_plain(x, weight, eps)
    return _RMSNorm.apply(x, weight, eps)


def rotate(
    x: Float[Tensor, "b s heads width"], table: Float[Tensor, "*positions 1 half 2"]
) -> Float[Tensor, "b s heads width"]:
    """Turn consecutive channel pairs of ``x`` by angles given as (cos, sin) (RoFormer)."""
    if torch.compiler.is_compiling():
        return rotate_plain(x, table)
    return _Rotate.apply(x, table)


def rms_norm_plain(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The specification of `rms_norm`."""
    y = x.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def rotate_plain(x: Tensor, table: Tensor) -> Tensor:
    """The specification of `rotate`."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = table.unbind(-1)
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x)


class _RMSNorm(torch.autograd.Function):
    """u = x r with r = 1/rms; dx = r (dy w - u mean(dy w u))."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y = x.float()
        inverse = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        inverse = inverse.square_().div_(y.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, inverse, weight)
        return (y * inverse).mul_(weight.float()).to(x.dtype)

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        x, inverse, weight = ctx.saved_tensors
        unit = x.float() * inverse
        dy = dy.float()
        dweight = (dy * unit).flatten(0, -2).sum(0)
        dy = dy * weight.float()
        along = (dy * unit).mean(-1, keepdim=True)
        dx = torch.addcmul(dy, unit, along, value=-1).mul_(inverse)
        return dx.to(x.dtype), dweight.to(weight.dtype), None


class _Rotate(torch.autograd.Function):
    """A rotation is orthogonal: its backward turns by the opposite angles."""

    @staticmethod
    def forward(ctx, x: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(table)
        return _turn(x, torch.view_as_complex(table))

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, None]:
        (table,) = ctx.saved_tensors
        return _turn(dy, torch.view_as_complex(table).conj()), None


def _turn(x: Tensor, factor: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.float().contiguous().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * factor).flatten(-2).to(x.dtype)
