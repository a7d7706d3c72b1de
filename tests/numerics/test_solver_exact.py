"""The sampler against flows whose solution is known: a point mass and a Gaussian."""

import math
from collections.abc import Callable
from itertools import count, pairwise

import pytest
import torch
from torch import Tensor

from avatar_v.flow import State, schedule
from avatar_v.sampling.solver import (
    Step,
    VelocityFn,
    coefficient_preserving,
    euler,
    flow_sde,
    normal,
    overshoot,
    renoise,
    sample,
    trajectory,
)

MEAN, STD = 0.7, 0.5


def point_mass(clean: Tensor) -> VelocityFn:
    """Every path ends in ``clean``: v = (x_t - x_0) / t."""
    return lambda x, t: (x - clean) / t[..., None, None, None].clamp(min=1e-12)


def gaussian(x: Tensor, t: Tensor) -> Tensor:
    """E[ε - x_0 | x_t] for data N(MEAN, STD²), from the joint normal of (x_0, ε, x_t)."""
    t = t[..., None, None, None]
    variance = (1 - t) ** 2 * STD**2 + t**2
    return -MEAN + (t - (1 - t) * STD**2) / variance * (x - (1 - t) * MEAN)


def moved(
    step: Step, x_t: State, v: State, t: float, t_next: float, generator: torch.Generator
) -> Tensor:
    """One step with its noise."""
    mean, std = step(x_t, v, t, t_next)
    return mean + std * normal(generator)(mean.shape)


def noise_of(num: int, seed: int = 0) -> tuple[Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(num, 1, 1, 1, 1, generator=generator), generator


@pytest.mark.parametrize("c", [0.0, 0.3, 1.0, 4.0])
@pytest.mark.parametrize("num_steps", [1, 2, 7, 24])
def test_point_mass_is_reached_exactly(c: float, num_steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    clean = torch.randn(2, 3, 4, 2, 2, generator=generator)
    noise = torch.randn(2, 3, 4, 2, 2, generator=generator)
    out = sample(
        point_mass(clean),
        noise,
        schedule(num_steps, shift=3.0),
        step=overshoot(c),
        draw=normal(generator),
    )
    # fp32 rounding of |x| < 5 over at most 24 steps
    torch.testing.assert_close(out, clean, atol=2e-5, rtol=0)


@pytest.mark.parametrize("c", [0.0, 0.5, 1.0, 10.0])
def test_every_step_on_a_point_mass_keeps_the_exact_marginal(c: float) -> None:
    """x_t' ~ N((1 - t') x_0, t'²) after one step, for every overshoot."""
    num, t, t_next, clean = 400_000, 0.8, 0.55, torch.full((1, 1, 1, 1, 1), 2.0)
    noise, generator = noise_of(num)
    x_t = (1 - t) * clean + t * noise
    v = noise - clean
    x = moved(overshoot(c), x_t, v, t, t_next, generator)
    error = 5 / math.sqrt(num)  # five standard errors of a unit normal's mean
    assert float(x.mean()) == pytest.approx((1 - t_next) * 2.0, abs=t_next * error)
    assert float(x.std()) == pytest.approx(t_next, abs=t_next * error)


def test_overshoot_really_renews_the_noise() -> None:
    """At o = 0 nothing of the old noise is left; at c = 0 all of it is."""
    noise, generator = noise_of(100_000)
    for c, expected in [(0.0, 1.0), (10.0, 0.0)]:
        x = moved(overshoot(c), noise, noise, 1.0, 0.5, generator)
        both = torch.stack([x.flatten(), noise.flatten()])
        assert float(torch.corrcoef(both)[0, 1]) == pytest.approx(expected, abs=0.02)


def test_ode_on_a_gaussian_converges_at_first_order() -> None:
    """c = 0 maps ε to MEAN + STD ε; Euler's error halves when the number of steps doubles."""
    noise, _ = noise_of(64)
    exact = MEAN + STD * noise
    errors = [
        float((sample(gaussian, noise, schedule(n, shift=1.0)) - exact).abs().max())
        for n in (32, 64, 128)
    ]
    assert errors[2] < 0.02
    for coarse, fine in pairwise(errors):
        assert coarse / fine == pytest.approx(2.0, abs=0.25)  # the next order is still visible


@pytest.fixture
def designed(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Callable[[], Tensor]]:
    """``designed(num)``: a source of normal draws whose sample moments have no sampling error.

    Draw k is column k of a cosine basis, scaled: mean 0, variance 1, orthogonal to all others. On
    an affine flow the samples then carry exactly the mean and variance of the true process, so the
    sampler's bias is seen alone. ``torch.randn`` draws from it too, which is how `sample` renoises.
    """

    def start(num: int) -> Callable[[], Tensor]:
        row, column = torch.meshgrid(torch.arange(num), torch.arange(num), indexing="ij")
        basis = math.sqrt(2) * torch.cos(math.pi * (row.double() + 0.5) * column / num)
        columns = count(1)  # column 0 is constant

        def draw(*args: object, **kwargs: object) -> Tensor:
            return basis[:, next(columns)].float().reshape(num, 1, 1, 1, 1)

        monkeypatch.setattr(torch, "randn", draw)
        return draw

    return start


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("c", [0.0, 0.25, 0.5, 1.0, 2.0])
def test_a_gaussian_is_reached_at_first_order(
    designed: Callable[[int], Callable[[], Tensor]], c: float, shift: float
) -> None:
    """The mean is exact (it moves on a straight line); the variance errs by C(c) / steps.

    One step crosses (1 + c) (t - t') with one velocity, so the range of the fit moves with c: the
    error counts as asymptotic once (1 + c) / steps is small.
    """
    numbers = [round(num * (1 + c) * shift) for num in (64, 128)]
    errors = []
    for num_steps in numbers:
        draw = designed(2 * num_steps)
        times = schedule(num_steps, shift=shift)
        x = sample(
            gaussian, draw(), times, step=overshoot(c), draw=normal(torch.Generator())
        ).double()
        assert float(x.mean()) == pytest.approx(MEAN, abs=2e-5)  # fp32 over <= 1152 steps
        errors.append(abs(float(x.var(correction=0)) - STD**2))
    order = math.log(errors[0] / errors[1]) / math.log(numbers[1] / numbers[0])
    # Euler is of first order; at (1 + c) / steps = 1 / 64 the next one still takes up to 6 %.
    assert 0.92 < order < 1.03, (errors, order)
    assert errors[1] < 0.03 * STD**2 * (1 + c)


@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
@pytest.mark.parametrize(("t", "t_next"), [(1.0, 0.9), (0.8, 0.5), (0.3, 0.01)])
def test_renoising_is_exact(
    designed: Callable[[int], Callable[[], Tensor]], c: float, t: float, t_next: float
) -> None:
    """If x_o has the marginal of o, x_t' has that of t': jointly with x_0, not on average only.

    A zero velocity hands x_o through the Euler half of the step.
    """
    draw = designed(256)
    clean, old = draw(), draw()
    landing = max(t_next - c * (t - t_next), 0.0)
    x_o = (1 - landing) * clean + landing * old
    x = moved(overshoot(c), x_o, torch.zeros_like(x_o), t, t_next, torch.Generator())
    noise = (x - (1 - t_next) * clean) / t_next
    # the three columns are orthogonal; fp32 rounding of x, divided by t' >= 0.01
    assert float(noise.square().mean()) == pytest.approx(1.0, abs=1e-4)
    assert float(noise.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float((noise * clean).mean()) == pytest.approx(0.0, abs=1e-4)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_no_overshoot_is_the_plain_euler_method_bit_for_bit(shift: float) -> None:
    noise, _ = noise_of(64)
    x = noise
    times = [float(t) for t in schedule(24, shift=shift)]
    for t, t_next in pairwise(times):
        x = x + (t_next - t) * gaussian(x, torch.full((64, 1), t))
    assert torch.equal(sample(gaussian, noise, schedule(24, shift=shift)), x)


def test_renoising_without_the_scale_would_be_wrong() -> None:
    """The factor a matters: plain x_o + sqrt(t'² - o²) ε misses the mean of a point mass."""
    num, t, t_next, c = 100_000, 0.8, 0.5, 1.0
    noise, generator = noise_of(num)
    x_t, v = (1 - t) * 2.0 + t * noise, noise - 2.0
    landing = t_next - c * (t - t_next)
    naive = x_t + (landing - t) * v
    naive = naive + math.sqrt(t_next**2 - landing**2) * noise_of(num, 7)[0]
    ours = moved(overshoot(c), x_t, v, t, t_next, generator)
    assert abs(float(ours.mean()) - 1.0) < 0.01
    assert abs(float(naive.mean()) - 1.0) > 0.1


@pytest.mark.parametrize("step", [flow_sde(0.0), coefficient_preserving(0.0), overshoot(0.0)])
@pytest.mark.parametrize(("t", "t_next"), [(1.0, 0.9), (0.5, 0.3), (0.2, 0.0)])
def test_without_noise_every_step_is_the_odes(step: Step, t: float, t_next: float) -> None:
    x, v = noise_of(64)[0], noise_of(64, 3)[0]
    expected = euler(x, v, t, t_next)
    mean, std = step(x, v, t, t_next)
    # the CPS mean goes through x_0 and the noise: fp32 rounding of values below 5
    torch.testing.assert_close(mean, expected[0], atol=2e-6, rtol=0)
    assert std == expected[1] == 0.0


@pytest.mark.parametrize(
    "step",
    [renoise, coefficient_preserving(0.3), coefficient_preserving(0.8)],
    ids=["renoise", "cps 0.3", "cps 0.8"],
)
def test_steps_that_renoise_keep_the_exact_marginal_of_a_point_mass(step: Step) -> None:
    num, t, t_next = 400_000, 0.8, 0.55
    noise, generator = noise_of(num)
    x = moved(step, (1 - t) * 2.0 + t * noise, noise - 2.0, t, t_next, generator)
    error = 5 / math.sqrt(num)
    assert float(x.mean()) == pytest.approx((1 - t_next) * 2.0, abs=t_next * error)
    assert float(x.std()) == pytest.approx(t_next, abs=t_next * error)


def test_the_cps_step_with_all_noise_fresh_is_renoising() -> None:
    x, v = noise_of(64)[0], noise_of(64, 3)[0]
    mean, std = coefficient_preserving(1.0)(x, v, 0.8, 0.5)
    expected = renoise(x, v, 0.8, 0.5)
    torch.testing.assert_close(mean, expected[0], atol=2e-6, rtol=0)
    assert std == pytest.approx(expected[1])


@pytest.mark.parametrize("a", [0.3, 0.7])
def test_the_sde_has_the_marginals_of_the_ode(
    designed: Callable[[int], Callable[[], Tensor]], a: float
) -> None:
    """A Gaussian comes out with its mean and variance. The last step is the ODE's: that of the SDE
    would leave its noise in the result. Noise without the drift that belongs to it would not do."""

    def without_drift(x: State, v: State, t: float, t_next: float) -> tuple[State, float]:
        return euler(x, v, t, t_next)[0], flow_sde(a)(x, v, t, t_next)[1]

    def variance(step: Step, num_steps: int) -> float:
        draw = designed(2 * num_steps)
        steps = [*[step] * (num_steps - 1), euler]
        times = schedule(num_steps, shift=1.0)
        x = sample(gaussian, draw(), times, step=steps, draw=normal(torch.Generator())).double()
        assert float(x.mean()) == pytest.approx(MEAN, abs=1e-5)  # fp32 over 512 steps
        return float(x.var(correction=0))

    assert variance(flow_sde(a), 512) == pytest.approx(STD**2, rel=0.01)
    assert variance(without_drift, 512) > 1.1 * STD**2


def test_a_sample_draws_the_same_in_any_batch_and_gradients_pass() -> None:
    def generators() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in (5, 6, 7)]

    noise = noise_of(3)[0]
    scale = torch.tensor(0.5, requires_grad=True)

    def run(rows: list[int]) -> Tensor:
        draw = normal(*[generators()[i] for i in rows])
        moves = trajectory(
            lambda x, t: scale * x, noise[rows], schedule(4, shift=1.0),
            step=[renoise, flow_sde(0.7), coefficient_preserving(0.8), euler], draw=draw,
        )  # fmt: skip
        return list(moves)[-1].after

    whole = run([0, 1, 2])
    torch.testing.assert_close(torch.cat([run([i]) for i in range(3)]), whole, atol=0, rtol=0)
    (gradient,) = torch.autograd.grad(whole.square().sum(), scale)
    assert float(gradient.abs()) > 0.01
