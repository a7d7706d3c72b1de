"""A training step that is run without memory: the engine's own, on batches as the data give them.

The networks have their true shapes and tensors without values (planning/measure.py), the draws and
masks of a batch are true; so a stage makes the very passes that it makes in training, and a new
stage has a plan at once. What several blocks or steps repeat is run once (planning/replay.py).

Left out: rewards, whose networks are the user's; steps of the optimisers; the messages of FSDP2.
"""

import dataclasses
import functools
import types
from collections.abc import Iterator
from dataclasses import dataclass

import lightning as L
import torch
from torch import Tensor

from avatar_v.models.dit import AvatarDiT
from avatar_v.models.motion_net import MotionNet
from avatar_v.models.vae import VideoVAE
from avatar_v.parallel.apply import checkpoint_blocks
from avatar_v.planning.batches import Clips, largest_batch
from avatar_v.planning.measure import Counter, Number, pretending, without_values
from avatar_v.planning.recipe import Recipe, Spread
from avatar_v.planning.replay import Replay
from avatar_v.planning.scaling import spread_over
from avatar_v.rewards.terms import Rewards, RewardSamples
from avatar_v.training.engine import Engine, subject_of, trains_clips
from avatar_v.training.personality import longest_runs
from avatar_v.training.roles import STUDENT, Updates, gradients_kept
from avatar_v.training.windows import value_at
from avatar_v.types import Batch, num_latents
from avatar_v.weights.random import motion_stats

FEW_FRAMES = 17
"""Of a longer video the VAE is run on so many; the others cost the same each."""
NUM_BATCHES = 6
"""About so many are drawn, in whole turns of the roles; the time is their mean."""
NUM_LONGEST = 2
"""Batches with the longest references, whose peak is the memory. The student is in the first."""


@dataclass(frozen=True)
class BatchCost:
    """Of one batch of one rank."""

    flops: Number  # the mean; 0 where the time was not asked for
    peak: Number  # most bytes alive at once, without weights, gradients and the batch
    num_tokens: Number  # of the generated stream
    batches_per_step: Number  # an update of the student's takes so many
    batch_bytes: Number


def step_cost(
    stage: Engine, recipe: Recipe, clips: Clips, spread: Spread, *, with_time: bool
) -> BatchCost:
    """Run batches of ``stage``, whose networks `build_networks` made."""
    stage.step = last_step(recipe)
    accumulated, stage.updates = _accumulated(stage, recipe), Updates()
    stage.update = types.MethodType(_update, stage)
    stage.trainer = L.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, max_steps=-1
    )
    _leave_rewards_out(stage)
    counter = Counter()
    _take_memory(stage, torch.bfloat16 if recipe.bf16 else torch.float32)
    networks = [module for module in stage.modules() if isinstance(module, AvatarDiT)]
    with spread_over(spread.layout.sequence_size, *networks):
        _replay(stage, Replay(counter))
        with pretending():
            batch = largest_batch(stage, recipe, clips)
        run = _Run(stage, batch, counter, bf16=recipe.bf16)
        turn = max(role.updates_per_step for role in stage.roles().values())  # batches
        if with_time:
            run.draw(turn * max(1, NUM_BATCHES // turn))
        flops, num = counter.flops, run.num_batches
        with longest_runs():
            run.draw(NUM_LONGEST)
    return BatchCost(
        flops / max(num, 1),
        counter.peak,
        run.num_tokens,
        turn * accumulated / run.most_passes,
        sum(x.numel() * x.element_size() for x in tensors_in(batch)),
    )


def last_step(recipe: Recipe) -> int:
    """The step of the run that its largest batches come at, the last of them: by then all terms of
    the loss are on."""
    assert trains_clips(recipe.model)
    objective = subject_of(recipe.model).objective
    most = recipe.trainer["max_steps"]
    keys = {*objective.window_latents, *objective.resolution}
    steps = [key for key in keys if key < most or most < 0]
    steps.append(most - 1 if most > 0 else max(steps))

    def size(step: int) -> tuple[float, int]:
        share = value_at(objective.resolution, step)
        return value_at(objective.window_latents, step) * share**2, step

    return max(steps, key=size)


class _Run:
    """Batches of a stage, one after another."""

    def __init__(self, stage: Engine, batch: Batch, counter: Counter, *, bf16: bool) -> None:
        self.stage, self.batch, self.counter, self.bf16 = stage, batch, counter, bf16
        self.num_batches = self.num_tokens = 0
        self.most_passes = 1  # backward passes of the student in a batch

    def draw(self, num_batches: int) -> None:
        """So many more."""
        for _ in range(num_batches):
            before = self.stage.num_backward[STUDENT]
            self._batch()
            self.most_passes = max(self.most_passes, self.stage.num_backward[STUDENT] - before)

    def _batch(self) -> None:
        stage = self.stage
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=self.bf16)
        with self.counter:
            with autocast:
                begun = stage.begin(self.batch, self.num_batches)
                loss, _ = stage.iterate(begun)
            if stage.automatic_optimization:  # Lightning's, behind its autocast
                loss.backward()
        self.num_tokens, self.num_batches = begun.num_tokens, self.num_batches + 1


def _update(stage: Engine, role: str, loss: Tensor | Iterator[Tensor]) -> bool:
    """`Engine.update` without an optimiser, at the step where it is."""
    _, others = stage._split(role)
    with gradients_kept(others):
        for part in [loss] if isinstance(loss, Tensor) else loss:
            part.backward()
    stage.num_backward[role] += 1
    return True


def _accumulated(stage: Engine, recipe: Recipe) -> int:
    """Backward passes of the student in one of its updates."""
    if stage.automatic_optimization:
        return int(recipe.trainer["accumulate_grad_batches"])
    return stage.updates.accumulate_grad_batches


def _take_memory(stage: Engine, dtype: torch.dtype) -> None:
    """Give every network weights without memory: in the type that steps compute in, which FSDP2
    gathers and autocast copies; the VAE in fp32."""
    with pretending():
        without_values(stage, dtype)
        without_values(stage.conditioner.vae, torch.float32)
    for module in stage.modules():
        if isinstance(module, AvatarDiT):
            module.motion_stats = motion_stats()
    stage.conditioner.motion_stats = motion_stats()


def _replay(stage: Engine, replay: Replay) -> None:
    for module in stage.modules():
        if isinstance(module, AvatarDiT | MotionNet):
            if isinstance(module, AvatarDiT) and stage.subject.checkpoint_activations:
                checkpoint_blocks(module)
            for block in module.blocks:
                replay.watch(block)
            replay.watch(module, trains=False)
    for encoder in (stage.conditioner.text_encoder, stage.conditioner.audio_encoder):
        replay.watch(encoder)
    vae = stage.conditioner.vae
    vae.encode = functools.partial(_encoded, vae, vae.encode, replay.counter, {})


def _encoded(vae: VideoVAE, encode, counter: Counter, known: dict, video: Tensor) -> Tensor:
    """`VideoVAE.encode`, of a long video by its first frames."""
    num, few = video.shape[1], min(video.shape[1], FEW_FRAMES)
    side = vae.spatial_factor
    if video.shape not in known:
        with counter.paused(), Counter() as own:
            encode(video[:, :few])
        cost = own.cost()
        known[video.shape] = dataclasses.replace(cost, flops=cost.flops * num / few)
    counter.count(known[video.shape])
    height, width = (pixels // side for pixels in video.shape[-2:])
    return next(vae.parameters()).new_empty(
        len(video), num_latents(num), vae.latent_channels, height, width
    )


def _leave_rewards_out(stage: Engine) -> None:
    for name, found in list(vars(stage).items()):
        if isinstance(found, Rewards):
            setattr(stage, name, _Unscored(found))


class _Unscored(Rewards):
    """Rewards that look at nothing."""

    def __init__(self, rewards: Rewards) -> None:
        self.terms = rewards.terms

    def __call__(self, samples: RewardSamples) -> dict[str, Tensor]:
        return {term.label: torch.arange(float(len(samples.motion))) for term in self.terms}


def tensors_in(value: object) -> list[Tensor]:
    """Those of a batch, and of the batches in it."""
    if isinstance(value, Tensor):
        return [value]
    if not dataclasses.is_dataclass(value):
        return []
    return [x for f in dataclasses.fields(value) for x in tensors_in(getattr(value, f.name))]
