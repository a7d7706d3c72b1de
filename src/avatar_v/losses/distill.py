"""Objectives of distillation: guidance in one pass, and distribution matching (DMD).

Pure functions on predictions of video or motion.
DMD: Yin et al. 2024 (arXiv 2311.18828, 2405.14867);
the per-sample normaliser is Self-Forcing's (arXiv 2506.08009). All in fp32.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.flow import Latents, State

Scored = Bool[Tensor, "b l"]
LEAST_SPREAD = 1e-6
"""The normaliser is not smaller: a student that already makes what the real score says."""


def distribution_matching_gradient(made: State, real: State, fake: State, scored: Scored) -> State:
    """``g = (x0_fake - x0_real) / mean |x̂ - x0_real|``, a mean over each sample's scored latents.

    ``made`` is x̂ of the student; ``fake`` and ``real`` are x_0 as the fake and the real score
    predict it from one noised version of x̂. The scores of both differ by ``(1 - t) / t²`` times the
    numerator, so ``-g`` points from what the student makes to the data. The gradient is 0 outside
    ``scored`` and where a number is not finite.
    """
    made, real, fake = (x.detach().float() for x in (made, real, fake))
    mask = _mask(scored, made)
    count = mask.expand_as(made).flatten(1).sum(1).clamp_min(1)
    spread = ((made - real).abs() * mask).flatten(1).sum(1) / count
    wide = spread.clamp_min(LEAST_SPREAD).reshape(-1, *[1] * (made.ndim - 1))
    return torch.nan_to_num((fake - real) / wide * mask, nan=0.0, posinf=0.0, neginf=0.0)


def distribution_matching_loss(
    made: State,
    gradient: State,
    scored: Scored,
    weight: Float[Tensor, "b #l *#rest"] | None = None,
) -> Float[Tensor, " b"]:
    """``0.5 mean W (x̂ - sg[x̂ - g])²`` per sample, over the scored latents: its gradient is W g by
    their number. W, if given, is divided by its mean there."""
    made = made.float()
    target = (made - gradient).detach()
    squared = 0.5 * (made - target).square()
    w = _mask(scored, made) if weight is None else _mask(scored, made) * weight.float()
    w = w.expand_as(made)
    total = w.flatten(1).sum(1).clamp_min(torch.finfo(torch.float32).tiny)
    return (squared * w).flatten(1).sum(1) / total


def guided_target(velocity: Latents, without: Latents, weight: Float[Tensor, " b"]) -> Latents:
    """``v + (w - 1) (v - sg[v_∅])``: the target of plain training of weights with guidance inside.

    ``velocity`` is that of the data, ``without`` the network's own for the sample without its
    conditions and w the weight that the network takes as an input. On average over the data this is
    guidance with w: fine-tuning on it keeps what distillation put in; plain flow matching takes it
    out.
    """
    wide = weight.reshape(-1, *[1] * (velocity.ndim - 1))
    return velocity + (wide - 1) * (velocity - without.detach())


def _mask(scored: Scored, like: State) -> Float[Tensor, "b l *ones"]:
    return scored.to(like.dtype).reshape(*scored.shape, *[1] * (like.ndim - 2))
