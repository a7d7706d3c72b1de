"""From noise to clean latents, step by step: the ODE, and the steps that add fresh noise.

A step is a function ``step(x_t, v, t, t_next) -> (mean, std)``: the next state is ``mean + std ε``.
Euler's step of the ODE, the overshoot of Avatar V §4.2, the renoising of few-step students (DMD),
Flow-GRPO's SDE and the CPS sampler are such functions. Everything here is a pure function of a
velocity, for batches of any size; gradients pass. The state and the times stay in fp32 whatever
precision the network runs in. Guidance and conditions are no business of this file.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.flow import State, Times

VelocityFn = Callable[[Tensor, Tensor], Tensor]
"""``v = velocity_fn(x_t "b l …", t "b l")`` of video or motion; clean frames arrive with t = 0."""
Step = Callable[[State, State, float, float], tuple[State, float]]
"""``mean, std = step(x_t, v, t, t_next)`` with 0 <= t_next < t <= 1."""
Draw = Callable[[Sequence[int]], Tensor]
"""Unit normal noise of a shape whose first axis is the batch."""


@dataclass(frozen=True)
class SolverStep:
    """One step of a trajectory: the latent frames that move, ends not included."""

    t: float
    t_next: float
    before: State
    mean: State
    std: float
    after: State


def euler(x_t: State, v: State, t: float, t_next: float) -> tuple[State, float]:
    """The ODE's step, ``x_t + (t' - t) v``, without noise."""
    return x_t + (t_next - t) * v, 0.0


def overshoot(c: float) -> Step:
    """Euler past t' to o, then fresh noise back up to t' (Avatar V §4.2).

    ``o = max(t' - c (t - t'), 0)``, ``x_o = x_t + (o - t) v``, ``a = (1 - t') / (1 - o)``,
    ``x_t' = a x_o + sqrt(t'^2 - a^2 o^2) ε``. The renoising is exact: where x_o has the marginal
    of time o, x_t' has that of t', so the only error left is Euler's. c = 0 is Euler's step.
    ValueError for a negative c.
    """
    if not c >= 0:
        raise ValueError(f"overshoot is at least 0, got {c}")

    def step(x_t: State, v: State, t: float, t_next: float) -> tuple[State, float]:
        landing = max(t_next - c * (t - t_next), 0.0)
        x_o = x_t + (landing - t) * v
        if landing == t_next:
            return x_o, 0.0
        keep = (1 - t_next) / (1 - landing)
        return keep * x_o, max(t_next**2 - (keep * landing) ** 2, 0.0) ** 0.5

    return step


renoise = overshoot(math.inf)
"""All the way to x_0 and back to t' with fresh noise: the step of few-step students (DMD2)."""


def flow_sde(a: float) -> Step:
    """Flow-GRPO's SDE (arXiv 2505.05470) with noise ``ε_t = a sqrt(t / (1 - t))``.

    ``mean = x (1 + ε_t² dt / (2t)) + v (1 + ε_t² (1 - t) / (2t)) dt`` and ``std = ε_t sqrt(-dt)``
    with ``dt = t' - t``. At t = 1, where ε_t is infinite, that of t' is taken. The step to t' = 0
    leaves noise in the result: take `euler` for it. ValueError for a negative a.
    """
    if not 0 <= a < math.inf:
        raise ValueError(f"the noise level of the SDE is a finite number from 0, got {a}")

    def step(x_t: State, v: State, t: float, t_next: float) -> tuple[State, float]:
        at = t if t < 1 else t_next
        variance, dt = a**2 * at / (1 - at), t_next - t
        mean = x_t * (1 + variance * dt / (2 * t))
        return mean + v * ((1 + variance * (1 - t) / (2 * t)) * dt), (variance * -dt) ** 0.5

    return step


def coefficient_preserving(eta: float) -> Step:
    """The CPS step (arXiv 2509.05952): the share of noise that is fresh is ``sin(η π / 2)``.

    ``s = t' sin(η π / 2)``, ``mean = (1 - t') x̂_0 + sqrt(t'² - s²) ε̂``, ``std = s``. η = 0 is
    Euler's step, η = 1 is `renoise`. ValueError for η outside [0, 1].
    """
    if not 0 <= eta <= 1:
        raise ValueError(f"eta is in [0, 1], got {eta}")
    fresh = math.sin(eta * math.pi / 2)

    def step(x_t: State, v: State, t: float, t_next: float) -> tuple[State, float]:
        clean, noise = x_t - t * v, x_t + (1 - t) * v
        kept = t_next * max(1 - fresh**2, 0.0) ** 0.5
        return (1 - t_next) * clean + kept * noise, t_next * fresh

    return step


def normal(*generators: torch.Generator) -> Draw:
    """Noise from one generator for the whole batch, or from one for each of its samples.

    With one for each, a sample is the same in any batch. The noise lies on their device.
    ValueError for another number of samples than of generators.
    """

    def draw(shape: Sequence[int]) -> Tensor:
        if len(generators) == 1:
            (g,) = generators
            return torch.randn(*shape, generator=g, device=g.device)
        if shape[0] != len(generators):
            raise ValueError(f"{len(generators)} generators cannot serve {shape[0]} samples")
        return torch.cat(
            [torch.randn(1, *shape[1:], generator=g, device=g.device) for g in generators]
        )

    return draw


def sample(
    velocity_fn: VelocityFn,
    noise: State,
    times: Float[Tensor, " steps_plus_1"],
    *,
    prefix: Float[Tensor, "b p *rest"] | None = None,
    suffix: Float[Tensor, "b q *rest"] | None = None,
    step: Step | Sequence[Step] = euler,
    draw: Draw | None = None,
) -> State:
    """The end of a `trajectory`, with the latent frames that were given at both ends."""
    x = noise
    for move in trajectory(
        velocity_fn, noise, times, prefix=prefix, suffix=suffix, step=step, draw=draw
    ):
        x = move.after
    return _Held(prefix, suffix).around(x)


def trajectory(
    velocity_fn: VelocityFn,
    noise: State,
    times: Float[Tensor, " steps_plus_1"],
    *,
    prefix: Float[Tensor, "b p *rest"] | None = None,
    suffix: Float[Tensor, "b q *rest"] | None = None,
    step: Step | Sequence[Step] = euler,
    draw: Draw | None = None,
) -> Iterator[SolverStep]:
    """The moves from noise along ``times``, which fall strictly to 0 (see flow.schedule).

    ``prefix`` and ``suffix`` are clean latent frames at both ends. They are held at t = 0 in every
    step, in the place of the noise there. ``step`` is one for all moves, or one for each. ``draw``
    gives the fresh noise of steps that have some. ValueError for times that do not fall, ends that
    leave nothing to generate, or a noisy step without ``draw``.
    """
    held = _Held(prefix, suffix)
    _check(noise, times, held)
    pairs = list(pairwise(float(t) for t in times))
    steps = [step] * len(pairs) if callable(step) else list(step)
    if len(steps) != len(pairs):
        raise ValueError(f"{len(pairs)} moves need as many steps, got {len(steps)}")
    x = held.free(noise.float())
    for (t, t_next), how in zip(pairs, steps, strict=True):
        mean, std = _moved(velocity_fn, x, t, t_next, how, held)
        after = mean
        if std > 0:
            if draw is None:
                raise ValueError("a step with fresh noise needs a source of it (draw)")
            after = mean + std * draw(mean.shape).to(mean)
        yield SolverStep(t, t_next, x, mean, std, after)
        x = after


def again(
    velocity_fn: VelocityFn,
    move: SolverStep,
    step: Step,
    *,
    prefix: Float[Tensor, "b p *rest"] | None = None,
    suffix: Float[Tensor, "b q *rest"] | None = None,
) -> State:
    """The mean of ``move`` by this velocity: the very computation that a `trajectory` made it with,
    so that the network of the trajectory gives the same numbers, to the last bit."""
    held = _Held(prefix, suffix)
    return _moved(velocity_fn, move.before, move.t, move.t_next, step, held)[0]


def _moved(
    velocity_fn: VelocityFn, x: State, t: float, t_next: float, step: Step, held: "_Held"
) -> tuple[State, float]:
    """Mean and standard deviation of the step from ``x``."""
    whole = held.around(x)
    v = velocity_fn(whole, _times_per_frame(whole, t, held))
    return step(x, held.free(v.float()), t, t_next)


def last_with_gradient(velocity: VelocityFn, num_moves: int) -> VelocityFn:
    """``velocity`` for one way of ``num_moves`` steps, of which the last alone takes a gradient."""
    count = itertools.count(1)

    def of_the_last(x_t: Tensor, t: Tensor) -> Tensor:
        if next(count) == num_moves:
            return velocity(x_t, t)
        with torch.no_grad():
            return velocity(x_t, t)

    return of_the_last


@dataclass(frozen=True)
class _Held:
    """The clean latent frames at both ends."""

    prefix: Float[Tensor, "b p *rest"] | None
    suffix: Float[Tensor, "b q *rest"] | None

    @property
    def num_first(self) -> int:
        return 0 if self.prefix is None else self.prefix.shape[1]

    @property
    def num_last(self) -> int:
        return 0 if self.suffix is None else self.suffix.shape[1]

    def free(self, x: Tensor) -> Tensor:
        """The latent frames between the ends."""
        return x[:, self.num_first : x.shape[1] - self.num_last]

    def around(self, x: Tensor) -> Tensor:
        """``x`` with the given latent frames at both ends."""
        parts = (self.prefix, x, self.suffix)
        return torch.cat([part.to(x) for part in parts if part is not None], dim=1)


def _times_per_frame(x: State, t: float, held: _Held) -> Times:
    times = x.new_zeros(x.shape[:2])
    held.free(times).fill_(t)
    return times


def _check(noise: State, times: Tensor, held: _Held) -> None:
    if times.numel() < 2 or not bool((times[1:] < times[:-1]).all()) or float(times[-1]) != 0.0:
        raise ValueError(f"sampling times must fall strictly and end at 0, got {times.tolist()}")
    num_held = held.num_first + held.num_last
    if num_held >= noise.shape[1]:
        raise ValueError(
            f"a prefix and suffix of {num_held} latent frames leaves nothing to generate "
            f"in a chunk of {noise.shape[1]}"
        )
