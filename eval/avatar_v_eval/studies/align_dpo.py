"""Preferences of simulated raters before and after alignment by DPO, and the habits of the motion.

TEST persons move to a sentence after a clip of theirs, with the weights before, the aligned ones,
and a control whose pairs had winners dealt out at random (``--control``). Raters whose values are
known (critics/raters.py) compare every sample of one with every sample of the other, in both
orders. Levels of blinks, sway and amplitude stand beside those that the persons were drawn with.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.raters import FIRST, SECOND, Panel, SimulatedRater, read_panel
from avatar_v.shards.pairs import reference_batch
from avatar_v.stages.pair_making import samples_of
from avatar_v.types import SAMPLES_PER_FRAME, Batch, num_latents
from avatar_v_eval.cases import (
    Case,
    add_case_options,
    cases_note,
    check_persons,
    heard,
)
from avatar_v_eval.intervals import bootstrap_mean
from avatar_v_eval.motion_levels import Tracks, levels, motion_cases, sampled
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout, add_sampling_options
from avatar_v_eval.video_judges import VideoJudges, judged

WORDS = {
    "before": "before alignment",
    "aligned": "aligned",
    "control": "control, winners dealt at random",
}


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=64, frames=401)
    add_sampling_options(parser)
    add = parser.add_argument
    add("--before", default="small", help="the weights that the alignment began with")
    add("--control", help="weights aligned to shuffled winners")
    add("--raters", metavar="FILE", help="JSON of who judges (default: as of the pairs)")
    add("--samples", type=int, default=2, help="of each person and system")
    add("--judged-frames", type=int, default=137, help="that raters see, 4k + 1")
    add("--batch", type=int, default=64, help="persons at once")
    add("--video-frames", type=int, default=93, help="of the videos, 4k + 1; 0: judge motion alone")
    add("--preference", type=Path, metavar="FOLDER", help="of a preference model that judges, too")


def measure(options: argparse.Namespace) -> Findings:
    """ValueError for raters who are to see more than there is."""
    check_persons(options, 4)
    for frames in (options.judged_frames, options.video_frames or 1):
        num_latents(frames)
    if options.judged_frames > options.frames:
        raise ValueError(
            f"--judged-frames is at most --frames, {options.frames}, got {options.judged_frames}"
        )
    judges = VideoJudges.load(options.preference) if options.video_frames else None
    panel = Panel() if options.raters is None else read_panel(options.raters)
    chosen = {"before": options.before, "aligned": options.weights, "control": options.control}
    rollouts = {
        name: Rollout.load(folder, options) for name, folder in chosen.items() if folder is not None
    }
    cases = motion_cases(options)
    tracks = {name: sampled(rollout, cases, options) for name, rollout in rollouts.items()}
    aligned = rollouts["aligned"]
    seen = {name: track[:, :, : options.judged_frames] for name, track in tracks.items()}
    weights = {name: rollout.hashes()["motion"] for name, rollout in rollouts.items()}
    numbers = win_rates(panel, cases, seen) | levels(cases, tracks, WORDS)
    if judges is not None:
        weights |= judges.hashes()
        numbers |= judged(judges, rollouts, WORDS, options)
    return Findings(
        "Preferences of simulated raters, and habits, before and after DPO",
        numbers,
        recipe=aligned.recipe,
        weights=weights,
        notes=[
            cases_note(options, "; the first frame's motion is given"),
            f"{options.samples} samples of each person and system; {len(panel.raters)} raters see "
            f"{options.judged_frames} frames of every pair in both orders; a tie is half a win",
            *([f"videos of {options.video_frames} frames"] if judges is not None else []),
            aligned.described(),
        ],
    )


def win_rates(
    panel: Panel, cases: list[Case], tracks: Mapping[str, Tracks], *, seed: int = 0
) -> dict[str, Number]:
    """How often raters prefer each system to the weights before, over persons; and by how much each
    term of theirs is better, without noise."""
    batch = _batch(cases, tracks["before"].shape[2])
    values = {
        name: [
            {
                rater.name: rater.values(samples_of(batch, torch.tensor(one).float()))
                for rater in panel.raters
            }
            for one in track
        ]
        for name, track in tracks.items()
    }
    generator = torch.Generator().manual_seed(seed)
    numbers = {}
    for name in tracks:
        if name == "before":
            continue
        by_rater = {
            rater.name: torch.stack(
                [
                    _won(rater, ours[rater.name], theirs[rater.name], generator)
                    for ours, theirs in itertools.product(values[name], values["before"])
                ]
            ).nanmean(0)
            for rater in panel.raters
        }
        target = {"target": "> 0.6"} if name == "aligned" else {}
        overall = torch.stack([*by_rater.values()]).nanmean(0)
        numbers[f"preferred_{name}"] = _mean(overall).described(
            f"preferred to the weights before: {WORDS[name]}", **target
        )
        for rater, won in by_rater.items():
            numbers[f"preferred_{name}_by_{rater}"] = _mean(won).described(
                f"preferred to the weights before by rater {rater}: {WORDS[name]}"
            )
        for term in panel.raters[0].terms:
            ours, theirs = (
                torch.stack([one[panel.raters[0].name][term.path] for one in values[of]]).mean(0)
                for of in (name, "before")
            )
            short = term.path.rpartition(".")[2]
            numbers[f"{short}_{name}_over_before"] = _mean(ours - theirs).described(
                f"what raters see of {short.replace('_', ' ')}, over the weights before: "
                f"{WORDS[name]}"
            )
    return numbers


def _won(
    rater: SimulatedRater,
    ours: Mapping[str, Tensor],
    theirs: Mapping[str, Tensor],
    generator: torch.Generator,
) -> Float[Tensor, " n"]:
    """The share of two judgments, one in each order, that ours wins; NaN where there is none."""
    margin = rater.margin(ours, theirs)
    known = margin.isfinite()
    safe = torch.where(known, margin, 0.0)
    won = torch.zeros_like(safe)
    for sign, side in ((1, FIRST), (-1, SECOND)):
        said = rater.judge(sign * safe, generator)
        tied = (said != FIRST) & (said != SECOND)
        won += 0.5 * (said == side) + 0.25 * tied
    return torch.where(known, won, torch.nan)


def _mean(values: Float[Tensor, " n"]) -> Number:
    """Over the persons that have a value."""
    return bootstrap_mean(values[values.isfinite()].double().numpy())


def _batch(cases: list[Case], num_frames: int) -> Batch:
    """The beginnings of the cases, with the motion of their references."""
    motion, valid = (
        torch.stack([getattr(case.target, name)[:num_frames] for case in cases])
        for name in ("motion", "valid")
    )
    nothing = motion.new_zeros(len(cases), num_frames, 4)
    persons = tuple(str(case.person_id) for case in cases)
    batch = Batch(
        video=None,
        audio=torch.stack([heard(case.target)[: SAMPLES_PER_FRAME * num_frames] for case in cases]),
        text=tuple(case.prompt for case in cases),
        motion=motion,
        face_box=nothing,
        mouth_box=nothing,
        valid=valid,
        key=persons,
        person=persons,
        scene=persons,
    )
    rows = [(case.reference.motion, case.reference.valid) for case in cases]
    return dataclasses.replace(batch, reference=reference_batch(batch, rows))
