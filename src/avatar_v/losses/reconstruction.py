"""What a rebuilt video lacks: errors of pixels, edges, changes and features, KL, and PSNR.

Pure functions, of videos in [-1, 1]; ``weight`` is that of every pixel. For the VAE
(objectives/vae.py).
"""

import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.frozen import as_input
from avatar_v.faces.face import FaceCritic
from avatar_v.losses.perceptual import feature_loss
from avatar_v.types import TEMPORAL_FACTOR

Latents = Float[Tensor, "b l c h w"]
Video = Float[Tensor, "b f 3 h w"]


def passing_change(video: Video) -> Float[Tensor, "b f 1 h w"]:
    """How far each pixel is from its own mean over the nine frames around it, in 0 … 1 (1 from a
    quarter of the range on). A blink is a few frames of a few pixels: even weights let it blur."""
    series = rearrange(video, "b f c h w -> (b h w) c f")
    usual = F.avg_pool1d(series, 9, stride=1, padding=4, count_include_pad=False)
    change = ((series - usual).abs().mean(1) / 0.5).clamp(max=1)
    return rearrange(change, "(b h w) f -> b f 1 h w", b=len(video), h=video.shape[3])


def weighted_l1(rebuilt: Video, video: Video, weight: Float[Tensor, "b f 1 h w"]) -> Tensor:
    """Mean absolute error, each pixel by its weight."""
    return ((rebuilt - video).abs() * weight).mean() / weight.mean()


def gradient_l1(rebuilt: Video, video: Video, weight: Float[Tensor, "b f 1 h w"]) -> Tensor:
    """L1 of horizontal and vertical differences of the error at scales 1, 1/2 and 1/4: blur costs
    more than an even offset does."""
    error, total = (rebuilt - video).flatten(0, 1), rebuilt.new_zeros(())
    weight = weight.flatten(0, 1) / weight.mean()
    for _ in range(3):
        along_x = (error.diff(dim=-1).abs() * weight[..., 1:]).mean()
        along_y = (error.diff(dim=-2).abs() * weight[..., 1:, :]).mean()
        total = total + along_x + along_y
        error, weight = F.avg_pool2d(error, 2), F.avg_pool2d(weight, 2)
    return total / 6


def feature_distance(critic: FaceCritic, rebuilt: Video, video: Video) -> Tensor:
    """The mean distance of a critic's feature maps of one frame of every four: edges of glasses,
    teeth and hair count there, and not where exactly the error lies."""
    seen, expected = (
        critic.features(as_input(x[:, ::TEMPORAL_FACTOR].flatten(0, 1), critic.input_size))
        for x in (rebuilt, video)
    )
    return feature_loss(seen, expected).mean()


def part_weight(
    weight: Float[Tensor, "b f 1 h w"], logits: Float[Tensor, "b f 1 _h _w"]
) -> Float[Tensor, "b f 1 _h _w"]:
    """The mean weight of the pixels that each logit stands for."""
    parts = F.adaptive_avg_pool2d(weight.flatten(0, 1), (logits.shape[-2], logits.shape[-1]))
    return parts.unflatten(0, weight.shape[:2])


def temporal_l1(rebuilt: Video, video: Video, weight: Float[Tensor, "b f 1 h w"]) -> Tensor:
    """L1 of the error's change from one frame to the next: a decoder that moves less within a
    latent than from one to another shows their rhythm. 0 for one frame."""
    if video.shape[1] == 1:
        return video.new_zeros(())
    change = (rebuilt - video).diff(dim=1).abs()
    return (change * weight[:, 1:]).mean() / weight.mean()


def kl_divergence(mean: Latents, log_var: Latents) -> Tensor:
    """KL of the posterior from a unit normal, in nats per latent number."""
    return 0.5 * (mean**2 + log_var.exp() - 1 - log_var).mean()


def psnr(rebuilt: Video, video: Video) -> Float[Tensor, " b"]:
    """PSNR of each clip in dB, for a range of 2 (-1 … 1), from the error over all its frames."""
    mean_square = ((rebuilt - video) / 2).square().flatten(1).mean(1)
    return -10 * mean_square.clamp_min(1e-10).log10()
