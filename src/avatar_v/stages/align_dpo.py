"""Stage 5b: preferences move what is sampled, by Flow-DPO (Avatar V §3.5; Liu et al., 2501.13918).

A pair is two motions of one condition, of which a rater prefers one or neither (shards/pairs.py).
The network comes to denoise the winner better than the frozen network of the start does, and the
loser worse, from the same noise at the same time. A rater judged whole samples; every pair gives
several windows to a step, as the motion network was trained on (stages/motion_prior.py), and a
pair that was judged on one axis counts in the components of that axis alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.flow import shift_time
from avatar_v.models.motion_net import MotionNet
from avatar_v.motion.vectors import component_weights, known_mask
from avatar_v.stages.base import Logs
from avatar_v.stages.dpo import (
    FROZEN,
    TIE,
    Preferences,
    check_ties,
    judged_of,
    noised_pairs,
    preference,
    validation_logs,
    winners_first,
)
from avatar_v.stages.motion_prior import MotionPrior, MotionTraining
from avatar_v.stages.optim import Optim
from avatar_v.stages.policies import repeated
from avatar_v.stages.roles import STUDENT, Role
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.trainable import Trainable
from avatar_v.stages.windows import Windows
from avatar_v.types import TEMPORAL_FACTOR, Batch, MotionCond
from avatar_v.weights.card import read_card


@dataclass(frozen=True)
class DPO(Preferences):
    """Numbers of preference training of motion."""

    axes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Components of motion in which pairs of an axis count; of other axes all do."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for names in self.axes.values():
            component_weights(dict.fromkeys(names, 1.0))
            if not names:
                raise ValueError(f"axes name components of motion, got {self.axes}")


class AlignDPO(MotionPrior):
    """DPO of the motion network.

    Args:
        motion: how many windows of each pair, and which components count most.
        dpo: how strongly preferences count, ties, axes.
        trainable: all of the motion network, or LoRA factors.
    """

    frozen: MotionNet

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        motion: MotionTraining,
        dpo: DPO,
        seed: int = 0,
        trainable: Trainable | None = None,
    ) -> None:
        super().__init__(models, optim, objective, motion, seed, trainable)
        self.dpo = dpo

    def roles(self) -> Mapping[str, Role]:
        return {
            STUDENT: Role(("conditioner",), self.optim, ema=True, export=True),
            FROZEN: Role((FROZEN,)),
        }

    def adapt(self) -> None:
        """Keep the network of the start. ValueError for weights without one, or with a student of
        few steps, whose flow errors say nothing of what it samples."""
        start = self.models.init_from
        if self.conditioner.motion_net is None:
            raise ValueError(
                "preferences need weights with a motion network (recipes/3_motion.yaml), and "
                f"{start or 'fresh ones'} have none"
            )
        steps = None if start is None else read_card(start).can.motion_steps
        if steps is not None:
            raise ValueError(
                f"the motion network of {start} is a student of {steps} steps: align its teacher"
            )
        self.frozen = self.network_for(FROZEN, self.network)

    def on_fit_start(self) -> None:
        """Also: the ties of the pairs need a loss that knows them."""
        super().on_fit_start()
        data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        check_ties(data, self.dpo)

    def encode(
        self, batch: Batch, windows: Windows, generator: torch.Generator
    ) -> tuple[Tensor, MotionCond]:
        """The windows of all winners, then those of all losers (of a tie the first sample, then the
        second), and the condition of each. Nothing is dropped."""
        judged, clip = judged_of(batch), self.clip_of_windows(batch)
        pair = [self.conditioner.pack_motion(of) for of in (judged.first, judged.second)]
        won, lost = winners_first(judged, *pair)
        clean = torch.cat([windows.crop(of[clip]) for of in (won, lost)])
        cond = self.conditions(batch, windows)
        return clean.to(self.device), cond.map(lambda x: repeated(x, 2))

    def loss(
        self,
        clean: Tensor,
        cond: MotionCond,
        windows: Windows,
        batch: Batch,
        generator: torch.Generator,
    ) -> tuple[Tensor, Logs]:
        """Flow-DPO of the windows."""
        num, clip = len(clean) // 2, self.clip_of_windows(batch)
        scored = windows.scored()
        times = torch.rand(num, 1, generator=generator)
        t = torch.where(scored, shift_time(times, self.objective.shift), 0.0)
        noise = torch.randn(num, *clean.shape[1:], generator=generator)
        pairs = noised_pairs(clean, noise, t, scored, (judged_of(batch).winner == TIE)[clip])
        weights = self.axis_weights(batch)[clip]
        wide = repeated(weights.repeat(1, TEMPORAL_FACTOR)[:, None], 2).to(clean.device)
        return preference(
            lambda x_t, t: self.network(x_t, t, cond),
            lambda x_t, t: self.frozen(x_t, t, cond),
            pairs,
            self.dpo,
            wide,
        )

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """The loss and the terms of it on pairs that are not trained on."""
        found = validation_logs(*self.loss_at(batch, batch_idx, validation=True))
        self.log_dict(found, batch_size=len(batch.motion), sync_dist=True)

    def axis_weights(self, batch: Batch) -> Float[Tensor, "b m"]:
        """The weight of each component in the errors of each pair, of mean 1: those of the axis
        that it was judged on."""
        weights, axes = self.component_weights(batch), self.dpo.axes
        rows = [
            row * known_mask(axes[axis])[0] if axis in axes else row
            for row, axis in zip(weights, judged_of(batch).axis, strict=True)
        ]
        found = torch.stack(rows)
        return found / found.mean(1, keepdim=True).clamp_min(1e-6)
