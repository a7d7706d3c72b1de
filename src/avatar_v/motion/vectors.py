"""Motion vectors: what a face does, free of who it is and how it is framed.

Per video frame a vector of types.MOTION_NAMES, from the world's ground truth or from landmarks
(landmarks.py); per latent frame the four of its video frames, normalised by motion statistics
(stats.py). The first latent holds one video frame, four times. Pure functions, no parameters.
"""

import math
from collections.abc import Collection

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.motion.stats import MotionStats
from avatar_v.types import MOTION_NAMES, TEMPORAL_FACTOR, num_latents

MOTION_DIM = TEMPORAL_FACTOR * len(MOTION_NAMES)


def component_weights(weights: dict[str, float]) -> Float[Tensor, " m"]:
    """Weights of the components by name, those that are not named having 1, scaled to a mean of 1.

    ValueError for a component that motion does not have, a weight that is negative or not finite,
    or none above 0.
    """
    raw = torch.tensor([float(weights.get(name, 1.0)) for name in MOTION_NAMES])
    fit = bool((raw >= 0).all()) and 0 < float(raw.sum()) < math.inf
    if set(weights) - set(MOTION_NAMES) or not fit:
        raise ValueError(
            "component weights are not negative, one of them above 0, and of "
            f"{', '.join(MOTION_NAMES)}; got {weights}"
        )
    return raw / raw.mean()


def pack_motion(motion: Float[Tensor, "b f m"], stats: MotionStats) -> Float[Tensor, "b l md"]:
    """Vectors of f = 4k + 1 video frames to normalised vectors of latent frames."""
    num = num_latents(motion.shape[1])
    normal = (motion.float() - stats.mean.to(motion.device)) / stats.deviation.to(motion.device)
    first = normal[:, :1].repeat_interleave(TEMPORAL_FACTOR, dim=1)
    return rearrange(torch.cat([first, normal[:, 1:]], dim=1), "b (l k) m -> b l (k m)", l=num)


def unpack_motion(packed: Float[Tensor, "b l md"], stats: MotionStats) -> Float[Tensor, "b f m"]:
    """The inverse of `pack_motion`; the first frame is the mean of its four copies."""
    motion = motion_frames(packed, stats)
    first = motion[:, :TEMPORAL_FACTOR].mean(1, keepdim=True)
    return torch.cat([first, motion[:, TEMPORAL_FACTOR:]], dim=1)


def motion_frames(packed: Float[Tensor, "b l md"], stats: MotionStats) -> Float[Tensor, "b l4 m"]:
    """Four vectors of each latent frame, in the units of MOTION_NAMES."""
    normal = rearrange(packed.float(), "b l (k m) -> b (l k) m", k=TEMPORAL_FACTOR)
    return normal * stats.deviation.to(packed.device) + stats.mean.to(packed.device)


def known_mask(names: Collection[str]) -> Bool[Tensor, "1 m"]:
    """Which components these are."""
    return torch.tensor([[name in names for name in MOTION_NAMES]])
