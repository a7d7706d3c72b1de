"""Norm and rotation against their specifications (attention: test_attention_backends.py)."""

import pytest
import torch

from avatar_v.kernels.norm import rms_norm, rms_norm_plain, rotate, rotate_plain

# fp32, sums of at most 64 terms of order 1.
TOLERANCE = 1e-5


def test_rms_norm_equals_the_specification_with_its_gradients() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 5, 24, generator=generator).requires_grad_()
    weight = torch.randn(24, generator=generator).requires_grad_()
    upstream = torch.randn(3, 5, 24, generator=generator)
    got, expected = rms_norm(x, weight, 1e-6), rms_norm_plain(x, weight, 1e-6)
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)
    ours = torch.autograd.grad((got * upstream).sum(), (x, weight))
    plain = torch.autograd.grad((expected * upstream).sum(), (x, weight))
    for a, b in zip(ours, plain, strict=True):
        torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=TOLERANCE)


def test_rms_norm_is_torch_s_own() -> None:
    x, weight = torch.randn(2, 9, 16), torch.rand(16)
    expected = torch.nn.functional.rms_norm(x, (16,), weight, 1e-6)
    torch.testing.assert_close(rms_norm(x, weight, 1e-6), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("batched", [False, True])
def test_rotation_equals_the_specification_with_its_gradient(batched: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, 8, generator=generator).requires_grad_()
    angle = torch.randn((2, 5, 1, 4) if batched else (5, 1, 4), generator=generator)
    table = torch.stack([angle.cos(), angle.sin()], dim=-1)
    upstream = torch.randn(2, 5, 3, 8, generator=generator)
    got, expected = rotate(x, table), rotate_plain(x, table)
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)
    (ours,) = torch.autograd.grad((got * upstream).sum(), x)
    (plain,) = torch.autograd.grad((expected * upstream).sum(), x)
    torch.testing.assert_close(ours, plain, atol=TOLERANCE, rtol=TOLERANCE)


def test_norm_and_rotation_keep_bf16_outside_and_fp32_inside() -> None:
    x = torch.randn(2, 5, 3, 8).bfloat16()
    table = torch.stack([torch.ones(5, 1, 4), torch.zeros(5, 1, 4)], dim=-1)
    assert torch.equal(rotate(x, table), x)
    exact = rms_norm_plain(x.float(), torch.ones(8), 1e-6)
    assert torch.equal(rms_norm(x, torch.ones(8), 1e-6), exact.bfloat16())
