"""What steps and overshoot buy: lips, identity, sharpness, flicker by sampler (ALGORITHMS §5.1).

``python -m avatar_v_eval.sampling --weights small`` generates the same cases with 4 to 48 steps of
the deterministic Euler method and of its stochastic form, and writes ``eval/results/sampling.json``
and ``.png``. Differences between the two at equal steps are paired over persons.
"""

import argparse
import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from avatar_v.critics.face import FaceCritic
from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.quality import flicker, sharpness
from avatar_v_eval import records
from avatar_v_eval.cases import Case, make_cases
from avatar_v_eval.records import Number, bootstrap_mean, pearson
from avatar_v_eval.rollout import Rollout, add_sampling_options, through_vae

STEPS = (4, 8, 16, 24, 48)
MEASURES = {
    "mouth": "mouth r",
    "identity": "face similarity with the first frame's person elsewhere",
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

    def values(self, cases: list[Case], videos: torch.Tensor) -> Values:
        """Each measure of each person's video, without its first (given) frame."""
        rows: dict[str, list[float]] = {name: [] for name in MEASURES}
        for case, video in zip(cases, videos[:, 1:], strict=True):
            true = through_vae(self.rollout.vae, case.video)[1:]
            opening = self.meter.mouth_open(video).double().numpy()
            rows["mouth"].append(pearson(opening, case.mouth_open[1:].double().numpy()))
            faces = self.face.embed_clip(video), self.face.embed_clip(case.elsewhere)
            rows["identity"].append(float(faces[0] @ faces[1]))
            rows["sharpness"].append(float(sharpness(video).mean() / sharpness(true).mean()))
            rows["flicker"].append(float(flicker(video).mean() / flicker(true).mean()))
        return {name: np.array(row) for name, row in rows.items()}


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    rollout = Rollout.load(options.weights, options)
    judges = Judges(MotionMeter.from_pretrained(), FaceCritic.from_pretrained(), rollout)
    cases = make_cases(options.persons, options.frames, size=rollout.size, first=options.first)
    found: dict[tuple[int, float], Values] = {}
    for steps in options.counts:
        for overshoot in (0.0, options.overshoot):
            request = dataclasses.replace(rollout.request, num_steps=steps, overshoot=overshoot)
            sampled = dataclasses.replace(rollout, request=request)
            note = f"{steps} steps, overshoot {overshoot}"
            found[steps, overshoot] = judges.values(cases, sampled.videos(cases, note=note))
    numbers = numbers_of(found, options.overshoot)
    result = records.make_result(
        "sampling",
        "Steps and overshoot of the sampler",
        numbers,
        recipe=rollout.recipe,
        weights={**rollout.hashes(), "motion": judges.meter.hash(), "face": judges.face.hash()},
        notes=[
            f"{options.persons} TEST persons from number {options.first} on, "
            f"{options.frames} frames each, from one picture; intervals bootstrapped over persons",
            rollout.described(),
        ],
    )
    out = Path(options.out)
    print(records.write_result(result, out))
    save_plot(out / "sampling.png", found, options.overshoot)
    for number in numbers.values():
        print(f"{number.label:80s} {number.value:8.3f}  [{number.low}, {number.high}]")


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
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    add_sampling_options(parser)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
