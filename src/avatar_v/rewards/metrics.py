"""Metrics of motion that are never a reward: what watches an alignment (callbacks/watch_rewards).

They have the call of a reward (terms.py), and more is better. The gaps of levels say whether
a reward of habits does what it is for; lips say what it costs. Pictures are watched by scorers
(scored.py), by their held-out critics above all.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.rewards.levels import blink_gap, excursion_gap, made_part
from avatar_v.rewards.shipped import MOUTH_OPEN, YAW
from avatar_v.types import Batch

Video = Float[Tensor, "b f 3 h w"]
Motion = Float[Tensor, "b f m"]
PerSample = Float[Tensor, " b"]


def blink_level(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, **columns: Any
) -> PerSample | None:
    """Minus the distance of the batch's blink rate from the persons', alike for every sample."""
    return _nearness(blink_gap(reference, motion, columns["num_given"]), motion)


def sway_level(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, **columns: Any
) -> PerSample | None:
    """The same of how far heads turn."""
    return _nearness(excursion_gap(YAW, reference, motion, columns["num_given"]), motion)


def amplitude_level(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, **columns: Any
) -> PerSample | None:
    """The same of how far mouths open."""
    return _nearness(excursion_gap(MOUTH_OPEN, reference, motion, columns["num_given"]), motion)


def lips(
    frames: Video | None, audio: Tensor, reference: Batch, motion: Motion, *,
    true_motion: Float[Tensor, "c f m"], **columns: Any,
) -> PerSample:  # fmt: skip
    """Pearson's r of the mouth's opening with the true one of that sound, over the frames that a
    sample made; NaN where one of them does not move."""
    true = true_motion[columns["condition"]]
    made, true = (made_part(x, columns["num_given"])[..., MOUTH_OPEN] for x in (motion, true))
    made, true = (x - x.mean(1, keepdim=True) for x in (made, true))
    return (made * true).sum(1) / (made.norm(dim=1) * true.norm(dim=1))


def _nearness(gap: Tensor | None, motion: Motion) -> PerSample | None:
    return None if gap is None else torch.full_like(motion[:, 0, 0], -float(gap.abs()))
