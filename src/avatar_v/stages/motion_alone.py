"""Motion while there is no video yet, as generation begins: windows of motion alone.

How often a person blinks or how far they sway shows in many windows, and a window of motion costs a
token per latent frame where one of video costs hundreds and its reference besides. So every clip
gives several windows of motion in a step, each shown the habits of a run of its own of the
reference. Times are uniform over the sampler's steps: what is decided close to t = 1 is hardly ever
seen at logit-normal ones.
"""

import dataclasses

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.flow import shift_time
from avatar_v.models.conditioner import Conditioner, latent_validity
from avatar_v.models.motion import motion_moments, pack_motion
from avatar_v.stages.settings import Objective
from avatar_v.stages.windows import draw_windows
from avatar_v.types import Batch, Cond


@dataclasses.dataclass(frozen=True)
class MotionWindows:
    """Windows of motion and what they are denoised by."""

    motion: Float[Tensor, "n l md"]  # clean
    t: Float[Tensor, "n l"]  # 0 on prefix and suffix
    scored: Bool[Tensor, "n l"]  # between prefix and suffix, where the face is seen
    cond: Cond  # text, sound and what of it all is kept
    moments: Float[Tensor, "n k"] | None  # of a run of the reference's motion


def draw_motion_windows(
    num: int,
    batch: Batch,
    cond: Cond,
    conditioner: Conditioner,
    objective: Objective,
    *,
    length: int,
    max_reference_latents: int,
    generator: torch.Generator,
) -> MotionWindows:
    """``num`` windows of ``length`` latents of each clip, one clip's after another's.

    ``cond`` are the conditions of the clips after dropout; their windows share it. Each reads a run
    of the reference, uniform in length from one latent to ``max_reference_latents``; none of them
    where the reference in ``cond`` came without its motion.
    """
    packed = pack_motion(batch.motion)
    num_samples, clip_latents = packed.shape[:2]
    clip = torch.arange(num_samples).repeat_interleave(num)
    windows = draw_windows(
        len(clip),
        clip_latents,
        length,
        first_share=objective.first_share,
        image_share=objective.image_share,
        suffix_share=objective.suffix_share,
        generator=generator,
    )
    t = shift_time(torch.rand(len(clip), 1, generator=generator), objective.shift)
    device = cond.text.device
    t = torch.where(windows.scored(), t, 0.0).to(device)
    audio = None
    if cond.audio is not None:
        audio = windows.crop(conditioner.encode_audio(batch.audio)[clip])
    moments = None
    if cond.reference is not None and cond.reference.motion is not None:
        moments = _moments_of_runs(batch, clip, max_reference_latents, generator)
    valid = windows.crop(latent_validity(batch.valid)[clip]).to(device)
    return MotionWindows(
        motion=windows.crop(packed[clip]).to(device),
        t=t,
        scored=valid & windows.scored().to(device),
        cond=Cond(
            text=cond.text[clip],
            audio=audio,
            audio_keep=_of(cond.audio_keep, clip),
            reference_keep=_of(cond.reference_keep, clip),
        ),
        moments=None if moments is None else moments.to(device),
    )


def _moments_of_runs(
    batch: Batch, clip: Tensor, most: int, generator: torch.Generator
) -> Float[Tensor, "n k"]:
    reference = batch.reference
    assert reference is not None
    packed, valid = pack_motion(reference.motion), latent_validity(reference.valid)
    whole = packed.shape[1]
    uniform = torch.rand(2, len(clip), generator=generator)
    run = 1 + (uniform[0] * min(most, whole)).long()
    first = (uniform[1] * (whole - run + 1)).long()
    index = torch.arange(whole)
    seen = (index >= first[:, None]) & (index < (first + run)[:, None])
    known = _of(reference.habits_known, clip)
    return motion_moments(packed[clip], valid[clip] & seen.to(valid.device), known)


def _of(keep: Bool[Tensor, "b *m"] | None, clip: Tensor) -> Bool[Tensor, "n *m"] | None:
    return None if keep is None else keep[clip]
