"""One chunk from noise, and where chunks are interpolated the transition into it as well.

What a chunk draws depends on the request's seed and its number alone, so it is the same in whatever
order, thread and run chunks are made. What the velocity depends on is guidance.py's business, the
steps are sampler.py's, and which latents belong to a chunk is chunks.py's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.flow import Latents, schedule
from avatar_v.generate.chunks import Chunk, interpolation
from avatar_v.generate.guidance import GuidedFn
from avatar_v.generate.sampler import JointVelocityFn, States, sample_joint
from avatar_v.world.seeds import derive

VelocityOf = Callable[[int], GuidedFn]
"""The guided velocity of the first so many latents of a chunk."""


EASE_LATENTS, EASE_PARTS = 3, 4
"""So many latents of a chunk move away from the chunk before, in so many parts a side."""
LEAST_MOTION_STEPS = 8
"""Of motion alone, however few steps its video takes: it costs a token a latent, and with fewer
people sway less far and blink less often than they do (our choice)."""


@dataclass(frozen=True)
class Settings:
    """How to sample, apart from what is asked for."""

    chunk_latents: int  # 13 for the small preset, 41 at full size
    num_steps: int = 24  # Avatar V §4.2
    shift: float = 1.0  # of the sampling times (flow.shift_time)
    guidance_text: float = 1.0
    guidance_audio: float = 2.0
    guidance_reference: float = 1.0
    guidance_motion: float = 1.0  # of the reference, in motion alone (guidance.guided)
    overshoot: float = 0.0  # c of sampler.renoised_step
    from_prompt: bool = False  # the first chunk has no prefix: its first frame is made, too
    motion_first: bool = False  # motion is made before its video begins, else beside it
    anchor: bool = False  # the first latent joins the reference of later chunks
    ease: bool = True  # the first latents of a chunk move away from where the one before ended
    interpolate: bool = (
        False  # N and I chunks; for weights whose training drew suffixes (suffix_share)
    )
    seed: int = 0
    bf16: bool = False  # autocast of sampling and decoding; encoding stays in fp32


def make_chunk(
    velocity_of: VelocityOf, prefixes: States, chunk: Chunk, settings: Settings
) -> States:
    """All latents of an N chunk, its clean prefix included; and the motion, where it is denoised.
    With ``settings.ease`` its picture is `eased`. ValueError for latents that are not finite.
    """
    latents, *motion = _transitioned(velocity_of, prefixes, chunk, settings)
    if not bool(torch.isfinite(latents).all()):
        raise ValueError(
            f"chunk {chunk.index} came out without finite numbers: the weights hold some, or "
            "guidance is too strong"
        )
    if settings.ease and chunk.mode == "prefix2v":
        latents = eased(latents, chunk.num_prefix)
    return (latents, *motion)


def eased(latents: Latents, num_prefix: int) -> Latents:
    """``latents`` whose coarse picture changes over from the prefix within a few latents.

    A chunk agrees with its prefix about what happens and less about how bright each part of the
    picture is: backgrounds jump at its border, details do not. The step from the last prefix latent
    to the first new one, averaged over 4 x 4 parts of the picture, is taken back by 3/4, 1/2 and
    1/4 in the first three new latents (our choice).
    """
    new = latents[:, num_prefix:]
    step = latents[:, num_prefix - 1] - latents[:, num_prefix]
    parts = F.adaptive_avg_pool2d(step, EASE_PARTS)
    coarse = F.interpolate(parts, (step.shape[-2], step.shape[-1]), mode="bilinear")
    share = 1 - torch.arange(1, EASE_LATENTS + 1).to(latents) / (EASE_LATENTS + 1)
    share = F.pad(share, (0, max(0, new.shape[1] - EASE_LATENTS)))[: new.shape[1]]
    new = new + share[:, None, None, None] * coarse[:, None]
    return torch.cat([latents[:, :num_prefix], new], dim=1)


def _transitioned(
    velocity_of: VelocityOf, prefixes: States, chunk: Chunk, settings: Settings
) -> States:
    """The chunk as it is sampled.

    With ``settings.interpolate`` its first new latents are those of its I chunk: made once more
    between the end of the chunk before and a latent of this one, both of them clean.
    """
    states = _sampled(velocity_of(len(chunk.latents)), prefixes, None, chunk, settings)
    between = interpolation(chunk) if settings.interpolate else None
    if between is None:
        return states
    stop = len(between.latents)
    last = stop - between.num_suffix
    suffixes = tuple(state[:, last:stop] for state in states)
    made = _sampled(velocity_of(stop), prefixes, suffixes, between, settings)
    return tuple(
        torch.cat([x[:, :last], state[:, last:]], dim=1)
        for x, state in zip(made, states, strict=True)
    )


def _sampled(
    velocity_fn: GuidedFn,
    prefixes: States,
    suffixes: States | None,
    chunk: Chunk,
    settings: Settings,
) -> States:
    generator = _drawing("start", settings.seed, chunk)
    noises = tuple(
        torch.randn((1, len(chunk.latents), *prefix.shape[2:]), generator=generator).to(prefix)
        for prefix in prefixes
    )
    renoising = _drawing("renoising", settings.seed, chunk)

    def integrated(fn: JointVelocityFn, which: slice = slice(None)) -> States:
        return sample_joint(
            fn,
            noises[which],
            schedule(settings.num_steps, shift=settings.shift),
            prefixes=prefixes[which],
            suffixes=None if suffixes is None else suffixes[which],
            overshoot=settings.overshoot,
            generator=renoising,
        )

    if len(noises) == 1:
        return integrated(lambda x, t: (velocity_fn(*x, t),))
    if not settings.motion_first:
        return integrated(lambda x, t: velocity_fn(x[0], t, x[1]))
    suffix = None if suffixes is None else suffixes[1]
    motion = sample_motion(
        velocity_fn, noises[1], prefixes[1], settings, suffix=suffix, generator=renoising
    )
    (video,) = integrated(lambda x, t: (velocity_fn(*x, t, motion, known=True),), slice(1))
    return video, motion


def sample_motion(
    velocity_fn: GuidedFn,
    noise: Float[Tensor, "b l md"],
    prefix: Float[Tensor, "b p md"],
    settings: Settings,
    *,
    suffix: Float[Tensor, "b q md"] | None = None,
    generator: torch.Generator | None = None,
) -> Float[Tensor, "b l md"]:
    """The motion of a chunk before its video begins, in as many steps and not fewer than
    ``LEAST_MOTION_STEPS``; its ends are held. ``generator`` draws the fresh noise of
    ``settings.overshoot``."""
    (motion,) = sample_joint(
        lambda x, t: (velocity_fn(None, t, *x),),
        (noise,),
        schedule(max(settings.num_steps, LEAST_MOTION_STEPS), shift=settings.shift),
        prefixes=(prefix,),
        suffixes=None if suffix is None else (suffix,),
        overshoot=settings.overshoot,
        generator=generator,
    )
    return motion


def _drawing(purpose: Literal["start", "renoising"], seed: int, chunk: Chunk) -> torch.Generator:
    """The noise that a chunk starts from; apart from it, so that overshoot changes no start, the
    fresh noise of its steps."""
    is_between = int(chunk.mode == "interpolate")
    return torch.Generator().manual_seed(derive(purpose, seed % 2**63, chunk.index, is_between))
