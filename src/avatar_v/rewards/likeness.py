"""How near the habits of each sample are to its person's own: what may be said of one sample alone.

Callables of the form of terms.py, more is better and 0 is the most. They are what simulated
raters of pairs judge by (raters.py). The levels of levels.py are of a whole batch instead.
"""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.motion.habits import LEAST_EXCURSION, blink_rates_hz, excursion, visible_runs
from avatar_v.rewards.levels import made_part
from avatar_v.rewards.shipped import MOUTH_OPEN, YAW
from avatar_v.types import MOTION_NAMES, Batch

Motion = Float[Tensor, "b f m"]
PerSample = Float[Tensor, " b"]


def own_blinks(
    frames: Tensor | None, audio: Tensor, reference: Batch, motion: Motion, **columns: Any
) -> PerSample:
    """Minus the distance of the rate of blinks from the person's, in blinks a second; NaN where the
    reference tells no rate."""
    made, own = _with_own("eye_open", reference, motion, columns, blink_rates_hz)
    return -(made - own).abs()


def own_sway(
    frames: Tensor | None, audio: Tensor, reference: Batch, motion: Motion, **columns: Any
) -> PerSample:
    """Minus the distance of the logarithm of how far the head turns from that of the person's."""
    return _nearness("yaw", YAW, reference, motion, columns)


def own_amplitude(
    frames: Tensor | None, audio: Tensor, reference: Batch, motion: Motion, **columns: Any
) -> PerSample:
    """The same of how far the mouth opens."""
    return _nearness("mouth_open", MOUTH_OPEN, reference, motion, columns)


def _nearness(
    name: str, component: int, reference: Batch, motion: Motion, columns: dict[str, Any]
) -> PerSample:
    def far(run: Motion) -> PerSample:
        return excursion(run)[..., component].mean(1).clamp_min(LEAST_EXCURSION)

    made, own = _with_own(name, reference, motion, columns, far)
    return -(made / own).log().abs()


def _with_own(
    name: str,
    reference: Batch,
    motion: Motion,
    columns: dict[str, Any],
    measure: Callable[[Motion], PerSample],
) -> tuple[PerSample, PerSample]:
    """A measure of what each sample made, and the mean of it over runs as long of its person's
    reference; NaN where the reference does not tell it."""
    made = made_part(motion, columns["num_given"])
    runs = visible_runs(reference.motion.to(motion), reference.valid, made.shape[1])
    own = torch.stack(
        [measure(run).mean() if len(run) else run.new_tensor(torch.nan) for run in runs]
    )
    if reference.habits_known is not None:
        known = reference.habits_known[:, MOTION_NAMES.index(name)].to(own.device)
        own = torch.where(known, own, torch.nan)
    return measure(made), own[columns["condition"]]
