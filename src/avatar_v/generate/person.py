"""Who is to speak, from the files read to what networks take: picture, reference and motion."""

import dataclasses

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.generate.generator import Person
from avatar_v.generate.inputs import Inputs
from avatar_v.generate.reference_clip import ReferenceClip
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.motion import pack_motion
from avatar_v.models.reference import join_references
from avatar_v.types import SAMPLES_PER_FRAME, Reference, num_frames


@torch.inference_mode()
def encode_person(
    inputs: Inputs,
    conditioner: Conditioner,
    side: int,
    *,
    faces: bool,
    max_latents: int | None = None,
) -> Person:
    """The person of ``inputs`` in pictures of ``side`` pixels, on the conditioner's device.

    ``faces``: close-ups come along; ``max_latents``: of each clip only its beginning.
    """
    parts = [_reference(_cut(c, max_latents), conditioner, side, faces) for c in inputs.clips]
    return Person(
        picture(inputs.image, side),
        join_references(parts) if parts else None,
        None if inputs.motion is None else pack_motion(inputs.motion[None, None]),
    )


def picture(image: UInt8[Tensor, "3 h w"], side: int) -> Float[Tensor, "3 side side"]:
    """A square picture in [-1, 1] of ``side`` pixels."""
    return _sized(image[None], side)[0]


def _reference(clip: ReferenceClip, conditioner: Conditioner, side: int, faces: bool) -> Reference:
    device = next(conditioner.parameters()).device
    near = clip.faces if faces else None
    return conditioner.encode_clip(
        _sized(clip.video, side).to(device),
        clip.valid,
        clip.audio,
        clip.motion,
        None if near is None else _sized(near, side).to(device),
    )


def _cut(clip: ReferenceClip, max_latents: int | None) -> ReferenceClip:
    if max_latents is None or clip.num_frames <= num_frames(max_latents):
        return clip
    frames = slice(0, num_frames(max_latents))
    return dataclasses.replace(
        clip,
        video=clip.video[frames],
        valid=clip.valid[frames],
        audio=None if clip.audio is None else clip.audio[: frames.stop * SAMPLES_PER_FRAME],
        motion=None if clip.motion is None else clip.motion[frames],
    )


def _sized(pixels: UInt8[Tensor, "f 3 h w"], side: int) -> Float[Tensor, "f 3 side side"]:
    """0 … 255 to [-1, 1], at another size where it has another."""
    x = pixels.float()
    if tuple(x.shape[2:]) != (side, side):
        x = F.interpolate(x, (side, side), mode="bilinear", antialias=True).clamp(0, 255)
    return x / 127.5 - 1
