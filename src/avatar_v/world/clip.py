"""One clip of the world: a person in a scene says a speech, with all that is true about it."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from avatar_v.base.seeds import derive
from avatar_v.types import FRAME_RATE_HZ
from avatar_v.world.dialogue import (
    ListeningEvent,
    converse,
    listening_events,
    sample_listening,
    with_listening,
)
from avatar_v.world.motion import motion_track
from avatar_v.world.person import sample_person
from avatar_v.world.prompt import scene_prompt
from avatar_v.world.render import Size, render, visible
from avatar_v.world.scene import sample_scene
from avatar_v.world.speech import Speech, say
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
    heard: Float[Tensor, "s"] | None = None  # as audio: whom the person listens to
    listening: tuple[ListeningEvent, ...] = ()  # how; empty without a partner


@dataclass(frozen=True)
class _Acted:
    """What a person says, and does meanwhile."""

    speech: Speech
    motion: Float[Tensor, "f m"]
    heard: Float[Tensor, "s"] | None = None
    listening: tuple[ListeningEvent, ...] = ()


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
    listens_to: int | None = None,
) -> WorldClip:
    """The clip of these ids: the same bytes in any process. ``size`` is in pixels.

    ``listens_to``: another person, with whom this one talks in turns; the speech is then the
    person's side of the dialogue ``speech_id`` (dialogue.py). Tensors of the renderer are on
    ``device``, the rest on the CPU. ValueError for an id outside the splits, a person who listens
    to themselves, fewer than one frame, or a size that the renderer refuses.
    """
    partner = () if listens_to is None else (listens_to,)
    for item_id in (person_id, scene_id, speech_id, *partner):
        split_of(item_id)
    seed = derive("clip", person_id, scene_id, speech_id)
    scene = sample_scene(scene_id)
    acted = _acted(person_id, listens_to, speech_id, seed, num_frames, frame_rate_hz)
    speech, motion = acted.speech, acted.motion
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
        heard=acted.heard,
        listening=acted.listening,
    )


def _acted(
    person_id: int,
    listens_to: int | None,
    speech_id: int,
    seed: int,
    num_frames: int,
    frame_rate_hz: int,
) -> _Acted:
    voice, style = sample_voice(person_id), sample_style(person_id)
    if listens_to is None:
        speech = say(speech_id, voice, style, num_frames, frame_rate_hz)
        return _Acted(speech, motion_track(speech, style, seed=seed))
    voices, styles = (voice, sample_voice(listens_to)), (style, sample_style(listens_to))
    own, partner = converse(speech_id, voices, styles, num_frames, frame_rate_hz)
    habits = sample_listening(person_id)
    events = listening_events(speech_id, habits, partner.ends)
    motion = motion_track(own.speech, style, seed=seed)
    motion = with_listening(motion, events, partner, habits)
    return _Acted(own.speech, motion, partner.speech.audio, events)
