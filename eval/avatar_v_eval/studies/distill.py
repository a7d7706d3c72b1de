"""Students of few steps beside their teacher and beside the undistilled model at as few steps.

TEST persons speak for two chunks after a clip of theirs from another scene, from a first frame and
from the prompt alone. All systems have the same cases, seeds and motion of the reference. A system
is NAME=WEIGHTS, with fields of a request behind it: ``two=runs/4b/weights?num_steps=2``. Sharpness,
flicker, motion energy, saturation and brightness are shares of those of the true video through the
VAE. Diversity is the mean difference of two videos of other seeds; ``--pairs A:B`` are paired over
persons. The held-out critics were no loss of any stage.
"""

import argparse
import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from avatar_v.critics.motion import MOUTH_OPEN
from avatar_v.weights.weights import find_stats
from avatar_v_eval.cases import (
    Case,
    Video,
    add_case_options,
    asked_cases,
    cases_note,
    check_persons,
)
from avatar_v_eval.generated import GeneratedClip, generate, through_vae
from avatar_v_eval.intervals import mean_of
from avatar_v_eval.motion_statistics import slope, style_of
from avatar_v_eval.processes import mapped
from avatar_v_eval.protocol import (
    Condition,
    Findings,
    Reading,
    Readings,
    gains,
    means,
    read_cases,
    resumable,
    with_distance,
)
from avatar_v_eval.readers import MEASURES, Readers, mouth_r, picture_shares
from avatar_v_eval.rollout import Rollout, add_sampling_options
from avatar_v_eval.studies.distill_figure import draw, shown
from avatar_v_eval.systems import named, pair_of, system_of

REFERENCE_FRAMES = 201
"""Of the reference clip: 8 s."""
SYSTEMS = ("teacher_24=small?num_steps=24", "undistilled_2=small?num_steps=2")
PICTURES = {
    "energy": "motion energy, share of the true video's through the VAE",
    "saturation": "saturation, share of the true video's through the VAE",
    "brightness": "brightness, share of the true video's through the VAE",
}
HELD_OUT = {
    f"held_out_{name}": f"{MEASURES[name]}, held-out critic"
    for name in ("mouth", "identity", "sync")
}
MEASURED = {
    **HELD_OUT,
    **{name: MEASURES[name] for name in ("mouth", "identity", "sync", "sharpness", "flicker")},
    **PICTURES,
    "distance": "distance of motion statistics from the true video's",
    "held_out_slope": "mouth opening of the pixels on its motion's, slope, held-out critic",
}
DIVERSITY = {"diversity": "mean difference of two seeds, of 255"}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=64, frames=93)
    add_sampling_options(parser)
    add = parser.add_argument
    add("--systems", nargs="+", default=list(SYSTEMS), metavar="NAME=WEIGHTS[?FIELD=VALUE&…]")
    add("--starts", nargs="+", default=["image", "prompt"], choices=("image", "prompt"))
    add("--pairs", nargs="*", default=[], metavar="A:B", help="systems to compare, paired")
    add("--diverse", type=int, default=16, help="persons whose video is made with two seeds")
    add("--shown", type=int, default=4, help="persons on the picture")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 4)
    systems = {name: system_of(text, options) for name, text in named(options.systems)}
    pairs = [pair_of(text, systems) for text in options.pairs]
    shipped, held_out = Readers.load(), Readers.held_out()
    weights = {**shipped.hashes(), **{f"held-out {k}": v for k, v in held_out.hashes().items()}}
    for name, rollout in systems.items():
        weights |= {f"{part} of {name}": rollout.hashes()[part] for part in ("dit", "motion")}
    cases = asked_cases(options, reference_frames=REFERENCE_FRAMES)
    vae = next(iter(systems.values())).vae
    made, words = _conditions(systems, options.starts)
    true = mapped(
        lambda i: through_vae(vae, cases[i].video), len(cases), "true video", options.workers
    )
    ceilings = {case.person_id: video for case, video in zip(cases, true, strict=True)}
    conditions = {"ceiling": lambda case: GeneratedClip(ceilings[case.person_id]), **made}
    words = {"ceiling": "true video through the VAE", **words}
    kept = resumable(options, weights)
    reader = partial(read, shipped, held_out, ceilings)
    readings = with_distance(
        read_cases(cases, conditions, reader, num_workers=options.workers, kept=kept)
    )
    numbers = means(readings, MEASURED, words)
    numbers |= gains(readings, MEASURED, words, _started(pairs, options.starts))
    some = cases[: options.diverse]
    if some:
        two = _seeded(systems, options.starts)
        seeds = read_cases(
            some, two, apart, num_workers=options.workers,
            kept=None if kept is None else kept / "seeds",
        )  # fmt: skip
        numbers |= means(seeds, DIVERSITY, words)
        numbers |= shares_of(seeds, words, _started(pairs, options.starts))
    return Findings(
        f"Few steps, {options.name}",
        numbers,
        recipe=", ".join(sorted({rollout.recipe for rollout in systems.values()})),
        weights=weights,
        notes=[
            cases_note(options, ", 8 s of reference; intervals over persons"),
            *(f"{name}: {rollout.described()}" for name, rollout in systems.items()),
        ],
        figures=_figures(cases[: options.shown], conditions, numbers, words),
    )


def _begun(systems: Mapping[str, Rollout], starts: list[str]) -> dict[str, Rollout]:
    return {
        f"{name}_{start}": rollout if start == "image" else rollout.from_prompt()
        for name, rollout in systems.items()
        for start in starts
    }


def _conditions(
    systems: Mapping[str, Rollout], starts: list[str]
) -> tuple[dict[str, Condition], dict[str, str]]:
    made: dict[str, Condition] = {
        key: partial(generate, begun, num_frames=REFERENCE_FRAMES, motion="meter")
        for key, begun in _begun(systems, starts).items()
    }
    given = {"image": "first frame given", "prompt": "from the prompt"}
    words = {f"{name}_{start}": f"{name}, {given[start]}" for name in systems for start in starts}
    return made, words


def _seeded(
    systems: Mapping[str, Rollout], starts: list[str]
) -> dict[str, Callable[[Case], list[GeneratedClip]]]:
    """Videos of two seeds."""
    made = {}
    for key, begun in _begun(systems, starts).items():
        other = begun.request.changed(seed=begun.request.sampling.seed + 1)
        made[key] = partial(_of_each, [begun, dataclasses.replace(begun, request=other)])
    return made


def _of_each(rollouts: list[Rollout], case: Case) -> list[GeneratedClip]:
    return [generate(each, case, REFERENCE_FRAMES, "meter") for each in rollouts]


def _started(pairs: list[tuple[str, str]], starts: list[str]) -> list[tuple[str, str]]:
    return [(f"{a}_{start}", f"{b}_{start}") for a, b in pairs for start in starts]


def read(
    shipped: Readers,
    held_out: Readers,
    ceilings: Mapping[int, Video],
    case: Case,
    clip: GeneratedClip,
) -> Reading:
    """Each measure of one person's video."""
    true, motion = ceilings[case.person_id], shipped.motion(clip.video)
    seen = held_out.motion(clip.video)
    told = np.asarray(case.motion if clip.motion is None else clip.motion)[-len(seen) :]
    return {
        "mouth": mouth_r(motion, case),
        "identity": shipped.identity(clip.video, case),
        "sync": shipped.sync(clip.video, case),
        "held_out_mouth": mouth_r(seen, case),
        "held_out_identity": held_out.identity(clip.video, case),
        "held_out_sync": held_out.sync(clip.video, case),
        **picture_shares(clip.video, true),
        **colour_shares(clip.video, true),
        "style": style_of(motion, find_stats("small")),
        "held_out_slope": slope(told[:, MOUTH_OPEN], seen[:, MOUTH_OPEN]),
    }


def colour_shares(video: Video, true: Video) -> dict[str, float]:
    """Motion energy, saturation and brightness as shares of those of the true video: mean absolute
    difference of neighbouring frames, mean difference of the largest and least channel, mean."""

    def numbers(frames: Video) -> np.ndarray:
        x = frames[1:].float()
        saturation = (x.amax(1) - x.amin(1)).mean()
        return np.array([float(v) for v in (x.diff(dim=0).abs().mean(), saturation, x.mean())])

    return dict(zip(PICTURES, (numbers(video) / numbers(true)).tolist(), strict=True))


def apart(case: Case, clips: list[GeneratedClip]) -> Reading:
    """Mean absolute difference of two videos of a case behind the frame that both were given."""
    first, second = (clip.video[1:].float() for clip in clips)
    return {"diversity": float((first - second).abs().mean())}


def shares_of(seeds: Readings, words: Mapping[str, str], pairs: list[tuple[str, str]]) -> dict:
    """Diversity of A as a share of B's, of the same persons."""
    found = {}
    for a, b in pairs:
        share = seeds.values(a, "diversity") / seeds.values(b, "diversity")
        label = f"difference of two seeds: {words[a]}, share of that of {words[b]}"
        found[f"diversity_{a}_share_of_{b}"] = mean_of(share).described(label)
    return found


def _figures(
    cases: list[Case], conditions: Mapping[str, Condition], numbers: dict, words: Mapping[str, str]
) -> dict[str, Figure]:
    figures = {"": draw(numbers, {k: v for k, v in words.items() if k != "ceiling"})}
    if cases:
        figures["_frames"] = shown(cases, conditions, words)
    return figures
