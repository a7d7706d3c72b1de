"""Stage 5a: rewards move what is sampled, by policy gradients (Avatar V §3.5; Flow-GRPO).

A batch is a rollout: groups of samples of one condition each with noise of their own, made as in
generation, but for a window of steps that explore (sampling/exploring.py). Rewards judge the
samples; what is better than its group becomes more likely (policy_gradient.py), near to the frozen
weights that the stage starts from. The policy is the motion network or the DiT
(training/policies.py). Before an update the ratio of the densities is 1 to the last bit, or the
rollout was not that of the network: the stage asks.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.flow import State
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.motion_net import MotionNet
from avatar_v.objectives.policy_gradient import (
    GRPO,
    Trajectory,
    compute_advantages,
    densities,
    step_loss,
)
from avatar_v.rewards.terms import Rewards, RewardSamples, RewardTerm, known
from avatar_v.sampling.chunks import OVERLAP
from avatar_v.sampling.exploring import Exploration, explored, mean_again
from avatar_v.sampling.solver import normal
from avatar_v.training.batch import Draws, Logs, TrainBatch
from avatar_v.training.engine import Engine
from avatar_v.training.motion import freeze_listening, inherited, set_pictures_aside
from avatar_v.training.optim import Optim
from avatar_v.training.policies import (
    Guidance,
    MotionPolicy,
    Policy,
    RolloutBatch,
    VideoPolicy,
    WarmStartWindows,
    without_gradient,
)
from avatar_v.training.roles import STUDENT, Role, Updates
from avatar_v.training.settings import Models, Objective
from avatar_v.training.subject import ClipSubject, Networks
from avatar_v.training.trainable import MOTION, Trainable, select
from avatar_v.training.windows import Windows, bernoulli, draw_windows
from avatar_v.types import Batch, Cond, MotionCond, num_latents
from avatar_v.weights.card import read_card
from avatar_v.weights.presets import format_of

FROZEN = "frozen"
"""The role of the weights that the stage starts from."""


class RolloutSubject(ClipSubject[Cond | MotionCond]):
    """The conditions that the samples of a policy begin from: nothing is dropped."""

    knows_motion = True

    def __init__(
        self,
        models: Models,
        objective: Objective,
        policy: Policy,
        exploration: Exploration,
        grpo: GRPO,
    ) -> None:
        super().__init__(models, objective)
        self.policy, self.exploration, self.grpo = policy, exploration, grpo

    def set_aside(self, networks: Networks) -> None:
        if self.policy.of_motion:
            set_pictures_aside(networks)

    def begin(
        self, networks: Networks, batch: Batch, draws: Draws
    ) -> TrainBatch[Cond | MotionCond]:
        """True states of the windows, and their conditions. Where chunks lead up to the windows,
        the end of the last of them is what is given."""
        windows, end = self.draw_windows(batch, draws), None
        shown = self.at_resolution(networks, batch, draws.step)
        with without_gradient():
            for number in range(windows.lead, 0, -1):
                start = windows.start - number * (windows.length - OVERLAP)
                given = torch.full_like(start, _num_given(start, windows.length))
                before = dataclasses.replace(windows, start=start, prefix=given)
                clean, cond = self._begin_windows(networks, shown, before, end)
                rollout = RolloutBatch(shown, before, clean, cond, 1)
                end = self.generated(networks, rollout, draws.own)[:, -OVERLAP:]
            clean, cond = self._begin_windows(networks, shown, windows, end)
        num_tokens = self._num_tokens(networks, clean)
        return TrainBatch(batch, windows, clean, cond, draws, num_tokens)

    def _begin_windows(
        self,
        networks: Networks,
        batch: Batch,
        windows: Windows,
        end: Float[Tensor, "b p *rest"] | None,
    ) -> tuple[State, MotionCond | Cond]:
        """States and conditions of windows that begin with ``end``, or else with the truth."""
        clean, cond = self.policy.begin(networks.conditioner, batch, windows)
        return (clean if end is None else torch.cat([end, clean[:, OVERLAP:]], dim=1)), cond

    def draw_windows(self, batch: Batch, draws: Draws) -> WarmStartWindows:
        """One window of each clip, all with as many latents given: the first of a clip, or the two
        that a later chunk of generation begins with. The samples of a batch go through one solver.

        ValueError for clips that are shorter than a window and the chunks before it.
        """
        length, lead = self.window_length(draws.step), 0
        if self.grpo.max_lead > 0:
            lead = int(torch.randint(self.grpo.max_lead + 1, (), generator=draws.common))
        room = num_latents(batch.motion.shape[1]) - lead * (length - OVERLAP)
        if room < length:
            raise ValueError(
                f"max_lead {self.grpo.max_lead} needs clips of more latents than "
                f"{num_latents(batch.motion.shape[1])}"
            )
        first = bernoulli(self.objective.first_share, draws.common)
        drawn = draw_windows(
            self.num_windows(batch),
            room,
            length,
            first_share=1.0 if first else 0.0,
            image_share=1.0,
            generator=draws.own,
        )
        start = drawn.start + lead * (length - OVERLAP)
        given = torch.full_like(start, _num_given(start, length))
        return WarmStartWindows(start, given, torch.zeros_like(start), length, lead)

    def longest_window(self, num_steps: int) -> int:
        """With the chunks that may lead up to it."""
        length = super().longest_window(num_steps)
        return length + self.grpo.max_lead * (length - OVERLAP)

    def conditions(
        self,
        networks: Networks,
        batch: Batch,
        windows: Windows,
        draws: Draws | None = None,
        *,
        step: int = 0,
    ) -> MotionCond | Cond:
        return self.policy.begin(networks.conditioner, batch, windows)[1]

    @torch.no_grad()
    def generated(
        self, networks: Networks, rollout: RolloutBatch, generator: torch.Generator
    ) -> State:
        """Samples of the weights as they are, as generation makes them."""
        velocity = self.policy.velocity(
            policy_network(networks, self.policy), networks.conditioner, rollout
        )
        draw, noise = normal(generator), rollout_noise(rollout, generator)
        return explored(velocity, noise, self.exploration, range(0), draw, rollout.prefix)[0]

    def _num_tokens(self, networks: Networks, clean: State) -> int:
        """Tokens of one pass over all samples of a rollout."""
        num = len(clean) * self.grpo.group_size * clean.shape[1]
        if clean.dim() == 3:
            return num
        return num * (clean.shape[-2] * clean.shape[-1] // networks.dit.config.patch**2)

    def card_entries(self, networks: Networks) -> dict[str, Any]:
        """Those of the weights that are aligned."""
        return {} if self.models.init_from is None else inherited(self.models)


class AlignGRPO(Engine[TrainBatch[Cond | MotionCond]]):
    """GRPO on the noisy steps of a flow.

    Args:
        grpo: groups, clipping, distance.
        exploration: steps of a rollout and which of them have noise.
        guidance: weights of the rollouts, as in generation.
        rewards: what is rewarded, with weights.
        policy: "motion", the motion network, or "video", the DiT.
        trainable: of the policy's network: all or LoRA factors.
        updates: accumulation and clipping.
    """

    subject: RolloutSubject
    frozen: nn.Module

    def __init__(
        self,
        models: Models,
        optim: Optim,
        objective: Objective,
        grpo: GRPO,
        exploration: Exploration,
        guidance: Guidance,
        rewards: list[RewardTerm],
        policy: Literal["motion", "video"] = "motion",
        trainable: Trainable | None = None,
        updates: Updates | None = None,
        seed: int = 0,
    ) -> None:
        updates = updates or Updates()
        if updates.accumulate_grad_batches > 1 and grpo.updates_per_rollout > 1:
            raise ValueError(
                "updates_per_rollout is 1 where batches are accumulated, got "
                f"{grpo.updates_per_rollout} and {updates.accumulate_grad_batches}"
            )
        if policy == "video" and grpo.max_lead > 0:
            raise ValueError(f"max_lead is 0 with policy video, got {grpo.max_lead}")
        chosen_policy: Policy = {"motion": MotionPolicy, "video": VideoPolicy}[policy](guidance)
        # every step of the window is a backward pass of its own
        every = updates.accumulate_grad_batches * exploration.window
        subject = RolloutSubject(models, objective, chosen_policy, exploration, grpo)
        updates = Updates(every, updates.gradient_clip_val)
        super().__init__(subject, optim, seed, trainable, updates)
        self.grpo, self.exploration, self.policy = grpo, exploration, chosen_policy
        self.rewards = Rewards(rewards)

    @property
    def automatic_optimization(self) -> bool:
        return False

    def roles(self) -> Mapping[str, Role]:
        clip = self.updates.gradient_clip_val
        student = Role((self.policy.module,), self.optim, ema=True, export=True, gradient_clip=clip)
        return {STUDENT: student, FROZEN: Role((FROZEN,))}

    def build_roles(self) -> None:
        """Keep the weights of the start. ValueError for a policy that they do not have, or that
        makes its samples in other steps than the rollouts do, and for parts that it does not
        have."""
        for names in (tuple(self.grpo.hold), *(term.credit for term in self.rewards.terms)):
            self.policy.check_names(names)
        start = self.subject.models.init_from
        if start is not None:
            self._check_steps(start)
        if self.policy.of_motion and self.conditioner.motion_net is None:
            raise ValueError(
                "policy motion needs weights with a motion network (recipes/3_motion.yaml), and "
                f"{start or 'fresh ones'} have none"
            )
        self.frozen = self.network_for(FROZEN, self.network)

    def _check_steps(self, start: str) -> None:
        """ValueError where rollouts of a student are not made in its own steps, or those of other
        weights in a student's."""
        card, taken = read_card(start), self.exploration
        can, shift = card.can, format_of(card).shift
        steps = can.motion_steps if self.policy.of_motion else can.num_steps
        if steps is None and taken.of_student:
            raise ValueError(f"exploration.sampler is student, and {start} is none of few steps")
        if steps is not None and not (taken.of_student and taken.num_steps == steps):
            raise ValueError(
                f"{start} is a student of {steps} steps: expected exploration.sampler student and "
                f"num_steps {steps}, got {taken.sampler} and {taken.num_steps}"
            )
        if steps is None:
            return
        if taken.shift != shift:
            raise ValueError(
                f"{start} samples with shift {shift:g}: expected exploration.shift {shift:g}, got "
                f"{taken.shift:g}"
            )
        weights = self.policy.guidance
        if self.policy.of_motion and (weights.audio, weights.motion) != (1, 1):
            raise ValueError(
                f"the motion network of {start} has its guidance inside: expected guidance.audio "
                f"and guidance.motion 1, got {weights.audio:g} and {weights.motion:g}"
            )

    def select_trainable(self) -> None:
        self.conditioner.requires_grad_(False)
        self.dit.requires_grad_(False)
        network = self.network
        assert isinstance(network, AvatarDiT | MotionNet)
        network.requires_grad_(True)
        select(network, self.trainable, new=MOTION if network is self.dit else (), seed=self.seed)
        if isinstance(network, MotionNet):  # its rollouts hear nobody else
            freeze_listening(network)

    @property
    def network(self) -> nn.Module:
        """The policy's."""
        return policy_network(self, self.policy)

    def iterate(self, batch: TrainBatch[Cond | MotionCond]) -> tuple[Tensor, Logs]:
        """A rollout and its updates. The loss to log is that of the weighted raw rewards: that of
        the policy is 0 before the first update, whatever the samples are."""
        rollout, trajectory = self.roll(batch)
        logs, most = dict(trajectory.logs), self.trainer.max_steps
        for index in range(self.grpo.updates_per_rollout):
            if 0 < most <= self.step:
                break
            passes = []
            for number in range(len(trajectory.moves)):
                loss, found = self.policy_loss(rollout, trajectory, number, first=index == 0)
                self.update(STUDENT, loss)
                passes.append(found)
            for name in passes[0]:
                logs[name] = torch.stack([found[name] for found in passes]).mean()
        none = batch.clean.new_zeros(())
        distance = self.grpo.kl_weight * logs.get("kl", none) + logs.get("held", none)
        return distance - logs["reward"], logs

    def loss(self, batch: TrainBatch[Cond | MotionCond]) -> tuple[Tensor, Logs]:
        """The policy's loss of a rollout, the mean over its noisy steps, with all gradients at once
        (`iterate` goes step by step)."""
        rollout, trajectory = self.roll(batch)
        losses = [
            self.policy_loss(rollout, trajectory, number, first=True)[0]
            for number in range(len(trajectory.moves))
        ]
        return torch.stack(losses).mean(), trajectory.logs

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """The raw rewards of a sample of every condition as generation makes it."""
        for name, value in self.rewards(self.plain_samples(batch, batch_idx)).items():
            own = value[known(value)]
            shown = torch.stack([own.sum(), own.new_tensor(own.numel())])
            self._shown[name] = self._shown.get(name, 0) + shown

    def on_validation_epoch_start(self) -> None:
        self._shown: dict[str, Tensor] = {}

    def on_validation_epoch_end(self) -> None:
        """Means of what is known on any rank. All ranks add up the same names, whatever is known
        on each: a rank that waits for a name that another one lacks would wait for ever."""
        if not self._shown:
            return
        sums = self.trainer.strategy.reduce(torch.stack([*self._shown.values()]), reduce_op="sum")
        for name, (total, num) in zip(self._shown, torch.as_tensor(sums), strict=True):
            if num > 0:
                self.log(f"val/{name}", total / num)

    @torch.no_grad()
    def plain_samples(self, batch: Batch, index: int) -> RewardSamples:
        """One sample of every condition as generation makes it, without exploring; the draws
        depend on ``index`` alone."""
        train_batch = self.begin(batch, index, validation=True)
        rollout = RolloutBatch(batch, train_batch.windows, train_batch.clean, train_batch.cond, 1)
        made = self.subject.generated(self, rollout, train_batch.draws.own)
        return self.policy.samples(self.conditioner, rollout, made)

    def roll(self, batch: TrainBatch[Cond | MotionCond]) -> tuple[RolloutBatch, Trajectory]:
        """Samples of every condition, what rewards say of them, and what an update needs."""
        rollout = RolloutBatch(
            batch.clips, batch.windows, batch.clean, batch.cond, self.grpo.group_size
        )
        chosen, own = self.exploration.draw_window(batch.draws.common), batch.draws.own
        with without_gradient():
            velocity = self.policy.velocity(self.network, self.conditioner, rollout)
            noise = rollout_noise(rollout, own)
            made, moves = explored(
                velocity, noise, self.exploration, chosen, normal(own), rollout.prefix
            )
            start = self.policy.velocity(self.frozen, self.conditioner, rollout)
            frozen = [mean_again(start, move, self.exploration, rollout.prefix) for move in moves]
            values = self.rewards(self.policy.samples(self.conditioner, rollout, made))
            credits = {term.credit for term in self.rewards.terms}
            weights = {credit: self.policy.credit(credit, rollout) for credit in sorted(credits)}
            held = [
                (weight, self.policy.credit((name,), rollout))
                for name, weight in self.grpo.hold.items()
            ]
            old = [densities(move, move.mean, weights) for move in moves]
        advantages, logs = compute_advantages(
            values, self.rewards.terms, rollout.layout, self.grpo, own
        )
        return rollout, Trajectory(moves, weights, old, frozen, held, values, advantages, logs)

    def policy_loss(
        self, rollout: RolloutBatch, trajectory: Trajectory, number: int, *, first: bool
    ) -> tuple[Tensor, Logs]:
        """The loss of one noisy step of a rollout, by the weights as they are now. RuntimeError
        where the ``first`` pass does not repeat the rollout exactly."""
        velocity = self.policy.velocity(self.network, self.conditioner, rollout)
        move = trajectory.moves[number]
        mean = mean_again(velocity, move, self.exploration, rollout.prefix)
        return step_loss(trajectory, number, mean, self.grpo, first=first)


def policy_network(networks: Networks, policy: Policy) -> nn.Module:
    """The network of a policy."""
    assert isinstance(networks, nn.Module)
    return networks.get_submodule(policy.module)


def _num_given(start: Tensor, length: int) -> int:
    """Latents that windows are given: the first of a clip, or the overlap of two chunks."""
    return 1 if bool((start == 0).all()) else min(OVERLAP, length - 1)


def rollout_noise(rollout: RolloutBatch, generator: torch.Generator) -> State:
    """Noise for every sample."""
    shape = (len(rollout.condition), *rollout.clean.shape[1:])
    return torch.randn(*shape, generator=generator).to(rollout.clean)
