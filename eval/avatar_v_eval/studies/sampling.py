"""Steps and overshoot of the sampler: lips, identity, sharpness and flicker.

The same cases are generated with 4 to 48 steps of the deterministic Euler method and of its
stochastic form. Differences between the two at equal steps are paired over persons.
"""

import argparse
import dataclasses
from functools import partial

from matplotlib.figure import Figure

from avatar_v_eval.cases import Case, add_case_options, asked_cases, cases_note, check_persons
from avatar_v_eval.generated import GeneratedClip, generate, through_vae
from avatar_v_eval.intervals import mean_of
from avatar_v_eval.plots import GREY, RED, band, panels
from avatar_v_eval.protocol import (
    Condition,
    Findings,
    Reading,
    Readings,
    gains,
    means,
    read_cases,
    resumable,
)
from avatar_v_eval.readers import MEASURES, Readers, mouth_r, picture_shares
from avatar_v_eval.rollout import Rollout, add_sampling_options

STEPS = (4, 8, 16, 24, 48)
REFERENCE_FRAMES = 101
"""Of the reference clip: 4 s."""
MEASURED = {name: MEASURES[name] for name in ("mouth", "identity", "sharpness", "flicker")}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=32, frames=73)
    add_sampling_options(parser)
    add = parser.add_argument
    add("--counts", type=int, nargs="+", default=list(STEPS), help="of steps")
    add("--overshoot", type=float, default=0.5, help="c of the stochastic sampler")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 2)
    rollout, readers = Rollout.load(options.weights, options), Readers.load()
    cases = asked_cases(options, reference_frames=REFERENCE_FRAMES)
    words = {
        f"{sampler}_{steps}": f"{steps} steps, {label}"
        for steps in options.counts
        for sampler, label in (("euler", "Euler"), ("overshoot", f"overshoot {options.overshoot}"))
    }
    conditions = {key: _condition(rollout, key, options.overshoot) for key in words}
    weights = {**rollout.hashes(), **readers.hashes()}
    readings = read_cases(
        cases,
        conditions,
        partial(read, readers, rollout),
        num_workers=options.workers,
        kept=resumable(options, weights),
    )
    pairs = [(f"overshoot_{steps}", f"euler_{steps}") for steps in options.counts]
    return Findings(
        "Steps and overshoot of the sampler",
        means(readings, MEASURED, words) | gains(readings, MEASURED, words, pairs),
        recipe=rollout.recipe,
        weights=weights,
        notes=[
            cases_note(options, ", 4 s of reference; intervals over persons"),
            rollout.described(),
        ],
        figures={"": draw(readings, options.counts, options.overshoot)},
    )


def _condition(rollout: Rollout, key: str, overshoot: float) -> Condition:
    sampler, steps = key.split("_")
    request = rollout.request.changed(
        num_steps=int(steps),
        overshoot=overshoot if sampler == "overshoot" else 0.0,
    )
    sampled = dataclasses.replace(rollout, request=request)
    return partial(generate, sampled, num_frames=REFERENCE_FRAMES)


def read(readers: Readers, rollout: Rollout, case: Case, clip: GeneratedClip) -> Reading:
    """Each measure of one person's video."""
    return {
        "mouth": mouth_r(readers.motion(clip.video), case),
        "identity": readers.identity(clip.video, case),
        **picture_shares(clip.video, through_vae(rollout.vae, case.video)),
    }


def draw(readings: Readings, counts: list[int], overshoot: float) -> Figure:
    """Each measure against the number of steps."""
    figure, axes = panels(len(MEASURED), width=9.6, height=2.6)
    for ax, name in zip(axes, MEASURED, strict=True):
        for sampler, colour, label in (
            ("euler", GREY, "Euler"),
            ("overshoot", RED, f"c = {overshoot}"),
        ):
            rows = [mean_of(readings.values(f"{sampler}_{n}", name)) for n in counts]
            low, high = ([getattr(row, side) for row in rows] for side in ("low", "high"))
            y = [row.value for row in rows]
            band(ax, counts, y, low, high, colour=colour, label=label)
        ax.set_title(name, fontsize=9)
        ax.set_xlabel("steps", fontsize=8)
    axes[0].legend(frameon=False, fontsize=7)
    return figure
