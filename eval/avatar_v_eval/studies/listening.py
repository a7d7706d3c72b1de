"""Somebody who listens in a dialogue: what is seen of it in the pictures?

TEST persons talk in turns with somebody else (the study `dialogues` reads the motion alone). Each
video is made twice with the same noise, with the other's voice (``generate --listen``) and without.
A held-out critic reads the head from the pixels.
"""

import argparse
import dataclasses
from functools import partial

import numpy as np
import torch

from avatar_v.motion.listening import Listener, listening
from avatar_v.types import MOTION_NAMES
from avatar_v_eval.cases import (
    Case,
    add_case_options,
    asked_cases,
    cases_note,
    check_persons,
    rendered_video,
)
from avatar_v_eval.generated import GeneratedClip, build_inputs
from avatar_v_eval.intervals import mean_interval
from avatar_v_eval.protocol import Findings, Reading, Readings, read_cases, resumable
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout, add_sampling_options
from avatar_v_eval.studies.dialogues import (
    PITCH,
    answers,
    heard_of,
    in_dialogues,
    summarised,
    turns,
)
from avatar_v_eval.study_metrics import StudyMetrics

REFERENCE_FRAMES = 401
CONDITIONS = {"listens": "who listens", "alone": "who hears nothing"}
MEASURES = {
    "statement": "how far the head goes down behind a statement, from just before",
    "break": "how far the head goes down at a pause inside a sentence",
    "identity": "face similarity with the reference",
    "mouth": "movement of the mouth while the other speaks",
    "energy": "change of the motion from frame to frame",
}
UNITS = {"statement": "rad", "break": "rad"}
_MOUTH = MOTION_NAMES.index("mouth_open")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_sampling_options(parser)
    add_case_options(parser, persons=16, frames=801, first=10900)
    parser.set_defaults(weights="small_causal")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 4)
    rollout, metrics = Rollout.load(options.weights, options), StudyMetrics.held_out()
    cases = asked_cases(options, reference_frames=REFERENCE_FRAMES, target_video=False)
    cases = in_dialogues(cases)

    def video(case: Case, *, listens: bool) -> GeneratedClip:
        inputs = build_inputs(rollout, case, REFERENCE_FRAMES)
        heard = listener_of(case) if listens else None
        inputs = dataclasses.replace(inputs, listener=heard)
        request = rollout.request_for(case.person_id, case.prompt)
        made = list(rollout.pipeline.clips(inputs, request))
        motions = [clip.motion for clip in made if clip.motion is not None]
        return GeneratedClip(torch.cat([clip.frames for clip in made]), torch.cat(motions))

    def read(case: Case, clip: GeneratedClip) -> Reading:
        assert clip.motion is not None, "weights that listen make motion"
        motion = metrics.mouth.critic.measure(clip.video).values
        own = metrics.face.critic.embed_clip(rendered_video(case.reference)[::25])
        near = metrics.face.critic.measure(clip.video).values @ own
        seen = answers(case, motion.double().numpy())
        listens, _ = turns(case)
        return {
            "statement": seen["statement"],
            "break": seen["break"],
            "identity": float(near.mean()),
            "mouth": float(motion[listens][:, _MOUTH].std()),
            "energy": float((motion[1:] - motion[:-1]).abs().mean()),
            "pitch": motion[:, PITCH].numpy(),
            "made": clip.motion[:, PITCH].numpy(),
        }

    weights = {**rollout.hashes(), **metrics.hashes()}
    readings = read_cases(
        cases,
        {name: partial(video, listens=name == "listens") for name in CONDITIONS},
        read,
        num_workers=options.workers,
        kept=resumable(options, weights, rollout.sampling()),
    )
    return Findings(
        "Somebody who listens, in the pictures",
        {
            **summarised(readings, MEASURES, UNITS, CONDITIONS, [("listens", "alone")]),
            **followed(readings),
        },
        recipe=rollout.recipe,
        weights=weights,
        notes=[cases_note(options, " in dialogues"), rollout.described()],
    )


def listener_of(case: Case) -> Listener:
    """Who hears the other side from the beginning of the video."""
    return listening([heard_of(case)], seed=case.person_id)


def followed(readings: Readings) -> dict[str, Number]:
    """Correlation and slope of the change of the pitch that is seen on that which is made, the two
    videos of a person against each other."""
    made, seen = (
        readings.values("listens", name) - readings.values("alone", name)
        for name in ("made", "pitch")
    )
    pairs = [(a - a.mean(), c - c.mean()) for a, c in zip(made, seen, strict=True)]
    r = np.array([float(a @ c / np.sqrt((a @ a) * (c @ c))) for a, c in pairs])
    slopes = np.array([float(a @ c / (a @ a)) for a, c in pairs])
    return {
        "pitch_r": mean_interval(r).described("change of the pitch, seen against made: r"),
        "pitch_slope": mean_interval(slopes).described("… share of what is made that is seen"),
    }
