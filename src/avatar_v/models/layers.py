"""Small pieces of the DiT: norms, rotary positions, time embedding, feed-forward.

Precision: time, rotary tables, norms and modulation are fp32 whatever the autocast state; linear
layers run in the autocast dtype, or in that of their weights without autocast. Tokens between the
blocks (the residual stream) are fp32 under autocast, in training as in generation, or else of the
weights' dtype.
"""

import functools
import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from avatar_v.kernels.norm import rms_norm
from avatar_v.kernels.residual import PerFrame, Tokens, gated_add_norm, layer_norm

TIME_SCALE = 1000.0
"""Wan's sinusoidal embedding counts time from 0 to 1000."""
GUIDANCE_SCALE = 100.0
"""Guidance weights from 0 to 10 span the sinusoids that time spans."""
ROPE_BASE = 10_000.0


def compute_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype a linear layer of ``weight`` runs in: cast to it once, not once per layer."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight.dtype


def residual_dtype(x: Tensor, weight: Tensor) -> torch.dtype:
    """The dtype of the residual stream, whatever the dtype that weights are kept or gathered in."""
    device = x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        return torch.float32
    return weight.dtype


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """fp32 inside whatever the autocast state; nothing on a device without autocast (meta)."""
    if not torch.amp.is_autocast_available(x.device.type):
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the whole last axis; fp32 inside, the dtype of x outside."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Float[Tensor, "*any d"]) -> Float[Tensor, "*any d"]:
        return rms_norm(x, self.weight, self.eps)


class LayerNorm(nn.Module):
    """LayerNorm with gain and bias, fp32 inside and out."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.eps = eps

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "*any d"]) -> Float[Tensor, "*any d"]:
        return layer_norm(x, self.weight, self.bias, self.eps)

    def behind(
        self, x: Tokens, update: Tokens, gate: PerFrame | None, dtype: torch.dtype
    ) -> tuple[Tokens, Tokens]:
        """x + gate · update, and the norm of that as ``dtype``."""
        return gated_add_norm(x, update, gate, self.bias, self.weight, self.eps, dtype)


class MLP(nn.Module):
    """Linear, GELU (tanh form), linear."""

    def __init__(self, dim_in: int, dim_hidden: int, dim_out: int) -> None:
        super().__init__()
        self.up = nn.Linear(dim_in, dim_hidden)
        self.down = nn.Linear(dim_hidden, dim_out)

    def forward(self, x: Float[Tensor, "*any i"]) -> Float[Tensor, "*any o"]:
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class TimeEmbedding(nn.Module):
    """t in [0, 1] → the head's embedding and the six modulation vectors of the blocks, all fp32."""

    def __init__(self, freq_dim: int, dim: int) -> None:
        super().__init__()
        self.freq_dim = freq_dim
        self.up = nn.Linear(freq_dim, dim)
        self.down = nn.Linear(dim, dim)
        self.modulation = nn.Linear(dim, 6 * dim)

    def forward(
        self, t: Float[Tensor, "b l"], more: Float[Tensor, "b d"] | None = None
    ) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b l 6 d"]]:
        """``more`` is added to the embedding of every frame."""
        with without_autocast(t):
            x = sinusoidal(t.float() * TIME_SCALE, self.freq_dim)
            embedding = _linear_fp32(self.down, F.silu(_linear_fp32(self.up, x)))
            if more is not None:
                embedding = embedding + more.float()[:, None]
            modulation = _linear_fp32(self.modulation, F.silu(embedding))
        return embedding, modulation.unflatten(-1, (6, -1))


class GuidanceEmbedding(nn.Module):
    """Guidance weights → what joins the time embedding, in fp32. Weights of 1, which are no
    guidance, give exactly 0, whatever is trained; at the start all weights do."""

    def __init__(self, num_weights: int, freq_dim: int, dim: int) -> None:
        super().__init__()
        self.freq_dim = freq_dim
        self.up = nn.Linear(num_weights * freq_dim, dim)
        self.down = nn.Linear(dim, dim, bias=False)

    def reset_parameters(self) -> None:
        """The output is 0 until it is trained."""
        nn.init.zeros_(self.down.weight)

    def forward(self, weights: Float[Tensor, "b g"]) -> Float[Tensor, "b d"]:
        with without_autocast(weights):
            hidden = self._hidden(weights) - self._hidden(torch.ones_like(weights))
            return _linear_fp32(self.down, hidden)

    def _hidden(self, weights: Float[Tensor, "b g"]) -> Float[Tensor, "b d"]:
        x = sinusoidal(weights.float() * GUIDANCE_SCALE, self.freq_dim).flatten(1)
        return F.silu(_linear_fp32(self.up, x))


IN_FP32 = (TimeEmbedding, GuidanceEmbedding)
"""Layers that compute in fp32 whatever the autocast state, so their weights are kept and gathered
in fp32 too."""


def narrow(network: nn.Module, dtype: torch.dtype) -> None:
    """Store as ``dtype`` what autocast would cast to it in every pass: weights and biases of linear
    layers but those of `IN_FP32`. For inference under autocast; its results stay the same, bit for
    bit."""
    kept = {id(child) for part in network.modules() if isinstance(part, IN_FP32)
            for child in part.modules()}  # fmt: skip
    for layer in network.modules():
        if isinstance(layer, nn.Linear) and id(layer) not in kept:
            layer.to(dtype)


def sinusoidal(position: Float[Tensor, "*any"], dim: int) -> Float[Tensor, "*any dim"]:
    """(cos, sin) of ``position · 10000^(-i / (dim/2))``, cosines first (Wan, DDPM)."""
    half = dim // 2
    index = torch.arange(half, dtype=torch.float32, device=position.device)
    angle = position[..., None] * torch.exp(-math.log(10_000.0) * index / half)
    return torch.cat([angle.cos(), angle.sin()], dim=-1)


def rotary_split(head_dim: int) -> tuple[int, int, int]:
    """Channels of a head that encode time, y and x (Wan): [d - 4·(d//6), 2·(d//6), 2·(d//6)]."""
    side = 2 * (head_dim // 6)
    return head_dim - 2 * side, side, side


def rotary_grid(
    num_frames: int,
    height: int,
    width: int,
    head_dim: int,
    device: torch.device,
    start: int = 0,
    origin: tuple[int, int] = (0, 0),
) -> Float[Tensor, "s 1 half 2"]:
    """The table of ``num_frames`` x ``height`` x ``width`` tokens from position ``start`` and place
    ``origin`` on; kept for the next call, except where a compiler traces it."""
    make = _made_grid if torch.compiler.is_compiling() else _kept_grid
    return make(num_frames, height, width, head_dim, device, start, origin)


def forget_grids() -> None:
    """Drop the tables that are kept: those made of tensors without memory (planning/measure.py)
    must not meet others."""
    _kept_grid.cache_clear()


def _made_grid(
    num_frames: int,
    height: int,
    width: int,
    head_dim: int,
    device: torch.device,
    start: int,
    origin: tuple[int, int],
) -> Float[Tensor, "s 1 half 2"]:
    position = torch.arange(num_frames, device=device) + start
    return rotary_table(position[None], height, width, head_dim, origin)[0]


@functools.lru_cache(maxsize=64)
def _kept_grid(*of: Any) -> Float[Tensor, "s 1 half 2"]:
    with torch.inference_mode(False):  # what is kept outlives the mode it was made in
        return _made_grid(*of)


def rotary_table(
    position: Shaped[Tensor, "b l"],
    height: int,
    width: int,
    head_dim: int,
    origin: tuple[int, int] = (0, 0),
) -> Float[Tensor, "b s 1 half 2"]:
    """(cos, sin) of each token's angles for latent frames at ``position``, s = l · height · width,
    from the place ``origin`` (down, across) on.

    Angles are taken in float64, so that positions far from zero lose nothing.
    """
    sizes, device = rotary_split(head_dim), position.device
    time = _angles(position, sizes[0])
    y = _angles(torch.arange(height, device=device) + origin[0], sizes[1])
    x = _angles(torch.arange(width, device=device) + origin[1], sizes[2])
    grid = (*position.shape, height, width, -1)
    parts = (time[:, :, None, None], y[None, None, :, None], x[None, None, None])
    angle = torch.cat([part.expand(*grid) for part in parts], dim=-1)
    return torch.stack([angle.cos(), angle.sin()], dim=-1).float().flatten(1, 3).unsqueeze(2)


def _angles(position: Shaped[Tensor, "*any"], dim: int) -> Float[Tensor, "*any half"]:
    index = torch.arange(0, dim, 2, dtype=torch.float64, device=position.device)
    return position[..., None].double() * ROPE_BASE ** (-index / dim)


def _linear_fp32(layer: nn.Linear, x: Tensor) -> Tensor:
    bias = None if layer.bias is None else layer.bias.float()
    return F.linear(x, layer.weight.float(), bias)
