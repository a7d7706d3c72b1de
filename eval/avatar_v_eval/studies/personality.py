"""The part of a person that a reference video carries: motion statistics, identity and lips by the
length of the reference that the model reads.

TEST persons speak in one scene after a clip of another scene with other words: 16 s of the clip,
4 s, 1 s, one frame, nothing (and a minute, where ``--conditions`` asks for it). The first frame and
the sound are the same in all conditions, so that every difference comes from the reference; with
``--from-prompt`` no frame is given. With ``--through-files`` every case passes through files, as a
user of ``avatar-v generate`` meets it. Motion statistics are read from the generated pixels and
compared with those that the person was made with. ``--baseline FOLDER`` puts other weights beside,
paired over persons. A stopped command goes on with the persons that are left.
"""

import argparse
from dataclasses import dataclass
from functools import partial

import numpy as np

from avatar_v.motion.stats import MotionStats
from avatar_v.types import MOTION_NAMES
from avatar_v.weights.weights import find_stats
from avatar_v_eval.cases import Case, asked_cases, cases_note, check_persons
from avatar_v_eval.generated import (
    MOTIONS,
    GeneratedClip,
    generate,
    generate_from_files,
    truth,
    truth_through_vae,
)
from avatar_v_eval.intervals import correlation, mean_of, pearson
from avatar_v_eval.motion_statistics import (
    STATISTICS,
    motion_statistics,
    slope,
    style_of,
    true_statistics,
)
from avatar_v_eval.protocol import (
    Condition,
    Findings,
    Reading,
    Readings,
    card_of,
    gains,
    means,
    read_cases,
    resumable,
    with_distance,
)
from avatar_v_eval.readers import MEASURES, Readers, mouth_r, scene_distance
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
from avatar_v_eval.studies.personality_figure import draw

ASKED = ("minute", "video")
"""The conditions that have a target."""
TRUE_WORDS = {"truth": "true video", "ceiling": "it through the VAE"}
PERSON_MEASURES = {
    **{name: MEASURES[name] for name in ("identity", "mouth", "sync", "scene")},
    "distance": "distance of motion statistics from the true video's",
}
FOLLOWED = {"mouth_open": "mouth opening", "eye_open": "eye openness", "yaw": "yaw"}
"""Components that tell how closely a video follows the motion that was made for it."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_reference_options(parser, frames=201)
    add = parser.add_argument
    add("--baseline-motion", choices=MOTIONS, help="where it is not --motion")
    add("--motion", default="truth", choices=MOTIONS, help="of the reference")
    add("--from-prompt", action="store_true", help="no first frame is given, either")
    add("--through-files", action="store_true", help="as a user: H.264 in and out, motion read")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 4)
    if options.through_files and ("none" in options.conditions or options.baseline is not None):
        raise ValueError("--through-files takes a reference in every condition, and no --baseline")
    rollout, readers = _loaded(options.weights, options), Readers.load()
    other = None if options.baseline is None else _loaded(options.baseline, options)
    weights = {**rollout.hashes(), **readers.hashes()}
    if other is not None:
        weights["baseline dit"] = other.hashes()["dit"]
    cards = [card_of(each) for each in (rollout, other) if each is not None]
    kept = resumable(options, weights, cards)
    longest_one = longest(options.conditions)
    least = LENGTHS["video"] if options.through_files else 1  # a still is picked from a clip
    cases = asked_cases(options, reference_frames=max(least, LENGTHS[longest_one]))
    conditions = _conditions(options, rollout, other)
    reader = PersonReader(readers, find_stats("small"))
    readings = with_distance(
        read_cases(cases, conditions, reader, num_workers=options.workers, kept=kept)
    )
    words = {**WORDS, BASELINE: options.baseline_words}
    numbers = statistics_numbers(cases, readings, words)
    numbers |= blink_bounds(options.conditions, words, options.frames, len(cases))
    numbers |= person_numbers(readings, words, longest_one)
    numbers |= followed_numbers(readings, words, ("truth", longest_one, BASELINE))
    described = rollout.described()
    if other is not None:
        described += f"; {options.baseline_words}: {other.described()}"
    read = "through files, as generate reads it" if options.through_files else options.motion
    given = "made, too" if options.from_prompt else "given"
    return Findings(
        f"How much of a person a reference carries, {options.name}",
        numbers,
        recipe=rollout.recipe,
        weights=weights,
        notes=[
            cases_note(options, "; the reference shows another scene"),
            described,
            f"motion of the reference: {read}; first frame and its motion are {given}",
            "r of a motion statistic: over persons, read from the pixels against that of the "
            "person, Fisher's interval; other intervals over persons",
        ],
        figures={"": draw(numbers)},
    )


def _loaded(weights: str, options: argparse.Namespace) -> Rollout:
    rollout = Rollout.load(weights, options)
    return rollout.from_prompt() if options.from_prompt else rollout


def _conditions(
    options: argparse.Namespace, rollout: Rollout, other: Rollout | None
) -> dict[str, Condition]:
    conditions: dict[str, Condition] = {
        "truth": truth,
        "ceiling": partial(truth_through_vae, rollout.vae),
    }
    for name in options.conditions:
        num = LENGTHS[name]
        conditions[name] = (
            partial(generate_from_files, rollout, num_frames=num)
            if options.through_files
            else partial(generate, rollout, num_frames=num, motion=options.motion)
        )
    if other is not None:
        num, motion = LENGTHS[longest(options.conditions)], options.baseline_motion
        conditions[BASELINE] = partial(
            generate, other, num_frames=num, motion=motion or options.motion
        )
    return conditions


@dataclass(frozen=True)
class PersonReader:
    """Reads everything of a video that tells of its person."""

    readers: Readers
    stats: MotionStats

    def __call__(self, case: Case, clip: GeneratedClip) -> Reading:
        motion = self.readers.motion(clip.video)
        found: dict[str, float | np.ndarray] = {
            **motion_statistics(motion, case.neutral[1:]),
            "mouth": mouth_r(motion, case),
            "identity": self.readers.identity(clip.video, case),
            "sync": self.readers.sync(clip.video, case),
            "scene": scene_distance(clip.video, case.video),
            "style": style_of(motion, self.stats),
        }
        if clip.motion is not None:
            stream = clip.motion[1:].double().numpy()
            read = motion_statistics(stream, case.neutral[1:])
            found |= {f"stream_{name}": value for name, value in read.items()}
            for name in FOLLOWED:
                x, y = (track[:, MOTION_NAMES.index(name)] for track in (stream, motion))
                found[f"followed_{name}_r"] = pearson(x, y)
                found[f"followed_{name}_slope"] = slope(x, y) if x.std() > 1e-6 else 0.0
        return found


def statistics_numbers(
    cases: list[Case], readings: Readings, words: dict[str, str]
) -> dict[str, Number]:
    """Motion statistics of videos against those of the persons, and their errors."""
    persons = [true_statistics(case.person_id) for case in cases]
    numbers = {}
    for name, word in STATISTICS.items():
        true = np.array([person[name] for person in persons])
        ceiling = readings.values("ceiling", name)
        r, target = f"{word}, r over persons", "≥ 0.6" if name == "mouth_amplitude" else "≥ 0.4"
        for key, label in (("truth", "the true video"), ("ceiling", "it through the VAE")):
            number = correlation(readings.values(key, name), true)
            numbers[f"{name}_{key}"] = number.described(f"{r}: {label}")
        for key, rows in readings.rows.items():
            if f"stream_{name}" in rows[0]:
                stream = correlation(readings.values(key, f"stream_{name}"), true)
                label = "the true motion" if key == "truth" else f"the motion stream, {words[key]}"
                numbers[f"{name}_{key}_said"] = stream.described(f"{r}: {label}")
        for key in (key for key in words if key in readings.rows):
            read = readings.values(key, name)
            numbers[f"{name}_{key}"] = correlation(read, true).described(
                f"{r}: {words[key]}", target=target if key in ASKED else ""
            )
            numbers[f"{name}_{key}_error"] = mean_of(np.abs(read - ceiling)).described(
                f"{word}, error against the true video through the VAE: {words[key]}"
            )
    return numbers


def person_numbers(
    readings: Readings, words: dict[str, str], longest_one: str
) -> dict[str, Number]:
    """Identity, lips and motion under each condition; the longest reference over one frame and over
    the baseline, paired."""
    labels = {**TRUE_WORDS, **words}
    pairs = ((longest_one, "image"), ("image", "none"), (longest_one, BASELINE))
    return means(readings, PERSON_MEASURES, labels) | gains(
        readings, PERSON_MEASURES, labels, pairs
    )


def followed_numbers(
    readings: Readings, words: dict[str, str], conditions: tuple[str, ...]
) -> dict[str, Number]:
    """r and slope of the motion read from the pixels on the motion that belongs to the video, over
    the frames of a person: means over persons."""
    able = {
        key: {**TRUE_WORDS, **words}[key]
        for key in conditions
        if key in readings.rows and "followed_yaw_r" in readings.rows[key][0]
    }
    measures = {
        f"followed_{name}_{kind}": f"{word} of the pixels on the stream's, {kind}"
        for name, word in FOLLOWED.items()
        for kind in ("r", "slope")
    }
    return means(readings, measures, able)
