"""Held-out cases for generation: who speaks what, and what is true about it.

A case is one TEST person: a reference clip in one scene, a driving speech of the same person
in words never trained on, and the true video of that speech in the same scene.
"""

import dataclasses
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from rich.progress import track
from torch import Tensor

from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.splits import Split, persons, scenes, sentences

REFERENCE_FRAMES = 13
MOUTH_OPEN = MOTION_NAMES.index("mouth_open")


@dataclass(frozen=True)
class Case:
    """One person of one scene. Videos are uint8 "f 3 h w", sound is 16 kHz mono."""

    person_id: int
    prompt: str
    reference: UInt8[Tensor, "r 3 h w"]  # what the model is shown
    elsewhere: UInt8[Tensor, "r 3 h w"]  # the same person in another scene, for the judge alone
    audio: Float[Tensor, " s"]
    video: UInt8[Tensor, "f 3 h w"]  # the true video of this audio
    motion: Float[Tensor, "f m"]  # the truth of that video, in types.MOTION_NAMES

    @property
    def mouth_open(self) -> Float[Tensor, " f"]:
        return self.motion[:, MOUTH_OPEN]

    def shortened(self, num_frames: int) -> "Case":
        """The same case with no more than ``num_frames`` frames of driving speech."""
        return dataclasses.replace(
            self,
            audio=self.audio[: num_frames * SAMPLES_PER_FRAME],
            video=self.video[:num_frames],
            motion=self.motion[:num_frames],
        )


def make_cases(
    num: int, num_frames: int, *, split: Split = "test", size: int = 64, first: int = 0
) -> list[Case]:
    """``num`` cases, each with its own person, two scenes and two sentences of the split, from its
    ``first``-th person on. Persons who were looked at while something was still being trained are
    spent; a larger ``first`` takes others."""
    places, speeches = (take(split, 2 * num, 2 * first) for take in (scenes, sentences))
    people = persons(split, num, first)
    cases = []
    for i, person in enumerate(track(people, "rendering cases", transient=True)):
        here, there = places[2 * i], places[2 * i + 1]

        def shown(scene: int, speech: int, length: int, person: int = person) -> WorldClip:
            return make_clip(person, scene, speech, num_frames=length, size=size)

        driving = shown(here, speeches[2 * i], num_frames)
        cases.append(
            Case(
                person_id=person,
                prompt=driving.text,
                reference=_video(shown(here, speeches[2 * i + 1], REFERENCE_FRAMES)),
                elsewhere=_video(shown(there, speeches[2 * i + 1], REFERENCE_FRAMES)),
                audio=driving.audio,
                video=_video(driving),
                motion=torch.as_tensor(driving.motion),
            )
        )
    return cases


def loudness(audio: Float[Tensor, " s"], num_frames: int) -> Float[Tensor, " f"]:
    """Root mean square of the samples of each video frame: the shortcut that lip-sync must beat."""
    return audio.reshape(num_frames, -1).square().mean(1).sqrt()


def _video(clip: WorldClip) -> UInt8[Tensor, "f 3 h w"]:
    assert clip.video is not None
    return torch.as_tensor(clip.video)
