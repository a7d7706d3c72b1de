"""From noise to latents: Euler steps with optional overshoot (Avatar V §4.2, sampler).

Pure functions of a velocity; what the velocity depends on (guidance, conditions) is not their
business. The state and the times stay in fp32 whatever precision the network runs in.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.flow import Latents, Times

VelocityFn = Callable[[Tensor, Tensor], Tensor]
"""``v = velocity_fn(x_t "b l c h w", t "b l")``; clean prefix frames arrive with t = 0."""


def sample(
    velocity_fn: VelocityFn,
    noise: Latents,
    times: Float[Tensor, " steps_plus_1"],
    *,
    prefix: Float[Tensor, "b p c h w"] | None = None,
    overshoot: float = 0.0,
    generator: torch.Generator | None = None,
) -> Latents:
    """Integrate dx/dt = v along ``times``, which fall strictly to 0 (see flow.schedule).

    The first p latent frames of the result are ``prefix``, unchanged: they are held
    clean at t = 0 in every step. ``overshoot`` is c of ``renoised_step``; any c > 0 draws from
    ``generator``, c = 0 is deterministic. ValueError for times that do not fall, a prefix that
    leaves nothing to generate, a negative overshoot, or an overshoot without a generator.
    """
    _check(noise, times, prefix, overshoot, generator)
    num_prefix = 0 if prefix is None else prefix.shape[1]
    x = noise.float()
    if prefix is not None:
        x = torch.cat([prefix.to(x), x[:, num_prefix:]], dim=1)
    steps = [float(t) for t in times]
    for t, t_next in pairwise(steps):
        v = velocity_fn(x, _times_per_frame(x, t, num_prefix)).float()
        free = renoised_step(
            x[:, num_prefix:],
            v[:, num_prefix:],
            t,
            t_next,
            overshoot=overshoot,
            generator=generator,
        )
        x = torch.cat([x[:, :num_prefix], free], dim=1)
    return x


def renoised_step(
    x_t: Latents,
    v: Latents,
    t: float,
    t_next: float,
    *,
    overshoot: float,
    generator: torch.Generator | None,
) -> Latents:
    """One step from t to t' < t: Euler past t' to o, then fresh noise back up to t'.

    ``o = max(t' - c (t - t'), 0)``, ``x_o = x_t + (o - t) v``, ``a = (1 - t') / (1 - o)``,
    ``x_t' = a x_o + sqrt(t'^2 - a^2 o^2) ε``. The renoising is exact: where x_o has the marginal
    of time o, x_t' has that of t', so the only error left is Euler's.
    """
    landing = max(t_next - overshoot * (t - t_next), 0.0)
    x_o = x_t + (landing - t) * v
    if landing == t_next:
        return x_o
    assert generator is not None, "checked in sample"
    keep = (1 - t_next) / (1 - landing)
    fresh = max(t_next**2 - (keep * landing) ** 2, 0.0) ** 0.5
    noise = torch.randn(x_t.shape, generator=generator, device=generator.device).to(x_o)
    return keep * x_o + fresh * noise


def _times_per_frame(x: Latents, t: float, num_prefix: int) -> Times:
    times = x.new_full(x.shape[:2], t)
    times[:, :num_prefix] = 0.0
    return times


def _check(
    noise: Tensor,
    times: Tensor,
    prefix: Tensor | None,
    overshoot: float,
    generator: torch.Generator | None,
) -> None:
    if times.numel() < 2 or not bool((times[1:] < times[:-1]).all()) or float(times[-1]) != 0.0:
        raise ValueError(f"sampling times must fall strictly and end at 0, got {times.tolist()}")
    if prefix is not None and prefix.shape[1] >= noise.shape[1]:
        raise ValueError(
            f"a prefix of {prefix.shape[1]} latent frames leaves nothing to generate "
            f"in a chunk of {noise.shape[1]}"
        )
    if overshoot < 0:
        raise ValueError(f"overshoot is at least 0, got {overshoot}")
    if overshoot > 0 and generator is None:
        raise ValueError("overshoot > 0 draws fresh noise and needs a generator")
