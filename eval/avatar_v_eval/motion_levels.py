"""Levels of habits in motion without a pixel: of several systems, against the persons' own.

What alignment is measured by. TEST persons move to a sentence after a clip of theirs, with some
seeds each; blinks, sway and amplitude stand beside those that the persons were drawn with, and
beside those of the weights before, paired over persons.
"""

import argparse
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from avatar_v.base.seeds import derive
from avatar_v.critics.motion import MOUTH_OPEN
from avatar_v_eval.cases import Case, asked_cases
from avatar_v_eval.generated_motion import moved
from avatar_v_eval.intervals import mean_of, pearson
from avatar_v_eval.motion_statistics import STATISTICS, motion_statistics, true_statistics
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout

Tracks = Float[np.ndarray, "k n f m"]
"""k samples of each of n persons."""
BEFORE = "before"
REFERENCE_FRAMES = 401


def motion_cases(options: argparse.Namespace) -> list[Case]:
    """The cases of the options, without pictures."""
    return asked_cases(
        options, reference_frames=REFERENCE_FRAMES, target_video=False, reference_video=False
    )


def sampled(rollout: Rollout, cases: list[Case], options: argparse.Namespace) -> Tracks:
    """Motion of every person, with as many seeds as there are samples."""
    made = []
    for number in range(options.samples):
        seed = derive("sample", options.seed, number) % 2**31
        own = Rollout(rollout.pipeline, rollout.request.changed(seed=seed))
        made.append(
            np.stack(moved(own, cases, REFERENCE_FRAMES, f"sample {number + 1}", options.batch))
        )
    return np.stack(made)


def levels(
    cases: list[Case],
    tracks: Mapping[str, Tracks],
    words: Mapping[str, str],
    pairs: Sequence[tuple[str, str]] | None = None,
) -> dict[str, Number]:
    """Means of the motion statistics over persons, those the persons were drawn with, the errors,
    and how closely lips follow the truth; differences of ``pairs`` of systems, or of all from the
    weights before, paired."""
    persons = [true_statistics(case.person_id) for case in cases]
    read = {name: _statistics(cases, track) for name, track in tracks.items()}
    numbers = {}
    if pairs is None:
        pairs = [(name, BEFORE) for name in tracks if name != BEFORE]
    for statistic, word in STATISTICS.items():
        own = np.array([person[statistic] for person in persons])
        numbers[f"{statistic}_own"] = mean_of(own).described(f"{word}: the persons' own")
        level = {name: of[statistic].mean(0) for name, of in read.items()}
        error = {name: np.abs(of[statistic] - own).mean(0) for name, of in read.items()}
        numbers |= _compared(statistic, word, level, words, pairs)
        numbers |= _compared(f"{statistic}_error", f"{word}, error", error, words, pairs)
    lips = {name: of["lips"].mean(0) for name, of in read.items()}
    return numbers | _compared("lips", "lips r", lips, words, pairs)


def _compared(
    key: str,
    label: str,
    values: Mapping[str, Float[np.ndarray, " n"]],
    words: Mapping[str, str],
    pairs: Sequence[tuple[str, str]],
) -> dict[str, Number]:
    """Means over persons of every system, and of the differences of pairs."""
    numbers = {
        f"{key}_{name}": mean_of(value).described(f"{label}: {words[name]}")
        for name, value in values.items()
    }
    for ours, theirs in pairs:
        numbers[f"{key}_{ours}_over_{theirs}"] = mean_of(values[ours] - values[theirs]).described(
            f"{label}: {words[ours]} over {words[theirs]}"
        )
    return numbers


def _statistics(cases: list[Case], tracks: Tracks) -> dict[str, Float[np.ndarray, "k n"]]:
    """Of every sample the motion statistics, and r of the mouth with the true one."""
    rows = [
        [
            {
                **motion_statistics(motion[1:], case.neutral[1:]),
                "lips": pearson(motion[1:, MOUTH_OPEN], case.mouth_open[1:]),
            }
            for motion, case in zip(one, cases, strict=True)
        ]
        for one in tracks
    ]
    return {name: np.array([[row[name] for row in one] for one in rows]) for name in rows[0][0]}
