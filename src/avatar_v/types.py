"""The vocabulary of the whole project: axes, units, ranges, and what travels between parts.

Axes: b batch · f video frame · l latent frame · c channel · h, w height, width · s audio sample ·
n token · d width · m motion component · r latent frame of the reference stream.

Ranges: images and video are float in [-1, 1] inside the library, uint8 only at media edges; audio
is mono float at 16 kHz; video runs at 25 frames a second; boxes are (x0, y0, x1, y1) in [0, 1] of
the picture; time t is in [0, 1] with t = 1 noise and t = 0 data (flow.py).
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

_M = TypeVar("_M", bound="_Moves")

FRAME_RATE_HZ = 25
SAMPLE_RATE_HZ = 16_000
SAMPLES_PER_FRAME = SAMPLE_RATE_HZ // FRAME_RATE_HZ
TEMPORAL_FACTOR = 4
"""Video frames per latent frame after the first, which holds one frame alone (causal VAE)."""

MOTION_NAMES = (
    "mouth_open",  # 0 closed … 1 widest
    "mouth_width",  # -1 narrow … 1 spread
    "mouth_round",  # 0 … 1 pursed
    "corner_raise",  # -1 down … 1 smile
    "corner_asymmetry",  # -1 … 1, left corner minus right
    "teeth",  # 0 … 1 visible
    "tongue",  # 0 … 1 raised
    "jaw",  # 0 … 1 dropped
    "yaw",  # radians, positive to the picture's right
    "pitch",  # radians, positive up
    "roll",  # radians, positive clockwise
    "eye_open",  # 0 shut … 1 open
    "gaze_x",  # -1 … 1
    "gaze_y",  # -1 … 1
    "brow",  # -1 frown … 1 raised
    "cover",  # 0 free … 1 face hidden by a hand or object
)
"""Components of the per-frame motion vector. Real video fills what its landmarks can tell."""


def num_frames(num_latents: int) -> int:
    """Video frames that ``num_latents`` latent frames decode to."""
    return TEMPORAL_FACTOR * (num_latents - 1) + 1


def num_latents(num_frames: int) -> int:
    """Latent frames of a clip; raises ValueError unless ``num_frames`` is 4k + 1."""
    if num_frames < 1 or (num_frames - 1) % TEMPORAL_FACTOR:
        raise ValueError(f"a clip has 4k + 1 frames (1, 5, 9, …), got {num_frames}")
    return (num_frames - 1) // TEMPORAL_FACTOR + 1


class _Moves:
    """`.to` and `.map` for the frozen dataclasses below; nested ones follow."""

    def map(self: _M, fn: Callable[[Tensor], Tensor]) -> _M:
        """The same object with ``fn`` applied to every tensor."""
        changes = {}
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changes[field.name] = fn(value)
            elif isinstance(value, _Moves):
                changes[field.name] = value.map(fn)
        return dataclasses.replace(self, **changes)  # pyright: ignore[reportArgumentType]

    def to(self: _M, device: torch.device | str) -> _M:
        return self.map(lambda x: x.to(device, non_blocking=True))

    def pin_memory(self: _M) -> _M:
        """In memory from which a GPU copies while it computes; torch's loader calls this."""
        return self.map(lambda x: x.pin_memory())


@dataclass(frozen=True)
class PreferenceVideos(_Moves):
    """The pictures of both samples and of the person elsewhere, in [-1, 1]."""

    first: Float[Tensor, "b f 3 h w"]
    second: Float[Tensor, "b f 3 h w"]
    portraits: Float[Tensor, "b k 3 ph pw"]
    portraits_valid: Bool[Tensor, "b k"]  # False: the person has no k-th picture


@dataclass(frozen=True)
class PreferencePairs(_Moves):
    """Two samples of each condition of a batch, and which of them a rater prefers."""

    first: Float[Tensor, "b f m"]
    second: Float[Tensor, "b f m"]
    winner: Int[Tensor, " b"]  # 0 the first, 1 the second, 2: neither
    axis: tuple[str, ...]  # what the rater was asked about
    videos: PreferenceVideos | None = None  # None: samples of motion, or they were not asked for


@dataclass(frozen=True)
class Batch(_Moves):
    """Clips of equal size and length, as the loader gives them."""

    video: Float[Tensor, "b f 3 h w"] | None  # None where latents replace it
    audio: Float[Tensor, "b s"]  # s = 640 f
    text: tuple[str, ...]
    motion: Float[Tensor, "b f m"]
    face_box: Float[Tensor, "b f 4"]
    mouth_box: Float[Tensor, "b f 4"]
    valid: Bool[Tensor, "b f"]  # a face is visible
    key: tuple[str, ...]
    person: tuple[str, ...]
    scene: tuple[str, ...]
    latents: Float[Tensor, "b l c lh lw"] | None = None  # normalised, from `shards encode`
    reference: "Batch | None" = None  # another clip of the same person, from another scene
    faces: Float[Tensor, "b k c fh fw"] | None = None  # latents of single pictures of the face
    faces_valid: Bool[Tensor, "b k"] | None = None  # False: the clip has no k-th picture
    stills: Float[Tensor, "b q c lh lw"] | None = None  # latents of single whole frames
    stills_valid: Bool[Tensor, "b q"] | None = None  # given with stills, as the next
    still_frames: Int[Tensor, "b q"] | None = None  # which frame of the clip each one is
    motion_known: Bool[Tensor, "b m"] | None = None  # components that were read; None: all
    habits_known: Bool[Tensor, "b m"] | None = None
    """Components whose statistics tell a person's habits; None: all."""
    landmarks: Float[Tensor, "b f 68 2"] | None = None
    """Of iBUG, in [0, 1] of the picture; None where a clip of the batch has others or none."""
    low: Float[Tensor, "b l c lh lw"] | None = None
    """Latents of the clip upsampled from a lower resolution (models/refiner.py)."""
    low_factor: float | None = None  # by which; None: twice
    text_states: Float[Tensor, "b n d"] | None = None
    """Encodings of ``text`` (models/text.StoredText), zeros behind each one's last token."""
    heard: Float[Tensor, "b s"] | None = None
    """Whom the person listens to, silence where that is nobody; None: nobody in any clip."""
    preferences: PreferencePairs | None = (
        None  # samples that begin like the clip, of shards of pairs
    )


@dataclass(frozen=True)
class Reference(_Moves):
    """The reference stream before patch embedding: clean latents with what belongs to them."""

    latents: Float[Tensor, "b r c h w"]
    valid: Bool[Tensor, "b r"]  # invalid frames are packed away
    segment: Int[Tensor, "b r"]  # reference tokens attend only within their own segment
    audio: Float[Tensor, "b r n d"] | None = None
    motion: Float[Tensor, "b r md"] | None = None  # packed and normalised (motion/vectors.py)
    faces: Float[Tensor, "b k c fh fw"] | None = None
    """Close-ups of the face, each encoded alone; of the height and width of ``latents``."""
    faces_valid: Bool[Tensor, "b k"] | None = None  # given with faces
    anchor: Bool[Tensor, "b r"] | None = None
    """Frames of the very video that is made; None: there are none."""
    habits_known: Bool[Tensor, "#b m"] | None = None
    """Components in which ``motion`` tells a person's habits; None: all."""
    moments: Float[Tensor, "b moment"] | None = None
    """Moments of the person's motion (motion/style.motion_moments), perhaps of more than
    ``motion``; None: those of ``motion``."""
    identity: Float[Tensor, "b r i"] | None = None
    """Whose face it is (models/identity.py), alike in all frames of a clip; 0: not known."""

    def without_faces(self) -> "Reference":
        return dataclasses.replace(self, faces=None, faces_valid=None)


@dataclass(frozen=True)
class Style(_Moves):
    """How a person moves, for networks to read (motion/style.py)."""

    code: Float[Tensor, "b style"]  # statistics of motion; 0 where nothing is known
    scale: Float[Tensor, "b m"]  # how far the person moves each component, 1: as an average person
    rest: Float[Tensor, "b m"]  # (scale - 1) times what a face at rest has


@dataclass(frozen=True)
class MotionCond(_Moves):
    """All that a velocity of motion depends on besides the motion and t."""

    audio: Float[Tensor, "b l audio_n audio_d"] | None = None  # tokens of each latent frame
    audio_keep: Bool[Tensor, "b"] | None = None  # False: as if this sample had no audio
    heard: Float[Tensor, "b l audio_n audio_d"] | None = None
    """Of the voice that the person listens to; None: of nobody."""
    heard_keep: Bool[Tensor, "b"] | None = None  # False: as if there was nobody else
    style: Style | None = None
    style_keep: Bool[Tensor, "b"] | None = None


@dataclass(frozen=True)
class Cond(_Moves):
    """All that a velocity depends on besides x_t and t. models/conditioner.py makes its tensors;
    stages and sampling put them together."""

    text: Float[Tensor, "b text_n text_d"]
    audio: Float[Tensor, "b l audio_n audio_d"] | None = None  # tokens of each latent frame
    audio_keep: Bool[Tensor, "b"] | None = None  # False: as if this sample had no audio
    reference: Reference | None = None  # read by AvatarDiT.encode_reference, not in its passes
    reference_keep: Bool[Tensor, "b"] | None = None
    """False: as if this sample had none. On the CPU: it decides which keys are read."""
    moments: Float[Tensor, "b moment"] | None = None
    """Moments of the person's motion (motion/style.motion_moments); None: of ``reference``."""
    low: Float[Tensor, "b l c h w"] | None = None  # upsampled low resolution, of the refiner
    motion: Float[Tensor, "b l md"] | None = None  # of each latent frame, packed and clean
    guidance: Float[Tensor, "b g"] | None = None
    """Guidance weights of text, audio and reference, which weights with guidance inside read
    (DiTConfig.guidance_ranges)."""

    def to(self, device: torch.device | str) -> "Cond":
        return dataclasses.replace(super().to(device), reference_keep=self.reference_keep)

    def frames(self, run: slice) -> "Cond":
        """The conditions of some of the latent frames."""
        of_frames = {name: getattr(self, name) for name in ("audio", "low", "motion")}
        cut = {name: None if x is None else x[:, run] for name, x in of_frames.items()}
        return dataclasses.replace(self, **cut)
