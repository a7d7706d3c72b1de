"""What stands between the products of a block: the residual stream, its gates, norms and casts.

One Triton kernel adds a gated update to the residual stream, normalises the sum, modulates it and
casts it to the dtype of the next product; each part can be left out. A second one is its gradient.
Statistics and sums are fp32. Tokens are "b l n d", and what modulates them is given by latent
frame. The specification beside it is what runs elsewhere (kernels/switch.py). First order only.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.kernels.switch import block_of, constexpr, jit, load, num_warps, takes, tl

Tokens = Float[Tensor, "b l n d"]
PerFrame = Float[Tensor, "#b #l 1 #d"]

ROWS, ROWS_BACKWARD = 4, 16
"""Tokens of a frame that one program goes through: it reads their modulation once."""


def modulated_norm(
    x: Tokens,
    shift: Float[Tensor, "#b #l 1 d"],
    scale: Float[Tensor, "#b #l 1 d"],
    eps: float,
    dtype: torch.dtype = torch.float32,
) -> Tokens:
    """LayerNorm without gain, then ``(1 + scale) · + shift``, in fp32, given as ``dtype``."""
    if takes(x):
        return _fused(x, None, None, shift, scale, eps, True, dtype)[1]
    return (F.layer_norm(x.float(), x.shape[-1:], eps=eps) * (1 + scale) + shift).to(dtype)


def gated_add(x: Tokens, update: Tokens, gate: PerFrame | None) -> Tokens:
    """x + gate · update in fp32, in the dtype of the residual stream. No gate: 1."""
    if takes(x):
        return _fused(x, update, gate, None, None, 0.0, True, x.dtype)[0]
    if gate is None:
        return (x + update).to(x.dtype)
    return (x.float() + update * gate).to(x.dtype)


def gated_add_norm(
    x: Tokens,
    update: Tokens,
    gate: PerFrame | None,
    shift: Float[Tensor, "*frames d"],
    scale: Float[Tensor, "*frames d"],
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tokens, Tokens]:
    """`gated_add`, and of the sum the `modulated_norm`, or where ``shift`` and ``scale`` are not by
    frame the LayerNorm with them as bias and gain."""
    is_modulated = scale.dim() == 4
    if takes(x):
        return _fused(x, update, gate, shift, scale, eps, is_modulated, dtype)
    x = gated_add(x, update, gate)
    if is_modulated:
        return x, modulated_norm(x, shift, scale, eps, dtype)
    return x, layer_norm(x, scale, shift, eps).to(dtype)


def layer_norm(
    x: Float[Tensor, "*any d"], weight: Float[Tensor, " d"], bias: Float[Tensor, " d"], eps: float
) -> Float[Tensor, "*any d"]:
    """With gain and bias, fp32 inside and out."""
    return F.layer_norm(x.float(), x.shape[-1:], weight.float(), bias.float(), eps)


@jit
def _forward(
    x, update, gate, shift, scale, out, y, tokens, dim, num_frames,
    gate_b, gate_l, gate_d, shift_b, shift_l, scale_b, scale_l, eps,
    ONE: constexpr, ADDS: constexpr, GATES: constexpr, NORMS: constexpr,
    ROWS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    frame = tl.program_id(0)
    sample = frame // num_frames
    latent = frame % num_frames
    at = tl.arange(0, BLOCK)
    inside = at < dim
    if GATES:
        g = load(gate + sample * gate_b + latent * gate_l + at * gate_d, inside)
    if NORMS:
        s = load(scale + sample * scale_b + latent * scale_l + at, inside) + ONE
        plus = load(shift + sample * shift_b + latent * shift_l + at, inside)
    first = tl.program_id(1) * ROWS
    for token in range(first, tl.minimum(first + ROWS, tokens)):
        row = (frame.to(tl.int64) * tokens + token) * dim + at
        v = load(x + row, inside)
        if ADDS:
            u = load(update + row, inside)
            v = (v + u * g if GATES else v + u).to(out.dtype.element_ty)
            tl.store(out + row, v, inside)
            v = v.to(tl.float32)
        if NORMS:
            v = tl.where(inside, v - tl.sum(v) / dim, 0)
            v = v * tl.rsqrt(tl.sum(v * v) / dim + eps)
            tl.store(y + row, (v * s + plus).to(y.dtype.element_ty), inside)


@jit
def _backward(
    dout, dy, v, update, gate, scale, dx, dupdate, dgate, dshift, dscale,
    tokens, dim, num_frames, gate_b, gate_l, gate_d, scale_b, scale_l, eps,
    ONE: constexpr, HAS_DOUT: constexpr, ADDS: constexpr, GATES: constexpr, NORMS: constexpr,
    ROWS: constexpr, BLOCK: constexpr,
):  # fmt: skip
    frame = tl.program_id(0)
    part = tl.program_id(1)
    sample = frame // num_frames
    latent = frame % num_frames
    at = tl.arange(0, BLOCK)
    inside = at < dim
    sums = (frame.to(tl.int64) * tl.num_programs(1) + part) * dim + at
    if GATES:
        g = load(gate + sample * gate_b + latent * gate_l + at * gate_d, inside)
        sum_gate = tl.zeros([BLOCK], tl.float32)
    if NORMS:
        s = load(scale + sample * scale_b + latent * scale_l + at, inside) + ONE
        sum_shift = tl.zeros([BLOCK], tl.float32)
        sum_scale = tl.zeros([BLOCK], tl.float32)
    for token in range(part * ROWS, tl.minimum(part * ROWS + ROWS, tokens)):
        row = (frame.to(tl.int64) * tokens + token) * dim + at
        d = tl.zeros([BLOCK], tl.float32)
        if NORMS:
            n = load(v + row, inside)
            n = tl.where(inside, n - tl.sum(n) / dim, 0)
            inverse = tl.rsqrt(tl.sum(n * n) / dim + eps)
            n = n * inverse
            upstream = load(dy + row, inside)
            sum_shift += upstream
            sum_scale += upstream * n
            upstream = upstream * s
            d = upstream - tl.sum(upstream) / dim - n * (tl.sum(upstream * n) / dim)
            d = d * inverse
        if HAS_DOUT:
            d += load(dout + row, inside)
        tl.store(dx + row, d.to(dx.dtype.element_ty), inside)
        if ADDS:
            if GATES:
                sum_gate += tl.where(inside, d, 0) * load(update + row, inside)
                d = d * g
            tl.store(dupdate + row, d.to(dupdate.dtype.element_ty), inside)
    if GATES:
        tl.store(dgate + sums, sum_gate, inside)
    if NORMS:
        tl.store(dshift + sums, sum_shift, inside)
        tl.store(dscale + sums, sum_scale, inside)


@torch.library.custom_op(
    "avatar_v::residual_norm",
    mutates_args=(),
    schema="(Tensor x, Tensor? update, Tensor? gate, Tensor? shift, Tensor? scale, float eps, "
    "bool plus_one, ScalarType dtype) -> (Tensor, Tensor)",
)
def _fused(x, update, gate, shift, scale, eps, plus_one, dtype):
    """The sum and its norm; what is not asked for comes empty."""
    num_samples, num_frames, num_tokens, dim = x.shape
    out, y = _fused_fake(x, update, gate, shift, scale, eps, plus_one, dtype)
    update = update if update is None else update.contiguous()
    (gate, gates), (shift, shifts), (scale, scales) = (_spread(m, x) for m in (gate, shift, scale))
    block = block_of(dim)
    with torch.cuda.device_of(x):
        _forward[num_samples * num_frames, -(-num_tokens // ROWS)](
            x.contiguous(), update, gate, shift, scale, out, y, num_tokens, dim, num_frames,
            *gates, *shifts[:2], *scales[:2], eps, int(plus_one),
            update is not None, gate is not None, scale is not None,
            ROWS, block, num_warps=num_warps(block),
        )  # fmt: skip
    return out, y


@_fused.register_fake
def _fused_fake(x, update, gate, shift, scale, eps, plus_one, dtype):
    out = x.new_empty(0 if update is None else x.shape)
    return out, x.new_empty(0 if scale is None else x.shape, dtype=dtype)


@torch.library.custom_op(
    "avatar_v::residual_norm_backward",
    mutates_args=(),
    schema="(Tensor? dout, Tensor? dy, Tensor v, Tensor? update, Tensor? gate, Tensor? scale, "
    "float eps, bool plus_one) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _gradients(dout, dy, v, update, gate, scale, eps, plus_one):
    """Gradients of x and the update, and those of gate, shift and scale by latent frame."""
    num_samples, num_frames, num_tokens, dim = v.shape
    parts = -(-num_tokens // ROWS_BACKWARD)
    dx, dupdate = torch.empty_like(v, memory_format=torch.contiguous_format), v.new_empty(0)
    if update is not None:
        dupdate = torch.empty_like(update, memory_format=torch.contiguous_format)
    sums = [
        v.new_empty(num_samples, num_frames, parts if m is not None else 0, dim, dtype=torch.float)
        for m in (gate, None if dy is None else scale)
    ]
    sums.append(torch.empty_like(sums[1]))
    (gate, gates), (scale, scales) = _spread(gate, v), _spread(scale, v)
    dout, dy, update = (m if m is None else m.contiguous() for m in (dout, dy, update))
    block = block_of(dim)
    with torch.cuda.device_of(v):
        _backward[num_samples * num_frames, parts](
            dout, dy, v.contiguous(), update, gate, scale, dx, dupdate, *sums,
            num_tokens, dim, num_frames, *gates, *scales[:2], eps, int(plus_one),
            dout is not None, update is not None, gate is not None, dy is not None,
            ROWS_BACKWARD, block, num_warps=num_warps(block),
        )  # fmt: skip
    return dx, dupdate, *(x.sum(2, keepdim=True) for x in sums)


@_gradients.register_fake
def _gradients_fake(dout, dy, v, update, gate, scale, eps, plus_one):
    sums = v.new_empty(*v.shape[:2], 1, v.shape[3], dtype=torch.float)
    dupdate = v.new_empty(0) if update is None else torch.empty_like(update)
    return torch.empty_like(v), dupdate, sums, torch.empty_like(sums), torch.empty_like(sums)


def _keep(ctx, inputs, output) -> None:
    x, update, gate, shift, scale, ctx.eps, ctx.plus_one, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.has_norm = scale is not None
    ctx.save_for_backward(x if update is None else output[0], update, gate, shift, scale)


def _differentiate(ctx, dout, dy):
    v, update, gate, shift, scale = ctx.saved_tensors
    dy = dy if ctx.has_norm else None
    dout = dout if update is not None else None
    if dout is None and dy is None:
        return (None,) * 8
    dx, dupdate, *sums = _gradients(dout, dy, v, update, gate, scale, ctx.eps, ctx.plus_one)
    dgate, dshift, dscale = (
        None if m is None else d.sum_to_size(m.shape).to(m.dtype)
        for m, d in zip((gate, shift, scale), sums, strict=True)
    )
    return dx, None if update is None else dupdate, dgate, dshift, dscale, None, None, None


_fused.register_autograd(_differentiate, setup_context=_keep)


def _spread(m: Tensor | None, x: Tensor) -> tuple[Tensor | None, tuple[int, int, int]]:
    """What modulates ``x``, and its strides over samples, latent frames and channels."""
    if m is None:
        return None, (0, 0, 0)
    whole = m.expand(x.shape[0], x.shape[1], 1, x.shape[3])
    return m, (whole.stride(0), whole.stride(1), whole.stride(3))
