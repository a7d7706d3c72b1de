"""From noise to latents: Euler steps with optional overshoot (Avatar V §4.2, sampler).

Pure functions of a velocity; what the velocity depends on (guidance, conditions) is not their
business. The state and the times stay in fp32 whatever precision the network runs in.
"""

from collections.abc import Callable
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.flow import Latents, State, Times

States = tuple[Tensor, ...]
"""Latents "b l c h w", and where it is denoised their motion "b l md"."""
VelocityFn = Callable[[Tensor, Tensor], Tensor]
"""``v = velocity_fn(x_t "b l c h w", t "b l")``; clean frames arrive with t = 0."""

JointVelocityFn = Callable[[States, Times], States]
"""The same for several states of the same latent frames, video and the motion stream."""


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
    (x,) = sample_joint(
        lambda states, t: (velocity_fn(states[0], t),),
        (noise,),
        times,
        prefixes=None if prefix is None else (prefix,),
        overshoot=overshoot,
        generator=generator,
    )
    return x


def sample_joint(
    velocity_fn: JointVelocityFn,
    noises: States,
    times: Float[Tensor, " steps_plus_1"],
    *,
    prefixes: States | None = None,
    suffixes: States | None = None,
    overshoot: float = 0.0,
    generator: torch.Generator | None = None,
) -> States:
    """`sample` for states "b l …" that share latent frames and times: each velocity may depend on
    all of them. ``prefixes`` are of one length; ``suffixes`` too, held clean like them at the end
    of the result.
    """
    _check(noises, times, prefixes, suffixes, overshoot, generator)
    first = 0 if prefixes is None else prefixes[0].shape[1]
    stop = noises[0].shape[1] - (0 if suffixes is None else suffixes[0].shape[1])
    states = tuple(noise.float() for noise in noises)
    if prefixes is not None:
        pairs = zip(prefixes, states, strict=True)
        states = tuple(torch.cat([prefix.to(x), x[:, first:]], dim=1) for prefix, x in pairs)
    if suffixes is not None:
        pairs = zip(states, suffixes, strict=True)
        states = tuple(torch.cat([x[:, :stop], suffix.to(x)], dim=1) for x, suffix in pairs)
    steps = [float(t) for t in times]
    for t, t_next in pairwise(steps):
        now = _times_per_frame(states[0], t, first, stop)
        states = tuple(
            _moved(x, v, t, t_next, first, stop, overshoot, generator)
            for x, v in zip(states, velocity_fn(states, now), strict=True)
        )
    return states


def renoised_step(
    x_t: State,
    v: State,
    t: float,
    t_next: float,
    *,
    overshoot: float,
    generator: torch.Generator | None,
) -> State:
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


def _moved(
    x: State,
    v: State,
    t: float,
    t_next: float,
    first: int,
    stop: int,
    overshoot: float,
    generator: torch.Generator | None,
) -> State:
    """``renoised_step`` of the latent frames ``first`` to ``stop``; the others stay."""
    free, v = x[:, first:stop], v.float()[:, first:stop]
    y = renoised_step(free, v, t, t_next, overshoot=overshoot, generator=generator)
    return torch.cat([x[:, :first], y, x[:, stop:]], dim=1)


def _times_per_frame(x: State, t: float, first: int, stop: int) -> Times:
    times = x.new_zeros(x.shape[:2])
    times[:, first:stop] = t
    return times


def _check(
    noises: States,
    times: Tensor,
    prefixes: States | None,
    suffixes: States | None,
    overshoot: float,
    generator: torch.Generator | None,
) -> None:
    if times.numel() < 2 or not bool((times[1:] < times[:-1]).all()) or float(times[-1]) != 0.0:
        raise ValueError(f"sampling times must fall strictly and end at 0, got {times.tolist()}")
    num_held = sum(held[0].shape[1] for held in (prefixes, suffixes) if held is not None)
    if num_held >= noises[0].shape[1]:
        raise ValueError(
            f"a prefix and suffix of {num_held} latent frames leaves nothing to generate "
            f"in a chunk of {noises[0].shape[1]}"
        )
    for name, held in (("prefixes", prefixes or ()), ("suffixes", suffixes or ())):
        if len({tuple(x.shape[:2]) for x in held}) > 1:
            raise ValueError(f"{name} of one length, got {[tuple(x.shape) for x in held]}")
    if overshoot < 0:
        raise ValueError(f"overshoot is at least 0, got {overshoot}")
    if overshoot > 0 and generator is None:
        raise ValueError("overshoot > 0 draws fresh noise and needs a generator")
