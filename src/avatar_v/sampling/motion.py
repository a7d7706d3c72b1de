"""Motion of a chunk from the motion network, before its video begins.

Guidance has two terms of its own here: of the sound, and of the person's style. A pass costs a
token per latent frame, so motion takes at least `LEAST_MOTION_STEPS` steps however few its video
takes, unless its network is a student of few steps. Pure functions; gradients pass.
"""

import dataclasses

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.models.motion_net import MotionNet
from avatar_v.motion.own_units import SCALED
from avatar_v.sampling.solver import VelocityFn
from avatar_v.types import MotionCond

LEAST_MOTION_STEPS = 16
"""However few steps the video takes: with fewer people sway less far and blink less often than they
do (our choice)."""

Motion = Float[Tensor, "b l md"]


def guided_motion(
    network: MotionNet, cond: MotionCond, *, audio: float = 1.0, style: float = 1.0
) -> VelocityFn:
    """``v + (w_a - 1) [v - v(no sound)] + (w_s - 1) [v - v(no style)]``, in one batched pass.

    The last term is 0 in components that are made in units of the person's own
    (own_units.SCALED): they are as large as they should be. A weight of 1, and what ``cond`` does
    not have, costs no pass.
    """
    # (weight, what the pass lacks)
    more = []
    if cond.audio is not None and audio != 1:
        more.append((audio - 1, "audio_keep"))
    if cond.style is not None and style != 1:
        more.append((style - 1, "style_keep"))

    def velocity(motion_t: Motion, t: Float[Tensor, "b l"]) -> Motion:
        size, num = len(motion_t), 1 + len(more)
        joint = cond.map(lambda x: x.repeat(num, *[1] * (x.dim() - 1)))
        index = torch.arange(num, device=t.device).repeat_interleave(size)
        for i, (_, name) in enumerate(more, start=1):
            old = getattr(joint, name)
            keep = index != i if old is None else old & (index != i)
            joint = dataclasses.replace(joint, **{name: keep})
        v = network(motion_t.repeat(num, 1, 1), t.repeat(num, 1), joint)
        v, *others = v.float().split(size)
        total = v
        for (weight, name), other in zip(more, others, strict=True):
            term = weight * (v - other)
            if name == "style_keep":
                term = torch.where(SCALED.to(v.device), 0.0, term)
            total = total + term
        return total

    return velocity
