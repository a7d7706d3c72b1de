"""References of every kind of validity, with a target beside them, for tests of what reads them."""

import dataclasses

import torch
from torch import Tensor

from avatar_v.models.config import DiTConfig
from avatar_v.types import Cond
from random_models import make_cond, make_reference

# fp32; the two sides sum the same terms in another order, values are of order 1.
TOLERANCE = 1e-5
NUM_FRAMES, NUM_REFERENCE, SIZE = 3, 19, 4

VALIDITY = {
    "all": torch.ones(2, NUM_REFERENCE, dtype=torch.bool),
    "ragged": torch.rand(2, NUM_REFERENCE, generator=torch.Generator().manual_seed(0)) > 0.4,
    "equal counts": torch.arange(NUM_REFERENCE).expand(2, -1) % 2 == torch.tensor([[0], [0]]),
    "one sample has none": torch.tensor([[True], [False]]).expand(2, NUM_REFERENCE).clone(),
    "none": torch.zeros(2, NUM_REFERENCE, dtype=torch.bool),
    "a segment has none": (torch.arange(NUM_REFERENCE) // 8 != 1).expand(2, -1).clone(),
}


def target(config: DiTConfig) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (2, NUM_FRAMES, config.latent_channels, SIZE, SIZE)
    return torch.randn(shape, generator=generator), torch.rand(2, NUM_FRAMES, generator=generator)


def with_reference(config: DiTConfig, valid: Tensor, **changes: object) -> Cond:
    reference = dataclasses.replace(make_reference(config, valid, size=SIZE), **changes)
    return make_cond(config, 2, NUM_FRAMES, reference=reference)
