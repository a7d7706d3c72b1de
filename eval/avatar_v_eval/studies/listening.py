"""Somebody who listens: are nods seen in the pictures, and does anything else change?

TEST persons are silent while another one speaks in phrases. Each video is made twice with the same
noise, with the other's voice (``generate --listen``) and without. A held-out critic reads the head
from the pixels.
"""

import argparse
import dataclasses
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.motion.listening import NOD_S, Listener, listening
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES, SAMPLES_PER_FRAME
from avatar_v_eval.cases import (
    Case,
    Video,
    add_case_options,
    asked_cases,
    cases_note,
    check_persons,
    rendered_video,
)
from avatar_v_eval.generated import build_inputs
from avatar_v_eval.intervals import mean_interval
from avatar_v_eval.protocol import Findings, Reading, Readings, gains, means, read_cases, resumable
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout, add_sampling_options
from avatar_v_eval.study_metrics import StudyMetrics

REFERENCE_FRAMES = 401
PHRASE_S, PAUSE_S = 3.0, 1.5
CONDITIONS = {"listens": "who listens", "alone": "who hears nothing"}
MEASURES = {
    "dip": "how far the head goes down behind a phrase, from just before",
    "identity": "face similarity with the reference",
    "mouth": "movement of the mouth",
    "energy": "change of the motion from frame to frame",
}
UNITS = {"dip": "rad"}
_PITCH, _MOUTH = MOTION_NAMES.index("pitch"), MOTION_NAMES.index("mouth_open")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_sampling_options(parser)
    add_case_options(parser, persons=16, frames=401, first=10400)
    parser.set_defaults(weights="small_causal")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 2)
    rollout, metrics = Rollout.load(options.weights, options), StudyMetrics.held_out()
    cases = asked_cases(options, reference_frames=REFERENCE_FRAMES, target_video=False)
    others = {case.person_id: cases[i - 1] for i, case in enumerate(cases)}

    def listener_of(case: Case) -> Listener:
        return listening([in_phrases(others[case.person_id].audio)], seed=case.person_id)

    check_nods(options.frames, {case.person_id: listener_of(case) for case in cases})

    def video(case: Case, listener: Listener | None) -> Video:
        inputs = build_inputs(rollout, case, REFERENCE_FRAMES)
        inputs = dataclasses.replace(inputs, audio=torch.zeros_like(case.audio), listener=listener)
        request = rollout.request_for(case.person_id, case.prompt)
        return torch.cat(list(rollout.pipeline.stream(inputs, request)))

    def read(case: Case, frames: Video) -> Reading:
        motion = metrics.mouth.critic.measure(frames).values
        own = metrics.face.critic.embed_clip(rendered_video(case.reference)[::25])
        near = metrics.face.critic.measure(frames).values @ own
        return {
            **seen(motion, listener_of(case)),
            "identity": float(near.mean()),
            "mouth": float(motion[:, _MOUTH].std()),
            "energy": float((motion[1:] - motion[:-1]).abs().mean()),
            "pitch": motion[:, _PITCH].numpy(),
        }

    weights = {**rollout.hashes(), **metrics.hashes()}
    readings = read_cases(
        cases,
        {
            "listens": lambda case: video(case, listener_of(case)),
            "alone": lambda case: video(case, None),
        },
        read,
        num_workers=options.workers,
        kept=resumable(options, weights, rollout.sampling()),
    )
    return Findings(
        "Somebody who listens, in the pictures",
        {
            **means(readings, MEASURES, CONDITIONS, UNITS),
            **gains(readings, MEASURES, CONDITIONS, [("listens", "alone")], UNITS),
            **followed(readings, [listener_of(case) for case in cases]),
        },
        recipe=rollout.recipe,
        weights=weights,
        notes=[
            cases_note(
                options, f", silent; the other speaks {PHRASE_S:g} s and pauses {PAUSE_S:g}"
            ),
            rollout.described(),
        ],
    )


def in_phrases(sound: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """A speech with pauses between its phrases."""
    frames = torch.arange(len(sound)) / (SAMPLES_PER_FRAME * FRAME_RATE_HZ)
    return sound * (frames % (PHRASE_S + PAUSE_S) < PHRASE_S)


def check_nods(num_frames: int, listeners: Mapping[int, Listener]) -> None:
    """ValueError for a person who would not nod in so many frames."""
    still = [person for person, one in listeners.items() if not nods_within(one, num_frames)]
    if still:
        raise ValueError(
            f"--frames {num_frames}: no nod of {len(still)} of {len(listeners)} persons lies in "
            f"them, such as of {still[0]}; ask for more"
        )


def nods_within(listener: Listener, num_frames: int) -> list[int]:
    """The first frames of the nods that are whole in a video."""
    length = round(NOD_S * FRAME_RATE_HZ)
    return [nod.start for nod in listener.nods if nod.start + length <= num_frames]


def seen(motion: Float[Tensor, "f m"], listener: Listener) -> Reading:
    """Of a video: what its head does where this listener nods."""
    pitch, length = motion[:, _PITCH], round(NOD_S * FRAME_RATE_HZ)
    starts = nods_within(listener, len(pitch))
    dips = [float(pitch[s - 5 : s + 1].mean() - pitch[s : s + length].min()) for s in starts]
    return {"dip": float(np.mean(dips))}


def followed(readings: Readings, listeners: list[Listener]) -> dict[str, Number]:
    """Correlation and slope of the change of the pitch that is seen on that which is asked for,
    the two videos of a person against each other."""
    change = readings.values("listens", "pitch") - readings.values("alone", "pitch")
    asked = np.stack([listener.pitch(change.shape[1]).numpy() for listener in listeners])
    pairs = list(zip(asked, change, strict=True))
    slopes = np.array([float(a @ (c - c.mean())) / float(a @ (a - a.mean())) for a, c in pairs])
    r = np.array([float(np.corrcoef(a, c)[0, 1]) for a, c in pairs])
    return {
        "pitch_r": mean_interval(r).described("change of the pitch, seen against asked: r"),
        "pitch_slope": mean_interval(slopes).described("… share of what is asked that is seen"),
    }
