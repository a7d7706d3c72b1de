"""Attention in the plainest way, which the fast ones are compared with."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def attend_dense(
    query: Float[Tensor, "b q heads width"],
    key: Float[Tensor, "b k heads width"],
    value: Float[Tensor, "b k heads width"],
    mask: Bool[Tensor, "b q k"],
) -> Float[Tensor, "b q heads width"]:
    """The specification: one softmax over a full q x k mask, in fp32."""
    scores = torch.einsum("bqhd,bkhd->bhqk", query.float(), key.float()) / query.shape[-1] ** 0.5
    weights = scores.masked_fill(~mask[:, None], float("-inf")).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, value.float()).to(query.dtype)
