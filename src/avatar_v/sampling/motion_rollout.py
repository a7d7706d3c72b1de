"""Motion of whole clips without a pixel: the chunks of generation, several clips at once."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.models.motion_net import MotionNet
from avatar_v.sampling.chunks import OVERLAP, Span, plan
from avatar_v.sampling.motion import guided_motion
from avatar_v.sampling.settings import Settings
from avatar_v.sampling.solver import normal, sample
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
    heard: Callable[[Span], Float[Tensor, "b chunk n d"]] | None = None,
) -> Motion:
    """Packed motion behind the ``first`` latents, as far as the ``num_frames`` reach.

    ``audio`` gives the tokens of a run of latents, ``heard`` those of the other side, if the clips
    are dialogues, and ``generators`` are one for each clip.
    """
    chunks = plan(num_frames, chunk_latents=settings.chunk_latents)
    weight_audio, weight_style = settings.motion_weights
    prefix, latents = first, []
    for chunk in chunks.chunks:
        velocity = guided_motion(
            network,
            MotionCond(
                audio(chunk.latents),
                heard=None if heard is None else heard(chunk.latents),
                style=style,
            ),
            audio=weight_audio,
            style=weight_style,
        )
        shape = (len(chunk.latents), prefix.shape[-1])
        noise = torch.stack([torch.randn(shape, generator=g) for g in generators]).to(first)
        made = sample(
            velocity,
            noise,
            settings.motion_times,
            prefix=prefix,
            step=settings.motion_step,
            draw=normal(*generators),
        )
        prefix = made[:, -OVERLAP:]
        latents.append(made[:, -len(chunk.new_latents) :])
    return torch.cat(latents, dim=1)
