"""The motion network: what it reads, in whose units, and guidance of it."""

import dataclasses

import pytest
import torch

from avatar_v.models.motion_net import MotionNet, MotionNetConfig
from avatar_v.motion.own_units import SCALED, build_style, in_own_units
from avatar_v.motion.style import motion_moments
from avatar_v.sampling.motion import guided_motion
from avatar_v.types import MotionCond
from avatar_v.weights.random import motion_stats, randomise

CONFIG = MotionNetConfig.tiny(32)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=seeded(seed))


@pytest.fixture(scope="module")
def net() -> MotionNet:
    net = MotionNet(CONFIG)
    randomise(net)
    return net.eval()


@pytest.fixture
def cond() -> MotionCond:
    shown = 0.6 * drawn(2, 20, 64, seed=3)
    stats, seen = motion_stats(), torch.ones(2, 20, dtype=torch.bool)
    style = build_style(motion_moments(shown, seen, stats), stats)
    return MotionCond(audio=drawn(2, 5, 8, 32, seed=1), style=style)


X, T = drawn(2, 5, 64, seed=7), torch.rand(2, 5, generator=seeded(8))


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a - b).abs().max().detach())


def test_a_new_network_says_that_nothing_moves_and_knows_no_style(cond: MotionCond) -> None:
    """Its head is zero: what is left of the velocity are the units of the person's own."""
    net = MotionNet(CONFIG)
    own = in_own_units(X, T, cond.style)
    assert torch.equal(net(X, T, cond), own.velocity(torch.zeros_like(X)))
    assert not net.style_embed.weight.any()


def test_every_condition_is_read_and_can_be_left_out(net: MotionNet, cond: MotionCond) -> None:
    v = net(X, T, cond)
    assert v.shape == X.shape
    off = torch.tensor([True, False])
    for change in ({"audio_keep": off}, {"style_keep": off}):
        other = net(X, T, dataclasses.replace(cond, **change))
        assert difference(other[0], v[0]) < 1e-5
        assert difference(other[1], v[1]) > 1e-2
    silent = net(X, T, dataclasses.replace(cond, audio=None))
    kept = net(X, T, dataclasses.replace(cond, audio_keep=torch.zeros(2, dtype=torch.bool)))
    assert difference(silent, kept) < 1e-5
    later = T.clone()
    later[:, 2] += 0.3
    assert difference(net(X, later, cond), v) > 1e-2


def test_a_style_that_is_not_kept_leaves_the_persons_units(
    net: MotionNet, cond: MotionCond
) -> None:
    """A person of twice the scale moves twice as far, whether or not the code is read."""
    assert cond.style is not None
    nobody = dataclasses.replace(cond, style=None)
    unkept = dataclasses.replace(cond, style_keep=torch.zeros(2, dtype=torch.bool))
    own = in_own_units(X, T, cond.style)
    expected = own.velocity(net(own.motion_t, T, nobody))
    torch.testing.assert_close(net(X, T, unkept), expected, atol=1e-4, rtol=1e-4)


def test_a_sample_is_the_same_in_any_batch(net: MotionNet, cond: MotionCond) -> None:
    whole = net(X, T, cond)
    one = net(X[1:], T[1:], cond.map(lambda x: x[1:]))
    torch.testing.assert_close(whole[1:], one, atol=1e-5, rtol=1e-5)


def test_guidance_is_the_sum_of_its_passes(net: MotionNet, cond: MotionCond) -> None:
    none = torch.zeros(2, dtype=torch.bool)
    v = net(X, T, cond)
    silent = net(X, T, dataclasses.replace(cond, audio_keep=none))
    anybody = net(X, T, dataclasses.replace(cond, style_keep=none))
    free = (~SCALED).float()
    expected = v + 0.5 * (v - silent) + 2.0 * free * (v - anybody)
    got = guided_motion(net, cond, audio=1.5, style=3.0)(X, T)
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(guided_motion(net, cond)(X, T), v)
    bare = dataclasses.replace(cond, style=None)
    torch.testing.assert_close(
        guided_motion(net, bare, style=3.0)(X, T), net(X, T, bare), atol=1e-5, rtol=1e-5
    )


def test_shapes_that_do_not_fit_are_named(net: MotionNet, cond: MotionCond) -> None:
    with pytest.raises(ValueError, match="motion_t"):
        net(X[..., :16], T, cond)
    with pytest.raises(ValueError, match=r"cond\.audio"):
        net(X[:, :4], T[:, :4], cond)
    assert MotionNetConfig.full(1024).dim > 4 * CONFIG.dim
