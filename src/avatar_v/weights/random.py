"""A small batch with the real interface, for measurements and tests."""

import torch
from torch import Tensor

from avatar_v.motion.stats import MotionStats
from avatar_v.types import (
    FRAME_RATE_HZ,
    MOTION_NAMES,
    SAMPLES_PER_FRAME,
    Batch,
    num_latents,
)
from avatar_v.weights.weights import find_stats


def make_batch(
    num_samples: int = 2,
    num_frames: int = 9,
    size: int = 16,
    *,
    seed: int = 0,
    latent_channels: int | None = None,
    has_reference: bool = False,
) -> Batch:
    """Clips of noise with everything a loader gives.

    With ``latent_channels`` the clips carry random latents (spatial factor 8) instead of video.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(shape, generator=generator) - 1

    seconds = torch.arange(num_frames * SAMPLES_PER_FRAME) / (FRAME_RATE_HZ * SAMPLES_PER_FRAME)
    tone = 0.1 * torch.sin(2 * torch.pi * 220 * seconds)
    box = torch.tensor([0.2, 0.1, 0.8, 0.9]).expand(num_samples, num_frames, 4)
    latents = None
    if latent_channels is not None:
        shape = (num_samples, num_latents(num_frames), latent_channels, size // 8, size // 8)
        latents = torch.randn(shape, generator=generator)
    names = tuple(str(i) for i in range(num_samples))
    return Batch(
        video=uniform(num_samples, num_frames, 3, size, size) if latents is None else None,
        audio=tone + 0.05 * uniform(num_samples, len(seconds)),
        text=("a person speaks",) * num_samples,
        motion=uniform(num_samples, num_frames, len(MOTION_NAMES)),
        face_box=box,
        mouth_box=box,
        valid=torch.ones(num_samples, num_frames, dtype=torch.bool),
        key=names,
        person=names,
        scene=names,
        latents=latents,
        landmarks=torch.linspace(0.3, 0.7, 68)[:, None].expand(num_samples, num_frames, 68, 2),
        reference=make_batch(
            num_samples, num_frames, size, seed=seed + 1, latent_channels=latent_channels
        )
        if has_reference
        else None,
    )


def motion_stats() -> MotionStats:
    """Those of the weights that ship."""
    return find_stats("small")
