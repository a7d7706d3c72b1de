"""Which part of each clip a step trains on, and how many of its latents are given clean.

A window that starts at latent 0 begins with an image latent (one frame), so it may be generated
from nothing (prefix 0) or from that image (prefix 1). A window from inside a clip begins with
latents of four frames and continues a video, so its prefix is 1 or 2 latents.
Some windows have a clean latent at their end too, so that transitions can be interpolated.
Pure functions; every draw comes from the given generator, on the CPU, whatever the device.
"""

import dataclasses
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from avatar_v.flow import draw_times
from avatar_v.models.conditioner import window
from avatar_v.types import Batch

Value = TypeVar("Value", int, float)


@dataclass(frozen=True)
class Windows:
    """One window of ``length`` latents per sample of a batch."""

    start: Int[Tensor, " b"]  # first latent of the window within the clip
    prefix: Int[Tensor, " b"]  # clean latents at its beginning, 0 to 2
    suffix: Int[Tensor, " b"]  # and at its end, 0 or 1
    length: int

    @property
    def stop(self) -> int:
        """Behind the last latent of any window."""
        return int(self.start.max()) + self.length

    def crop(self, x: Shaped[Tensor, "b clip *rest"]) -> Shaped[Tensor, "b l *rest"]:
        """The window of each sample of ``x``, whose axis 1 counts latents."""
        return window(x, self.start, self.length)

    def scored(self) -> Bool[Tensor, "b l"]:
        """True for the latents between prefix and suffix, those the model must generate."""
        index = torch.arange(self.length)[None]
        return (index >= self.prefix[:, None]) & (index < self.length - self.suffix[:, None])


def draw_windows(
    num_samples: int,
    clip_latents: int,
    length: int,
    *,
    first_share: float,
    image_share: float,
    suffix_share: float = 0.0,
    generator: torch.Generator,
) -> Windows:
    """Draw starts, prefixes and suffixes.

    With probability ``first_share`` a window starts at latent 0 (always where the clip is no
    longer than the window), and there its prefix is 1 with probability ``image_share``, else 0.
    Other starts are uniform over 1 … clip - length, with prefix 1 or 2 alike. The last latent is
    given with probability ``suffix_share``; at 0 nothing is drawn for it. A window keeps at least
    one latent to generate. ValueError for a window longer than the clip.
    """
    if not 1 <= length <= clip_latents:
        raise ValueError(f"a window of {length} latents does not fit clips of {clip_latents}")
    uniform = torch.rand(3, num_samples, generator=generator)
    last = clip_latents - length
    inside = torch.tensor(last > 0 and length > 1) & (uniform[0] >= first_share)
    start = torch.where(inside, 1 + (uniform[1] * last).long().clamp(max=max(last - 1, 0)), 0)
    image = (uniform[2] < image_share).long()
    prefix = torch.where(inside, 1 + (uniform[2] < 0.5).long(), image)
    prefix = prefix.clamp(max=length - 1)
    suffix = torch.zeros_like(prefix)
    if suffix_share > 0:
        given = torch.rand(num_samples, generator=generator) < suffix_share
        suffix = (given & (prefix < length - 1)).long()
    return Windows(start, prefix, suffix, length)


def draw_window_times(
    windows: Windows, *, shift: float, generator: torch.Generator
) -> Float[Tensor, "b l"]:
    """One logit-normal time per sample, spread over its latents; 0 on prefix and suffix."""
    t = draw_times(windows.start.shape[0], shift=shift, generator=generator)
    return torch.where(windows.scored(), t[:, None], 0.0)


def value_at(schedule: dict[int, Value], step: int) -> Value:
    """The value of the last entry that has begun at ``step``: {0: 1, 500: 13} is 1, from step 500
    on 13. ValueError if nothing begins at step 0."""
    if 0 not in schedule:
        raise ValueError(f"a schedule by step needs an entry for step 0, got {schedule}")
    return schedule[max(begin for begin in schedule if begin <= step)]


def to_tokens(side: float, token: int) -> int:
    """The side of a picture that is whole tokens of ``token`` pixels, at least one."""
    return max(1, round(side / token)) * token


def reduced(batch: Batch, factor: float, *, multiple: int = 16) -> Batch:
    """``batch`` with its videos made smaller by ``factor``, to a ``multiple`` of pixels: those of
    one token, the VAE's factor times the DiT's patch.

    ValueError for a factor outside (0, 1], and for precomputed latents, which cannot be resized.
    """
    if not 0 < factor <= 1:
        raise ValueError(f"a resolution factor is above 0 and at most 1, got {factor}")
    if factor == 1:
        return batch
    if batch.video is None or batch.latents is not None:
        raise ValueError(f"resolution {factor} needs decoded video and no precomputed latents")
    return dataclasses.replace(batch, video=smaller(batch.video, factor, multiple=multiple))


def smaller(
    video: Float[Tensor, "b f 3 h w"], factor: float, *, multiple: int
) -> Float[Tensor, "b f 3 h2 w2"]:
    """``video`` reduced by ``factor``, to a ``multiple`` of pixels; as it is for 1."""
    if factor == 1:
        return video
    size = [to_tokens(side * factor, multiple) for side in video.shape[-2:]]
    made = F.interpolate(video.flatten(0, 1), size, mode="bilinear", antialias=True)
    return made.unflatten(0, video.shape[:2])


def bernoulli(share: float, generator: torch.Generator) -> bool:
    """Whether this step is among ``share`` of all; nothing is drawn for 0."""
    return share > 0 and float(torch.rand((), generator=generator)) < share
