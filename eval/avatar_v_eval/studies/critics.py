"""The critics themselves, on TEST persons that no critic saw.

How well the motion meter reads rendered frames, the same frames blurred by the VAE and shifted
pictures, how well the face critic finds a person in another scene, and how well the sync critic
tells speech that fits from speech that is shifted or of another person.
"""

import argparse

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.critics.frozen import as_input
from avatar_v.critics.layers import augment
from avatar_v.critics.motion import MOUTH_OPEN, MotionMeter
from avatar_v.critics.sync import distance_table, embed_clip, shifted_is_farther, sync_score
from avatar_v.faces.face import FaceCritic, identification
from avatar_v.models.vae import VideoVAE
from avatar_v.scoring.sampling import pearson
from avatar_v.types import MOTION_NAMES
from avatar_v.weights.card import ASSETS
from avatar_v_eval.cases import Case, add_case_options, asked_cases, cases_note, rendered_video
from avatar_v_eval.generated import through_vae
from avatar_v_eval.intervals import mean_interval, r_squared, rate
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.study_metrics import StudyMetrics

Videos = UInt8[Tensor, "n f 3 h w"]
Embedded = tuple[Float[Tensor, "n d"], Float[Tensor, "n d"]]

LARGEST_SHIFT = 5  # frames: sound is made early or late by at most this
REFERENCE_FRAMES = 1
OTHER_COMPONENTS = ("mouth_width", "yaw", "pitch", "roll", "eye_open", "gaze_x", "brow")
"""Components of motion statistics besides the mouth's opening."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=64, frames=49)
    add = parser.add_argument
    add("--sync-frames", type=int, default=73, help="per person, 4k + 1; 0 leaves the critic out")
    add("--vae", default=str(ASSETS / "small" / "vae"), help="folder of a VideoVAE")
    add("--held-out", action="store_true", help="the critics that were no loss and no reward")


def measure(options: argparse.Namespace) -> Findings:
    metrics = StudyMetrics.held_out() if options.held_out else StudyMetrics.load()
    vae, kind = VideoVAE.from_pretrained(options.vae), "_held_out" if options.held_out else ""
    sync_frames, frames = options.sync_frames, options.frames
    cases = asked_cases(
        options, num_frames=max(frames, sync_frames), reference_frames=REFERENCE_FRAMES
    )
    decoded = torch.stack([through_vae(vae, case.video) for case in cases])
    short = [case.shortened(frames) for case in cases]
    numbers = motion_numbers(metrics.mouth.critic, short, decoded[:, :frames])
    numbers |= face_numbers(metrics.face.critic, short, decoded[:, :frames])
    if sync_frames:
        cases = [case.shortened(sync_frames) for case in cases]
        embedded = [embed_clip(metrics.sync.critic, case.video, case.audio) for case in cases]
        numbers |= sync_numbers(embedded, "", "")
        through = zip(decoded[:, :sync_frames], cases, strict=True)
        embedded = [embed_clip(metrics.sync.critic, video, case.audio) for video, case in through]
        numbers |= sync_numbers(embedded, "_vae", " through the VAE")
    return Findings(
        f"The {'held-out ' if options.held_out else ''}critics on test persons",
        numbers,
        recipe=", ".join(
            f"recipes/critic_{name}{kind}.yaml" for name in ("motion", "face", "sync")
        ),
        weights={**metrics.hashes(), "vae": vae.hash()},
        notes=[
            cases_note(options, f", {sync_frames} for the sync critic"),
            "R² pools all frames; its interval is the jackknife's over persons",
            f"sync offsets: each sound is made early or late by up to {LARGEST_SHIFT} frames",
        ],
    )


def motion_numbers(meter: MotionMeter, cases: list[Case], decoded: Videos) -> dict[str, Number]:
    truth = np.stack([case.motion.double().numpy() for case in cases])
    pictures = as_input(torch.cat([case.video for case in cases]), meter.input_size)
    degraded = augment(pictures, torch.Generator().manual_seed(0))
    blurred = as_input(decoded.flatten(0, 1), meter.input_size)
    reading, of_degraded, of_blurred = (
        meter.measure(shown).values.double().numpy().reshape(truth.shape)
        for shown in (pictures, degraded, blurred)
    )
    numbers = {
        "mouth_r2": _r2(reading, truth, MOUTH_OPEN).described(
            "motion meter: R² of mouth opening", target="≥ 0.95"
        ),
        "mouth_r": _within(reading, truth).described("motion meter: r within a person, mean"),
        "mouth_r2_degraded": _r2(of_degraded, truth, MOUTH_OPEN).described(
            "motion meter: R² on blurred, shifted, noisy frames"
        ),
        "mouth_r2_vae": _r2(of_blurred, truth, MOUTH_OPEN).described(
            "motion meter: R² through the VAE"
        ),
        "mouth_r_vae": _within(of_blurred, truth).described(
            "motion meter: r within a person through the VAE, mean"
        ),
    }
    for name in OTHER_COMPONENTS:
        column = MOTION_NAMES.index(name)
        numbers[f"r2_{name}"] = _r2(reading, truth, column).described(f"motion meter: R² of {name}")
        numbers[f"r2_vae_{name}"] = _r2(of_blurred, truth, column).described(
            f"motion meter: R² of {name} through the VAE"
        )
    return numbers


def face_numbers(critic: FaceCritic, cases: list[Case], decoded: Videos) -> dict[str, Number]:
    n = len(cases)
    gallery = torch.stack([critic.embed_clip(case.third_video) for case in cases])
    frame = torch.cat([critic.measure(rendered_video(case.reference)).values for case in cases])
    clip = torch.stack([critic.embed_clip(case.video) for case in cases])
    blurred = torch.stack([critic.embed_clip(video) for video in decoded])
    numbers = {}
    for key, label, queries in (
        ("face_frame", "one frame", frame),
        ("face_clip", "a clip", clip),
        ("face_vae", "a clip through the VAE", blurred),
    ):
        nearest, pairwise = identification(queries, gallery)
        numbers[key] = rate(int(nearest.sum()), n).described(
            f"face critic: {label} finds its person in another scene, of {n}"
        )
        numbers[f"{key}_pairs"] = mean_interval(pairwise.double().numpy()).described(
            f"face critic: {label}, against one other person"
        )
    return numbers


def sync_numbers(embedded: list[Embedded], suffix: str, words: str) -> dict[str, Number]:
    """Of embedded clips of several persons (sync.embed_clip), all in sync as they are."""
    n, edge = len(embedded), LARGEST_SHIFT
    early = np.random.default_rng(0).integers(-edge, edge + 1, n).tolist()
    num_right, pairs, own, other = 0, [], [], []
    for i, (video, audio) in enumerate(embedded):
        num = len(video) - 2 * edge
        shifted = audio[edge + early[i] : edge + early[i] + num]
        offset = sync_score(distance_table(video[edge : edge + num], shifted)).offset
        num_right += abs(offset - early[i]) <= 1
        pairs.append(shifted_is_farther(video, audio))
        own.append(sync_score(distance_table(video, audio)).confidence)
        speech_of_next = embedded[(i + 1) % n][1]
        other.append(sync_score(distance_table(video, speech_of_next)).confidence)
    num_own = sum(a > b for a, b in zip(own, other, strict=True))
    name = f"sync critic{words}"
    numbers = {
        "sync_offset": rate(num_right, n).described(f"{name}: offset found within a frame"),
        "sync_pairs": mean_interval(np.array(pairs)).described(
            f"{name}: 5 frames are nearer to their sound than to one shifted ≥ 5 frames"
        ),
        "sync_own_speech": rate(num_own, n).described(
            f"{name}: own speech has more confidence than another's"
        ),
        "sync_confidence": mean_interval(np.array(own)).described(f"{name}: confidence, mean"),
        "sync_confidence_other": mean_interval(np.array(other)).described(
            f"{name}: confidence with another's speech, mean"
        ),
    }
    return {f"{key}{suffix}": number for key, number in numbers.items()}


def _r2(
    reading: Float[np.ndarray, "n f m"], truth: Float[np.ndarray, "n f m"], column: int
) -> Number:
    return r_squared(reading[..., column], truth[..., column])


def _within(reading: Float[np.ndarray, "n f m"], truth: Float[np.ndarray, "n f m"]) -> Number:
    """Mean over persons of the correlation of mouth opening."""
    pairs = zip(reading[..., MOUTH_OPEN], truth[..., MOUTH_OPEN], strict=True)
    return mean_interval(np.array([pearson(x, y) for x, y in pairs]))
