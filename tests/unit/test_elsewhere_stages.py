"""A step of every stage on a device apart from the CPU: no tensor is mixed with one of the CPU, and
the losses are the same. Stages may wait for the device where they sample; those that only train on
clips must not (test_elsewhere.py)."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_stages import (
    adversarial,
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
    sft,
)
from torch import Tensor

from avatar_v.objectives.sft import SFT
from avatar_v.training.engine import Engine
from elsewhere import DEVICE, There, elsewhere, module_there, there
from random_models import randomise


@pytest.mark.parametrize(
    "make",
    [
        sft, distill_cfg, distill_dmd, refiner, adversarial, motion_prior, distill_motion, dpo,
        dpo_of_video, grpo_of_motion, grpo_of_video,
    ],
)  # fmt: skip
def test_a_step_is_the_same_on_another_device(
    make: Callable[[Path], Engine], tmp_path: Path
) -> None:
    found = []
    for move in (lambda x: x, there):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        stage = make(folder)
        stage.configure_model()
        randomise(stage.dit)
        given = clips()
        with elsewhere(waits=True):
            if move is there:
                module_there(stage)
                stage._device = DEVICE
                _critics_there(stage)
                given = given.map(there)
            found.append([_local(x) for x in losses_of(stage, given)])
    assert len(found[0]) > 0
    # sums of another order: a tensor that came from there is contiguous
    torch.testing.assert_close(*found, rtol=2e-3, atol=1e-4)


def _critics_there(stage: Engine) -> None:
    if isinstance(stage, SFT):
        for critic in stage.perceptual.critics.values():
            module_there(critic)


def _local(x: Tensor) -> Tensor:
    return x.local if isinstance(x, There) else x.detach()
