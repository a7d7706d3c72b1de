"""The fused kernels by name, each with inputs of any size: for `doctor`, benchmarks and tests."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from avatar_v.kernels import switch
from avatar_v.kernels.channel_norm import channel_norm
from avatar_v.kernels.norm import norm_rotate, rotate
from avatar_v.kernels.residual import (
    gated_add,
    gated_add_norm,
    modulated_norm,
)

EPS = 1e-6
LARGEST_DIFFERENCE = 1e-4
"""Between a kernel and its specification in fp32, numbers of order 1."""


@dataclass(frozen=True)
class Size:
    """Latent frames, tokens of each, heads and their channels. The residual stream is fp32, as it
    is under autocast; ``dtype`` is that of the products."""

    frames: int
    tokens: int
    heads: int
    width: int
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    samples: int = 1

    def draw(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Noise, the same for the same shape."""
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
        return noise.to(self.device, dtype or self.dtype)


Scope = tuple[Callable[..., Any], tuple[Tensor, ...]]
"""A function of tensors alone, and those."""


def scopes(size: Size) -> dict[str, Scope]:
    """Each with inputs of that size."""
    b, f, n, h, w = size.samples, size.frames, size.tokens, size.heads, size.width
    d, fp32 = h * w, torch.float32
    x, update = size.draw(b, f, n, d, dtype=fp32), size.draw(b, f, n, d)
    shift, scale, gate = size.draw(b, f, 3, 1, d, dtype=fp32).unbind(2)
    gain, angle = size.draw(d, dtype=fp32), size.draw(f * n, 1, w // 2, dtype=fp32)
    table = torch.stack([angle.cos(), angle.sin()], dim=-1)
    picture = size.draw(b, w, f, n, h).contiguous(memory_format=torch.channels_last_3d)
    norm = {"eps": EPS, "dtype": size.dtype}
    return {
        "modulated_norm": (partial(modulated_norm, **norm), (x, shift, scale)),
        "gated_add": (gated_add, (x, update, gate)),
        "gated_add_norm": (partial(gated_add_norm, **norm), (x, update, gate, shift, scale)),
        "add_layer_norm": (
            lambda x, update, *affine: gated_add_norm(x, update, None, *affine, **norm),
            (x, update, gain, gain.flip(0)),
        ),
        "norm_rotate": (
            partial(norm_rotate, eps=EPS, keep=True),
            (update.flatten(1, 2), gain, table),
        ),
        "rotate": (rotate, (update.view(b, f * n, h, w), table)),
        "norm_silu": (
            partial(channel_norm, activates=True),
            (picture, size.draw(w, 1, 1, 1)),
        ),
    }


def tensors_of(result: Any) -> list[Tensor]:
    """One tensor or several."""
    return [result] if isinstance(result, Tensor) else list(result)


def difference(scope: Scope) -> float:
    """The largest one between the Triton kernel and the specification."""
    function, given = scope
    found = []
    for name in ("triton", "plain"):
        with switch.using(name):
            found.append(tensors_of(function(*given)))
    return max((a.float() - b.float()).abs().max().item() for a, b in zip(*found, strict=True))
