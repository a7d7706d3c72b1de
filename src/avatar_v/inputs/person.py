"""The person who is to speak, encoded for the networks: picture, reference and motion."""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.look import Faces
from avatar_v.faces.face_track import spread_frames
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.person_file import StoredPerson
from avatar_v.inputs.reference_clip import ReferenceClip
from avatar_v.media.pixels import padded, sized
from avatar_v.models.audio import NUM_WINDOW_FRAMES
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.identity import NUM_LOOKS, Looks
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
def with_picture(
    inputs: Inputs, conditioner: Conditioner, size: tuple[int, int], reference: Reference | None
) -> EncodedPerson:
    """The person of ``inputs``, whose ``reference`` is encoded, with the picture that the video
    begins with at this height and width."""
    return EncodedPerson(
        sized(inputs.image[None], size)[0],
        reference,
        None if inputs.motion is None else conditioner.pack_motion(inputs.motion[None, None]),
    )


def stored_reference(
    stored: StoredPerson, name: str, conditioner: Conditioner, size: tuple[int, int], token: int = 1
) -> Reference | None:
    """A reference of a person file, on the conditioner's device; None where it has none. ValueError
    where its shapes are not those of the networks."""
    reference = stored.references.get(name)
    if reference is None:
        return None
    _check_shapes(stored.path, reference, conditioner, size, token)
    return reference.to(next(conditioner.parameters()).device)


@torch.inference_mode()
def encode_clips(
    inputs: Inputs,
    conditioner: Conditioner,
    size: tuple[int, int],
    *,
    faces: bool,
    stills: int = 0,
    max_latents: int | None = None,
    token: int = 1,
) -> Reference | None:
    """The reference of ``inputs`` in pictures of this height and width, on the conditioner's
    device; None where there are no clips.

    ``faces``: close-ups come along; ``stills``: so many single frames stand for each clip
    (Capabilities.stills); ``max_latents``: of each clip only its beginning; ``token``: with a
    border up to whole tokens of so many pixels.
    """
    clips = [_cut(clip, max_latents) for clip in inputs.clips]
    parts = []
    for clip in clips:
        shown = pick_stills(clip, stills)
        if stills > 0 and not conditioner.hears_moments:
            shown = [dataclasses.replace(still, audio=None) for still in shown]
        own = [_reference(part, conditioner, size, faces, token) for part in shown]
        parts.append(_with_identity(join_references(own), clip, conditioner, size))
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
    return reference


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


def _check_shapes(
    path: str, reference: Reference, conditioner: Conditioner, size: tuple[int, int], token: int
) -> None:
    vae = conditioner.vae
    own = tuple(-(-length // token) * token // vae.spatial_factor for length in size)
    expected = {
        "latents": (vae.latent_channels, *own),
        "audio": (NUM_WINDOW_FRAMES, conditioner.audio_encoder.dim),
        "faces": (vae.latent_channels, *own),
        "identity": () if conditioner.face_vectors is None else (conditioner.face_vectors.dim,),
    }
    for name, shape in expected.items():
        part = getattr(reference, name)
        if part is not None and tuple(part.shape[2:]) != shape:
            raise ValueError(
                f"{path}: {name} of {tuple(part.shape[2:])}, and these weights read {shape}"
            )


def _reference(
    clip: ReferenceClip,
    conditioner: Conditioner,
    size: tuple[int, int],
    faces: bool,
    token: int,
) -> Reference:
    device = next(conditioner.parameters()).device
    near = clip.faces if faces else None
    return conditioner.encode_clip(
        padded(sized(clip.video, size), token).to(device),
        clip.valid,
        clip.audio,
        clip.motion,
        None if near is None else padded(sized(near, size), token).to(device),
        None if clip.motion is None else known_mask(clip.habits_known),
    )


def _with_identity(
    reference: Reference, clip: ReferenceClip, conditioner: Conditioner, size: tuple[int, int]
) -> Reference:
    """The ``reference`` of a clip with the vector of its face, where the weights read one."""
    if conditioner.face_vectors is None:
        return reference
    frames = spread_frames(clip.valid, NUM_LOOKS)
    seen = torch.ones(1, max(len(frames), 1), dtype=torch.bool)
    if len(frames) == 0:
        frames, seen = torch.zeros(1, dtype=torch.long), ~seen
    shown = sized(clip.video[frames], size).to(next(conditioner.parameters()).device)
    points, box = clip.landmarks, torch.tensor([0.0, 0, 1, 1]).expand(*seen.shape, 4)
    faces = Faces(box, None if points is None else points[frames][None], seen)
    latents = conditioner.encode_image(shown)[:, 0][None]
    return conditioner.with_identity(reference, Looks(latents, seen, faces))


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
        landmarks=None if clip.landmarks is None else clip.landmarks[frames],
    )
