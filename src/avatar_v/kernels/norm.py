"""RMS norm and rotation of q and k: the specification, passes written by hand, and a Triton kernel.

All compute in fp32 and give back the dtype they were given. Autograd through the formulas
(`rms_norm_plain`, `rotate_plain`: the specification) keeps many fp32 intermediates and costs three
to four times as much on a CPU, so they have backward passes of their own. The Triton kernel
(kernels/switch.py) normalises a token over all heads and rotates it in one pass over memory; it
also turns the keys that a cache keeps unrotated. Gradients are first order only.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.kernels.switch import block_of, constexpr, jit, load, num_warps, takes, tl

# pyright: reportIncompatibleMethodOverride=false

Heads = Float[Tensor, "b s heads width"]
Table = Float[Tensor, "*positions 1 half 2"]

ROWS, ROWS_BACKWARD = 4, 16
"""Tokens that one program goes through: it reads the gain once."""


def rms_norm(
    x: Float[Tensor, "*any d"], weight: Float[Tensor, " d"], eps: float
) -> Float[Tensor, "*any d"]:
    """x / √(mean x² + eps) · weight over the last axis."""
    if takes(x):
        return _fused(x.flatten(0, -2)[None], weight, None, eps, True)[0].view(x.shape)
    if torch.compiler.is_compiling():  # which fuses the formula and its gradient itself
        return rms_norm_plain(x, weight, eps)
    return _RMSNorm.apply(x, weight, eps)


def rotate(x: Heads, table: Table) -> Heads:
    """Turn consecutive channel pairs of ``x`` by angles given as (cos, sin) (RoFormer)."""
    if takes(x):
        return _fused(x.flatten(2), None, table, 0.0, False)[1].view(x.shape)
    if torch.compiler.is_compiling():
        return rotate_plain(x, table)
    return _Rotate.apply(x, table)


def norm_rotate(
    x: Float[Tensor, "b s d"], weight: Float[Tensor, " d"], table: Table, eps: float, *, keep: bool
) -> tuple[Heads, Heads | None]:
    """`rotate` of the heads of `rms_norm`, and with ``keep`` what was normalised, not rotated."""
    width = 2 * table.shape[-2]
    if takes(x):
        normed, rotated = _fused(x, weight, table, eps, keep)
        kept = normed.unflatten(-1, (-1, width)) if keep else None
        return rotated.unflatten(-1, (-1, width)), kept
    normed = rms_norm(x, weight, eps).unflatten(-1, (-1, width))
    return rotate(normed, table), normed if keep else None


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


@jit
def _forward(
    x, weight, table, normed, rotated, tokens, dim, width, x_b, x_s, table_b, eps,
    NORMS: constexpr, KEEPS: constexpr, TURNS: constexpr, ROWS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    b = tl.program_id(1).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < dim
    if NORMS:
        w = load(weight + at, inside)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for token in range(first, tl.minimum(first + ROWS, tokens)):
        row = (b * tokens + token) * dim + at
        v = load(x + b * x_b + token * x_s + at, inside)
        if NORMS:
            v = (v * tl.rsqrt(tl.sum(v * v) / dim + eps) * w).to(x.dtype.element_ty)
            if KEEPS:
                tl.store(normed + row, v, inside)
            v = v.to(tl.float32)
        if TURNS:
            angle = load(table + b * table_b + token * width + at % width, inside)
            cos, sin = tl.split(tl.reshape(angle, [BLOCK // 2, 2]))
            even, odd = tl.split(tl.reshape(v, [BLOCK // 2, 2]))
            v = tl.join(even * cos - odd * sin, even * sin + odd * cos)
            tl.store(rotated + row, tl.reshape(v, [BLOCK]).to(rotated.dtype.element_ty), inside)


@jit
def _backward(
    dnormed, drotated, x, weight, table, dx, dweight, tokens, dim, width, x_b, x_s, table_b, eps,
    NORMS: constexpr, KEEPS: constexpr, TURNS: constexpr, ROWS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    part = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < dim
    if NORMS:
        w = load(weight + at, inside)
        sums = tl.zeros([BLOCK], tl.float32)
    for token in range(part * ROWS, tl.minimum(part * ROWS + ROWS, tokens)):
        row = (b * tokens + token) * dim + at
        d = tl.zeros([BLOCK], tl.float32)
        if TURNS:
            angle = load(table + b * table_b + token * width + at % width, inside)
            cos, sin = tl.split(tl.reshape(angle, [BLOCK // 2, 2]))
            d = load(drotated + row, inside)
            even, odd = tl.split(tl.reshape(d, [BLOCK // 2, 2]))
            d = tl.reshape(tl.join(even * cos + odd * sin, odd * cos - even * sin), [BLOCK])
        if KEEPS:
            d += load(dnormed + row, inside)
        if NORMS:
            v = load(x + b * x_b + token * x_s + at, inside)
            inverse = tl.rsqrt(tl.sum(v * v) / dim + eps)
            v = v * inverse
            sums += d * v
            d = d * w
            d = (d - v * (tl.sum(d * v) / dim)) * inverse
        tl.store(dx + row, d.to(dx.dtype.element_ty), inside)
    if NORMS:
        tl.store(dweight + (b * tl.num_programs(0) + part) * dim + at, sums, inside)


@torch.library.custom_op(
    "avatar_v::norm_rotate",
    mutates_args=(),
    schema="(Tensor x, Tensor? weight, Tensor? table, float eps, bool keeps) -> (Tensor, Tensor)",
)
def _fused(x, weight, table, eps, keeps):
    """Of tokens "b s d": normalised and rotated; what is not asked for comes empty."""
    out, (num_samples, num_tokens, dim) = _fused_fake(x, weight, table, eps, keeps), x.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    table, width, table_b = _laid(table)
    block = block_of(dim)
    with torch.cuda.device_of(x):
        _forward[-(-num_tokens // ROWS), num_samples](
            x, weight, table, *out, num_tokens, dim, width, x.stride(0), x.stride(1), table_b, eps,
            weight is not None, keeps, table is not None, ROWS, block, num_warps=num_warps(block),
        )  # fmt: skip
    return out


@_fused.register_fake
def _fused_fake(x, weight, table, eps, keeps):
    shapes = (x.shape if keeps else (0,)), (0,) if table is None else x.shape
    return x.new_empty(shapes[0]), x.new_empty(shapes[1])


@torch.library.custom_op(
    "avatar_v::norm_rotate_backward",
    mutates_args=(),
    schema="(Tensor? dnormed, Tensor? drotated, Tensor x, Tensor? weight, Tensor? table, "
    "float eps) -> (Tensor, Tensor)",
)
def _gradients(dnormed, drotated, x, weight, table, eps):
    num_samples, num_tokens, dim = x.shape
    parts = -(-num_tokens // ROWS_BACKWARD)
    dx = x.new_empty(x.shape)
    sums = x.new_empty(num_samples * parts if weight is not None else 0, dim, dtype=torch.float)
    x = x if x.stride(-1) == 1 else x.contiguous()
    dnormed, drotated = (d if d is None else d.contiguous() for d in (dnormed, drotated))
    table, width, table_b = _laid(table)
    block = block_of(dim)
    with torch.cuda.device_of(x):
        _backward[parts, num_samples](
            dnormed, drotated, x, weight, table, dx, sums, num_tokens, dim, width,
            x.stride(0), x.stride(1), table_b, eps,
            weight is not None, dnormed is not None, drotated is not None, ROWS_BACKWARD, block,
            num_warps=num_warps(block),
        )  # fmt: skip
    return dx, sums.sum(0)


@_gradients.register_fake
def _gradients_fake(dnormed, drotated, x, weight, table, eps):
    return x.new_empty(x.shape), x.new_empty(x.shape[-1], dtype=torch.float)


def _keep(ctx, inputs, output) -> None:
    x, weight, table, ctx.eps, ctx.keeps = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(None if weight is None else x, weight, table)


def _differentiate(ctx, dnormed, drotated):
    x, weight, table = ctx.saved_tensors
    dnormed = dnormed if ctx.keeps else None
    drotated = drotated if table is not None else None
    if dnormed is None and drotated is None:
        return (None,) * 5
    x = drotated if x is None else x  # a rotation's gradient does not depend on x
    dx, dweight = _gradients(dnormed, drotated, x, weight, table, ctx.eps)
    return dx, None if weight is None else dweight.to(weight.dtype), None, None, None


_fused.register_autograd(_differentiate, setup_context=_keep)


def _laid(table: Tensor | None) -> tuple[Tensor | None, int, int]:
    """A table in one piece, the channels of a head, and its stride over samples."""
    if table is None:
        return None, 1, 0
    table = table.contiguous()
    is_shared = table.dim() == 4 or table.shape[0] == 1
    return table, 2 * table.shape[-2], 0 if is_shared else table.stride(0)
