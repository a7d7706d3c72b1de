"""Attention twice: the specification (`attend_dense`) and the fast path (`attend`, SDPA).

Layout is "b token head width" on both sides of the call. The fast path knows only a key mask of
b x keys; block structure is expressed by *which* keys a query is given, never by a q x k mask.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

MAX_SCORES = 2**20
"""Queries times keys up to which `attend_products` may hold the scores in memory."""


@dataclass(frozen=True)
class QueryBlock:
    """A run of frames and the runs of frames that it sees, each (start, stop)."""

    frames: tuple[int, int]
    seen: tuple[tuple[int, int], ...]


def attend(
    query: Float[Tensor, "b q heads width"],
    key: Float[Tensor, "b k heads width"],
    value: Float[Tensor, "b k heads width"],
    key_mask: Bool[Tensor, "b k"] | None = None,
) -> Float[Tensor, "b q heads width"]:
    """softmax(q kᵀ / √width) v over the keys whose mask is True. Softmax statistics are fp32.

    Every sample needs at least one True key. This is PyTorch's SDPA, except for short bf16
    sequences on a CPU, where two batched products take a third of its time (forward and backward
    of 24 x 4 x 208 tokens on one AVX512-BF16 core: 24 against 67 ms) and the scores that enter the
    softmax are rounded to bf16.
    """
    few = query.shape[1] * key.shape[1] <= MAX_SCORES
    if few and query.device.type == "cpu" and query.dtype == torch.bfloat16:
        return attend_products(query, key, value, key_mask)
    mask = None if key_mask is None else key_mask[:, None, None, :]
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask
    )
    return out.transpose(1, 2)


def attend_blocks(
    query: Float[Tensor, "b q heads width"],
    key: Float[Tensor, "b l m heads width"],
    value: Float[Tensor, "b l m heads width"],
    blocks: Sequence[QueryBlock],
    extra: tuple[Tensor, Tensor] | None = None,
    extra_mask: Bool[Tensor, "b e"] | None = None,
) -> Float[Tensor, "b q heads width"]:
    """`attend` from each block of the l frames (q / l queries a frame) to the keys of the frames
    that it sees, and to all ``extra`` keys "b e heads width" whose mask is True.

    One call a block: keys that a block may not see are never multiplied, so the cost of a window
    is linear in l. ``blocks`` cover all frames in order.
    """
    queries, outputs = query.unflatten(1, (key.shape[1], -1)), []
    for block in blocks:
        own = queries[:, slice(*block.frames)].flatten(1, 2)
        keys, values, mask = _seen(key, block), _seen(value, block), None
        if extra is not None:
            if extra_mask is not None:
                mask = torch.cat([extra_mask.new_ones(keys.shape[:2]), extra_mask], dim=1)
            keys = torch.cat([keys, extra[0]], dim=1)
            values = torch.cat([values, extra[1]], dim=1)
        outputs.append(attend(own, keys, values, mask))
    return torch.cat(outputs, dim=1)


def _seen(
    x: Float[Tensor, "b l m heads width"], block: QueryBlock
) -> Float[Tensor, "b k heads width"]:
    runs = [x[:, slice(*run)] for run in block.seen]
    return (runs[0] if len(runs) == 1 else torch.cat(runs, dim=1)).flatten(1, 2)


def attend_products(
    query: Float[Tensor, "b q heads width"],
    key: Float[Tensor, "b k heads width"],
    value: Float[Tensor, "b k heads width"],
    key_mask: Bool[Tensor, "b k"] | None = None,
) -> Float[Tensor, "b q heads width"]:
    """The same with q x k scores in memory, rounded to the dtype of the query; the softmax sums
    them in fp32."""
    num_samples = query.shape[0]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    scores = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)).unflatten(0, (num_samples, -1))
    if key_mask is not None:
        scores = scores.masked_fill(~key_mask[:, None, None, :], float("-inf"))
    out = torch.bmm(scores.softmax(-1).flatten(0, 1), v)
    return out.unflatten(0, (num_samples, -1)).transpose(1, 2)


def attend_dense(
    query: Float[Tensor, "b q heads width"],
    key: Float[Tensor, "b k heads width"],
    value: Float[Tensor, "b k heads width"],
    mask: Bool[Tensor, "b q k"],
) -> Float[Tensor, "b q heads width"]:
    """The specification: one softmax over a full q x k mask, in fp32. For tests, not for speed."""
    scores = torch.einsum("bqhd,bkhd->bhqk", query.float(), key.float()) / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, value.float()).to(query.dtype)
