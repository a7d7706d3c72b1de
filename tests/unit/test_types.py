"""Frame arithmetic and the moving of nested dataclasses."""

import pytest
import torch
from torch.utils.data._utils.pin_memory import pin_memory

from avatar_v.types import MOTION_NAMES, Cond, Reference, num_frames, num_latents
from avatar_v.weights.random import make_batch


@pytest.mark.parametrize("latents", [1, 2, 13, 41])
def test_frames_and_latents_invert(latents: int) -> None:
    assert num_latents(num_frames(latents)) == latents


def test_41_latents_are_161_frames() -> None:
    assert num_frames(41) == 161


@pytest.mark.parametrize("frames", [0, 2, 4, 160])
def test_lengths_off_the_grid_are_refused(frames: int) -> None:
    with pytest.raises(ValueError, match=f"got {frames}"):
        num_latents(frames)


def test_motion_names_are_unique() -> None:
    assert len(set(MOTION_NAMES)) == len(MOTION_NAMES)


def test_map_reaches_nested_tensors_and_leaves_none() -> None:
    reference = Reference(
        latents=torch.ones(1, 2, 3, 4, 4),
        valid=torch.ones(1, 2, dtype=torch.bool),
        segment=torch.zeros(1, 2, dtype=torch.long),
    )
    cond = Cond(text=torch.ones(1, 5, 6), reference=reference)
    cond = cond.map(lambda x: x * 2 if x.is_floating_point() else x)
    assert cond.reference is not None
    assert cond.audio is None
    assert float(cond.reference.latents.mean()) == 2.0
    assert float(cond.text.mean()) == 2.0


def test_the_loader_of_torch_pins_every_tensor_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    batch = pin_memory(make_batch(has_reference=True))
    assert batch.reference is not None
    for each in (batch, batch.reference):
        tensors = [value for value in vars(each).values() if isinstance(value, torch.Tensor)]
        assert len(tensors) == 7
        assert all(any(value is other for other in pinned) for value in tensors)
