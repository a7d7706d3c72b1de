"""The norm of Wan's VAE with a backward that costs less than its convolutions on a CPU."""

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm
from torch import Tensor, nn


def replace_norms(core: nn.Module) -> None:
    """Put `WanRMSNorm` in the place of every WanRMS_norm of ``core``, with its parameters."""
    for module in list(core.modules()):
        for name, child in module.named_children():
            if isinstance(child, WanRMS_norm):
                setattr(module, name, WanRMSNorm(child))


class WanRMSNorm(nn.Module):
    """WanRMS_norm with the same parameters and results, and a hand-written backward.

    Its result is x / |x|_2 · sqrt(c) · gamma over the channels (dim 1). Autograd through
    `F.normalize` costs as much as the convolutions do on a CPU; this costs a fifth of it.
    """

    def __init__(self, norm: WanRMS_norm):
        super().__init__()
        self.scale = norm.scale
        self.gamma = norm.gamma

    def forward(self, x: Tensor) -> Tensor:
        return _Normalise.apply(x, (self.gamma * self.scale).to(x.dtype))


class _Normalise(torch.autograd.Function):
    """y = u · g with u = x / |x|; dx = (dy g - u <dy g, u>) / |x|. Sums over
    positions and the norm are taken in fp32."""

    @staticmethod
    def forward(ctx, x: Tensor, gain: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        at_least_fp32 = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=at_least_fp32)
        inverse = norm.clamp_min(1e-12).reciprocal().to(x.dtype)
        unit = x * inverse
        ctx.save_for_backward(unit, inverse, gain)
        return unit * gain

    @staticmethod
    def backward(ctx, dy: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        unit, inverse, gain = ctx.saved_tensors
        product = dy * unit
        not_channels = [axis for axis in range(dy.ndim) if axis != 1]
        dgain = product.sum(
            not_channels, dtype=torch.promote_types(dy.dtype, torch.float32)
        ).reshape(gain.shape)
        along = (product * gain).sum(1, keepdim=True)
        dx = torch.addcmul(dy * gain, unit, along, value=-1).mul_(inverse)
        return dx, dgain.to(gain.dtype)
