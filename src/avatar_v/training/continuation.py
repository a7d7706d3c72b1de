"""What a window from inside a clip is shown of the video before it, as generation will show it.

Generation continues its own latents, which are blurred, and always has the video's first picture.
Training that continues the truth learns neither to repair the one nor to look at the other, and
faces drift from chunk to chunk. So some prefixes are the model's own estimate of them, and in some
steps the first frame of the clip joins the reference: the global appearance anchor, which
generation adds behind the first chunk.
"""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v import flow
from avatar_v.base import checks
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import anchor_frame, join_references
from avatar_v.motion.stats import MotionStats
from avatar_v.training.windows import Windows
from avatar_v.types import Cond

CONTEXT_LATENTS = 4
"""Latents of a window that its prefix is estimated from: the prefix and two behind it."""

Latents = Float[Tensor, "b l c h w"]
Motion = Float[Tensor, "b l md"]


@dataclass(frozen=True)
class Continuation:
    """Numbers of the conditions that generation makes itself."""

    anchor_share: float = 0.0  # share of steps whose clips' first frames join their references
    estimate_share: float = 0.0  # share of windows whose prefixes are estimates
    min_estimate_t: float = 0.3  # the estimate is from a noise level between the two: the higher,
    max_estimate_t: float = 0.95  # the more of it comes from reference and sound alone

    def __post_init__(self) -> None:
        checks.each(checks.share, self, ("anchor_share", "estimate_share"))
        low, high = self.min_estimate_t, self.max_estimate_t
        if not 0 < low <= high <= 1:
            raise ValueError(f"estimates are from 0 < min <= max <= 1, got {low} and {high}")


@torch.no_grad()
def with_estimated_prefix(
    dit: AvatarDiT,
    cond: Cond,
    windows: Windows,
    clean: Latents,
    numbers: Continuation,
    generator: torch.Generator,
    *,
    past: KeyValueCache | None,
) -> Latents:
    """``clean`` latents of windows; of ``estimate_share`` of them the prefix is what the model
    takes for it.

    The first latents of each window are noised together and estimated in one step, without a
    prefix; ``past`` is the encoded reference. Windows that start with their clip keep theirs: it is
    a picture that is given. The network runs whatever is drawn: sharded over ranks, all of them
    have to call it.
    """
    context = min(CONTEXT_LATENTS, windows.length)
    uniform = torch.rand(clean.shape[0], 1, generator=generator)
    low, high = numbers.min_estimate_t, numbers.max_estimate_t
    t = (low + (high - low) * uniform).expand(-1, context).to(clean.device)
    audio, motion = (None if x is None else x[:, :context] for x in (cond.audio, cond.motion))
    cond = dataclasses.replace(cond, audio=audio, motion=motion)
    is_prefix = torch.arange(context) < windows.prefix[:, None]
    chosen = torch.rand(clean.shape[0], generator=generator) < numbers.estimate_share
    replaced = (is_prefix & (chosen & (windows.start > 0))[:, None]).to(clean.device)
    noise = torch.randn(clean[:, :context].shape, generator=generator).to(clean)
    x_t = flow.interpolate(clean[:, :context], noise, t)
    estimate = flow.clean_from_velocity(x_t, dit(x_t, t, cond, past=past).float(), t)
    estimate = estimate.to(clean.dtype)
    begin = torch.where(replaced[..., None, None, None], estimate, clean[:, :context])
    return torch.cat([begin, clean[:, context:]], dim=1)


def with_anchor(
    cond: Cond,
    windows: Windows,
    first: Float[Tensor, "b 1 c h w"],
    audio: Tensor | None,
    motion: Motion | None,
    stats: MotionStats | None = None,
    *,
    replaces: bool = False,
) -> Cond:
    """``cond`` with the first latent frame of each clip behind its reference, for windows from
    inside the clip: to those that start with it the anchor would show what they have to make.
    ``stats``: those of motion, where there is some. With ``replaces`` these windows see nothing
    else of the reference but the moments of its motion."""
    assert cond.reference is not None
    anchor = anchor_frame(first, cond.reference, audio=audio, motion=motion, stats=stats)
    later = (windows.start > 0)[:, None].to(anchor.valid.device)
    moments = None if anchor.moments is None else anchor.moments * later
    anchor = dataclasses.replace(anchor, valid=anchor.valid & later, moments=moments)
    shown = cond.reference
    if replaces:
        faces = None if shown.faces_valid is None else shown.faces_valid & ~later
        shown = dataclasses.replace(shown, valid=shown.valid & ~later, faces_valid=faces)
    return dataclasses.replace(cond, reference=join_references([shown, anchor]))
