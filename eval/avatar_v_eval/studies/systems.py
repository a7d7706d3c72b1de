"""Videos of weights beside the truth and beside other weights: lips, likeness, habits, looks.

TEST persons speak after a clip of theirs from another scene, from a first frame or from the prompt
alone. All ways have the same cases, seeds and first frames, so that every difference comes from the
weights, the sampling or the reference: a student and its teacher, weights before and after
alignment, steps of the sampler, lengths of the reference. `--pairs A:B` are paired over persons.
Sharpness, flicker, motion energy, saturation and brightness are shares of those of the true video
through the VAE. The held-out critics were no loss of any stage. With `--swapped` the first way also
speaks with the face of the next person. A stopped command goes on with what is left.
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from avatar_v.base import checks
from avatar_v.types import num_latents
from avatar_v_eval.cases import (
    Case,
    add_case_options,
    asked_cases,
    cases_note,
    check_persons,
    rotated,
)
from avatar_v_eval.generated import (
    MOTIONS,
    GeneratedClip,
    generate,
    generate_from_files,
    through_vae,
)
from avatar_v_eval.processes import mapped
from avatar_v_eval.protocol import Condition, Findings, Reading, means, read_cases, resumable
from avatar_v_eval.records import Number
from avatar_v_eval.studies.systems_figures import draw, shown
from avatar_v_eval.studies.systems_readings import CEILING, SWAPPED, VideoReader, summarise_readings
from avatar_v_eval.study_metrics import StudyMetrics
from avatar_v_eval.systems import (
    STARTS,
    Way,
    add_system_options,
    join_recipes,
    longest_reference,
    parse_pairs,
    parse_ways,
    weights_hashes,
)

SWAPPED_FRAMES = 33
"""Identity under another reference needs no more."""
LEAST_FRAMES, MOST_FRAMES = 29, 1501
"""A style needs a second, and a video of more than a minute is the study `drift`'s."""
NAMED = ("dit", "motion", "vae")
"""Networks whose hashes the result names; finished cases are kept by those of all."""
OF_A_CLIP = 401
"""Frames of a reference from whose file a still is picked."""
APART = {"apart": "mean difference of two videos of a person, of 255"}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=64, frames=93)
    add_system_options(parser)
    add = parser.add_argument
    add("--starts", nargs="+", default=["image"], choices=list(STARTS))
    add("--motion", default="meter", choices=MOTIONS, help="of the reference")
    add("--through-files", action="store_true", help="as a user: H.264 in and out, motion read")
    add("--swapped", action="store_true", help="also the first way with another person's reference")
    add("--diverse", type=int, default=0, help="persons of whom two seeds, and pairs, are compared")
    add("--shown", type=int, default=0, help="persons on the picture")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 4)
    checks.count("--frames", options.frames, least=LEAST_FRAMES, most=MOST_FRAMES)
    num_latents(options.frames)
    if options.diverse:
        checks.count("--diverse", options.diverse, least=2, most=options.persons)
    if options.through_files and "none" in options.references:
        raise ValueError("--through-files takes a reference in every condition")
    ways = parse_ways(options, options.starts)
    pairs = parse_pairs(options, ways)
    shipped, held_out = StudyMetrics.load(), StudyMetrics.held_out()
    weights = {**shipped.hashes(), **{f"held-out {k}": v for k, v in held_out.hashes().items()}}
    hashes = weights_hashes(ways)
    weights |= {name: value for name, value in hashes.items() if name.split()[0] in NAMED}
    least = OF_A_CLIP if options.through_files else 1
    first = next(iter(ways.values())).rollout
    cases = asked_cases(
        options, reference_frames=max(least, longest_reference(options)), size=first.size
    )
    true = mapped(
        lambda i: through_vae(first.vae, cases[i].video), len(cases), "truth", options.workers
    )
    reader = VideoReader(
        shipped, held_out, {c.person_id: x for c, x in zip(cases, true, strict=True)}
    )
    conditions, words = build_conditions(options, ways, cases, reader)
    sampled = {key: way.rollout.sampling() for key, way in ways.items()}
    kept = resumable(options, weights | hashes, sampled)
    readings = read_cases(cases, conditions, reader, num_workers=options.workers, kept=kept)
    numbers = summarise_readings(cases, readings, words, pairs)
    some = cases[: options.diverse]
    if some:
        numbers |= distances(some, ways, words, pairs, options)
    figures = {}
    if options.shown:
        figures = {"": draw(numbers, words), "_frames": shown(cases[: options.shown], conditions,
                                                              words)}  # fmt: skip
    return Findings(
        f"Videos of persons, {options.name}",
        numbers,
        recipe=join_recipes(ways),
        weights=weights,
        notes=[
            cases_note(options, f" at {first.size} px; the reference shows another scene"),
            "motion of the reference: "
            + ("through files, as generate reads it" if options.through_files else options.motion),
            *(f"{key}: {way.rollout.described()}" for key, way in ways.items()),
            "the first frame is not read; r of a habit: over persons, Fisher's interval; other "
            "intervals over persons",
        ],
        figures=figures,
    )


def build_conditions(
    options: argparse.Namespace,
    ways: Mapping[str, Way],
    cases: Sequence[Case],
    reader: VideoReader,
) -> tuple[dict[str, Condition], dict[str, str]]:
    """The true video through the VAE, and a video of every way; and each in words."""
    conditions: dict[str, Condition] = {
        CEILING: lambda case: GeneratedClip(reader.true[case.person_id], case.motion)
    }
    for key, way in ways.items():
        conditions[key] = (
            partial(generate_from_files, way.rollout, num_frames=way.num_frames)
            if options.through_files
            else partial(generate, way.rollout, num_frames=way.num_frames, motion=options.motion)
        )
    words = {CEILING: "true video through the VAE"}
    words |= {key: way.words for key, way in ways.items()}
    if options.swapped:
        person_of = dict(zip((case.person_id for case in cases), rotated(cases), strict=True))
        key, way = next(iter(ways.items()))

        def other(case: Case) -> GeneratedClip:
            person, short = person_of[case.person_id], case.shortened(SWAPPED_FRAMES)
            return generate(way.rollout, short, way.num_frames, options.motion, person=person)

        conditions[SWAPPED], words[SWAPPED] = other, f"{words[key]}, another person's reference"
    return conditions, words


def distances(
    cases: list[Case],
    ways: Mapping[str, Way],
    words: Mapping[str, str],
    pairs: list[tuple[str, str]],
    options: argparse.Namespace,
) -> dict[str, Number]:
    """How far apart two videos of a person are: of two seeds of a way, and of two ways."""
    couples: dict[str, tuple[Way, Way]] = {}
    for key, way in ways.items():
        request = way.rollout.request.changed(seed=way.rollout.request.sampling.seed + 1)
        other = dataclasses.replace(way.rollout, request=request)
        couples[f"seeds_{key}"] = (way, dataclasses.replace(way, rollout=other))
    couples |= {f"{a}_{b}": (ways[a], ways[b]) for a, b in pairs}
    labels = {f"seeds_{key}": f"two seeds, {words[key]}" for key in ways}
    labels |= {f"{a}_{b}": f"{words[a]} and {words[b]}" for a, b in pairs}

    def both(couple: tuple[Way, Way]) -> Callable[[Case], list[GeneratedClip]]:
        return lambda case: [
            generate(way.rollout, case, way.num_frames, options.motion) for way in couple
        ]

    made = {key: both(couple) for key, couple in couples.items()}
    return means(read_cases(cases, made, apart, num_workers=options.workers), APART, labels)


def apart(case: Case, clips: list[GeneratedClip]) -> Reading:
    """Mean absolute difference of two videos behind the frame that both were given."""
    first, second = (clip.video[1:].float() for clip in clips)
    return {"apart": float((first - second).abs().mean())}
