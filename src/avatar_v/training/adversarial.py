"""Adversarial: the numbers of a discriminator that is trained beside the student, and its role.

For stages whose own error gives the mean of all details that fit, which is blurred: the refiner's
second phase and the VAE's. The losses are losses/adversarial.py, the networks
models/discriminator.py.
"""

from dataclasses import dataclass

from avatar_v.base import checks
from avatar_v.training.optim import MAX_LR
from avatar_v.training.roles import Role, constant

DISCRIMINATOR = "discriminator"


@dataclass(frozen=True)
class Adversarial:
    """Numbers of the discriminator and of the adversarial term."""

    weight: dict[int, float]
    """Weight of the adversarial term beside the error, {step: weight from that step on}."""
    width: int = 64  # channels of the discriminator
    num_layers: int = 3
    lr: float = 2e-4
    betas: tuple[float, float] = (0.5, 0.9)
    r1_weight: float = 1.0  # of losses/adversarial.r1_loss
    r1_noise: float = 0.1  # standard deviation of its noise, in the units of what is judged

    def __post_init__(self) -> None:
        checks.by_step(checks.weight, "weight", self.weight)
        checks.count("width", self.width)
        checks.count("num_layers", self.num_layers)
        checks.positive("lr", self.lr, most=MAX_LR)
        checks.entries(checks.decay, "betas", self.betas)
        checks.weight("r1_weight", self.r1_weight)
        checks.positive("r1_noise", self.r1_noise)

    def role(self) -> Role:
        """The discriminator's: neither averaged, sharded nor exported."""
        return Role((DISCRIMINATOR,), constant(self.lr, self.betas), shard=False)
