"""How good a picture looks, without a reference, by formulas: sharpness and flicker.

They compare versions of one video, not videos of different content; for that see qalign.QAlign.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

Video = UInt8[Tensor, "f 3 h w"]

SHARP_SHARE = 0.8


def sharpness(frames: Video) -> Float[Tensor, " f"]:
    """Variance of the Laplacian of the grey picture (Pech-Pacheco et al. 2000), in grey levels²."""
    grey = frames.float().mean(1, keepdim=True)
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]], device=frames.device)
    return F.conv2d(grey, kernel[None, None]).flatten(1).var(1)


def sharp_enough(values: Float[Tensor, " f"]) -> Bool[Tensor, " f"]:
    """Which pictures are not much blurrier than the others usually are, by their `sharpness`."""
    return values >= SHARP_SHARE * values.median()


def flicker(frames: Video) -> Float[Tensor, " f"]:
    """What a picture has that neither neighbour in time shows: mean |2 x_t - x_(t-1) - x_(t+1)| / 2
    in grey levels. Steady motion has little of it. The first and last frame take their neighbour's
    value; fewer than three frames have none."""
    if len(frames) < 3:
        return torch.zeros(len(frames), device=frames.device)
    grey = frames.float().mean(1)
    inside = (2 * grey[1:-1] - grey[:-2] - grey[2:]).abs().mean((1, 2)) / 2
    return torch.cat([inside[:1], inside, inside[-1:]])
