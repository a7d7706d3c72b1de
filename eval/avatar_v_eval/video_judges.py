"""Who makes the better videos of the same persons? By held-out critics and by a preference model.

All systems get the same cases and seeds. A judge prefers, of two videos of one person, the one with
the higher value, so that its answer is counted as a rater's is. What simulated raters weigh is read
of the same videos.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from avatar_v.base.seeds import derive
from avatar_v.faces.face_track import spread_frames
from avatar_v.pairs.making import Made, samples_of
from avatar_v.rewards.features import Features
from avatar_v.rewards.preference import PreferenceModel
from avatar_v.rewards.raters import Panel
from avatar_v.shards.pairs import NUM_PORTRAITS, reference_batch
from avatar_v.types import SAMPLES_PER_FRAME, Batch
from avatar_v_eval.cases import Case, asked_cases, heard, signed, video_of
from avatar_v_eval.generated import GeneratedClip, generate
from avatar_v_eval.intervals import mean_of
from avatar_v_eval.motion_levels import BEFORE
from avatar_v_eval.protocol import Reading, Readings, read_cases, resumable
from avatar_v_eval.readers import Readers, mouth_r
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout

REFERENCE_FRAMES = 201
"""Of the clip that the systems read: 8 s."""
HELD_OUT = {
    "held_out_mouth": "the held-out mouth reader",
    "held_out_sync": "the held-out sync critic",
    "held_out_identity": "the held-out face critic",
}
PREFERENCE = {"preference": "the preference model"}


@dataclasses.dataclass(frozen=True)
class VideoJudges:
    """The held-out critics, and where there are some a preference model and raters."""

    critics: Readers
    panel: Panel | None = None
    model: PreferenceModel | None = None
    features: Features | None = None
    axis: int = 0

    @classmethod
    def load(cls, preference: Path | None, panel: Panel | None = None) -> "VideoJudges":
        """ValueError for a folder of another critic, or without a score for "overall"."""
        critics = Readers.held_out()
        if preference is None:
            return cls(critics, panel)
        model = PreferenceModel.from_pretrained(preference)
        return cls(critics, panel, model, model.features(), int(model.axis_numbers(["overall"])[0]))

    @property
    def words(self) -> dict[str, str]:
        """Each judge in words."""
        return HELD_OUT | (PREFERENCE if self.model is not None else {})

    def hashes(self) -> dict[str, str]:
        """Of each network."""
        held_out = {f"held-out {name}": value for name, value in self.critics.hashes().items()}
        model = {} if self.model is None else {"preference": self.model.hash()}
        return held_out | model

    def read(self, case: Case, clip: GeneratedClip) -> Reading:
        """What each judge says of a video, and what raters weigh, by its path; more is better."""
        video, reference = clip.video, case.reference
        found: dict[str, float] = {
            "held_out_mouth": mouth_r(self.critics.motion(video), case),
            "held_out_sync": self.critics.sync(video, case),
            "held_out_identity": self.critics.identity(video, case),
        }
        frames = spread_frames(reference.valid, NUM_PORTRAITS)
        portraits = video_of(reference)[frames][None]
        if self.model is not None and self.features is not None:
            row = self.features(
                signed(video)[None],
                heard(case.target)[None],
                signed(portraits),
                reference.motion[None],
                reference.valid[None],
                torch.zeros(1, dtype=torch.long),
            )
            found["preference"] = float(self.model(row)[0, self.axis])
        if self.panel is not None:
            motion = case.motion if clip.motion is None else clip.motion
            made = Made(motion.float()[None], video[None])
            samples = samples_of(batch_of([case], case.num_frames), made, portraits)
            for rater in self.panel.raters:
                found |= {path: float(value) for path, value in rater.values(samples).items()}
        return found


def batch_of(cases: Sequence[Case], num_frames: int) -> Batch:
    """The beginnings of the cases, with the motion of their references; with pictures where the
    cases have them."""
    motion, valid = (
        torch.stack([getattr(case.target, name)[:num_frames] for case in cases])
        for name in ("motion", "valid")
    )
    nothing = motion.new_zeros(len(cases), num_frames, 4)
    persons = tuple(str(case.person_id) for case in cases)
    video = None
    if all(case.target.video is not None for case in cases):
        video = torch.stack([signed(case.video[:num_frames]) for case in cases])
    batch = Batch(
        video=video,
        audio=torch.stack([heard(case.target)[: SAMPLES_PER_FRAME * num_frames] for case in cases]),
        text=tuple(case.prompt for case in cases),
        motion=motion,
        face_box=nothing,
        mouth_box=nothing,
        valid=valid,
        key=persons,
        person=persons,
        scene=persons,
    )
    rows = [(case.reference.motion, case.reference.valid) for case in cases]
    return dataclasses.replace(batch, reference=reference_batch(batch, rows))


def read_videos(
    judges: VideoJudges, systems: Mapping[str, Rollout], options: argparse.Namespace
) -> Readings:
    """Videos of the cases of ``options``, as many of each as there are samples; SYSTEM_k is the
    k-th of a system."""
    cases = asked_cases(options, num_frames=options.video_frames, reference_frames=REFERENCE_FRAMES)
    conditions: dict[str, Callable[[Case], GeneratedClip]] = {
        f"{name}_{number}": partial(_made, rollout, derive("sample", options.seed, number) % 2**31)
        for name, rollout in systems.items()
        for number in range(options.samples)
    }
    weights = {
        f"{name} {part}": value
        for name, rollout in systems.items()
        for part, value in rollout.hashes().items()
    }
    return read_cases(
        cases,
        conditions,
        judges.read,
        num_workers=options.workers,
        kept=resumable(options, {**judges.hashes(), **weights}),
    )


def _made(rollout: Rollout, seed: int, case: Case) -> GeneratedClip:
    """The speech of a case with a seed of the sample's own; only first frame and reference are
    known, as in the raters' motion."""
    seeded = dataclasses.replace(rollout, request=rollout.request.changed(seed=seed))
    return generate(seeded, case, REFERENCE_FRAMES, "truth")


def video_wins(
    readings: Readings,
    judges: Mapping[str, str],
    words: Mapping[str, str],
    systems: Sequence[str],
    num_samples: int,
) -> dict[str, Number]:
    """How often each judge prefers the videos of a system to those of the weights before, and by
    how much its value is higher, over persons. Every sample of a system stands against every one of
    the weights before; equals share."""
    numbers = {}
    for name, (judge, by) in itertools.product(systems, judges.items()):
        if name == BEFORE:
            continue
        ours, theirs = (
            np.stack([readings.values(f"{of}_{k}", judge) for k in range(num_samples)])
            for of in (name, BEFORE)
        )
        numbers[f"videos_{name}_by_{judge}"] = mean_of(won(ours, theirs)).described(
            f"videos preferred to those of the weights before by {by}: {words[name]}"
        )
        numbers[f"videos_{name}_{judge}_over_before"] = mean_of(
            ours.mean(0) - theirs.mean(0)
        ).described(f"value of {by}, over the weights before: {words[name]}")
    return numbers


def won(
    ours: Float[np.ndarray, "k n"], theirs: Float[np.ndarray, "k n"]
) -> Float[np.ndarray, " n"]:
    """The share of all pairs of samples of a person in which ours has the higher value."""
    difference = ours[:, None] - theirs[None]
    return ((np.sign(difference) + 1) / 2).mean((0, 1))
