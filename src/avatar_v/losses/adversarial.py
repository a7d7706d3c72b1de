"""Hinge losses of a generator and a discriminator of latent cells, cell by cell weighted.

Hinge: Lim & Ye, Geometric GAN (arXiv 1705.02894). The discriminator is kept smooth by the
approximated R1 of Seaweed-APT (arXiv 2501.08316), which made one-step video models of this kind.
Weights are those of the flow loss (losses/flow.py): face and mouth count more. Pure functions, in
fp32.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Cells = Float[Tensor, "b l 1 h w"]


def discriminator_loss(real: Cells, fake: Cells, weight: Cells) -> Float[Tensor, ""]:
    """``max(0, 1 - D(real)) + max(0, 1 + D(fake))``."""
    return weighted_mean(F.relu(1 - real.float()) + F.relu(1 + fake.float()), weight)


def generator_loss(fake: Cells, weight: Cells) -> Float[Tensor, ""]:
    """``-D(fake)``."""
    return -weighted_mean(fake.float(), weight)


def r1_loss(real: Cells, noisy: Cells, weight: Cells) -> Float[Tensor, ""]:
    """``(D(real) - D(real + noise))²``: a discriminator that flips at a small disturbance gives
    gradients that lead nowhere."""
    return weighted_mean((real.float() - noisy.float()).square(), weight)


def weighted_mean(values: Cells, weight: Cells) -> Float[Tensor, ""]:
    """Mean over cells by their weights."""
    return (values * weight.float()).sum() / weight.float().sum()
