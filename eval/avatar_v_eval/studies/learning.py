"""Lip-sync and identity of generated video on held-out persons of the world.

64 TEST persons speak; the mouth is read from the decoded pixels. With ``--baseline DIR`` the same
cases go through other weights (of an earlier stage), and the difference is paired over persons.
Weights that read a reference get ``--reference-frames`` of another scene; all others get the first
frame alone. No measure reads that frame.
"""

import argparse
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.motion import MOUTH_OPEN
from avatar_v.faces.face import identification
from avatar_v_eval.cases import (
    Case,
    add_case_options,
    asked_cases,
    cases_note,
    check_persons,
    loudness,
    rotated,
    video_of,
)
from avatar_v_eval.generated import GeneratedClip, generate, truth_through_vae
from avatar_v_eval.intervals import jackknife, mean_of, pearson, rate
from avatar_v_eval.protocol import Condition, Findings, Reading, Readings, read_cases, resumable
from avatar_v_eval.readers import Readers
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout, add_sampling_options

MAX_LAG = 5
SWAPPED_FRAMES = 33
"""Identity under another reference needs no more."""

Tracks = Float[np.ndarray, "n f"]
Faces = Float[Tensor, "n d"]


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=64, frames=93)
    add_sampling_options(parser)
    add = parser.add_argument
    add("--reference-frames", type=int, default=101, help="of the reference clip, 4k + 1")
    add("--baseline", metavar="DIR", help="other weights for the same cases (stage 1)")
    add("--baseline-audio", type=float, default=1.0, help="audio guidance of the baseline")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 4)
    rollout, readers = Rollout.load(options.weights, options), Readers.load()
    weights = {**rollout.hashes(), **readers.hashes()}
    frames = options.reference_frames
    cases = asked_cases(options, reference_frames=frames, size=rollout.size)
    person_of = {case.person_id: other for case, other in zip(cases, rotated(cases), strict=True)}
    conditions: dict[str, Condition] = {
        "generated": partial(generate, rollout, num_frames=frames),
        "ceiling": partial(truth_through_vae, rollout.vae),
        "swapped": partial(generate_swapped, rollout, person_of, frames),
    }
    if options.baseline is not None:
        options.audio = options.baseline_audio
        baseline = Rollout.load(options.baseline, options)
        conditions["baseline"] = partial(generate, baseline, num_frames=frames)
        weights["baseline dit"] = baseline.hashes()["dit"]
    reader = partial(read, readers)
    kept = resumable(options, weights)
    readings = read_cases(cases, conditions, reader, num_workers=options.workers, kept=kept)
    true = np.stack([case.mouth_open[1:] for case in cases])
    numbers = sync_numbers(readings.values("generated", "mouth_open"), true)
    numbers |= control_numbers(cases, readings, true)
    numbers |= identity_numbers(
        torch.from_numpy(readings.values("generated", "face")),
        torch.from_numpy(readings.values("swapped", "face")),
        torch.stack([readers.face.embed_clip(video_of(case.reference)) for case in cases]).double(),
        torch.stack([readers.face.embed_clip(case.third_video) for case in cases]).double(),
    )
    if options.baseline is not None:
        numbers |= comparison_numbers(readings, true)
    return Findings(
        f"Held-out persons of the world, {options.name}",
        numbers,
        recipe=rollout.recipe,
        weights=weights,
        notes=[
            cases_note(options, f" at {rollout.size} px"),
            rollout.described(),
            "mouth opening read from decoded pixels, first (given) frame left out; intervals "
            "over persons",
        ],
    )


def read(readers: Readers, case: Case, clip: GeneratedClip) -> Reading:
    """The mouth opening of every frame but the first, and the face."""
    return {
        "mouth_open": readers.motion(clip.video)[:, MOUTH_OPEN],
        "face": readers.face_of(clip.video).double().numpy(),
    }


def generate_swapped(
    rollout: Rollout, person_of: dict[int, Case], num_frames: int, case: Case
) -> GeneratedClip:
    """The beginning of the speech, by another person."""
    person = person_of[case.person_id]
    return generate(rollout, case.shortened(SWAPPED_FRAMES), num_frames, person=person)


def sync_numbers(reading: Tracks, truth: Tracks) -> dict[str, Number]:
    """Correlation with the driving speech's true opening, and with the next person's."""
    n = len(truth)
    own = rowwise(reading, truth)
    unrelated = rowwise(reading, np.roll(truth, 1, axis=0))
    pooled = jackknife(lambda i: pearson(reading[i].ravel(), truth[i].ravel()), n)
    lags = np.array([best_lag(r, t) for r, t in zip(reading, truth, strict=True)])
    amplitude = reading.std(1) / np.maximum(truth.std(1), 1e-6)
    return {
        "sync": mean_of(own).described(
            "mouth opening against the driving speech, mean r", target="≥ 0.6"
        ),
        "sync_unrelated": mean_of(unrelated).described(
            "mouth opening against an unrelated speech, mean r", target="|r| < 0.15"
        ),
        "sync_pooled": pooled.described("the same against the driving speech, all frames pooled"),
        "sync_worst_tenth": Number(float(np.quantile(own, 0.1)), n).described(
            "r of the tenth of persons that is worst"
        ),
        "lag": mean_of(lags).described("lag of the best correlation", unit="frames"),
        "amplitude": mean_of(amplitude).described("mouth movement, share of the true one"),
    }


def control_numbers(cases: list[Case], readings: Readings, truth: Tracks) -> dict[str, Number]:
    """The correlation of a perfect generator, and that of loudness alone."""
    ceiling = rowwise(readings.values("ceiling", "mouth_open"), truth)
    loud = np.stack([loudness(c.audio, c.num_frames)[1:].double().numpy() for c in cases])
    return {
        "ceiling": mean_of(ceiling).described("ceiling: the true video through the VAE, mean r"),
        "loudness": mean_of(rowwise(loud, truth)).described(
            "shortcut: loudness alone against the truth, mean r"
        ),
    }


def identity_numbers(
    generated: Faces, swapped: Faces, reference: Faces, elsewhere: Faces
) -> dict[str, Number]:
    """Nearest reference among all persons, for own and for the next person's reference.

    Chance is 1 in n for the nearest of all and 1 in 2 for the nearer of two.
    """
    n, given = len(generated), reference.roll(-1, 0)  # as `rotated` gives them
    numbers = {}
    for key, label, faces, gallery, target in (
        ("identity", "own reference is the nearest", generated, reference, "≥ 0.9"),
        (
            "identity_elsewhere",
            "own clip elsewhere is the nearest",
            generated,
            elsewhere,
            "",
        ),
        (
            "identity_swapped",
            "another reference: own is nearest",
            swapped,
            reference,
            "≤ 0.1",
        ),
        ("identity_follows", "another reference: that is nearest", swapped, given, "≥ 0.9"),
    ):
        nearest, pairwise = identification(faces, gallery)
        words = f"{label}, of {n}"
        numbers[key] = rate(int(nearest.sum()), n).described(words, target=target)
        pairs = mean_of(pairwise.double().numpy())
        numbers[f"{key}_pairs"] = pairs.described(f"{label}, of two")
    return numbers


def comparison_numbers(readings: Readings, truth: Tracks) -> dict[str, Number]:
    """The same cases through other weights; the gain is paired over persons."""
    own, other = (
        rowwise(readings.values(key, "mouth_open"), truth) for key in ("generated", "baseline")
    )
    return {
        "baseline_sync": mean_of(other).described("the baseline on the same cases, mean r"),
        "gain": mean_of(own - other).described("gain over the baseline", target="> 0"),
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
