"""Has it learned? Lip-sync and identity of generated video on held-out persons of the world.

``python -m avatar_v_eval.learning --weights small`` generates for 64 TEST persons, reads the mouth
from the decoded pixels, and writes ``eval/results/learning_NAME.json``. With ``--baseline DIR`` the
same cases go through other weights (stage 1), and the difference is paired over persons.

Every correlation leaves out the first frame: it is the given picture, not a generated one.
"""

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.critics.face import FaceCritic, identification
from avatar_v.critics.motion import MotionMeter
from avatar_v.models.vae import VideoVAE
from avatar_v_eval import records
from avatar_v_eval.cases import Case, loudness, make_cases
from avatar_v_eval.records import Number, as_command, bootstrap, bootstrap_mean, pearson, rate
from avatar_v_eval.rollout import Rollout, add_sampling_options, through_vae

MAX_LAG = 5
SWAPPED_FRAMES = 33
"""Identity under another reference needs no more."""
NUM_RESAMPLES = 10_000

Videos = UInt8[Tensor, "n f 3 h w"]
Tracks = Float[np.ndarray, "n f"]


@dataclass(frozen=True)
class Judges:
    """The frozen networks that read the pixels."""

    mouth: MotionMeter
    face: FaceCritic

    def mouth_open(self, videos: Videos) -> Tracks:
        """Mouth opening of every frame but the first."""
        n, f = videos.shape[:2]
        opening = self.mouth.mouth_open(videos.flatten(0, 1)).reshape(n, f)
        return opening[:, 1:].double().numpy()

    def faces(self, videos: Videos) -> Float[Tensor, "n d"]:
        """One embedding per video, of every frame but the first."""
        return torch.stack([self.face.embed_clip(video[1:]) for video in videos])


def main(arguments: list[str] | None = None) -> None:
    options = _options(arguments)
    torch.manual_seed(0)  # nothing below draws from it; a dependency that did would be repeatable
    judges = Judges(MotionMeter.from_pretrained(), FaceCritic.from_pretrained())
    rollout = Rollout.load(options.weights, options)
    cases = make_cases(options.persons, options.frames, size=rollout.size, first=options.first)
    truth = _truth(cases)
    generated = rollout.videos(cases, note="generating")
    short = [case.shortened(SWAPPED_FRAMES) for case in cases]
    swapped = rollout.videos(short, shown=_shuffled(cases), note="with another reference")
    reading = judges.mouth_open(generated)
    numbers = {
        **sync_numbers(reading, truth),
        **control_numbers(judges, rollout.vae, cases, truth),
        **identity_numbers(judges, cases, generated, swapped),
    }
    weights = {**rollout.hashes(), "motion": judges.mouth.hash(), "face": judges.face.hash()}
    if options.baseline:
        options.audio = options.baseline_audio
        baseline = Rollout.load(options.baseline, options)
        other = judges.mouth_open(baseline.videos(cases, note="baseline"))
        numbers |= comparison_numbers(reading, other, truth)
        weights["baseline dit"] = baseline.hashes()["dit"]
    result = records.make_result(
        f"learning_{options.name}",
        f"Held-out persons of the world, {options.name}",
        numbers,
        recipe=rollout.recipe,
        weights=weights,
        notes=[
            f"{options.persons} TEST persons from number {options.first} on, "
            f"{options.frames} frames each at {rollout.size} px",
            rollout.described(),
            "mouth opening read from decoded pixels, first (given) frame left out; intervals "
            "bootstrapped over persons",
        ],
    )
    print(records.write_result(result, options.out))
    for number in numbers.values():
        print(f"{number.label:64s} {number.value:8.3f}  [{number.low}, {number.high}]")


def sync_numbers(reading: Tracks, truth: Tracks) -> dict[str, Number]:
    """Correlation with the driving speech's true opening, and with the next person's."""
    n = len(truth)
    own = rowwise(reading, truth)
    unrelated = rowwise(reading, np.roll(truth, 1, axis=0))
    pooled = bootstrap(lambda i: pearson(reading[i].ravel(), truth[i].ravel()), n, 0, 2000)
    lags = np.array([best_lag(r, t) for r, t in zip(reading, truth, strict=True)])
    amplitude = reading.std(1) / np.maximum(truth.std(1), 1e-6)
    return {
        "sync": bootstrap_mean(own).described(
            "mouth opening against the driving speech, mean r", target="≥ 0.6"
        ),
        "sync_unrelated": bootstrap_mean(unrelated).described(
            "mouth opening against an unrelated speech, mean r", target="|r| < 0.15"
        ),
        "sync_pooled": pooled.described("the same against the driving speech, all frames pooled"),
        "sync_worst_tenth": bootstrap(
            lambda i: float(np.quantile(own[i], 0.1)), n, 0, NUM_RESAMPLES
        ).described("r of the tenth of persons that is worst"),
        "lag": bootstrap_mean(lags).described("lag of the best correlation", unit="frames"),
        "amplitude": bootstrap_mean(amplitude).described("mouth movement, share of the true one"),
    }


def control_numbers(
    judges: Judges, vae: VideoVAE, cases: list[Case], truth: Tracks
) -> dict[str, Number]:
    """What a perfect generator would get, and what loudness alone gets."""
    through = torch.stack([through_vae(vae, case.video) for case in cases])
    ceiling = rowwise(judges.mouth_open(through), truth)
    loud = np.stack([loudness(c.audio, len(c.video))[1:].double().numpy() for c in cases])
    return {
        "ceiling": bootstrap_mean(ceiling).described(
            "ceiling: the true video through the VAE, mean r"
        ),
        "loudness": bootstrap_mean(rowwise(loud, truth)).described(
            "shortcut: loudness alone against the truth, mean r"
        ),
    }


def identity_numbers(
    judges: Judges, cases: list[Case], generated: Videos, swapped: Videos
) -> dict[str, Number]:
    """Nearest reference among all persons, for own and for another's reference.

    Chance is 1 in n for the nearest of all and 1 in 2 for the nearer of two.
    """
    n = len(cases)
    shown = judges.faces(torch.stack([case.reference for case in cases]))
    elsewhere = judges.faces(torch.stack([case.elsewhere for case in cases]))
    face, other = judges.faces(generated), judges.faces(swapped)
    given = shown.roll(-1, 0)  # as _shuffled gives them
    numbers = {}
    for key, label, faces, gallery, target in (
        ("identity", "own reference is the nearest", face, shown, "≥ 0.9"),
        ("identity_elsewhere", "own clip in another scene is the nearest", face, elsewhere, ""),
        ("identity_swapped", "another reference given: own is nearest", other, shown, "≤ 0.1"),
        ("identity_follows", "another reference given: that is nearest", other, given, "≥ 0.9"),
    ):
        nearest, pairwise = identification(faces, gallery)
        words = f"{label}, of {n}"
        numbers[key] = rate(int(nearest.sum()), n).described(words, target=target)
        pairs = bootstrap_mean(pairwise.double().numpy())
        numbers[f"{key}_pairs"] = pairs.described(f"{label}, of two")
    return numbers


def comparison_numbers(reading: Tracks, baseline: Tracks, truth: Tracks) -> dict[str, Number]:
    """The same cases through other weights; the gain is paired over persons."""
    own, other = rowwise(reading, truth), rowwise(baseline, truth)
    return {
        "baseline_sync": bootstrap_mean(other).described("stage 1 on the same cases, mean r"),
        "gain": bootstrap_mean(own - other).described("gain of stage 2 over stage 1", target="> 0"),
    }


def rowwise(a: Tracks, b: Tracks) -> Float[np.ndarray, " n"]:
    """Pearson's r of each person's two tracks."""
    return np.array([pearson(x, y) for x, y in zip(a, b, strict=True)])


def best_lag(reading: Float[np.ndarray, " f"], truth: Float[np.ndarray, " f"]) -> int:
    """Frames by which the reading is late (positive) where the two agree best, within ±5."""

    def at(lag: int) -> float:
        a = reading[max(lag, 0) : len(reading) + min(lag, 0)]
        b = truth[max(-lag, 0) : len(truth) + min(-lag, 0)]
        return pearson(a, b)

    return max(range(-MAX_LAG, MAX_LAG + 1), key=lambda lag: (at(lag), -abs(lag)))


def _truth(cases: list[Case]) -> Tracks:
    return torch.stack([case.mouth_open[1:] for case in cases]).double().numpy()


def _shuffled(cases: list[Case]) -> list[Case]:
    """Everyone gets the next person's reference."""
    return [*cases[1:], cases[0]]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", default="small", help="folder, or the name of shipped weights")
    parser.add_argument("--baseline", help="folder of other weights for the same cases (stage 1)")
    parser.add_argument(
        "--baseline-audio",
        type=float,
        default=1.0,
        help="its audio guidance; a stage without audio has nothing to guide",
    )
    parser.add_argument("--name", default="a2v", help="of the result: learning_NAME.json")
    parser.add_argument("--persons", type=int, default=64)
    parser.add_argument("--first", type=int, default=0, help="number of the first test person")
    parser.add_argument("--frames", type=int, default=93, help="of video per person, 4k + 1")
    parser.add_argument("--out", default=records.RESULTS_DIR, help="folder of the result")
    add_sampling_options(parser)
    options = parser.parse_args(arguments)
    if options.persons < 4 or options.frames < 9:
        parser.error("needs at least 4 persons and 9 frames")
    return options


if __name__ == "__main__":
    as_command(main)
