"""Who listens in a dialogue: where heads nod and brows rise, in motion without a pixel.

TEST persons of the drawn world talk in turns with somebody else, and the world says how its
listeners answer: nods behind statements, brows behind questions, hardly anything at a pause inside
a sentence. Networks that hear both voices move to them. Beside them the same networks with nobody
else, with the nods of the rule that others get (`generate --listen`), and with the voice of another
dialogue.
"""

import argparse
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.motion import MOUTH_OPEN
from avatar_v.media.sound import prepared
from avatar_v.motion.listening import listening
from avatar_v.scoring.sampling import pearson
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES
from avatar_v.world.clip import WorldClip, make_clip
from avatar_v_eval.cases import (
    Case,
    add_case_options,
    asked_cases,
    cases_note,
    check_persons,
    rotated,
)
from avatar_v_eval.generated_motion import moved
from avatar_v_eval.intervals import mean_interval
from avatar_v_eval.protocol import Findings, Readings
from avatar_v_eval.records import Number
from avatar_v_eval.systems import (
    Way,
    add_system_options,
    check_motion_nets,
    join_recipes,
    longest_reference,
    parse_ways,
    weights_hashes,
)

PITCH, BROW, GAZE = (MOTION_NAMES.index(name) for name in ("pitch", "brow", "gaze_x"))
BEFORE, BEHIND = 4, 28
"""Frames around the end of what was said, in which an answer is looked for."""
MEASURES = {
    "nod": "the head goes down, behind statements over pauses inside sentences",
    "statement": "the head goes down behind statements",
    "break": "the head goes down at pauses inside sentences",
    "brow": "the brows rise, behind questions over statements",
    "gaze": "gaze off the centre while the other speaks, over while the person speaks",
    "mouth": "movement of the mouth while the other speaks",
    "lips": "lips r while the person speaks",
}
UNITS = {"nod": "rad", "statement": "rad", "break": "rad"}
TRUTH = "truth"


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=64, frames=1601, first=10700)
    add_system_options(parser)
    parser.set_defaults(references=["video"])
    parser.add_argument("--batch", type=int, default=64, help="persons at once")


def measure(options: argparse.Namespace) -> Findings:
    check_persons(options, 4)
    ways = parse_ways(options)
    check_motion_nets(ways)
    cases = in_dialogues(
        asked_cases(
            options,
            reference_frames=longest_reference(options),
            target_video=False,
            reference_video=False,
        )
    )
    tracks, words = (
        {TRUTH: np.stack([case.motion.double().numpy() for case in cases])},
        {TRUTH: "the true motion"},
    )
    pairs = []
    for key, way in ways.items():
        for name, label, track in conditions(key, way, cases, options):
            tracks[name], words[name] = track, label
            pairs += [(key, name)] if name != key and key in tracks else []
    readings = Readings(
        {name: [answers(case, m) for case, m in zip(cases, of, strict=True)]
         for name, of in tracks.items()}
    )  # fmt: skip
    return Findings(
        "Who listens in a dialogue",
        summarised(readings, MEASURES, UNITS, words, pairs),
        recipe=join_recipes(ways),
        weights=weights_hashes(ways, "motion", "audio"),
        notes=[
            cases_note(options, "; the first frame's motion is given"),
            *(f"{key}: {way.rollout.described()}" for key, way in ways.items()),
            f"answers are looked for from {BEFORE} frames before the end of a sentence to {BEHIND} "
            "behind it; intervals over persons",
        ],
    )


def summarised(
    readings: Readings,
    measures: Mapping[str, str],
    units: Mapping[str, str],
    words: Mapping[str, str],
    pairs: Sequence[tuple[str, str]],
) -> dict[str, Number]:
    """Means and paired differences, each over the persons to whom all of it happened."""
    found = {}
    for measure, label in measures.items():
        values = {name: readings.values(name, measure) for name in words}
        rows = [(name, words[name], values[name]) for name in words]
        rows += [
            (f"{a}_over_{b}", f"{words[a]} over {words[b]}", values[a] - values[b])
            for a, b in pairs
        ]
        for name, word, of in rows:
            number = mean_interval(of[np.isfinite(of)])
            found[f"{measure}_{name}"] = number.described(
                f"{label}: {word}", unit=units.get(measure, "")
            )
    return found


def in_dialogues(cases: Sequence[Case]) -> list[Case]:
    """The cases, in which each person talks with the next one."""
    return [
        dataclasses.replace(case, target=dialogue(case, other))
        for case, other in zip(cases, rotated(cases), strict=True)
    ]


def dialogue(case: Case, other: Case) -> WorldClip:
    ids = case.ids
    return make_clip(
        ids.person,
        ids.scene,
        ids.sentence,
        num_frames=case.num_frames,
        size=64,
        render_video=False,
        listens_to=other.person_id,
    )


def conditions(
    key: str, way: Way, cases: Sequence[Case], options: argparse.Namespace
) -> list[tuple[str, str, Float[np.ndarray, "n f m"]]]:
    """Names, words and motion: with the other's voice and with another dialogue's, where the
    network hears it; with nods by the rule; with nobody else."""
    net = way.rollout.pipeline.conditioner.motion_net
    assert net is not None

    def motion(heard: Sequence[Tensor] | None, label: str) -> Float[np.ndarray, "n f m"]:
        return np.stack(
            moved(way.rollout, list(cases), way.num_frames, label, options.batch, heard)
        )

    alone = motion(None, f"{way.words}, nobody else")
    voices = [heard_of(case) for case in cases]
    ruled = alone.copy()
    ruled[..., PITCH] += np.stack(
        [
            listening([voice], seed=case.person_id).pitch(alone.shape[1]).numpy()
            for case, voice in zip(cases, voices, strict=True)
        ]
    )
    others = [
        (f"{key}_rule", f"{way.words}, nods by the rule", ruled),
        (f"{key}_alone", f"{way.words}, nobody else", alone),
    ]
    if not net.config.hears:
        return others
    swapped = [*voices[1:], voices[0]]
    own, another = (
        motion([prepared(voice) for voice in of], way.words) for of in (voices, swapped)
    )
    return [
        (key, way.words, own),
        *others,
        (f"{key}_other", f"{way.words}, another dialogue's voice", another),
    ]


def heard_of(case: Case) -> Float[Tensor, " s"]:
    assert case.target.heard is not None, "the clip is one of a dialogue"
    return case.target.heard


def answers(case: Case, motion: Float[np.ndarray, "f m"]) -> dict[str, float]:
    """The answers of a person's motion."""
    ends: dict[str, list[int]] = {"statement": [], "break": [], "question": []}
    for event in case.target.listening:
        frame = round(event.end_s * FRAME_RATE_HZ)
        if BEFORE <= frame < len(motion) - BEHIND:
            ends[event.kind].append(frame)

    def mean(kind: str, of) -> float:
        return float(np.mean([of(frame) for frame in ends[kind]] or [np.nan]))

    def dip(frame: int) -> float:
        return (
            motion[frame - BEFORE : frame + 1, PITCH].mean()
            - motion[frame : frame + BEHIND, PITCH].min()
        )

    def rise(frame: int) -> float:
        return (
            motion[frame : frame + BEHIND, BROW].max()
            - motion[frame - BEFORE : frame + 1, BROW].mean()
        )

    listens, speaks = turns(case)
    gaze = np.abs(motion[:, GAZE])
    return {
        "nod": mean("statement", dip) - mean("break", dip),
        "statement": mean("statement", dip),
        "break": mean("break", dip),
        "brow": mean("question", rise) - mean("statement", rise),
        "gaze": float(gaze[listens].mean() - gaze[speaks].mean()),
        "mouth": float(motion[listens, MOUTH_OPEN].std()),
        "lips": pearson(motion[speaks, MOUTH_OPEN], case.mouth_open[speaks]),
    }


def turns(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Which frames the other speaks in, and which the person: those that are loud."""
    loud = []
    for sound in (heard_of(case), case.audio):
        power = torch.nn.functional.avg_pool1d(
            sound.reshape(case.num_frames, -1).square().mean(1)[None], 9, 1, 4
        )[0]
        loud.append((power > 0.02 * power.max()).numpy())
    return loud[0] & ~loud[1], loud[1] & ~loud[0]
