"""Shapes of what a DiT is given: a ValueError names what does not fit, before anything runs."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from avatar_v.models.config import DiTConfig
from avatar_v.motion.style import STYLE_DIM
from avatar_v.types import Reference


def expect(name: str, shape: Sequence[int], expected: Sequence[int | None]) -> None:
    """ValueError unless ``shape`` is ``expected``, where None stands for any size."""
    fits = len(shape) == len(expected) and all(
        want is None or have == want for have, want in zip(shape, expected, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in expected)
        raise ValueError(f"{name} must have shape ({wanted}), got {tuple(shape)}")


def check_latents(name: str, latents: Float[Tensor, "..."], config: DiTConfig) -> None:
    """ValueError unless they are "b l c h w" of the config's channels, whole patches a side."""
    expect(name, latents.shape, (None, None, config.latent_channels, None, None))
    if latents.shape[-1] % config.patch or latents.shape[-2] % config.patch:
        raise ValueError(
            f"{name}: height and width must be multiples of the patch {config.patch}, "
            f"got {tuple(latents.shape[-2:])}"
        )


def check_reference(reference: Reference, config: DiTConfig) -> None:
    """ValueError unless its parts fit each other and the config; faces are as large as frames."""
    num_samples, num_frames = reference.latents.shape[:2]
    check_latents("reference.latents", reference.latents, config)
    expect("reference.valid", reference.valid.shape, (num_samples, num_frames))
    expect("reference.segment", reference.segment.shape, (num_samples, num_frames))
    if reference.audio is not None:
        shape = (num_samples, num_frames, config.num_audio_tokens, config.audio_dim)
        expect("reference.audio", reference.audio.shape, shape)
    if reference.motion is not None:
        expect(
            "reference.motion", reference.motion.shape, (num_samples, num_frames, config.motion_dim)
        )
    if reference.identity is not None:
        shape = (num_samples, num_frames, config.identity_dim or 0)
        expect("reference.identity", reference.identity.shape, shape)
    if reference.moments is not None:
        expect("reference.moments", reference.moments.shape, (num_samples, 1 + STYLE_DIM))
    if reference.faces is not None:
        shape = (num_samples, None, *reference.latents.shape[2:])
        expect("reference.faces", reference.faces.shape, shape)
        if reference.faces_valid is None:
            raise ValueError("reference.faces comes with reference.faces_valid, got None")
        expect("reference.faces_valid", reference.faces_valid.shape, reference.faces.shape[:2])
