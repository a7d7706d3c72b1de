"""flow.py against its own definitions: every pair of conversions must invert."""

import pytest
import torch

from avatar_v import flow

# fp32 over a handful of multiplications and additions of unit-size numbers
TOLERANCE = 1e-5


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(0)
    clean, noise = torch.randn(2, 2, 3, 4, 2, 2, generator=generator)
    t = torch.rand(2, 3, generator=generator)
    return clean, noise, t


def test_ends_of_the_path(draw) -> None:
    clean, noise, t = draw
    assert torch.equal(flow.interpolate(clean, noise, torch.zeros_like(t)), clean)
    assert torch.equal(flow.interpolate(clean, noise, torch.ones_like(t)), noise)


def test_velocity_gives_back_both_ends(draw) -> None:
    clean, noise, t = draw
    x_t, v = flow.interpolate(clean, noise, t), flow.velocity(clean, noise)
    torch.testing.assert_close(flow.clean_from_velocity(x_t, v, t), clean, atol=TOLERANCE, rtol=0)
    found = flow.clean_from_velocity(x_t, v, t) + v
    torch.testing.assert_close(found, noise, atol=TOLERANCE, rtol=0)


def test_velocity_is_the_derivative(draw) -> None:
    clean, noise, t = (x.double() for x in draw)
    step = 1e-6
    ahead = flow.interpolate(clean, noise, t + step)
    behind = flow.interpolate(clean, noise, t - step)
    # central difference of a function linear in t: only rounding remains, 1e-16 / 1e-6
    torch.testing.assert_close(
        (ahead - behind) / (2 * step), flow.velocity(clean, noise), atol=1e-8, rtol=0
    )


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0])
def test_shift_keeps_ends_and_order(shift: float) -> None:
    t = flow.shift_time(torch.linspace(0, 1, 101), shift)
    assert t[0] == 0
    assert t[-1] == pytest.approx(1.0, abs=1e-6)
    assert (t.diff() > 0).all()


def test_four_step_schedule_of_live_avatar() -> None:
    # a few-step schedule: [1, .75, .5, .25] shifted by 5
    expected = torch.tensor([1.0, 0.9375, 0.8333, 0.625, 0.0])
    torch.testing.assert_close(flow.schedule(4, shift=5.0), expected, atol=1e-4, rtol=0)


def test_schedule_refuses_no_steps() -> None:
    with pytest.raises(ValueError, match="got 0"):
        flow.schedule(0, shift=1.0)


def test_drawn_times_follow_the_logit_normal() -> None:
    t = flow.draw_times(200_000, shift=1.0, generator=torch.Generator().manual_seed(0))
    # median of sigmoid(N(0, 1)) is 0.5; standard error of a median here about 0.0007
    assert float(t.median()) == pytest.approx(0.5, abs=0.004)
    logits = torch.logit(t.double())
    assert float(logits.std()) == pytest.approx(1.0, abs=0.01)


def test_the_refiners_path_runs_from_noised_low_to_clean(draw) -> None:
    clean, noise, t = draw
    low, sigma = clean + 0.3, 0.6
    t = sigma * (1 - t)
    x_t, v = flow.refine_path(clean, low, noise, t, sigma)
    torch.testing.assert_close(flow.clean_from_velocity(x_t, v, t), clean, atol=TOLERANCE, rtol=0)
    start, _ = flow.refine_path(clean, low, noise, torch.full_like(t, sigma), sigma)
    torch.testing.assert_close(start, 0.4 * low + 0.6 * noise, atol=TOLERANCE, rtol=0)
    x_t, v = flow.refine_path(clean, clean, noise, t, sigma)  # nothing to refine: the plain path
    torch.testing.assert_close(x_t, flow.interpolate(clean, noise, t), atol=TOLERANCE, rtol=0)
    torch.testing.assert_close(v, flow.velocity(clean, noise), atol=TOLERANCE, rtol=0)
