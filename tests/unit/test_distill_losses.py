"""losses/distill.py against closed forms: the score difference of Gaussians, guidance, masks."""

import math

import pytest
import torch
from torch import nn

from avatar_v.losses.distill import (
    distribution_matching_gradient,
    distribution_matching_loss,
)

ALL = torch.ones(2, 3, dtype=torch.bool)


def guided_target(
    velocity: torch.Tensor, without: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """``v + (w - 1) (v - sg[v_∅])``: the target of plain training of weights with guidance inside.

    ``velocity`` is that of the data, ``without`` the network's own for the sample without its
    conditions and w the weight that the network takes as an input. On average over the data this is
    guidance with w: fine-tuning on it keeps what distillation put in; plain flow matching takes it
    out.
    """
    wide = weight.reshape(-1, *[1] * (velocity.ndim - 1))
    return velocity + (wide - 1) * (velocity - without.detach())


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def denoised(x_t: torch.Tensor, t: float, mean: float, std: float) -> torch.Tensor:
    """E[x_0 | x_t] of data N(mean, std²) under x_t = (1 - t) x_0 + t ε."""
    gain = (1 - t) * std**2 / ((1 - t) ** 2 * std**2 + t**2)
    return mean + gain * (x_t - (1 - t) * mean)


def score(x_t: torch.Tensor, t: float, mean: float, std: float) -> torch.Tensor:
    return -(x_t - (1 - t) * mean) / ((1 - t) ** 2 * std**2 + t**2)


@pytest.mark.parametrize("t", [0.02, 0.5, 0.98])
def test_the_gradient_is_the_score_difference_of_two_gaussians(t: float) -> None:
    made = draw(2, 3, 4, 2, 2) * 0.5 + 1.0
    x_t = (1 - t) * made + t * draw(*made.shape, seed=1)
    real, fake = denoised(x_t, t, -0.3, 1.2), denoised(x_t, t, 1.0, 0.5)
    g = distribution_matching_gradient(made, real, fake, ALL)
    spread = (made - real).abs().flatten(1).mean(1).reshape(2, 1, 1, 1, 1)
    expected = score(x_t, t, 1.0, 0.5) - score(x_t, t, -0.3, 1.2)
    assert torch.allclose(g * spread * (1 - t) / t**2, expected, rtol=1e-3, atol=1e-3)


def test_each_sample_has_its_own_normaliser_and_unscored_latents_none() -> None:
    made, real, fake = draw(2, 3, 4, 2, 2), draw(2, 3, 4, 2, 2, seed=1), draw(2, 3, 4, 2, 2, seed=2)
    scored = torch.tensor([[False, True, True], [True, True, True]])
    g = distribution_matching_gradient(made, real, fake, scored)
    assert not g[0, 0].any()
    alone = distribution_matching_gradient(made[:1, 1:], real[:1, 1:], fake[:1, 1:], ALL[:1, 1:])
    assert torch.allclose(g[:1, 1:], alone)
    scaled = distribution_matching_gradient(7 * made, 7 * real, 7 * fake, scored)
    assert torch.allclose(scaled, g, atol=1e-5)  # whatever the unit of latents


def test_a_number_that_is_not_finite_gives_no_gradient_there() -> None:
    made, real, fake = draw(2, 3, 4, 2, 2), draw(2, 3, 4, 2, 2, seed=1), draw(2, 3, 4, 2, 2, seed=2)
    fake[0, 0, 0, 0, 0] = math.nan
    g = distribution_matching_gradient(made, real, fake, ALL)
    assert torch.isfinite(g).all()
    assert g[0, 0, 0, 0, 0] == 0
    assert g[0, 1].abs().min() > 0


def test_the_loss_has_the_gradient_that_it_is_given() -> None:
    made = draw(2, 3, 4, 2, 2).requires_grad_()
    g = draw(2, 3, 4, 2, 2, seed=1)
    scored = torch.tensor([[False, True, True], [True, True, True]])
    masked = g * scored[:, :, None, None, None]
    loss = distribution_matching_loss(made, masked, scored)
    assert loss.shape == (2,)
    (found,) = torch.autograd.grad(loss.sum(), made)
    count = scored.sum(1).reshape(2, 1, 1, 1, 1) * 16
    assert torch.allclose(found, masked / count, atol=1e-7)
    weight = torch.full((2, 3, 1, 2, 2), 5.0)  # a constant weight changes nothing
    assert torch.allclose(distribution_matching_loss(made, masked, scored, weight), loss)


def test_fine_tuning_on_the_guided_target_is_guidance_on_average() -> None:
    """Of data with velocities v given c, the least-squares answer is v_∅ + w (E[v | c] - v_∅)."""
    given, without, w = 0.7, -0.2, torch.tensor([3.0])
    v = given + draw(1, 100_000, 1, 1, 1)
    answer = guided_target(v, torch.full_like(v, without), w).mean()
    assert float(answer) == pytest.approx(without + 3.0 * (given - without), abs=0.05)
    assert torch.equal(guided_target(v, torch.zeros_like(v), torch.ones(1)), v)


def test_a_student_of_one_step_recovers_the_modes_of_a_mixture() -> None:
    """Weights .25 and .75 at (-2, 0) and (2, 0): matching neither drops a mode nor evens them."""
    torch.manual_seed(0)
    weights, centres = torch.tensor([0.25, 0.75]), torch.tensor([[-2.0, 0.0], [2.0, 0.0]])
    std, shape = 0.3, (512, 1, 2, 1, 1)

    def network() -> nn.Module:
        sizes = ((3, 64), (64, 64), (64, 2))
        layers = [part for size in sizes for part in (nn.Linear(*size), nn.SiLU())]
        return nn.Sequential(*layers[:-1])

    def real(x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """E[x_0 | x_t] of the mixture."""
        variance = (1 - t) ** 2 * std**2 + t**2
        away = x_t[:, None] - (1 - t)[:, None] * centres
        log = weights.log() - away.square().sum(-1) / (2 * variance)
        each = centres + ((1 - t) * std**2 / variance)[:, None] * away
        return (log.softmax(1)[..., None] * each).sum(1)

    def x_0(net: nn.Module, x_t: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return x_t - t * net(torch.cat([x_t, t], dim=1))

    student, fake = network(), network()
    of_student = torch.optim.Adam(student.parameters(), 1e-3, betas=(0.0, 0.99))
    of_fake = torch.optim.Adam(fake.parameters(), 2e-3, betas=(0.0, 0.99))
    one, scored = torch.ones(512, 1), torch.ones(512, 1, dtype=torch.bool)
    for step in range(1600):
        made = x_0(student, torch.randn(512, 2), one)
        t = torch.rand(512, 1).clamp(0.02, 0.98)
        noise = torch.randn(512, 2)
        x_t = (1 - t) * made.detach() + t * noise
        error = (x_t - t * (noise - made.detach()) - x_0(fake, x_t, t)) / t
        of_fake.zero_grad()
        error.square().mean().backward()
        of_fake.step()
        if step % 4 == 3:
            with torch.no_grad():
                both = (real(x_t, t), x_0(fake, x_t, t))
            wide = [x.reshape(shape) for x in (made, *both)]
            g = distribution_matching_gradient(*wide, scored)
            of_student.zero_grad()
            distribution_matching_loss(wide[0], g, scored).mean().backward()
            of_student.step()
    with torch.no_grad():
        made = x_0(student, torch.randn(4000, 2), torch.ones(4000, 1))
    share = float((made[:, 0] > 0).float().mean())
    assert share == pytest.approx(0.75, abs=0.08)
    for sign, centre in zip((-1, 1), centres, strict=True):
        mode = made[made[:, 0] * sign > 0]
        assert torch.allclose(mode.mean(0), centre, atol=0.35)
