"""A DiT that takes the guidance weights as an input: the student of guidance distillation."""

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
    student = AvatarDiT(config, dit.motion_stats)
    student.to(next(dit.parameters()).device)
    state = dit.state_dict()
    own = {key: value for key, value in student.state_dict().items() if key not in state}
    student.load_state_dict({**state, **own})
    return student
