"""Random models and conditions with the real interfaces, for tests."""

from typing import Any

import torch
from torch import Tensor, nn

from avatar_v.models.conditioner import Conditioner
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.motion_net import MotionNet, MotionNetConfig
from avatar_v.models.reference import segments
from avatar_v.types import Batch, Cond, Reference
from avatar_v.weights.random import motion_stats


def make_reference(
    config: DiTConfig,
    valid: Tensor,
    *,
    size: int = 4,
    seed: int = 0,
    has_audio: bool = True,
    has_motion: bool = False,
    faces_valid: Tensor | None = None,
) -> Reference:
    """Random reference latents for a validity "b r", in segments of 8 frames, and random faces for
    a validity "b k". Motion has 0.3 of a person's spread: with no frame like the last, more would
    be a habit far outside of what people have."""
    generator = torch.Generator().manual_seed(seed)
    num_samples, num_frames = valid.shape
    shape = (num_samples, num_frames, config.num_audio_tokens, config.audio_dim)
    return Reference(
        latents=torch.randn(
            num_samples, num_frames, config.latent_channels, size, size, generator=generator
        ),
        valid=valid,
        segment=segments(num_frames).expand(num_samples, -1),
        audio=torch.randn(shape, generator=generator) if has_audio else None,
        motion=0.3 * torch.randn(num_samples, num_frames, config.motion_dim, generator=generator)
        if has_motion
        else None,
        faces=None
        if faces_valid is None
        else torch.randn(
            *faces_valid.shape, config.latent_channels, size, size, generator=generator
        ),
        faces_valid=faces_valid,
    )


def make_cond(
    config: DiTConfig,
    num_samples: int = 2,
    num_frames: int = 3,
    *,
    num_text_tokens: int = 5,
    seed: int = 0,
    has_audio: bool = True,
    reference: Reference | None = None,
) -> Cond:
    """A random Cond for ``num_frames`` latent frames."""
    generator = torch.Generator().manual_seed(seed)
    shape = (num_samples, num_frames, config.num_audio_tokens, config.audio_dim)
    text = torch.randn(num_samples, num_text_tokens, config.text_dim, generator=generator)
    return Cond(
        text=text,
        audio=torch.randn(shape, generator=generator) if has_audio else None,
        reference=reference,
    )


def encode_clips(conditioner: Conditioner, batch: Batch) -> tuple[Tensor, Cond]:
    """Clean latents of whole clips, and their conditions."""
    reference = None if batch.reference is None else conditioner.encode_reference(batch.reference)
    text, audio = conditioner.encode_text(batch.text), conditioner.encode_audio(batch.audio)
    return conditioner.clean_latents(batch), Cond(text, audio, reference=reference)


def run(dit: AvatarDiT, x_t: Tensor, t: Tensor, cond: Cond, shift: int = 0, **named: Any) -> Any:
    """A pass of ``dit`` that encodes the reference of ``cond`` for itself; ``shift`` moves it."""
    past = None if cond.reference is None else dit.encode_reference(cond.reference)
    past = None if past is None else past.shifted(shift)
    return dit(x_t, t, cond, past=past, **named)


def make_dit(config: DiTConfig | None = None, *, seed: int = 0) -> AvatarDiT:
    """A DiT whose every parameter is random, those that start at zero or one included."""
    dit = AvatarDiT(config or DiTConfig.tiny(), motion_stats())
    randomise(dit, seed=seed)
    return dit.eval()


def make_motion_net(audio_dim: int, *, seed: int = 0) -> MotionNet:
    """A tiny motion network whose every parameter is random."""
    net = MotionNet(MotionNetConfig.tiny(audio_dim))
    randomise(net, seed=seed)
    return net.eval()


@torch.no_grad()
def randomise(module: nn.Module, *, seed: int = 0) -> None:
    """Draw every parameter anew, so that nothing that starts at zero hides a mistake.

    Matrices keep the scale of activations; gains lie around one. Values are drawn where the
    parameters are, so they differ between a CPU and a GPU.
    """
    device = next(module.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, device=device)
        if parameter.dim() == 1 and name.endswith("weight"):
            parameter.copy_(1 + 0.1 * noise)
        else:
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 4
            parameter.copy_(noise / fan_in**0.5)
