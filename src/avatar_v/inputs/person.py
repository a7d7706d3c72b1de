"""The person who is to speak, encoded for the networks: picture, reference and motion."""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.faces.face_track import spread_frames
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.reference_clip import ReferenceClip
from avatar_v.media.pixels import sized
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.reference import join_references
from avatar_v.motion.vectors import known_mask
from avatar_v.types import SAMPLES_PER_FRAME, Reference, num_frames


@dataclass(frozen=True)
class EncodedPerson:
    """The person who is to speak, encoded."""

    image: Float[Tensor, "3 h w"]  # frame 0, in [-1, 1], with sides the VAE accepts
    reference: Reference | None = None  # of one sample, as conditioner.encode_reference makes it
    motion: Float[Tensor, "1 1 md"] | None = None
    """Packed motion of ``image``. With it, and a motion network, the video follows a motion."""

    def to(self, device: torch.device) -> "EncodedPerson":
        reference = None if self.reference is None else self.reference.to(device)
        motion = None if self.motion is None else self.motion.to(device)
        return EncodedPerson(self.image.to(device), reference, motion)


@torch.inference_mode()
def encode_person(
    inputs: Inputs,
    conditioner: Conditioner,
    side: int,
    *,
    faces: bool,
    stills: int = 0,
    max_latents: int | None = None,
) -> EncodedPerson:
    """The person of ``inputs`` in pictures of ``side`` pixels, on the conditioner's device.

    ``faces``: close-ups come along; ``stills``: so many single frames stand for each clip
    (Capabilities.stills); ``max_latents``: of each clip only its beginning.
    """
    clips = [_cut(clip, max_latents) for clip in inputs.clips]
    shown = [still for clip in clips for still in pick_stills(clip, stills)]
    if stills > 0 and not conditioner.hears_moments:
        shown = [dataclasses.replace(clip, audio=None) for clip in shown]
    parts = [_reference(clip, conditioner, side, faces) for clip in shown]
    reference = join_references(parts) if parts else None
    if reference is not None and reference.motion is not None:
        habits = [
            conditioner.clip_moments(
                clip.motion[None], clip.valid[None], known=known_mask(clip.habits_known)
            )
            for clip in clips
            if clip.motion is not None
        ]
        moments = torch.stack(habits).sum(0).to(reference.latents)
        reference = dataclasses.replace(reference, moments=moments)
    return EncodedPerson(
        picture(inputs.image, side),
        reference,
        None if inputs.motion is None else conditioner.pack_motion(inputs.motion[None, None]),
    )


def picture(image: UInt8[Tensor, "3 h w"], side: int) -> Float[Tensor, "3 side side"]:
    """A square picture in [-1, 1] of ``side`` pixels."""
    return sized(image[None], side)[0]


def pick_stills(clip: ReferenceClip, num: int) -> list[ReferenceClip]:
    """``num`` frames of the clip that show the face, evenly spread, each a clip of its own; the
    clip itself where ``num`` is 0 or it shows none. Close-ups come with the first."""
    frames = spread_frames(clip.valid, num).tolist()
    if not frames or clip.num_frames == 1:
        return [clip]

    return [
        dataclasses.replace(
            _cut_clip(clip, frame, frame + 1), faces=clip.faces if frame == frames[0] else None
        )
        for frame in frames
    ]


def _reference(clip: ReferenceClip, conditioner: Conditioner, side: int, faces: bool) -> Reference:
    device = next(conditioner.parameters()).device
    near = clip.faces if faces else None
    return conditioner.encode_clip(
        sized(clip.video, side).to(device),
        clip.valid,
        clip.audio,
        clip.motion,
        None if near is None else sized(near, side).to(device),
        None if clip.motion is None else known_mask(clip.habits_known),
    )


def _cut(clip: ReferenceClip, max_latents: int | None) -> ReferenceClip:
    if max_latents is None or clip.num_frames <= num_frames(max_latents):
        return clip
    return _cut_clip(clip, 0, num_frames(max_latents))


def _cut_clip(clip: ReferenceClip, start: int, stop: int) -> ReferenceClip:
    """Its frames ``start`` to ``stop`` with their sound and motion."""
    frames, sound = slice(start, stop), slice(start * SAMPLES_PER_FRAME, stop * SAMPLES_PER_FRAME)
    return dataclasses.replace(
        clip,
        video=clip.video[frames],
        valid=clip.valid[frames],
        audio=None if clip.audio is None else clip.audio[sound],
        motion=None if clip.motion is None else clip.motion[frames],
    )
