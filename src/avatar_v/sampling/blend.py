"""The coarse picture of a chunk changes over from the chunk before, so that no border shows."""

import torch
import torch.nn.functional as F

from avatar_v.flow import Latents

BLEND_LATENTS, BLEND_PARTS = 3, 4
"""So many latents of a chunk move away from the chunk before, in so many parts a side."""


def blended(latents: Latents, num_prefix: int) -> Latents:
    """``latents`` whose coarse picture changes over from the prefix within a few latents.

    A chunk agrees with its prefix about what happens and less about how bright each part of the
    picture is: backgrounds jump at its border, details do not. The step from the last prefix latent
    to the first new one, averaged over 4 x 4 parts of the picture, is taken back by 3/4, 1/2 and
    1/4 in the first three new latents (our choice).
    """
    new = latents[:, num_prefix:]
    step = latents[:, num_prefix - 1] - latents[:, num_prefix]
    parts = F.adaptive_avg_pool2d(step, BLEND_PARTS)
    coarse = F.interpolate(parts, (step.shape[-2], step.shape[-1]), mode="bilinear")
    share = 1 - torch.arange(1, BLEND_LATENTS + 1).to(latents) / (BLEND_LATENTS + 1)
    share = F.pad(share, (0, max(0, new.shape[1] - BLEND_LATENTS)))[: new.shape[1]]
    new = new + share[:, None, None, None] * coarse[:, None]
    return torch.cat([latents[:, :num_prefix], new], dim=1)
