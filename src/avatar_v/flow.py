"""Rectified flow: the time convention and the algebra between x_0, noise, x_t and v.

t = 1 is noise, t = 0 is data (Live Avatar eq. 1-3; Wan and Flux agree):
``x_t = (1 - t) x_0 + t ε`` and ``v = dx_t/dt = ε - x_0``. Sampling runs t from 1 to 0, so dt < 0.
``t`` is given per latent frame, shape "b l", for latents "b l c h w" and for motion "b l md".
Pure functions; no model, no device, no global generator.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Latents = Float[Tensor, "b l c h w"]
State = Float[Tensor, "b l *rest"]
"""What is noised of latent frames: the video's latents, or their motion "b l md"."""
Times = Float[Tensor, "b l"]


def _wide(t: Times, x: State) -> Float[Tensor, "b l *ones"]:
    return t.reshape(t.shape + (1,) * (x.ndim - t.ndim))


def interpolate(clean: State, noise: State, t: Times) -> State:
    """x_t on the straight path between data (t = 0) and noise (t = 1)."""
    return (1 - _wide(t, clean)) * clean + _wide(t, clean) * noise


def velocity(clean: State, noise: State) -> State:
    """v = ε - x_0, constant along the path."""
    return noise - clean


def clean_from_velocity(x_t: State, v: State, t: Times) -> State:
    """x_0 = x_t - t v."""
    return x_t - _wide(t, v) * v


def refine_path(
    clean: Latents, low: Latents, noise: Latents, t: Times, sigma: float
) -> tuple[Latents, Latents]:
    """x_t and v between data (t = 0) and ``low``, noised, at t = sigma; t in (0, sigma].

    ``x_t = (1 - t/σ) x_0 + (t/σ) x_σ`` with ``x_σ = (1 - σ) low + σ ε``, so ``v = (x_σ - x_0) / σ``
    and ``x_0 = x_t - t v`` as ever: one step from t = sigma needs v there alone. Where low is x_0
    these are ``interpolate`` and ``velocity``. (The path of FlashVideo, arXiv 2502.05179, with the
    noise of Avatar V §4.6.)
    """
    start = (1 - sigma) * low + sigma * noise
    return interpolate(clean, start, t / sigma), (start - clean) / sigma


def shift_time(t: Tensor, shift: float) -> Tensor:
    """t' = s t / (1 + (s - 1) t): s > 1 spends more of the interval near the noise end."""
    return shift * t / (1 + (shift - 1) * t)


def draw_times(
    num: int, *, shift: float, generator: torch.Generator, mean: float = 0.0, std: float = 1.0
) -> Float[Tensor, " num"]:
    """Logit-normal training times, t = sigmoid(N(mean, std)), then shifted."""
    normal = torch.randn(num, generator=generator, device=generator.device)
    return shift_time(torch.sigmoid(mean + std * normal), shift)


def schedule(num_steps: int, *, shift: float) -> Float[Tensor, " steps_plus_1"]:
    """Sampling times from 1 down to 0, ``num_steps + 1`` of them, uniform before the shift."""
    if num_steps < 1:
        raise ValueError(f"a schedule needs at least one step, got {num_steps}")
    return shift_time(torch.linspace(1.0, 0.0, num_steps + 1), shift)
