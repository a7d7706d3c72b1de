"""Perceptual losses on decoded predictions (the human-aware losses of Avatar V §2.1, §3.3).

Pure functions of what critics read from a few predicted frames; the critics are frozen and run in
fp32 (critics/). Each gives one value a sample, unweighted and not reduced, so that a stage can
weigh and average it (training/perceptual.py) and a reward can rank it. A prediction
``x̂_0 = x_t - t v`` means something only where t is small: `late_weight`.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

LATE_LIMIT = 0.7
"""Above this time a prediction is too blurred to be judged (our choice)."""

Values = Float[Tensor, " b"]


def late_weight(t: Float[Tensor, " b"], limit: float = LATE_LIMIT) -> Values:
    """``1 - t`` where t is at most ``limit``, else 0."""
    return torch.where(t <= limit, 1 - t, torch.zeros_like(t))


def identity_loss(
    predicted: Float[Tensor, "b f d"], reference: Float[Tensor, "b d"]
) -> Float[Tensor, " b"]:
    """``1 - cos`` between the faces of predicted frames and of the reference."""
    cosine = F.cosine_similarity(predicted.float(), reference.float()[:, None], dim=-1)
    return (1 - cosine).mean(1)


def motion_loss(
    read: Float[Tensor, "b f m"],
    truth: Float[Tensor, "b f m"],
    scale: Float[Tensor, " m"],
    components: Float[Tensor, "#b m"] | None = None,
) -> Float[Tensor, " b"]:
    """Mean squared error of motion in units of each component's spread, ``components`` weighing
    those of each sample (mean 1, 0 where the truth is not known; None: all alike).

    With ``truth`` the clip's own motion this is the motion loss; with the motion that the model
    predicted beside the picture it is the closed loop (Avatar V §2.1).
    """
    error = ((read.float() - truth.float()) / scale).square()
    if components is not None:
        error = error * components[:, None]
    return error.mean((1, 2))


def feature_loss(
    predicted: list[Float[Tensor, "n _c _h _w"]], truth: list[Float[Tensor, "n _c _h _w"]]
) -> Float[Tensor, " n"]:
    """Squared distance of feature maps, each position's features scaled to unit length, averaged
    over positions and layers (LPIPS without learned layer weights, arXiv 1801.03924)."""
    distances = [
        (F.normalize(a.float(), dim=1) - F.normalize(b.float(), dim=1)).square().sum(1).mean((1, 2))
        for a, b in zip(predicted, truth, strict=True)
    ]
    return torch.stack(distances).mean(0)


def sync_loss(video: Float[Tensor, "b n d"], audio: Float[Tensor, "b n d"]) -> Float[Tensor, " b"]:
    """Cross-entropy of ``p = (1 + cos) / 2`` being 1: each window of lips against its own sound
    (SyncNet's cosine as in Wav2Lip, arXiv 2008.10010)."""
    cosine = F.cosine_similarity(video.float(), audio.float(), dim=-1)
    probability = ((1 + cosine) / 2).clamp(1e-4, 1 - 1e-4)
    return -probability.log().mean(1)
