"""Persons who speak in one scene and are shown to the model through a clip of another."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.critics.extractors import METER_HABITS, from_meter
from avatar_v.generate.inputs import Inputs
from avatar_v.generate.reference_clip import ReferenceClip
from avatar_v.loudness import normalise_loudness
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import Split, persons, scenes, sentences
from avatar_v_eval.rollout import Rollout, with_close_ups
from avatar_v_eval.style import neutral_opening
from avatar_v_eval.workers import mapped

MOTIONS = ("truth", "meter", "target", "none")
"""Of the reference and the first frame: the world's own, read from pixels, of the first frame
alone, unknown."""

Video = UInt8[Tensor, "f 3 h w"]


@dataclass(frozen=True)
class ShownCase:
    """A TEST person in one scene, and a clip of theirs from another scene to be shown through."""

    person_id: int
    prompt: str
    audio: Float[Tensor, " s"]
    video: Video  # the truth of that sound
    motion: Float[Tensor, "f m"]
    neutral: Float[np.ndarray, " f"]  # its mouth opening if the person's amplitude were 1
    reference: ReferenceClip
    shown: tuple[int, int, int]  # person, scene and speech of the reference
    elsewhere: Video  # a third scene, for the judge alone


@dataclass(frozen=True)
class Cast:
    """Whom a case is about: ids of a person, three scenes and two speeches."""

    person: int
    here: int
    there: int  # of the reference
    elsewhere: int  # of what identity is judged by
    said: int
    other: int  # said in the reference


def casts(split: Split, num_persons: int, first: int) -> list[Cast]:
    """Persons ``first``, ``first`` + 1, … of the split, each in scenes of their own."""
    people = persons(split, num_persons, first)
    places = scenes(split, 3 * num_persons, 3 * first)
    speeches = sentences(split, 2 * num_persons, 2 * first)
    return [
        Cast(person, *places[3 * i : 3 * i + 3], *speeches[2 * i : 2 * i + 2])
        for i, person in enumerate(people)
    ]


def make_shown_cases(
    split: Split,
    num_persons: int,
    *,
    first: int,
    num_frames: int,
    reference_frames: int,
    num_workers: int = 1,
) -> list[ShownCase]:
    """The clips of `casts`, rendered."""
    cast = casts(split, num_persons, first)

    def make(i: int) -> ShownCase:
        of = cast[i]
        shown_ids = (of.person, of.there, of.other)
        target = make_clip(of.person, of.here, of.said, num_frames=num_frames, size=64)
        shown = make_clip(*shown_ids, num_frames=reference_frames, size=64)
        third = make_clip(of.person, of.elsewhere, of.other, num_frames=13, size=64)
        return ShownCase(
            person_id=of.person,
            prompt=target.text,
            audio=target.audio,
            video=_of(target.video),
            motion=target.motion,
            neutral=neutral_opening(of.person, of.said, num_frames),
            reference=ReferenceClip(
                _of(shown.video),
                _of(shown.valid),
                normalise_loudness(shown.audio),
                shown.motion,
            ),
            shown=shown_ids,
            elsewhere=_of(third.video),
        )

    return mapped(make, len(cast), "rendering cases", num_workers)


def _of(tensor: Tensor | None) -> Tensor:
    assert tensor is not None  # the clips are rendered
    return tensor


@dataclass(frozen=True)
class Made:
    """A video of a case, and the motion that belongs to it."""

    video: Video
    motion: Float[Tensor, "f m"] | None
    """What made the true video, or what the motion stream says of a generated one."""


def generate(rollout: Rollout, case: ShownCase, num_frames: int, motion: str) -> Made:
    """The case's speech, shown through the first ``num_frames`` frames of its reference."""
    card, clips, first_motion = rollout.pipeline.card, (), None
    if card.reference and num_frames:
        reading = motion if card.motion and motion != "target" else "none"
        clip = shortened(case.reference, num_frames, reading)
        assert case.reference.motion is not None
        if card.faces:
            clip = with_close_ups(clip, case.shown, case.reference.motion)
        clips = (clip,)
    if card.motion and motion != "none":
        first_motion = from_meter(case.video[:1], None)[0] if motion == "meter" else case.motion[0]
    inputs = Inputs(
        image=case.video[0],
        audio=case.audio,
        num_frames=len(case.video),
        reference_frame=None,
        warnings=(),
        clips=clips,
        motion=first_motion,
    )
    request = rollout.request_for(case.person_id, case.prompt)
    made = list(rollout.pipeline.clips(inputs, request))
    said = [clip.motion for clip in made if clip.motion is not None]
    video = torch.cat([clip.frames for clip in made])
    return Made(video, torch.cat(said) if said else None)


def shortened(clip: ReferenceClip, num_frames: int, motion: str) -> ReferenceClip:
    """The clip's beginning, with its motion: the truth, read by the meter, none."""
    video, audio, track_ = clip.video[:num_frames], clip.audio, None
    assert audio is not None
    assert clip.motion is not None
    if motion != "none":
        track_ = clip.motion[:num_frames] if motion == "truth" else from_meter(video, None)
    told = METER_HABITS if motion == "meter" else MOTION_NAMES
    sound = audio[: num_frames * SAMPLES_PER_FRAME]
    return ReferenceClip(video, clip.valid[:num_frames], sound, track_, habits_known=told)
