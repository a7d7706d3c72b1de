"""Times of motion beside those of its video: alike, or ahead of it.

Pure functions; every draw comes from the given generator, on the CPU, whatever the device.
"""

import torch
from jaxtyping import Float
from torch import Tensor


def draw_lead(
    t: Float[Tensor, "b l"], *, share: float, generator: torch.Generator
) -> Float[Tensor, "b l"]:
    """Times of motion beside those of its video: in ``share`` of the samples motion is ahead.

    Of those that are ahead half know their motion (t = 0), the others have ``u t`` with u uniform.
    Denoised at one time both hide the same thing: while the picture is open motion is noise too,
    and once motion is clear the picture shows it already, so nothing teaches the video to follow.
    """
    ahead = torch.rand(t.shape[0], generator=generator) < share
    known = torch.rand(t.shape[0], generator=generator) < 0.5
    uniform = torch.rand(t.shape[0], generator=generator)
    factor = torch.where(ahead, torch.where(known, 0.0, uniform), 1.0)
    return t * factor[:, None].to(t)
