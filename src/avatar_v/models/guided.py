"""A DiT that is told the guidance weights: the student of guidance distillation."""

import dataclasses

from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT


def with_guidance_inside(dit: AvatarDiT, ranges: tuple[tuple[float, float], ...]) -> AvatarDiT:
    """A copy of ``dit`` that reads Cond.guidance, and at first gives the same velocity for any.

    ValueError for weights that read it already.
    """
    if dit.config.has_guidance_inside:
        raise ValueError(
            f"these weights have guidance inside already ({dit.config.guidance_ranges}); expected "
            "weights that are guided by several passes"
        )
    config: DiTConfig = dataclasses.replace(dit.config, guidance_ranges=ranges)
    told = AvatarDiT(config, dit.motion_stats)
    told.to(next(dit.parameters()).device)
    state = dit.state_dict()
    own = {key: value for key, value in told.state_dict().items() if key not in state}
    told.load_state_dict({**state, **own})
    return told
