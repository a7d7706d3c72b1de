"""The motion that the motion networks of some systems make, without a pixel.

TEST persons move to a sentence after the statistics of another clip of theirs, with some seeds
each. Habits stand beside those that the person was drawn with, and lips beside the true ones.
`--pairs A:B` are paired over persons: a student and its teacher, weights before and after
alignment. The study `systems` reads what arrives in the pixels.
"""

import argparse

import numpy as np
from jaxtyping import Float

from avatar_v.base.seeds import derive
from avatar_v.critics.motion import MOUTH_OPEN
from avatar_v.scoring.sampling import pearson
from avatar_v_eval.cases import Case, add_case_options, asked_cases, cases_note, check_persons
from avatar_v_eval.generated_motion import moved
from avatar_v_eval.habits import habit_numbers
from avatar_v_eval.motion_statistics import motion_statistics
from avatar_v_eval.protocol import Findings, Readings, gains, means
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout
from avatar_v_eval.systems import (
    Way,
    add_system_options,
    check_motion_nets,
    join_recipes,
    longest_reference,
    parse_pairs,
    parse_ways,
    weights_hashes,
)

Tracks = Float[np.ndarray, "k n f m"]
"""k samples of each of n persons."""
TRUTH = "truth"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=64, frames=401)
    add_system_options(parser)
    parser.set_defaults(references=["video"])
    add = parser.add_argument
    add("--samples", type=int, default=1, help="seeds of each person")
    add("--batch", type=int, default=64, help="persons at once")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 4)
    ways = parse_ways(options)
    check_motion_nets(ways)
    pairs = parse_pairs(options, ways)
    cases = asked_cases(
        options,
        reference_frames=longest_reference(options),
        target_video=False,
        reference_video=False,
    )
    tracks = {TRUTH: np.stack([case.motion.double().numpy() for case in cases])[None]}
    tracks |= {key: sampled(way, cases, options) for key, way in ways.items()}
    words = {TRUTH: "the true motion", **{key: way.words for key, way in ways.items()}}
    return Findings(
        f"The motion of persons, {options.name}",
        summarise_motion(cases, tracks, words, pairs),
        recipe=join_recipes(ways),
        weights=weights_hashes(ways, "motion", "audio"),
        notes=[
            cases_note(options, "; the first frame's motion is given"),
            *(f"{key}: {way.rollout.described()}" for key, way in ways.items()),
            f"{options.samples} seeds of each person; r: over persons, Fisher's interval; other "
            "intervals over persons",
        ],
    )


def sampled(way: Way, cases: list[Case], options: argparse.Namespace) -> Tracks:
    """Motion of every person, with as many seeds as there are samples."""
    made = []
    for number in range(options.samples):
        seed = derive("sample", options.seed, number) % 2**31
        own = Rollout(way.rollout.pipeline, way.rollout.request.changed(seed=seed))
        label = f"{way.words}, sample {number + 1}"
        made.append(np.stack(moved(own, cases, way.num_frames, label, options.batch)))
    return np.stack(made)


def summarise_motion(
    cases: list[Case],
    tracks: dict[str, Tracks],
    words: dict[str, str],
    pairs: list[tuple[str, str]],
) -> dict[str, Number]:
    """Habits, and how closely lips follow the truth: means over the samples of a person."""
    read = {key: [person(case, of[:, i]) for i, case in enumerate(cases)]
            for key, of in tracks.items()}  # fmt: skip
    values = {
        name: {key: np.array([row[name] for row in rows]) for key, rows in read.items()}
        for name in read[TRUTH][0]
    }
    readings = Readings({key: rows for key, rows in read.items() if key != TRUTH})
    lips = {"lips": "lips r"}
    return (
        habit_numbers(cases, values, TRUTH, words, pairs)
        | means(readings, lips, words)
        | gains(readings, lips, words, pairs)
    )


def person(case: Case, samples: Float[np.ndarray, "k f m"]) -> dict[str, float]:
    """The statistics of a person's samples, and r of the mouth with the true one."""
    rows = [
        {
            **motion_statistics(motion[1:], case.neutral[1:]),
            "lips": pearson(motion[1:, MOUTH_OPEN], case.mouth_open[1:]),
        }
        for motion in samples
    ]
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
