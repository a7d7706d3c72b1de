"""Attention modules of a block: self-attention with reference keys, and cross-attention.

Sparse Reference Attention (Avatar V §2.1): generated tokens attend to themselves and to all valid
reference tokens, reference tokens to their own segment alone. Both streams call the same module;
which keys a stream is given makes the difference, so no generated x reference mask exists.
Attention that is local in time is made the same way: each frame is given the keys it may see.
"""

from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from avatar_v.kernels.attention import attend, attend_near
from avatar_v.kernels.norm import rotate
from avatar_v.models.layers import RMSNorm, compute_dtype

Heads = Float[Tensor, "b s heads width"]
KeyValue = tuple[Float[Tensor, "b k heads width"], Float[Tensor, "b k heads width"]]
ExtraKeyValue = tuple[Float[Tensor, "b extra heads width"], Float[Tensor, "b extra heads width"]]


@dataclass(frozen=True)
class Near:
    """Attention of ``num_frames`` frames to those at most ``window`` frames before or after.

    ``beside`` are rotated keys and values of another stream with as many frames, which are seen in
    the same window; extra keys are seen from everywhere.
    """

    window: int
    num_frames: int
    beside: ExtraKeyValue | None = None


class Attention(nn.Module):
    """Projections of one attention: q and k are RMS-normalised over the whole width (Wan)."""

    def __init__(self, dim: int, num_heads: int, eps: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)
        self.query_norm = RMSNorm(dim, eps)
        self.key_norm = RMSNorm(dim, eps)

    def project_query(self, x: Float[Tensor, "b s d"]) -> Heads:
        """Queries, normalised but not rotated."""
        return self._split(self.query_norm(self.query(x)))

    def project_keys(self, x: Float[Tensor, "b s d"]) -> tuple[Heads, Heads]:
        """Keys, normalised but not rotated, and values."""
        return self._split(self.key_norm(self.key(x))), self._split(self.value(x))

    def merge(self, x: Heads) -> Float[Tensor, "b s d"]:
        return self.out(rearrange(x, "b s h w -> b s (h w)"))

    def _split(self, x: Float[Tensor, "b s d"]) -> Heads:
        return rearrange(x, "b s (h w) -> b s h w", h=self.num_heads)


class SelfAttention(Attention):
    def forward(
        self,
        x: Float[Tensor, "b s d"],
        rotary: Float[Tensor, "*positions 1 half 2"],
        *,
        extra: ExtraKeyValue | None = None,
        key_mask: Bool[Tensor, "b all_keys"] | None = None,
        near: Near | None = None,
    ) -> tuple[Float[Tensor, "b s d"], tuple[Heads, Heads]]:
        """Attention over x itself and, after it, over ``extra`` keys (already rotated) and values.

        ``key_mask`` covers both. With ``near`` x is seen in a window alone, and of the mask only
        the part of ``extra`` counts. Also returns the unrotated K and V of x, for a cache.
        """
        x = x.to(compute_dtype(x, self.query.weight))
        query = rotate(self.project_query(x), rotary)
        key, value = self.project_keys(x)
        all_keys, all_values = rotate(key, rotary), value
        if near is not None:
            y = _attend_near(query, all_keys, all_values, near, extra, key_mask)
            return self.merge(y), (key, value)
        if extra is not None:
            all_keys = torch.cat([all_keys, extra[0]], dim=1)
            all_values = torch.cat([all_values, extra[1]], dim=1)
        return self.merge(attend(query, all_keys, all_values, key_mask)), (key, value)


class CrossAttention(Attention):
    def forward(
        self, x: Float[Tensor, "b s d"], context: Float[Tensor, "b n d"]
    ) -> Float[Tensor, "b s d"]:
        query = self.project_query(x.to(compute_dtype(x, self.query.weight)))
        key, value = self.project_keys(context)
        return self.merge(attend(query, key, value))


def _attend_near(
    query: Heads,
    key: Heads,
    value: Heads,
    near: Near,
    extra: ExtraKeyValue | None,
    key_mask: Bool[Tensor, "b all_keys"] | None,
) -> Heads:
    num = near.num_frames
    keys, values = key.unflatten(1, (num, -1)), value.unflatten(1, (num, -1))
    if near.beside is not None:
        keys = torch.cat([keys, near.beside[0].unflatten(1, (num, -1))], dim=2)
        values = torch.cat([values, near.beside[1].unflatten(1, (num, -1))], dim=2)
    mask = None
    if extra is not None and key_mask is not None:
        mask = key_mask[:, key_mask.shape[1] - extra[0].shape[1] :]
    return attend_near(query, keys, values, near.window, extra, mask)
