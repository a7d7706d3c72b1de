"""The Triton kernels against their specifications: in Triton's interpreter, on a GPU where there is
one, and as code for GPUs that are not here."""

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from avatar_v.cli import main
from avatar_v.kernels import switch
from avatar_v.kernels.norm import rotate
from avatar_v.kernels.scopes import Scope, Size, scopes, tensors_of
from avatar_v.models.config import DiTConfig
from avatar_v.models.vae import VideoVAE
from random_models import make_cond, make_dit, make_reference, run

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RUNS = switch.HAS_TRITON and (DEVICE == "cuda" or version("triton") >= "3.7")
pytestmark = [
    pytest.mark.skipif(
        not RUNS, reason="needs triton; on a CPU 3.7, whose interpreter takes loops of any length"
    ),
    *([pytest.mark.gpu] if DEVICE == "cuda" else []),
]
SCRIPT = Path(__file__).parents[1] / "triton_script.py"

TOLERANCE = 2e-5
"""fp32, sums of at most 200 terms of order 1."""
BF16 = 4 * 2**-7
"""Of the largest number. bf16 has 8 bits: a GPU rounds to the nearest, the interpreter cuts off, by
2**-7 at most. A rotated number is the sum of two that were cut off, and is cut off itself."""
SIZES = {
    "one token": Size(1, 1, 1, 6),
    "odd": Size(2, 5, 3, 10, samples=2),
    "more than a program takes": Size(1, 17, 2, 16),
    "long rows": Size(1, 2, 10, 52),
}
NAMES = list(scopes(SIZES["one token"]))


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton looks there again at its first call."""
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")


def results(scope: Scope, way: str, dtype: torch.dtype | None = None) -> list[Tensor]:
    """What a scope gives and its gradients; ``dtype``: computed in it from the same numbers."""
    function, given = scope
    leaves = [x.to(dtype or x.dtype).requires_grad_() for x in given]
    with switch.using(way):
        found = tensors_of(function(*leaves))
        draw = torch.Generator().manual_seed(0)
        upstream = [torch.randn(x.shape, generator=draw).to(x.device) for x in found]
        loss = torch.stack([(x.float() * u).sum() for x, u in zip(found, upstream, strict=True)])
        gradients = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)  # tables have none
    return [x.detach().float() for x in (*found, *gradients) if x is not None]


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_kernels_give_what_their_specifications_give_with_gradients(name: str, size: Size) -> None:
    scope = scopes(dataclasses.replace(size, device=DEVICE))[name]
    for got, expected in zip(results(scope, "triton"), results(scope, "plain"), strict=True):
        torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", NAMES)
def test_kernels_of_bf16_are_within_its_bits_of_fp32(name: str) -> None:
    size = dataclasses.replace(SIZES["odd"], device=DEVICE, dtype=torch.bfloat16)
    scope = scopes(size)[name]
    for got, exact in zip(
        results(scope, "triton"), results(scope, "plain", torch.float32), strict=True
    ):
        assert (got - exact).abs().max() <= BF16 * exact.abs().max()


def test_keys_are_read_as_they_lie() -> None:
    """A cache that all samples share, a part of longer rows, and positions of each sample."""
    whole = torch.randn(1, 7, 3, 8, device=DEVICE)
    angle = torch.randn(2, 5, 1, 4, device=DEVICE)
    table = torch.stack([angle.cos(), angle.sin()], dim=-1)
    turned = torch.randn(7, 2, 3, 8, device=DEVICE).transpose(0, 1)
    for x in (whole.expand(2, -1, -1, -1)[:, 1:6], turned[:, :5], turned[:, :5, :, ::1].mT.mT):
        with switch.using("triton"):
            got = rotate(x, table)
        torch.testing.assert_close(got, rotate(x, table), atol=1e-6, rtol=1e-6)


class Calls(TorchDispatchMode):
    """The project's operators that are called, with what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None) -> Any:
        if func.namespace == "avatar_v":
            self.seen.append((func, args))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["gated_add_norm", "norm_rotate", "norm_silu"])
def test_operators_keep_the_rules_of_torch(name: str) -> None:
    """Schema, tensors without values, and gradients inside a compiler."""
    function, given = scopes(dataclasses.replace(SIZES["one token"], device=DEVICE))[name]
    with switch.using("triton"), Calls() as calls:
        function(*given)
    ((operator, args),) = calls.seen
    table = args[2] if name == "norm_rotate" else None
    leaves = [x.requires_grad_() if isinstance(x, Tensor) and x is not table else x for x in args]
    torch.library.opcheck(operator, tuple(leaves))


def passes(network: nn.Module, run: Callable[[], Tensor], way: str) -> tuple[list[Tensor], Counter]:
    """The output, the gradients, and how often each operator was called."""
    with switch.using(way), Calls() as calls:
        out = run()
        found = torch.autograd.grad(
            out.square().sum(), list(network.parameters()), allow_unused=True
        )
    counts = Counter(operator.name().partition("::")[2] for operator, _ in calls.seen)
    return [out.detach(), *(x for x in found if x is not None)], counts


def assert_same_passes(network: nn.Module, run: Callable[[], Tensor]) -> Counter:
    (got, counts), (expected, none) = (passes(network, run, way) for way in ("triton", "plain"))
    assert not none
    for a, b in zip(got, expected, strict=True):  # fp32 through some layers
        torch.testing.assert_close(a, b, atol=1e-4 * float(b.abs().max()), rtol=1e-3)
    return counts


def test_a_dit_with_all_of_its_streams_computes_the_same() -> None:
    config = dataclasses.replace(DiTConfig.tiny(), num_layers=1)
    dit = make_dit(config).to(DEVICE)
    draw = torch.Generator().manual_seed(0)
    x_t, t = torch.randn(1, 2, 16, 2, 2, generator=draw), torch.rand(1, 2, generator=draw)
    reference = make_reference(config, torch.ones(1, 3, dtype=torch.bool), size=2, has_motion=True)
    motion = 0.3 * torch.randn(1, 2, config.motion_dim, generator=draw)
    cond = dataclasses.replace(make_cond(config, 1, 2, reference=reference), motion=motion).to(
        DEVICE
    )
    given = (x_t.to(DEVICE), t.to(DEVICE), cond)
    counts = assert_same_passes(dit, lambda: run(dit, *given))
    # a block over the video, the reference and the motion of both, and the head; what follows the
    # keys of the last reference has no gradient
    assert counts["residual_norm"] > 15
    assert counts["norm_rotate"] > 15
    assert min(counts["residual_norm_backward"], counts["norm_rotate_backward"]) > 7


def test_a_vae_computes_the_same() -> None:
    vae = VideoVAE.tiny().to(DEVICE)
    video = torch.rand(1, 1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    with torch.no_grad():
        latents = vae.encode(video)
    counts = assert_same_passes(vae, lambda: vae.decode(latents, clamp=False))
    assert counts["channel_norm"] == counts["channel_norm_backward"] > 10


def test_kernels_are_switched() -> None:
    x = torch.randn(1, 2, 3, 8)
    assert not switch.takes(x), "a CPU computes the specification"
    with switch.using("triton"):
        assert [switch.takes(y) for y in (x, x.double(), x[:0])] == [True, False, False]
    with switch.using("plain"):
        assert not switch.takes(x.to(DEVICE))
    with switch.using("fast"), pytest.raises(ValueError, match="is one of auto, triton, plain"):
        switch.check_named(torch.device("cpu"))


def test_doctor_runs_every_kernel(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with switch.using("triton"):
        assert main(["doctor"]) == 0
        said = capsys.readouterr().out
        assert all(f"ok       kernel {name}: runs, within" in said for name in NAMES)
        monkeypatch.setattr("avatar_v.kernels.scopes.difference", lambda scope: float("nan"))
        assert main(["doctor"]) == 1
    assert "MISSING  kernel rotate: off its specification by nan; AVATAR_V_KERNELS=plain" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("way", ["graph", "gpu"])
def test_kernels_compile(way: str) -> None:
    """In one graph of torch.compile, and with the widest rows for an H100."""
    environment = {**os.environ, "TRITON_INTERPRET": "1" if way == "graph" else "0"}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), way], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr[-3000:]
