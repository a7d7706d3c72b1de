"""Motion of whole clips without a pixel: the chunks of generation, several clips at once."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.models.motion_net import MotionNet
from avatar_v.sampling.chunks import OVERLAP, Span, plan
from avatar_v.sampling.motion import guided_motion
from avatar_v.sampling.rollout import Settings
from avatar_v.sampling.solver import normal, overshoot, renoise, sample
from avatar_v.types import MotionCond, Style

Motion = Float[Tensor, "b l md"]


def roll_motion(
    network: MotionNet,
    settings: Settings,
    first: Float[Tensor, "b 1 md"],
    audio: Callable[[Span], Float[Tensor, "b chunk n d"]],
    style: Style | None,
    num_frames: int,
    generators: Sequence[torch.Generator],
) -> Motion:
    """Packed motion behind the ``first`` latents, as far as the ``num_frames`` reach.

    ``audio`` gives the tokens of a run of latents, and ``generators`` are one for each clip.
    """
    chunks = plan(num_frames, chunk_latents=settings.chunk_latents)
    prefix, latents = first, []
    for chunk in chunks.chunks:
        velocity = guided_motion(
            network,
            MotionCond(audio(chunk.latents), style=style),
            audio=1.0 if settings.motion_steps else settings.guidance_audio,
            style=1.0 if settings.motion_steps else settings.guidance_motion,
        )
        shape = (len(chunk.latents), prefix.shape[-1])
        noise = torch.stack([torch.randn(shape, generator=g) for g in generators]).to(first)
        made = sample(
            velocity,
            noise,
            settings.motion_times,
            prefix=prefix,
            step=renoise if settings.motion_steps else overshoot(settings.overshoot),
            draw=normal(*generators),
        )
        prefix = made[:, -OVERLAP:]
        latents.append(made[:, -len(chunk.new_latents) :])
    return torch.cat(latents, dim=1)
