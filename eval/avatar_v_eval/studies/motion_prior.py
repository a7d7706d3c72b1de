"""The motion statistics of a person in the motion that the motion network makes, without a pixel.

Weights with a motion network need nothing drawn: TEST persons move to a sentence, after the
statistics of 16 s, 4 s, 1 s, one frame and nothing of another clip of theirs, and the statistics of
that motion are compared with those that the person was made with. The study `personality` reads
what arrives in the pixels. ``--baseline FOLDER`` puts other weights beside them, paired over
persons; ``--tracks FILE`` keeps the motion after the longest reference, and ``--against FILE``
takes such motion, of another version perhaps, for the baseline.
"""

import argparse
from pathlib import Path

import numpy as np
from jaxtyping import Float

from avatar_v.critics.motion import MOUTH_OPEN
from avatar_v.shards.schema import load_arrays
from avatar_v_eval.cases import Case, asked_cases, cases_note, check_persons
from avatar_v_eval.generated_motion import moved
from avatar_v_eval.intervals import correlation, jackknife, mean_of, pearson
from avatar_v_eval.motion_statistics import STATISTICS, motion_statistics, true_statistics
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.reference_lengths import (
    BASELINE,
    LENGTHS,
    WORDS,
    add_reference_options,
    blink_bounds,
    longest,
)
from avatar_v_eval.rollout import Rollout


def add_options(parser: argparse.ArgumentParser) -> None:
    add_reference_options(parser, frames=401)
    add = parser.add_argument
    add("--motion-guidance", type=float, help="where it is not the card's")
    add("--tracks", metavar="FILE", help="keep the motion after the longest reference (.npz)")
    add("--against", metavar="FILE", help="motion kept before, as the baseline")
    add("--batch", type=int, default=64, help="persons at once")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 4)
    kept = None if options.against is None else kept_tracks(options.against)
    rollout = _loaded(options.weights, options)
    other = None if options.baseline is None else _loaded(options.baseline, options)
    longest_one = longest(options.conditions)
    cases = asked_cases(
        options,
        reference_frames=max(1, LENGTHS[longest_one]),
        target_video=False,
        reference_video=False,
    )
    tracks = {"truth": [case.motion.double().numpy() for case in cases]}
    for name in options.conditions:
        tracks[name] = moved(rollout, cases, LENGTHS[name], WORDS[name], options.batch)
    weights, described = rollout.hashes(), rollout.described()
    if other is not None:
        words = options.baseline_words
        tracks[BASELINE] = moved(other, cases, LENGTHS[longest_one], words, options.batch)
        weights["baseline motion"] = other.hashes()["motion"]
        described += f"; {words}: {other.described()}"
    elif kept is not None:
        tracks[BASELINE] = kept
    if options.tracks is not None:
        made = np.stack(tracks[longest_one]).astype(np.float32)
        np.savez_compressed(options.tracks, tracks=made)
    words = {"truth": "the true motion", **WORDS, BASELINE: options.baseline_words}
    return Findings(
        f"How much of a person the motion stream knows, {options.name}",
        numbers_of(cases, tracks, words, longest_one)
        | blink_bounds(options.conditions, WORDS, options.frames, len(cases)),
        recipe=rollout.recipe,
        weights=weights,
        notes=[
            cases_note(options, "; the first frame's motion is given"),
            described,
            "r: over persons, a statistic of the motion against that of the person, Fisher's "
            "interval; other intervals over persons",
        ],
    )


def numbers_of(
    cases: list[Case],
    tracks: dict[str, list[Float[np.ndarray, "f m"]]],
    words: dict[str, str],
    longest_one: str,
) -> dict[str, Number]:
    """Motion statistics of the tracks against those of the persons, their errors and means; those
    after the longest reference against the baseline's."""
    persons = [true_statistics(case.person_id) for case in cases]
    read = {
        name: [
            motion_statistics(motion[1:], case.neutral[1:])
            for motion, case in zip(rows, cases, strict=True)
        ]
        for name, rows in tracks.items()
    }
    found = {}
    for statistic, word in STATISTICS.items():
        true = np.array([person[statistic] for person in persons])
        values = {name: np.array([row[statistic] for row in rows]) for name, rows in read.items()}
        for name, own in values.items():
            errors = np.abs(own - values["truth"])
            for ending, label, number in (
                ("", "r over persons", correlation(own, true)),
                ("_error", "error against the true motion", mean_of(errors)),
                ("_mean", "mean over persons", mean_of(own)),
            ):
                described = number.described(f"{word}, {label}: {words[name]}")
                found[f"{statistic}_{name}{ending}"] = described
        if BASELINE in values:
            pairs = np.stack([values[longest_one], values[BASELINE], true], axis=1)
            gain = jackknife(lambda index, p=pairs: _gain_in_r(p[index]), len(pairs))
            label = f"{word}, r over that of {words[BASELINE]}"
            found[f"{statistic}_over_{BASELINE}"] = gain.described(label)
            ours, theirs = (abs(values[of] - values["truth"]) for of in (longest_one, BASELINE))
            label = f"{word}, error less that of {words[BASELINE]}"
            found[f"{statistic}_error_over_{BASELINE}"] = mean_of(ours - theirs).described(label)
    return found | _mouths(cases, tracks, words, longest_one)


def _mouths(
    cases: list[Case],
    tracks: dict[str, list[Float[np.ndarray, "f m"]]],
    words: dict[str, str],
    longest_one: str,
) -> dict[str, Number]:
    """How closely the mouth follows the true one: r over the frames of a person, means over
    persons."""
    true = [motion[1:, MOUTH_OPEN] for motion in tracks["truth"]]
    read = {
        name: np.array(
            [pearson(one[1:, MOUTH_OPEN], own) for one, own in zip(rows, true, strict=True)]
        )
        for name, rows in tracks.items()
        if name != "truth"
    }
    found = {
        f"mouth_r_{name}": mean_of(values).described(f"mouth, r over frames: {words[name]}")
        for name, values in read.items()
    }
    if BASELINE in read:
        gain = mean_of(read[longest_one] - read[BASELINE])
        label = f"mouth, r over that of {words[BASELINE]}"
        found[f"mouth_r_over_{BASELINE}"] = gain.described(label)
    return found


def _gain_in_r(pairs: Float[np.ndarray, "n 3"]) -> float:
    ours, theirs, true = pairs.T
    return pearson(ours, true) - pearson(theirs, true)


def kept_tracks(path: str) -> list[np.ndarray]:
    """The motion in a file of ``--tracks``; ValueError for any other."""
    arrays = load_arrays(Path(path).read_bytes(), path)
    if not isinstance(arrays, dict) or "tracks" not in arrays:
        raise ValueError(f"--against {path} holds no tracks; --tracks writes such files")
    return list(arrays["tracks"].astype(np.float64))


def _loaded(weights: str, options: argparse.Namespace) -> Rollout:
    rollout = Rollout.load(weights, options)
    if rollout.pipeline.conditioner.motion_net is None:
        raise ValueError(f"{weights} have no motion network: see recipes/3_motion.yaml")
    if options.motion_guidance is None:
        return rollout
    request = rollout.request.changed(guidance_motion=options.motion_guidance)
    return Rollout(rollout.pipeline, request)
