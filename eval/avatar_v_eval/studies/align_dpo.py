"""Preferences of simulated raters before and after alignment by DPO, and the habits of the motion.

TEST persons move to a sentence after a clip of theirs, with the weights before, the aligned ones,
and a control whose pairs had winners dealt out at random (``--control``). Raters whose values are
known (rewards/raters.py) compare every sample of one with every sample of the other, in both
orders. Levels of blinks, sway and amplitude stand beside those that the persons were drawn with.
"""

import argparse
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.pairs.making import Made, samples_of
from avatar_v.rewards.raters import (
    FIRST,
    OWN_HABITS,
    OWN_LOOKS,
    SECOND,
    Panel,
    SimulatedRater,
    read_panel,
)
from avatar_v.types import num_latents
from avatar_v_eval.cases import (
    Case,
    add_case_options,
    cases_note,
    check_persons,
)
from avatar_v_eval.intervals import mean_of
from avatar_v_eval.motion_levels import BEFORE, Tracks, levels, motion_cases, sampled
from avatar_v_eval.protocol import Findings, Readings
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout, add_sampling_options
from avatar_v_eval.video_judges import VideoJudges, batch_of, read_videos, video_wins

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
    add("--of-video", action="store_true", help="raters judge videos, not motion")
    add("--video-frames", type=int, default=93, help="of videos, 4k + 1; 0: none")
    add("--preference", type=Path, metavar="FOLDER", help="of a preference model that judges, too")


def measure(options: argparse.Namespace) -> Findings:
    """ValueError for raters who are to see more than there is, and for videos without frames."""
    check_persons(options, 4)
    for frames in (options.judged_frames, options.video_frames or 1):
        num_latents(frames)
    if options.judged_frames > options.frames:
        raise ValueError(
            f"--judged-frames is at most --frames, {options.frames}, got {options.judged_frames}"
        )
    if options.of_video and not options.video_frames:
        raise ValueError("--of-video judges videos: --video-frames is 5 or more, got 0")
    panel = Panel(OWN_LOOKS if options.of_video else OWN_HABITS)
    if options.raters is not None:
        panel = read_panel(options.raters)
    judges = None
    if options.video_frames:
        judges = VideoJudges.load(options.preference, panel if options.of_video else None)
    chosen = {"before": options.before, "aligned": options.weights, "control": options.control}
    rollouts = {
        name: Rollout.load(folder, options) for name, folder in chosen.items() if folder is not None
    }
    seen, shown = f"{options.judged_frames} frames of motion", f"videos of {options.video_frames}"
    numbers, videos = {}, {}
    if judges is not None:
        readings = read_videos(judges, rollouts, options)
        videos = video_wins(readings, judges.words, WORDS, list(rollouts), options.samples)
        if options.of_video:
            seen = shown
            numbers = win_rates(panel, values_of_videos(panel, readings, options.samples, rollouts))
    if not options.of_video:
        cases = motion_cases(options)
        tracks = {name: sampled(rollout, cases, options) for name, rollout in rollouts.items()}
        early = {name: track[:, :, : options.judged_frames] for name, track in tracks.items()}
        numbers = win_rates(panel, values_of_motion(panel, cases, early))
        numbers |= levels(cases, tracks, WORDS)
    part = "dit" if options.of_video else "motion"
    weights = {name: rollout.hashes()[part] for name, rollout in rollouts.items()}
    aligned = rollouts["aligned"]
    return Findings(
        "Preferences of simulated raters, and of other judges, before and after DPO",
        numbers | videos,
        recipe=aligned.recipe,
        weights=weights | ({} if judges is None else judges.hashes()),
        notes=[
            cases_note(options, "; the first frame's motion is given"),
            f"{options.samples} samples of each person and system; {len(panel.raters)} raters see "
            f"{seen} of every pair in both orders; a tie is half a win",
            *([f"other judges see {shown} frames"] if judges is not None else []),
            aligned.described(),
        ],
    )


Values = Mapping[str, list[dict[str, dict[str, Tensor]]]]
"""Of every system and sample what each rater weighs: term by its path, over persons."""


def values_of_motion(panel: Panel, cases: list[Case], tracks: Mapping[str, Tracks]) -> Values:
    """Of motion that was sampled."""
    batch = batch_of(cases, tracks[BEFORE].shape[2])
    return {
        name: [
            {
                rater.name: rater.values(samples_of(batch, Made(torch.tensor(one).float())))
                for rater in panel.raters
            }
            for one in track
        ]
        for name, track in tracks.items()
    }


def values_of_videos(
    panel: Panel, readings: Readings, num_samples: int, systems: Iterable[str]
) -> Values:
    """Of videos that were read."""
    return {
        name: [
            {
                rater.name: {
                    term.path: torch.tensor(readings.values(f"{name}_{k}", term.path)).float()
                    for term in rater.terms
                }
                for rater in panel.raters
            }
            for k in range(num_samples)
        ]
        for name in systems
    }


def win_rates(panel: Panel, values: Values, *, seed: int = 0) -> dict[str, Number]:
    """How often raters prefer each system to the weights before, over persons; and by how much each
    term of theirs is better, without noise."""
    generator = torch.Generator().manual_seed(seed)
    numbers = {}
    for name in values:
        if name == BEFORE:
            continue
        by_rater = {
            rater.name: torch.stack(
                [
                    _won(rater, ours[rater.name], theirs[rater.name], generator)
                    for ours, theirs in itertools.product(values[name], values[BEFORE])
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
                for of in (name, BEFORE)
            )
            short = term.path.rpartition(".")[2].lower()
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
    return mean_of(values[values.isfinite()].double().numpy())
