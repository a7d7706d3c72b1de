"""Hinge losses of a game between a refiner and a judge of latent cells, cell by cell weighted.

Hinge: Lim & Ye, Geometric GAN (arXiv 1705.02894). The judge is kept smooth by the approximated R1
of Seaweed-APT (arXiv 2501.08316), which made one-step video models of this kind. Weights are those
of the flow loss (losses/flow.py): face and mouth count more. Pure functions, in fp32.
"""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

Cells = Float[Tensor, "b l 1 h w"]


def judge_loss(real: Cells, made: Cells, weight: Cells) -> Float[Tensor, ""]:
    """``max(0, 1 - D(real)) + max(0, 1 + D(made))``."""
    return weighted_mean(F.relu(1 - real.float()) + F.relu(1 + made.float()), weight)


def deceive_loss(made: Cells, weight: Cells) -> Float[Tensor, ""]:
    """``-D(made)``, what the refiner lowers."""
    return -weighted_mean(made.float(), weight)


def smoothness_loss(real: Cells, disturbed: Cells, weight: Cells) -> Float[Tensor, ""]:
    """``(D(real) - D(real + noise))²``: a judge that flips at a small disturbance gives gradients
    that lead nowhere."""
    return weighted_mean((real.float() - disturbed.float()).square(), weight)


def weighted_mean(values: Cells, weight: Cells) -> Float[Tensor, ""]:
    """Mean over cells by their weights."""
    return (values * weight.float()).sum() / weight.float().sum()
