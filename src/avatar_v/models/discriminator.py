"""Small discriminators: is this part of the picture real or made?

`PatchDiscriminator` sees latents beside the enlarged low ones they were made from, so that it tells
by detail, not content, and answers for every latent cell: what it says of the mouth can be weighed
apart (objectives/refiner_adversarial.py). Convolutions over space and time, as PatchGAN's (arXiv
1611.07004).
`PictureDiscriminator` sees frames as they are, for the VAE (objectives/vae.py).
`TokenDiscriminator` reads the tokens of a DiT instead (objectives/distill_dmd.py; DMD2's head).
"""

import contextlib
from collections.abc import Iterator

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.models.dit import AvatarDiT

Latents = Float[Tensor, "b l c h w"]
NUM_GROUPS = 8


class PatchDiscriminator(nn.Module):
    """A logit for every latent cell, above 0 where it looks real; it sees ``num_layers`` cells and
    latents in each direction."""

    def __init__(self, latent_channels: int, *, width: int, num_layers: int = 3) -> None:
        super().__init__()
        if width % NUM_GROUPS or width < 1 or num_layers < 1:
            raise ValueError(
                f"a discriminator's width is a multiple of {NUM_GROUPS} and it has layers, "
                f"got {width} and {num_layers}"
            )
        layers: list[nn.Module] = []
        for i in range(num_layers):
            num_in = 2 * latent_channels if i == 0 else width
            layers += [nn.Conv3d(num_in, width, 3, padding=1), nn.GroupNorm(NUM_GROUPS, width)]
            layers += [nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Conv3d(width, 1, 1))

    def forward(self, latents: Latents, low: Latents) -> Float[Tensor, "b l 1 h w"]:
        seen = rearrange(torch.cat([latents, low], dim=2), "b l c h w -> b c l h w")
        return rearrange(self.layers(seen), "b c l h w -> b l c h w").float()


class PictureDiscriminator(nn.Module):
    """A logit for every 4 x 4 pixels of every frame, above 0 where they look real. The first two
    of ``num_layers`` + 1 convolutions halve the picture."""

    def __init__(self, *, width: int, num_layers: int = 3) -> None:
        super().__init__()
        if width % NUM_GROUPS or width < 1 or num_layers < 1:
            raise ValueError(
                f"a discriminator's width is a multiple of {NUM_GROUPS} and it has layers, "
                f"got {width} and {num_layers}"
            )
        layers: list[nn.Module] = [nn.Conv2d(3, width // 2, 4, 2, 1), nn.LeakyReLU(0.2)]
        for i in range(num_layers):
            num_in, size = (width // 2, (4, 2, 1)) if i == 0 else (width, (3, 1, 1))
            layers += [nn.Conv2d(num_in, width, *size), nn.GroupNorm(NUM_GROUPS, width)]
            layers += [nn.LeakyReLU(0.2)]
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, 1, 1))

    def forward(self, video: Float[Tensor, "b f 3 h w"]) -> Float[Tensor, "b f 1 _h _w"]:
        return self.layers(video.flatten(0, 1)).unflatten(0, video.shape[:2]).float()


class TokenDiscriminator(nn.Module):
    """A logit for every token of a DiT of ``dim`` channels, above 0 where it looks real."""

    def __init__(self, dim: int, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.layers = nn.Sequential(nn.Linear(dim, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(
        self, tokens: Float[Tensor, "b l n d"], grid: tuple[int, int]
    ) -> Float[Tensor, "b l 1 h w"]:
        logits = self.layers(self.norm(tokens.float()))
        return rearrange(logits, "b l (h w) 1 -> b l 1 h w", h=grid[0], w=grid[1]).float()


@contextlib.contextmanager
def features_into(dit: AvatarDiT, found: list[Tensor]) -> Iterator[None]:
    """Within the block every pass of ``dit`` adds the tokens behind its last block to ``found``."""
    handle = dit.head.register_forward_pre_hook(lambda _, given: found.append(given[0]))
    try:
        yield
    finally:
        handle.remove()
