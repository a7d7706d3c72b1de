"""One clip of the world: a person in a scene says a speech, with all that is true about it."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from avatar_v.base.seeds import derive
from avatar_v.types import FRAME_RATE_HZ
from avatar_v.world.motion import motion_track
from avatar_v.world.person import sample_person
from avatar_v.world.prompt import scene_prompt
from avatar_v.world.render import Size, render, visible
from avatar_v.world.scene import sample_scene
from avatar_v.world.speech import say
from avatar_v.world.splits import split_of
from avatar_v.world.style import sample_style
from avatar_v.world.voice import sample_voice


@dataclass(frozen=True)
class WorldClip:
    """A clip of f frames with its ground truth. What the renderer says is None without video."""

    video: UInt8[Tensor, "f 3 h w"] | None
    audio: Float[Tensor, "s"]  # 640 f samples at 16 kHz, in [-1, 1], on the 16-bit grid
    text: str  # the prompt
    motion: Float[Tensor, "f m"]  # MOTION_NAMES
    phonemes: Int[Tensor, "f"]  # index into lexicon.PHONEMES
    transcript: str
    face_box: Float[Tensor, "f 4"] | None
    mouth_box: Float[Tensor, "f 4"] | None
    landmarks: Float[Tensor, "f k 2"] | None
    valid: Bool[Tensor, "f"]  # a face is visible
    person_id: int
    scene_id: int
    sentence_id: int  # the speech id
    seed: int


def make_clip(
    person_id: int,
    scene_id: int,
    speech_id: int,
    *,
    num_frames: int,
    size: Size,
    frame_rate_hz: int = FRAME_RATE_HZ,
    device: torch.device | str = "cpu",
    render_video: bool = True,
) -> WorldClip:
    """The clip of these ids: the same bytes in any process. ``size`` is in pixels.

    Tensors of the renderer are on ``device``, the rest on the CPU. ValueError for an id outside
    the splits, fewer than one frame, or a size that the renderer refuses.
    """
    for item_id in (person_id, scene_id, speech_id):
        split_of(item_id)
    seed = derive("clip", person_id, scene_id, speech_id)
    style, scene = sample_style(person_id), sample_scene(scene_id)
    speech = say(speech_id, sample_voice(person_id), style, num_frames, frame_rate_hz)
    motion = motion_track(speech, style, seed=seed)
    rendered = None
    if render_video:
        rendered = render(
            sample_person(person_id), scene, motion,
            size=size, seed=seed, device=device, frame_rate_hz=frame_rate_hz,
        )  # fmt: skip
    return WorldClip(
        video=rendered.video if rendered else None,
        audio=speech.audio,
        text=scene_prompt(scene),
        motion=motion,
        phonemes=speech.phonemes,
        transcript=" ".join(word.text for word in speech.words),
        face_box=rendered.face_box if rendered else None,
        mouth_box=rendered.mouth_box if rendered else None,
        landmarks=rendered.landmarks if rendered else None,
        valid=visible(motion),
        person_id=person_id,
        scene_id=scene_id,
        sentence_id=speech_id,
        seed=seed,
    )
