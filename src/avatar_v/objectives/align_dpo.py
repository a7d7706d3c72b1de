"""Stage 5b: preferences move what is sampled, by Flow-DPO (Avatar V §3.5; Liu et al., 2501.13918).

A pair is two motions of one condition, of which a rater prefers one or neither (shards/pairs.py).
The network comes to denoise the winner better than the frozen network of the start does, and the
loser worse, from the same noise at the same time. A rater judged whole samples; every pair gives
several windows to a step, as the motion network was trained on (training/motion.py), and a pair
that was judged on one axis counts in the components of that axis alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.flow import shift_time
from avatar_v.models.motion_net import MotionNet
from avatar_v.motion.vectors import component_weights, known_mask
from avatar_v.objectives.preferences import (
    FROZEN,
    TIE,
    Preferences,
    check_ties,
    noised_pairs,
    preference,
    require_pairs,
    validation_logs,
    winners_first,
)
from avatar_v.training.batch import Draws, Logs, TrainBatch
from avatar_v.training.engine import Engine
from avatar_v.training.motion import (
    MotionSubject,
    MotionTraining,
    get_motion_net,
    select_motion_net,
)
from avatar_v.training.optim import Optim
from avatar_v.training.policies import repeated
from avatar_v.training.roles import STUDENT, Role
from avatar_v.training.settings import Models, Objective
from avatar_v.training.subject import Networks
from avatar_v.training.trainable import Trainable
from avatar_v.training.windows import Windows
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


class MotionPairSubject(MotionSubject):
    """Windows of both motions of each pair: of all winners, then of all losers (of a tie the first
    sample, then the second). Nothing is dropped."""

    def __init__(
        self, models: Models, objective: Objective, training: MotionTraining, dpo: DPO
    ) -> None:
        super().__init__(models, objective, training)
        self.dpo = dpo

    def check_data(self, networks: Networks, data: object, num_steps: int) -> None:
        """Also: the ties of the pairs need a loss that knows them."""
        super().check_data(networks, data, num_steps)
        check_ties(data, self.dpo)

    def encode(
        self, networks: Networks, batch: Batch, windows: Windows, draws: Draws
    ) -> tuple[Float[Tensor, "n l md"], MotionCond]:
        judged, clip = require_pairs(batch), self.clip_of_windows(batch)
        pair = [networks.conditioner.pack_motion(of) for of in (judged.first, judged.second)]
        won, lost = winners_first(judged, *pair)
        clean = torch.cat([windows.crop(of[clip]) for of in (won, lost)])
        cond = self.conditions(networks, batch, windows)
        assert cond.audio is not None, "conditions has audio"
        return clean.to(cond.audio.device), cond.map(lambda x: repeated(x, 2))

    def axis_weights(self, batch: Batch) -> Float[Tensor, "b m"]:
        """The weight of each component in the errors of each pair, of mean 1: those of the axis
        that it was judged on."""
        weights, axes = self.component_weights(batch), self.dpo.axes
        rows = [
            row * known_mask(axes[axis])[0] if axis in axes else row
            for row, axis in zip(weights, require_pairs(batch).axis, strict=True)
        ]
        found = torch.stack(rows)
        return found / found.mean(1, keepdim=True).clamp_min(1e-6)


class AlignDPO(Engine[TrainBatch[MotionCond]]):
    """DPO of the motion network.

    Args:
        motion: how many windows of each pair, and which components count most.
        dpo: how strongly preferences count, ties, axes.
        trainable: all of the motion network, or LoRA factors.
    """

    subject: MotionPairSubject
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
        super().__init__(MotionPairSubject(models, objective, motion, dpo), optim, seed, trainable)

    def roles(self) -> Mapping[str, Role]:
        return {
            STUDENT: Role(("conditioner",), self.optim, ema=True, export=True),
            FROZEN: Role((FROZEN,)),
        }

    def build_roles(self) -> None:
        """Keep the network of the start. ValueError for weights without one, or with a student of
        few steps, whose flow errors say nothing of what it samples."""
        start = self.subject.models.init_from
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
        self.frozen = self.network_for(FROZEN, get_motion_net(self))

    def select_trainable(self) -> None:
        hears = self.subject.training.hears
        select_motion_net(self, self.trainable, self.seed, hears=hears)

    def loss(self, batch: TrainBatch[MotionCond]) -> tuple[Tensor, Logs]:
        """Flow-DPO of the windows."""
        num, clip = batch.size // 2, self.subject.clip_of_windows(batch.clips)
        scored, own = batch.windows.scored(), batch.draws.own
        times = torch.rand(num, 1, generator=own)
        t = torch.where(scored, shift_time(times, self.subject.objective.shift), 0.0)
        noise = torch.randn(num, *batch.clean.shape[1:], generator=own)
        tied = (require_pairs(batch.clips).winner == TIE)[clip]
        pairs = noised_pairs(batch.clean, noise, t, scored, tied)
        weights = self.subject.axis_weights(batch.clips)[clip]
        wide = repeated(weights.repeat(1, TEMPORAL_FACTOR)[:, None], 2).to(batch.clean.device)
        network = get_motion_net(self)
        return preference(
            lambda x_t, t: network(x_t, t, batch.cond),
            lambda x_t, t: self.frozen(x_t, t, batch.cond),
            pairs,
            self.subject.dpo,
            wide,
        )

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """The loss and the terms of it on pairs that are not trained on."""
        found = validation_logs(*self.loss_at(batch, batch_idx, validation=True))
        self.log_dict(found, batch_size=len(batch.motion), sync_dist=True)
