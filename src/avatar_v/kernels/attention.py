"""Attention twice: the specification (`attend_dense`) and the fast path (`attend`, SDPA).

Layout is "b token head width" on both sides of the call. The fast path knows only a key mask of
b x keys; block structure is expressed by *which* keys a query is given, never by a q x k mask.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor


def attend(
    query: Float[Tensor, "b q heads width"],
    key: Float[Tensor, "b k heads width"],
    value: Float[Tensor, "b k heads width"],
    key_mask: Bool[Tensor, "b k"] | None = None,
) -> Float[Tensor, "b q heads width"]:
    """softmax(q kᵀ / √width) v over the keys whose mask is True, through PyTorch's SDPA.

    Every sample needs at least one True key. Softmax statistics are fp32 inside SDPA.
    """
    mask = None if key_mask is None else key_mask[:, None, None, :]
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), attn_mask=mask
    )
    return out.transpose(1, 2)


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
