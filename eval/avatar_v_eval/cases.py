"""The cases of a study: a drawn person who says a sentence, and clips of the person elsewhere.

Every study that generates video has these cases. The cases of a benchmark are files
(`bench.manifest`).
"""

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base.options import at_once
from avatar_v.critics.motion import MOUTH_OPEN
from avatar_v.media.sound import prepared
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v.world.render import Size
from avatar_v.world.splits import Split, persons, scenes, sentences
from avatar_v_eval.motion_statistics import neutral_opening
from avatar_v_eval.processes import mapped

ELSEWHERE_FRAMES = 13
"""Of the clip that identity is compared with."""

TRACKS = ("video", "motion", "phonemes", "face_box", "mouth_box", "landmarks", "valid")
"""Fields of a clip with an entry for each frame."""

Video = UInt8[Tensor, "f 3 h w"]


@dataclass(frozen=True)
class CaseIds:
    """The ids that decide a case: a person, three scenes and two sentences."""

    person: int
    scene: int
    reference_scene: int
    third_scene: int
    sentence: int
    reference_sentence: int


@dataclass(frozen=True)
class Case:
    """A person who says a sentence in one scene, and clips of the person in two other scenes."""

    ids: CaseIds
    target: WorldClip  # the truth of a generated video; its video may be left out
    reference: WorldClip  # read by the model
    elsewhere: WorldClip | None = None  # read by critics alone

    @property
    def person_id(self) -> int:
        return self.ids.person

    @property
    def prompt(self) -> str:
        return self.target.text

    @property
    def audio(self) -> Float[Tensor, " s"]:
        return self.target.audio

    @property
    def motion(self) -> Float[Tensor, "f m"]:
        return self.target.motion

    @property
    def num_frames(self) -> int:
        return len(self.target.motion)

    @property
    def video(self) -> Video:
        return rendered_video(self.target)

    @cached_property
    def image(self) -> UInt8[Tensor, "3 h w"]:
        """The first frame of the target, drawn where the target has no video."""
        if self.target.video is not None:
            return self.target.video[0]
        ids, size = self.ids, rendered_video(self.reference).shape[-1]
        clip = make_clip(ids.person, ids.scene, ids.sentence, num_frames=1, size=size)
        return rendered_video(clip)[0]

    @property
    def mouth_open(self) -> Float[np.ndarray, " f"]:
        """The true mouth opening of every frame."""
        return self.motion[:, MOUTH_OPEN].double().numpy()

    @cached_property
    def neutral(self) -> Float[np.ndarray, " f"]:
        """The mouth opening of every frame, if the mouth amplitude of the person were 1."""
        return neutral_opening(self.ids.person, self.ids.sentence, self.num_frames)

    @property
    def third_video(self) -> Video:
        assert self.elsewhere is not None
        return rendered_video(self.elsewhere)

    def shortened(self, num_frames: int) -> "Case":
        """The same case with no more than ``num_frames`` frames of driving speech."""
        tracks = {name: getattr(self.target, name) for name in TRACKS}
        target = dataclasses.replace(
            self.target,
            audio=self.audio[: num_frames * SAMPLES_PER_FRAME],
            **{k: None if track is None else track[:num_frames] for k, track in tracks.items()},
        )
        return dataclasses.replace(self, target=target)


def case_ids(split: Split, num: int, first: int) -> list[CaseIds]:
    """The ids of persons ``first``, ``first`` + 1, … of the split, each in scenes of their own.

    Persons whose videos were looked at while something was still being trained are spent; a larger
    ``first`` takes other persons.
    """
    people = persons(split, num, first)
    places = scenes(split, 3 * num, 3 * first)
    speeches = sentences(split, 2 * num, 2 * first)
    return [
        CaseIds(person, *places[3 * i : 3 * i + 3], *speeches[2 * i : 2 * i + 2])
        for i, person in enumerate(people)
    ]


def make_cases(
    split: Split,
    num: int,
    *,
    first: int,
    num_frames: int,
    reference_frames: int,
    size: Size = 64,
    target_video: bool = True,
    reference_video: bool = True,
    num_workers: int = 1,
) -> list[Case]:
    """``num`` cases; clips whose video is left out are made in a moment."""
    ids = case_ids(split, num, first)

    def make(i: int) -> Case:
        of = ids[i]

        def clip(scene: int, sentence: int, length: int, rendered: bool) -> WorldClip:
            return make_clip(
                of.person, scene, sentence, num_frames=length, size=size, render_video=rendered
            )

        third = clip(of.third_scene, of.reference_sentence, ELSEWHERE_FRAMES, reference_video)
        return Case(
            ids=of,
            target=clip(of.scene, of.sentence, num_frames, target_video),
            reference=clip(
                of.reference_scene, of.reference_sentence, reference_frames, reference_video
            ),
            elsewhere=third if reference_video else None,
        )

    return mapped(make, num, "drawing cases", num_workers)


def drawn_clips(
    split: Split, num: int, *, first: int = 0, num_frames: int, size: Size = 64, video: bool = True
) -> list[WorldClip]:
    """One clip of each of ``num`` persons, each in a scene of its own with its own sentence."""
    ids = zip(*(take(split, num, first) for take in (persons, scenes, sentences)), strict=True)
    return [
        make_clip(*three, num_frames=num_frames, size=size, render_video=video) for three in ids
    ]


def rendered_video(clip: WorldClip) -> Video:
    """The frames of a clip that was rendered."""
    assert clip.video is not None
    return clip.video


def prepared_sound(clip: WorldClip) -> Float[Tensor, " s"]:
    """The sound of a clip as models take it."""
    return prepared(clip.audio)


def signed(video: Video) -> Float[Tensor, "f 3 h w"]:
    """Frames as networks take them, in [-1, 1]."""
    return video.float() / 127.5 - 1


def loudness(audio: Float[Tensor, " s"], num_frames: int) -> Float[Tensor, " f"]:
    """Root mean square of the samples of each video frame: the shortcut that lip-sync must beat."""
    return audio.reshape(num_frames, -1).square().mean(1).sqrt()


def add_case_options(
    parser: argparse.ArgumentParser, *, persons: int, frames: int, first: int = 0
) -> None:
    """Options of the cases of a study, with their defaults; see `cases_note`."""
    add = parser.add_argument
    add("--persons", type=int, default=persons)
    add("--first", type=int, default=first, help="number of the first person")
    add("--split", default="test", choices=("test", "validation"))
    add("--frames", type=int, default=frames, help="of each person, 4k + 1")
    add("--workers", type=at_once, default=1, help="processes of one thread each")


def first_case(*, num_frames: int, reference_frames: int, size: Size) -> Case:
    """Of the first TEST person."""
    (case,) = make_cases(
        "test", 1, first=0, num_frames=num_frames, reference_frames=reference_frames, size=size
    )
    return case


def asked_cases(
    options: argparse.Namespace,
    *,
    num_frames: int | None = None,
    reference_frames: int,
    size: Size = 64,
    target_video: bool = True,
    reference_video: bool = True,
) -> list[Case]:
    """The cases that the options of `add_case_options` ask for; ``num_frames`` in place of
    ``--frames``."""
    return make_cases(
        options.split,
        options.persons,
        first=options.first,
        num_frames=options.frames if num_frames is None else num_frames,
        reference_frames=reference_frames,
        size=size,
        target_video=target_video,
        reference_video=reference_video,
        num_workers=options.workers,
    )


def check_persons(options: argparse.Namespace, least: int) -> None:
    """ValueError for fewer persons than the intervals of a study need."""
    if options.persons < least:
        raise ValueError(f"--persons {options.persons}: the intervals need at least {least}")


def cases_note(options: argparse.Namespace, more: str = "") -> str:
    """The cases in words, for the notes of a result."""
    people = f"{options.persons} {options.split.upper()} persons from number {options.first} on"
    return f"{people}, {options.frames} frames of speech each{more}"


def rotated(cases: Sequence[Case]) -> list[Case]:
    """The next case in the place of each, so that everybody gets another person."""
    return [*cases[1:], cases[0]]
