"""planning/steps.py: the passes that a plan counts are those that real steps make."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_stages import (
    adversarial,
    causal_forcing,
    clips,
    distill_cfg,
    distill_dmd,
    distill_motion,
    dpo,
    dpo_of_video,
    grpo_of_motion,
    grpo_of_video,
    losses_of,
    motion_prior,
    refiner,
    self_forcing,
    sft,
)
from torch import Tensor, nn

from avatar_v.models.dit import AvatarDiT
from avatar_v.models.motion_net import MotionNet
from avatar_v.objectives.distill_dmd import DistillDMD
from avatar_v.objectives.distill_motion import DistillMotion
from avatar_v.objectives.self_forcing import SelfForcing
from avatar_v.planning.steps import Clips, passes_of
from avatar_v.training.engine import Engine, subject_of

NUM_STEPS, FAKE_UPDATES = 4, 2
"""Of students. In four batches each number of moves comes once, and two updates of the student."""


def with_rollout(stage: DistillDMD, **changes: Any) -> None:
    stage.rollout = stage.subject.windows = dataclasses.replace(stage.rollout, **changes)


def distill_dmd_behind_chunks(folder: Path) -> Engine:
    """Every window continues a chunk of the student's."""
    made = distill_dmd(folder)
    assert isinstance(made, DistillDMD)
    with_rollout(made, prompt_share=0.0, image_share=0.0)
    return made


def distill_dmd_at_the_start(folder: Path) -> Engine:
    """No window does."""
    made = distill_dmd(folder)
    assert isinstance(made, DistillDMD)
    with_rollout(made, prompt_share=0.5, image_share=0.5)
    return made


@pytest.mark.parametrize(
    "make",
    [
        sft, causal_forcing, distill_cfg, distill_dmd_behind_chunks, distill_dmd_at_the_start,
        self_forcing, refiner, adversarial, motion_prior, distill_motion, dpo, dpo_of_video,
        grpo_of_motion, grpo_of_video,
    ],
)  # fmt: skip
def test_what_is_planned_is_what_steps_run(
    make: Callable[[Path], Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames of all passes of a mean batch, by network and by whether there is a backward pass."""
    stage, batch, num_batches = make(tmp_path), clips(), 1
    if isinstance(stage, DistillDMD | SelfForcing | DistillMotion):
        num_batches = NUM_STEPS
        taught(stage, monkeypatch)
    stage.configure_model()
    real = counting(stage)
    for index in range(num_batches):
        losses_of(stage, batch, index)
    size = Clips(len(batch.motion), batch.motion.shape[1], 32)
    window = subject_of(stage).window_length(stage.step)
    planned: Counter[tuple[str, bool]] = Counter()
    for found in passes_of(stage, size, window, longest=False):
        key = (found.network, found.of.trains)
        planned[key] += found.times * found.of.samples * found.of.latents  # pyright: ignore
    assert {key: n / num_batches for key, n in real.items()} == pytest.approx(+planned)


def taught(
    stage: DistillDMD | SelfForcing | DistillMotion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give the student its numbers, and draw all numbers of moves in turn."""
    if isinstance(stage, DistillMotion):
        stage.matching = dataclasses.replace(
            stage.matching, fake_updates=FAKE_UPDATES, num_steps=NUM_STEPS
        )
    else:
        numbers = stage.matching.numbers
        stage.matching.numbers = dataclasses.replace(numbers, fake_updates=FAKE_UPDATES)
        stage.rollout = dataclasses.replace(stage.rollout, num_steps={0: NUM_STEPS})
    turn, draw = itertools.count(), torch.randint

    def in_turn(high: int, *rest: object, **named: object) -> Tensor:
        if (high, *rest) == (NUM_STEPS, ()):
            return torch.tensor(next(turn) % NUM_STEPS)
        return draw(high, *rest, **named)  # pyright: ignore

    monkeypatch.setattr(torch, "randint", in_turn)


def counting(stage: Engine) -> Counter[tuple[str, bool]]:
    """The frames that pass through each network from now on."""
    found: Counter[tuple[str, bool]] = Counter()

    def seen(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def note(network: nn.Module, given: tuple[Tensor, ...]) -> None:
            trains = torch.is_grad_enabled()
            found[name, trains] += given[0].shape[0] * given[0].shape[1]

        return note

    for name, network in stage.named_modules():
        if isinstance(network, AvatarDiT | MotionNet):
            network.register_forward_pre_hook(seen(name))
    return found
