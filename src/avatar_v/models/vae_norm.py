"""The norms of Wan's VAE, each with the activation behind it, by kernels/channel_norm.py."""

from diffusers.models.autoencoders.autoencoder_kl_wan import WanRMS_norm
from torch import Tensor, nn

from avatar_v.kernels.channel_norm import channel_norm


def replace_norms(core: nn.Module) -> None:
    """Put `WanRMSNorm` in the place of every WanRMS_norm of ``core``, with its parameters. Where
    the module activates what each of its norms gives, the norm does both."""
    for module in list(core.modules()):
        activates = isinstance(getattr(module, "nonlinearity", None), nn.SiLU)
        for name, child in list(module.named_children()):
            if isinstance(child, WanRMS_norm):
                setattr(module, name, WanRMSNorm(child, activates=activates))
        if activates:
            module.nonlinearity = nn.Identity()


class WanRMSNorm(nn.Module):
    """x / |x|₂ · √c · gamma over the channels (dim 1), WanRMS_norm with its parameters, and of that
    with ``activates`` the SiLU."""

    def __init__(self, norm: WanRMS_norm, *, activates: bool = False):
        super().__init__()
        self.scale = norm.scale
        self.gamma = norm.gamma
        self.activates = activates

    def forward(self, x: Tensor) -> Tensor:
        return channel_norm(x, (self.gamma * self.scale).to(x.dtype), activates=self.activates)
