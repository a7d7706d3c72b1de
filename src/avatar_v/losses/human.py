"""Human-aware losses on decoded predictions (Avatar V §2.1, §3.3).

Pure functions of what critics read from a few predicted frames; the critics are frozen and run in
fp32 (critics/). A prediction ``x̂_0 = x_t - t v`` means something only where t is small, so every
sample is weighted by `late_weight`. Which terms count, and from which step on, is the recipe's.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

LATE_LIMIT = 0.7
"""Above this time a prediction is too blurred to be judged (our choice)."""

Weights = Float[Tensor, " b"]


def late_weight(t: Float[Tensor, " b"], limit: float = LATE_LIMIT) -> Weights:
    """``1 - t`` where t is at most ``limit``, else 0."""
    return torch.where(t <= limit, 1 - t, torch.zeros_like(t))


def identity_loss(
    predicted: Float[Tensor, "b f d"], reference: Float[Tensor, "b d"], weight: Weights
) -> Float[Tensor, ""]:
    """``1 - cos`` between the faces of predicted frames and of the reference."""
    cosine = F.cosine_similarity(predicted.float(), reference.float()[:, None], dim=-1)
    return _weighted((1 - cosine).mean(1), weight)


def motion_loss(
    read: Float[Tensor, "b f m"],
    truth: Float[Tensor, "b f m"],
    scale: Float[Tensor, " m"],
    weight: Weights,
    components: Float[Tensor, "#b m"] | None = None,
) -> Float[Tensor, ""]:
    """Mean squared error of motion in units of each component's spread, ``components`` weighing
    those of each sample (mean 1, 0 where the truth is not known; None: all alike).

    With ``truth`` the clip's own motion this is the motion loss; with the motion that the model
    predicted beside the picture it is the closed loop (Avatar V §2.1).
    """
    error = ((read.float() - truth.float()) / scale).square()
    if components is not None:
        error = error * components[:, None]
    return _weighted(error.mean((1, 2)), weight)


def perceptual_loss(
    predicted: list[Float[Tensor, "n _c _h _w"]],
    truth: list[Float[Tensor, "n _c _h _w"]],
    weight: Float[Tensor, " n"],
) -> Float[Tensor, ""]:
    """Squared distance of feature maps, each position's features scaled to unit length, averaged
    over positions and layers (LPIPS without learned layer weights, arXiv 1801.03924)."""
    distances = [
        (F.normalize(a.float(), dim=1) - F.normalize(b.float(), dim=1)).square().sum(1).mean((1, 2))
        for a, b in zip(predicted, truth, strict=True)
    ]
    return _weighted(torch.stack(distances).mean(0), weight)


def sync_loss(
    video: Float[Tensor, "b n d"], audio: Float[Tensor, "b n d"], weight: Weights
) -> Float[Tensor, ""]:
    """Cross-entropy of ``p = (1 + cos) / 2`` being 1: each window of lips against its own sound
    (SyncNet's cosine as in Wav2Lip, arXiv 2008.10010)."""
    cosine = F.cosine_similarity(video.float(), audio.float(), dim=-1)
    probability = ((1 + cosine) / 2).clamp(1e-4, 1 - 1e-4)
    return _weighted(-probability.log().mean(1), weight)


def _weighted(values: Float[Tensor, " n"], weight: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """Mean over samples of weight · value: samples that are too noisy count as zero, so the term
    fades with the share of them instead of jumping."""
    return (values * weight).mean()
