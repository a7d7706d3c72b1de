"""Fast attention, norm and rotation against their specifications."""

import pytest
import torch
from torch import Tensor

from avatar_v.kernels.attention import attend, attend_dense, attend_products
from avatar_v.kernels.norm import rms_norm, rms_norm_plain, rotate, rotate_plain

# fp32, sums of at most 64 terms of order 1.
TOLERANCE = 1e-5


def qkv(num_queries: int = 7, num_keys: int = 11) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, n, 2, 16) for n in (num_queries, num_keys, num_keys)]
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    return query, key, value


def key_mask() -> Tensor:
    mask = torch.ones(3, 11, dtype=torch.bool)
    mask[0, 5:] = False
    mask[2, 0] = False
    return mask


@pytest.mark.parametrize("kernel", [attend, attend_products])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_equals_the_specification(kernel, masked: bool) -> None:
    query, key, value = qkv()
    mask = key_mask() if masked else torch.ones(3, 11, dtype=torch.bool)
    expected = attend_dense(query, key, value, mask[:, None].expand(3, 7, 11))
    got = kernel(query, key, value, mask if masked else None)
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_masked_keys_have_no_influence() -> None:
    query, key, value = qkv()
    mask = key_mask()
    changed = torch.where(mask[..., None, None], value, 1e3)
    assert torch.equal(attend(query, key, value, mask), attend(query, key, changed, mask))


@pytest.mark.parametrize("masked", [False, True])
def test_bf16_attention_is_as_near_to_fp32_as_sdpa_is(masked: bool) -> None:
    query, key, value = (x.bfloat16() for x in qkv(64, 64))
    mask = torch.rand(3, 64, generator=torch.Generator().manual_seed(1)) > 0.3 if masked else None
    dense = mask if mask is not None else torch.ones(3, 64, dtype=torch.bool)
    exact = attend_dense(
        query.float(), key.float(), value.float(), dense[:, None].expand(3, 64, 64)
    )
    sdpa = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (query, key, value)),
        attn_mask=None if mask is None else mask[:, None, None],
    ).transpose(1, 2)
    error = (attend(query, key, value, mask) - exact).square().mean().sqrt()
    # SDPA keeps scores in fp32, ours rounds them to 8 bits: within a factor of three, both < 1 %.
    assert error <= 3 * (sdpa - exact).square().mean().sqrt()
    assert error <= 0.01 * exact.square().mean().sqrt()


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
