"""Attention over a part of the keys, and the union of such parts: the arithmetic of ring attention.

A part gives its output and the log-sum-exp of its scores; `merge` weighs two parts by them in fp32
(Ring Attention, arXiv 2310.01889). The gradient of a part needs the output and the log-sum-exp of
the union alone (FlashAttention-2, arXiv 2307.08691), so parts are computed again in the backward
pass and no scores are kept. PyTorch has no public function with both, so its operators are called:
the one of the CPU, and on CUDA the memory-efficient one, which also takes a mask.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

ALIGNED = 8
"""Rows of a mask begin at a multiple of so many elements: CUDA's operator takes no others."""
Heads = Float[Tensor, "b q heads width"]
LogSumExp = Float[Tensor, "b q heads"]
Part = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""The arguments of `attend_part`."""


def attend_part(
    query: Heads,
    key: Float[Tensor, "b k heads width"],
    value: Float[Tensor, "b k heads width"],
    key_mask: Bool[Tensor, "b k"] | None = None,
) -> tuple[Heads, LogSumExp]:
    """Attention over these keys, and the log-sum-exp of the scores, both fp32.

    A sample without a True key, and a call without keys, give 0 and -inf: nothing to merge.
    """
    if key.shape[1] == 0 or query.shape[1] == 0:
        return torch.zeros_like(query, dtype=torch.float32), _nothing(query)
    bias, is_blind = _bias(query, key, key_mask)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    if query.device.type == "cuda":
        out, lse, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
            q, k, v, bias, compute_log_sumexp=True
        )
        lse = lse[..., : q.shape[2]]  # the operator pads it
    else:
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, attn_mask=bias
        )
    out, lse = out.transpose(1, 2).float(), lse.transpose(1, 2).float()
    if is_blind is not None:
        out = out.masked_fill(is_blind[:, None, None, None], 0)
        lse = lse.masked_fill(is_blind[:, None, None], float("-inf"))
    return out, lse


def part_gradients(
    grad: Heads, part: Part, out: Heads, lse: LogSumExp
) -> tuple[Tensor, Tensor, Tensor]:
    """The share of one part in the gradients of query, key and value, in their dtypes.

    ``out`` (in the dtype of the query) and ``lse`` are those of the union of all parts, ``grad`` is
    the gradient of ``out``.
    """
    query, key, value, key_mask = part
    if key.shape[1] == 0 or query.shape[1] == 0:
        return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)
    bias, is_blind = _bias(query, key, key_mask)
    if is_blind is not None:  # exp(score - inf) = 0: what a sample does not see has no gradient
        lse = lse.masked_fill(is_blind[:, None, None], float("inf"))
    g, q, k, v, o = (x.transpose(1, 2) for x in (grad, query, key, value, out))
    lse = lse.transpose(1, 2)
    if query.device.type == "cuda":
        padded = torch.nn.functional.pad(lse.contiguous(), (0, -lse.shape[-1] % 32))
        seed = torch.zeros((), dtype=torch.int64, device=query.device)  # of no dropout
        needed = [True, True, True, False]
        dq, dk, dv, _ = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
            g, q, k, v, bias, o, padded, seed, seed, 0.0, needed
        )
    else:
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            g, q, k, v, o, lse, 0.0, False, attn_mask=bias
        )
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def merge(
    out: Float[Tensor, "*any width"],
    lse: Float[Tensor, "*any"],
    more: Float[Tensor, "*any width"],
    more_lse: Float[Tensor, "*any"],
) -> tuple[Float[Tensor, "*any width"], Float[Tensor, "*any"]]:
    """The union of two parts of disjoint keys, fp32; at least one of them saw a key."""
    union = torch.logaddexp(lse, more_lse)
    out = out * torch.exp(lse - union)[..., None] + more * torch.exp(more_lse - union)[..., None]
    return out, union


def _nothing(query: Heads) -> LogSumExp:
    return query.new_full(query.shape[:3], float("-inf"), dtype=torch.float32)


def _bias(
    query: Heads, key: Tensor, key_mask: Bool[Tensor, "b k"] | None
) -> tuple[Tensor | None, Bool[Tensor, "b"] | None]:
    """The mask as both operators take it, 0 or -inf in the query's dtype, and the samples that see
    nothing; those keep all keys here, since the softmax over none is not a number."""
    if key_mask is None:
        return None, None
    is_blind = ~key_mask.any(1)
    seen = key_mask | is_blind[:, None]
    num = seen.shape[1]
    shape = (len(seen), num + -num % ALIGNED)
    bias = torch.zeros(shape, dtype=query.dtype, device=query.device)[:, :num]
    bias = bias.masked_fill_(~seen, float("-inf"))[:, None, None]
    return bias.expand(-1, query.shape[2], query.shape[1], -1), is_blind
