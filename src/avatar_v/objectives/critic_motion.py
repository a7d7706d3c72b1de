"""The motion meter: a face's motion from single frames (recipes/critic_motion.yaml)."""

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.critics.layers import Backbone
from avatar_v.critics.motion import MotionMeter
from avatar_v.motion.vectors import component_weights
from avatar_v.objectives.critic import CriticBatch, CriticTask, check_sizes, fresh
from avatar_v.objectives.critic_data import LabelledFrames
from avatar_v.types import MOTION_NAMES


class MotionTask(CriticTask):
    """Regression of the motion vector, each component in units of its spread.

    Args:
        components: their weights in the loss by name; every other one has 1.
        init_from: the folder of a meter to go on from, in place of fresh weights.
    """

    def __init__(
        self,
        components: dict[str, float],
        width: int = 24,
        num_heads: int = 10,
        init_from: str | None = None,
        backbone: Backbone = "residual",
        held_out: bool = False,
    ) -> None:
        check_sizes(width=width, num_heads=num_heads)
        self.init_from, self.weights = init_from, component_weights(components)
        self.sizes = (width, num_heads, backbone, held_out)

    def load(self, seed: int, trainer: object) -> dict[str, nn.Module]:
        if self.init_from is None:
            return {"model": fresh(seed, lambda: MotionMeter(*self.sizes))}
        return {"model": MotionMeter.from_pretrained(self.init_from).requires_grad_(True).train()}

    def prepare(self, networks: Any, data: Any) -> None:
        if self.init_from is not None:
            return
        motion, model = data.train_frames.motion, networks.model
        model.center.copy_(motion.mean(0))
        model.scale.copy_(motion.std(0).clamp_min(1e-3))  # one that never moves stays finite

    def loss(self, networks: Any, batch: CriticBatch) -> Tensor:
        model = networks.model
        error = (model(batch.inputs) - batch.shown.motion) / model.scale
        return (error.square() * self.weights.to(error.device)).mean()

    def numbers(self, networks: Any, shown: list[LabelledFrames]) -> dict[str, float]:
        read = torch.cat([networks.model.measure(part.images).values for part in shown])
        truth = torch.cat([part.motion for part in shown])
        moves = (truth.std(0) > 0).nonzero()[:, 0].tolist()
        scores = r_squared(read.double()[:, moves], truth.double()[:, moves])
        return {f"r2_{MOTION_NAMES[i]}": float(s) for i, s in zip(moves, scores, strict=True)}


def r_squared(read: Float[Tensor, "n c"], truth: Float[Tensor, "n c"]) -> Float[Tensor, " c"]:
    """1 - residual / total sum of squares, per column; can be negative."""
    total = (truth - truth.mean(0)).square().sum(0)
    if not math.isfinite(float(total.sum())) or bool((total == 0).any()):
        raise ValueError(f"r² needs columns that vary, got total squares {total.tolist()}")
    return 1 - (read - truth).square().sum(0) / total
