"""The norm of Wan's VAE over channels and the SiLU behind it: in torch, by diffusers' formula,
and as a Triton kernel.

The VAE's pictures lie with their channels last, so a program holds some places with all channels,
reads them once and writes them once. Sums are fp32. First order only.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.kernels.switch import block_of, constexpr, jit, load, takes, tl

# pyright: reportIncompatibleMethodOverride=false

TILE = 2048
"""Numbers that a program holds at once."""
TURNS = 8
"""Tiles that a program of the backward pass goes through before it writes its sums."""
LEAST = 1e-12


def channel_norm(
    x: Float[Tensor, "b c *places"], gain: Float[Tensor, "c *ones"], *, activates: bool
) -> Float[Tensor, "b c *places"]:
    """x / |x|₂ · gain over the channels, and of that the SiLU."""
    if takes(x):
        return _fused(x, gain.flatten(), activates)
    y = _Normalise.apply(x, gain)
    return F.silu(y) if activates else y


class _Normalise(torch.autograd.Function):
    """y = u · g with u = x / |x|; dx = (dy g - u <dy g, u>) / |x|. Sums over
    positions and the norm are taken in fp32. Autograd through `F.normalize` costs as much as the
    convolutions do on a CPU; this costs a fifth of it."""

    @staticmethod
    def forward(ctx, x: Tensor, gain: Tensor) -> Tensor:
        at_least_fp32 = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=at_least_fp32)
        inverse = norm.clamp_min(LEAST).reciprocal().to(x.dtype)
        unit = x * inverse
        ctx.save_for_backward(unit, inverse, gain)
        return unit * gain

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor]:
        unit, inverse, gain = ctx.saved_tensors
        product = dy * unit
        not_channels = [axis for axis in range(dy.ndim) if axis != 1]
        dgain = product.sum(
            not_channels, dtype=torch.promote_types(dy.dtype, torch.float32)
        ).reshape(gain.shape)
        along = (product * gain).sum(1, keepdim=True)
        dx = torch.addcmul(dy * gain, unit, along, value=-1).mul_(inverse)
        return dx, dgain.to(gain.dtype)


@jit
def _forward(x, gain, y, num, dim, SILU: constexpr, ROWS: constexpr, BLOCK: constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    at = tl.arange(0, BLOCK)
    inside = (row < num)[:, None] & (at < dim)[None, :]
    v = load(x + row[:, None] * dim + at[None, :], inside)
    g = load(gain + at, at < dim)
    v = v * (1 / tl.maximum(tl.sqrt(tl.sum(v * v, 1)), 1e-12))[:, None] * g[None, :]
    if SILU:
        v = v * tl.sigmoid(v)
    tl.store(y + row[:, None] * dim + at[None, :], v.to(y.dtype.element_ty), inside)


@jit
def _backward(
    dy, x, gain, dx, dgain, num, dim,
    SILU: constexpr, TURNS: constexpr, ROWS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    at = tl.arange(0, BLOCK)
    g = load(gain + at, at < dim)[None, :]
    sums = tl.zeros([BLOCK], tl.float32)
    for i in range(TURNS):
        row = (tl.program_id(0).to(tl.int64) * TURNS + i) * ROWS + tl.arange(0, ROWS)
        inside = (row < num)[:, None] & (at < dim)[None, :]
        here = row[:, None] * dim + at[None, :]
        v = load(x + here, inside)
        d = load(dy + here, inside)
        inverse = (1 / tl.maximum(tl.sqrt(tl.sum(v * v, 1)), 1e-12))[:, None]
        v = v * inverse
        if SILU:
            z = v * g
            s = tl.sigmoid(z)
            d = d * s * (1 + z * (1 - s))
        sums += tl.sum(d * v, 0)
        d = d * g
        d = (d - v * tl.sum(d * v, 1)[:, None]) * inverse
        tl.store(dx + here, d.to(dx.dtype.element_ty), inside)
    tl.store(dgain + tl.program_id(0).to(tl.int64) * dim + at, sums, at < dim)


@torch.library.custom_op("avatar_v::channel_norm", mutates_args=())
def _fused(x: Tensor, gain: Tensor, activates: bool) -> Tensor:
    x = x.contiguous(memory_format=_layout(x))
    y, dim, (rows, block) = torch.empty_like(x), x.shape[1], _tile(x)
    num = x.numel() // dim
    with torch.cuda.device_of(x):
        _forward[(-(-num // rows),)](x, gain, y, num, dim, activates, rows, block)
    return y


@_fused.register_fake
def _fused_fake(x, gain, activates):
    return torch.empty_like(x, memory_format=_layout(x))


@torch.library.custom_op("avatar_v::channel_norm_backward", mutates_args=())
def _gradients(dy: Tensor, x: Tensor, gain: Tensor, activates: bool) -> tuple[Tensor, Tensor]:
    x, dy = (each.contiguous(memory_format=_layout(x)) for each in (x, dy))
    dx, dim, (rows, block) = torch.empty_like(x), x.shape[1], _tile(x)
    num = x.numel() // dim
    parts = -(-num // (rows * TURNS))
    sums = gain.new_empty(parts, dim, dtype=torch.float)
    with torch.cuda.device_of(x):
        _backward[(parts,)](dy, x, gain, dx, sums, num, dim, activates, TURNS, rows, block)
    return dx, sums.sum(0).to(gain.dtype)


@_gradients.register_fake
def _gradients_fake(dy, x, gain, activates):
    return torch.empty_like(x, memory_format=_layout(x)), torch.empty_like(gain)


def _keep(ctx, inputs, output) -> None:
    x, gain, ctx.activates = inputs
    ctx.save_for_backward(x, gain)


def _differentiate(ctx, dy):
    return *_gradients(dy, *ctx.saved_tensors, ctx.activates), None


_fused.register_autograd(_differentiate, setup_context=_keep)


def _layout(x: Tensor) -> torch.memory_format:
    """Channels last."""
    return torch.channels_last_3d if x.dim() == 5 else torch.channels_last


def _tile(x: Tensor) -> tuple[int, int]:
    """Places and channels of a program."""
    block = block_of(x.shape[1])
    return max(TILE // block, 1), block
