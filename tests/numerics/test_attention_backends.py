"""Every backend of attention against the specification; which one is taken, and who refuses."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from avatar_v.kernels import backends
from avatar_v.kernels.attention import attend, attend_dense
from avatar_v.kernels.backends import attend_products, attend_sdpa
from avatar_v.kernels.key_mask import KeyMask, KeyPart

# fp32, sums of at most 64 terms of order 1.
TOLERANCE = 1e-5
NUM, QUERIES, KEYS = 4, 7, 11
CPU = torch.device("cpu")
HERE = [name for name in backends.NAMES if backends.lacking(name, CPU) is None]
ON_GPUS = [pytest.param(name, "cuda", marks=pytest.mark.gpu) for name in backends.NAMES]


def qkv(num_queries: int = QUERIES, num_keys: int = KEYS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(NUM, n, 2, 16) for n in (num_queries, num_keys, num_keys)]
    query, key, value = (torch.randn(shape, generator=generator) for shape in shapes)
    return query, key, value


def hidden(kind: str) -> Tensor:
    """Masks of the kinds that occur: nothing hidden, valid keys first, and holes."""
    seen = torch.ones(NUM, KEYS, dtype=torch.bool)
    if kind == "lengths":
        seen[0, 5:] = seen[2, 5:] = seen[3, 1:] = False
    if kind == "holes":
        seen[0, 5:] = seen[2, 0] = seen[3, 3:6] = False
    return seen


def packed_in_words(q, k, v, query_starts, key_starts, most_queries, most_keys) -> Tensor:
    """What FlashAttention promises of packed rows."""
    outputs = []
    for i in range(len(query_starts) - 1):
        queries, keys = (
            slice(*starts[i : i + 2].tolist()) for starts in (query_starts, key_starts)
        )
        assert queries.stop - queries.start <= most_queries
        assert keys.stop - keys.start <= most_keys
        outputs.append(attend_sdpa(q[None, queries], k[None, keys], v[None, keys])[0])
    return torch.cat(outputs)


@contextlib.contextmanager
def forced(name: str, device: str) -> Iterator[None]:
    """On a CPU those that need a GPU run with their kernel put into words."""
    with pytest.MonkeyPatch.context() as patch:
        if device == "cpu":
            patch.setattr(backends, "lacking", lambda name, device: None)
            patch.setattr(backends, "_refusal", lambda *args: None)
            patch.setattr(backends, "_varlen_kernel", lambda: packed_in_words)
            patch.setattr(backends, "_flash_kernel", lambda device: packed_in_words)
            patch.setattr(backends, "_flex_kernel", lambda: flex_attention)
        with backends.using(name):
            yield


@pytest.mark.parametrize("kind", ["nothing", "lengths", "holes"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("name", "device"), [*((n, "cpu") for n in backends.NAMES), *ON_GPUS])
def test_a_backend_equals_the_specification_with_its_gradients(
    name: str, device: str, dtype: torch.dtype, kind: str
) -> None:
    if device == "cuda":
        lacks = backends.lacking(name, torch.device("cuda"))
        if lacks is not None or (name in ("flash", "varlen") and dtype not in backends.HALF):
            pytest.skip(lacks or f"{name} computes in 16 bits alone")
    has_gradients = name != "flex" or device == "cuda"  # torch has none of flex on a CPU
    seen = hidden(kind)
    given = [x.to(device, dtype).requires_grad_(has_gradients) for x in qkv()]
    upstream = torch.randn(NUM, QUERIES, 2, 16, generator=torch.Generator().manual_seed(1))
    mask = None if kind == "nothing" else KeyMask.of(KeyPart(seen, 1), device=device)
    with forced(name, device):
        got = attend(*given, mask)
    exact_given = [x.detach().cpu().float().requires_grad_() for x in given]
    exact = attend_dense(*exact_given, seen[:, None].expand(-1, QUERIES, -1))
    # bf16 has 8 bits: weights, outputs and, in products, scores are rounded to 2 ** -9 of each
    within = TOLERANCE if dtype == torch.float32 and device == "cpu" else 0.02
    assert got.dtype == dtype
    torch.testing.assert_close(got.detach().cpu().float(), exact, atol=within, rtol=within)
    if has_gradients:
        ours = torch.autograd.grad((got * upstream.to(device)).sum(), given)
        theirs = torch.autograd.grad((exact * upstream).sum(), exact_given)
        for a, b in zip(ours, theirs, strict=True):
            off = (a.cpu().float() - b).square().mean().sqrt() / b.square().mean().sqrt()
            assert off < within


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("kind", ["lengths", "holes"])
def test_hidden_keys_are_not_even_read(name: str, kind: str) -> None:
    query, key, value = qkv()
    seen = hidden(kind)
    mask = KeyMask.of(KeyPart(seen, 1))
    broken = [torch.where(seen[..., None, None], x, torch.nan) for x in (key, value)]
    with backends.using(name):
        assert torch.equal(attend(query, *broken, mask), attend(query, key, value, mask))


def test_a_mask_without_groups_is_a_mask() -> None:
    query, key, value = qkv()
    seen = hidden("holes")
    for name in HERE:
        with backends.using(name):
            traced = attend(query, key, value, KeyMask(seen, None))
            grouped = attend(query, key, value, KeyMask.of(KeyPart(seen, 1)))
        torch.testing.assert_close(traced, grouped, atol=TOLERANCE, rtol=TOLERANCE)


def test_without_a_mask_the_default_is_torch_s_own_to_the_bit() -> None:
    given = qkv()
    assert torch.equal(attend(*given), attend_sdpa(*given))
    short = [x.bfloat16() for x in given]
    assert torch.equal(attend(*short), attend_products(*short))
    long = [x.bfloat16() for x in qkv(1025, 1024)]
    assert torch.equal(attend(*long), attend_sdpa(*long))


@pytest.mark.parametrize("masked", [False, True])
def test_bf16_attention_is_as_near_to_fp32_as_sdpa_is(masked: bool) -> None:
    query, key, value = (x.bfloat16() for x in qkv(64, 64))
    seen = torch.ones(NUM, 64, dtype=torch.bool)
    if masked:
        seen = torch.rand(NUM, 64, generator=torch.Generator().manual_seed(1)) > 0.3
    exact = attend_dense(
        query.float(), key.float(), value.float(), seen[:, None].expand(NUM, 64, 64)
    )
    sdpa = attend_sdpa(query, key, value, seen if masked else None)
    mask = KeyMask.of(KeyPart(seen, 1)) if masked else None
    error = (attend(query, key, value, mask) - exact).square().mean().sqrt()
    # SDPA keeps scores in fp32, ours rounds them to 8 bits: within a factor of three, both < 1 %.
    assert error <= 3 * (sdpa - exact).square().mean().sqrt()
    assert error <= 0.01 * exact.square().mean().sqrt()


def test_groups_say_who_sees_what() -> None:
    frames = torch.tensor([[True, True, False], [False, False, False], [True, True, False]])
    own = torch.ones(3, 1, dtype=torch.bool)
    mask = KeyMask.of(KeyPart(own, 5), KeyPart(frames, 2))
    assert mask.groups is not None
    assert [(g.samples, g.runs, g.num_keys) for g in mask.groups] == [
        ((0, 2), ((0, 9),), 9),
        ((1,), ((0, 5),), 5),
    ]
    assert mask.seen.sum(1).tolist() == [9, 5, 9]
    again = mask.last(6).behind(5)
    assert again.groups == mask.groups
    assert torch.equal(again.seen, mask.seen)


def test_a_name_that_cannot_run_is_refused() -> None:
    given = qkv()
    with backends.using("flash"), pytest.raises(ValueError, match="needs a CUDA device; here run"):
        attend(*given)
    with backends.using("fast"), pytest.raises(ValueError, match="is one of flash, varlen, sdpa"):
        attend(*given)
    assert backends._refusal("varlen", *given, None) == (
        "computes in bfloat16 or float16 alone, got float32"
    )
    narrow = [x[..., :6].bfloat16() for x in given]
    assert (
        backends._refusal("flash", *narrow, None) == "takes heads of 8, 16, … 256 channels, got 6"
    )
    with pytest.raises(ValueError, match="known on the CPU"):
        KeyMask.of(KeyPart(torch.ones(2, 3, dtype=torch.bool, device="meta"), 1))


def test_the_environment_names_the_backend() -> None:
    script = "from avatar_v.kernels import backends; print(backends._named)"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), backends.VARIABLE: "products"}
    command = [sys.executable, "-c", script]
    assert subprocess.check_output(command, env=environment, text=True).strip() == "products"
