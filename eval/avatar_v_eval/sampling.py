"""What steps and overshoot buy: lips, identity, sharpness, flicker by sampler.

``python -m avatar_v_eval.sampling --weights small`` generates the same cases with 4 to 48 steps of
the deterministic Euler method and of its stochastic form, and writes ``eval/results/sampling.json``
and ``.png``. Differences between the two at equal steps are paired over persons.
"""

import argparse
import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from avatar_v.critics.face import FaceCritic
from avatar_v.critics.motion import MOUTH_OPEN, MotionMeter
from avatar_v.critics.quality import flicker, sharpness
from avatar_v_eval import records
from avatar_v_eval.records import Number, as_command, bootstrap_mean, pearson
from avatar_v_eval.rollout import Rollout, add_sampling_options, through_vae
from avatar_v_eval.shown import ShownCase, generate, make_shown_cases
from avatar_v_eval.workers import mapped

STEPS = (4, 8, 16, 24, 48)
REFERENCE_FRAMES = 101
"""Of the clip that shows the person: 4 s."""
MEASURES = {
    "mouth": "mouth r",
    "identity": "face similarity in a third scene",
    "sharpness": "sharpness, share of the true video's through the VAE",
    "flicker": "flicker, share of the true video's through the VAE",
}
Values = dict[str, Float[np.ndarray, " n"]]


@dataclass(frozen=True)
class Judges:
    """The frozen networks that read the pixels, and what the VAE leaves of the truth."""

    meter: MotionMeter
    face: FaceCritic
    rollout: Rollout

    def values(self, case: ShownCase, video: UInt8[Tensor, "f 3 h w"]) -> dict[str, float]:
        """Each measure of one person's video, without its first (given) frame."""
        video, true = video[1:], through_vae(self.rollout.vae, case.video)[1:]
        opening = self.meter.mouth_open(video).double().numpy()
        own, there = self.face.embed_clip(video), self.face.embed_clip(case.elsewhere)
        return {
            "mouth": pearson(opening, case.motion[1:, MOUTH_OPEN].double().numpy()),
            "identity": float(own @ there),
            "sharpness": float(sharpness(video).mean() / sharpness(true).mean()),
            "flicker": float(flicker(video).mean() / flicker(true).mean()),
        }


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    rollout = Rollout.load(options.weights, options)
    judges = Judges(MotionMeter.from_pretrained(), FaceCritic.from_pretrained(), rollout)
    cases = make_shown_cases(
        "test",
        options.persons,
        first=options.first,
        num_frames=options.frames,
        reference_frames=REFERENCE_FRAMES,
        num_workers=options.workers,
    )
    found: dict[tuple[int, float], Values] = {}
    for steps in options.counts:
        for overshoot in (0.0, options.overshoot):
            request = dataclasses.replace(rollout.request, num_steps=steps, overshoot=overshoot)
            sampled = dataclasses.replace(rollout, request=request)
            fn = partial(_measured, judges, sampled, cases)
            note = f"{steps} steps, overshoot {overshoot}"
            rows = mapped(fn, len(cases), note, options.workers)
            found[steps, overshoot] = {
                name: np.array([row[name] for row in rows]) for name in MEASURES
            }
    numbers = numbers_of(found, options.overshoot)
    result = records.make_result(
        "sampling",
        "Steps and overshoot of the sampler",
        numbers,
        recipe=rollout.recipe,
        weights={**rollout.hashes(), "motion": judges.meter.hash(), "face": judges.face.hash()},
        notes=[
            f"{options.persons} TEST persons from number {options.first} on, "
            f"{options.frames} frames each, 4 s of reference; intervals bootstrapped over persons",
            rollout.described(),
        ],
    )
    out = Path(options.out)
    print(records.write_result(result, out))
    save_plot(out / "sampling.png", found, options.overshoot)
    for number in numbers.values():
        print(f"{number.label:80s} {number.value:8.3f}  [{number.low}, {number.high}]")


def _measured(
    judges: Judges, sampled: Rollout, cases: list[ShownCase], index: int
) -> dict[str, float]:
    case = cases[index]
    return judges.values(case, generate(sampled, case, REFERENCE_FRAMES, "truth").video)


def numbers_of(found: dict[tuple[int, float], Values], overshoot: float) -> dict[str, Number]:
    """Every measure by steps for both samplers, and what overshoot adds, paired."""
    numbers = {}
    for name, word in MEASURES.items():
        for steps, c in found:
            sampler = "Euler" if c == 0 else f"overshoot {c}"
            key = f"{name}_{steps}_{'euler' if c == 0 else 'overshoot'}"
            label = f"{word}: {steps} steps, {sampler}"
            numbers[key] = bootstrap_mean(found[steps, c][name]).described(label)
        for steps in dict.fromkeys(steps for steps, _ in found):
            gain = found[steps, overshoot][name] - found[steps, 0.0][name]
            label = f"{word}: overshoot {overshoot} over Euler at {steps} steps"
            numbers[f"{name}_{steps}_gain"] = bootstrap_mean(gain).described(label)
    return numbers


def save_plot(path: Path, found: dict[tuple[int, float], Values], overshoot: float) -> None:
    """Each measure against the number of steps."""
    figure = Figure(figsize=(9.6, 2.6), dpi=150)
    FigureCanvasAgg(figure)
    counts = list(dict.fromkeys(steps for steps, _ in found))
    for axes, name in zip(figure.subplots(1, len(MEASURES)), MEASURES, strict=True):
        lines = ((0.0, "#5b6770", "Euler"), (overshoot, "#d1495b", f"c = {overshoot}"))
        for c, colour, label in lines:
            rows = [bootstrap_mean(found[steps, c][name]) for steps in counts]
            axes.plot(counts, [row.value for row in rows], color=colour, label=label, lw=1.6)
            low, high = ([getattr(row, side) for row in rows] for side in ("low", "high"))
            axes.fill_between(counts, low, high, color=colour, alpha=0.2, lw=0)
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("steps", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].legend(frameon=False, fontsize=7)
    figure.tight_layout()
    figure.savefig(path)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default="small", help="folder, or the name of shipped weights")
    parser.add_argument("--persons", type=int, default=32)
    parser.add_argument("--first", type=int, default=0, help="number of the first test person")
    parser.add_argument("--frames", type=int, default=73, help="of video per person, 4k + 1")
    parser.add_argument("--counts", type=int, nargs="+", default=list(STEPS), help="of steps")
    parser.add_argument("--overshoot", type=float, default=0.5, help="c of the stochastic sampler")
    parser.add_argument("--workers", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    add_sampling_options(parser)
    options = parser.parse_args(arguments)
    if options.persons < 2:
        parser.error(f"intervals over persons need at least two, got {options.persons}")
    return options


if __name__ == "__main__":
    as_command(main)
