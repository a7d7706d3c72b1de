"""The batched Muon against torch.optim.Muon, and its orthogonalisation against the SVD."""

import pytest
import torch

from avatar_v.training import muon
from avatar_v.training.muon import BatchedMuon, orthogonalise

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@pytest.mark.parametrize(("emulated", "rounding"), [(False, 0.03), (True, 1e-5)])
def test_singular_values_come_near_one(emulated: bool, rounding: float, monkeypatch) -> None:
    monkeypatch.setattr(muon, "emulates_bf16", lambda device: emulated)
    matrices = torch.randn(3, 24, 16, generator=torch.Generator().manual_seed(0))
    result = orthogonalise(matrices, coefficients=COEFFICIENTS, num_steps=5, eps=1e-7)
    u, _, vh = torch.linalg.svd(matrices, full_matrices=False)
    inner = u.mT @ result @ vh.mT
    values = inner.diagonal(dim1=1, dim2=2)
    # the quintic trades accuracy for speed: it ends in a band around 1, not at 1
    assert values.min() > 0.6
    assert values.max() < 1.3
    # singular vectors are kept: what is off the diagonal is the rounding of bf16 (8 bits) or fp32
    assert (inner - torch.diag_embed(values)).abs().max() < rounding


def test_steps_follow_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(16, 16), (32, 16), (16, 32), (16, 16)]
    start = [torch.randn(shape, generator=generator) for shape in shapes]
    grads = [[torch.randn(shape, generator=generator) for shape in shapes] for _ in range(3)]
    kwargs = {"lr": 0.02, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    ends = []
    for cls in (torch.optim.Muon, BatchedMuon):
        parameters = [torch.nn.Parameter(value.clone()) for value in start]
        optimizer = cls(parameters, **kwargs)
        for step in grads:
            for parameter, grad in zip(parameters, step, strict=True):
                parameter.grad = grad.clone()
            optimizer.step()
        ends.append(parameters)
    for ours, theirs, begin in zip(ends[1], ends[0], start, strict=True):
        moved = (theirs - begin).norm()
        # torch iterates in bf16 (8 bits): five quintic steps leave about 2 % of the update
        assert (ours - theirs).norm() < 0.03 * moved


def test_a_parameter_without_gradient_stays() -> None:
    parameter = torch.nn.Parameter(torch.ones(4, 4))
    BatchedMuon([parameter], lr=1.0, adjust_lr_fn="match_rms_adamw").step()
    assert torch.equal(parameter, torch.ones(4, 4))
