"""How far the level of a habit in samples is from the persons' own: blinks, sway, amplitude.

A level is of a whole batch: of one sample of two seconds nobody could tell a rate. The persons' own
is measured in runs of their reference as long as the samples.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.motion.habits import blink_rates_hz, excursion, visible_runs
from avatar_v.types import MOTION_NAMES, Batch, num_frames

Motion = Float[Tensor, "b f m"]


def made_part(motion: Motion, num_given: int) -> Float[Tensor, "b made m"]:
    """What the samples made themselves, without the latents at the beginning that were given."""
    return motion[:, num_frames(num_given) if num_given else 0 :]


def blink_gap(reference: Batch, motion: Motion, num_given: int) -> Tensor | None:
    """By how much people blink too rarely (`relative_gap`); None where no reference shows it."""
    return _gap("eye_open", reference, motion, num_given, lambda run: blink_rates_hz(run).mean())


def excursion_gap(
    component: int, reference: Batch, motion: Motion, num_given: int
) -> Tensor | None:
    """By how much a component moves too little, the same way."""

    def level(run: Tensor) -> Tensor:
        return excursion(run)[..., component].mean()

    return _gap(MOTION_NAMES[component], reference, motion, num_given, level)


def relative_gap(own: Tensor, made: Tensor) -> Tensor:
    """By how much a level is too low, relative to the mean of both: from -2 to 2."""
    return 2 * (own - made) / (own + made).clamp_min(1e-6)


def _gap(
    name: str,
    reference: Batch,
    motion: Motion,
    num_given: int,
    level: Callable[[Tensor], Tensor],
) -> Tensor | None:
    made = made_part(motion, num_given)
    known = torch.ones(len(reference.motion), dtype=torch.bool)
    if reference.habits_known is not None:
        known = reference.habits_known[:, MOTION_NAMES.index(name)].cpu()
    runs = visible_runs(reference.motion.to(made), reference.valid, made.shape[1])
    found = [level(run) for run, is_known in zip(runs, known, strict=True) if is_known and len(run)]
    if not found:
        return None
    return relative_gap(torch.stack(found).mean().to(made), level(made))
