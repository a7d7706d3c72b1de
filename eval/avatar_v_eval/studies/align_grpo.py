"""Habits of the motion before and after GRPO, with other seeds and beside random advantages.

TEST persons move to a sentence after a clip of theirs. ``--systems NAME=WEIGHTS`` are the weights
after alignment, one for each seed of the training, and controls (``grpo.control random``); all
stand beside ``--before``, paired over persons, and ``--pairs A:B`` compares two of them. The reward
was about sway alone: blinks, amplitude and lips say what it cost.
"""

import argparse

from avatar_v_eval.cases import add_case_options, cases_note, check_persons
from avatar_v_eval.motion_levels import BEFORE, levels, motion_cases, sampled
from avatar_v_eval.protocol import Findings
from avatar_v_eval.rollout import Rollout, add_sampling_options
from avatar_v_eval.systems import named, pair_of


def add_options(parser: argparse.ArgumentParser) -> None:
    add_case_options(parser, persons=64, frames=401)
    add_sampling_options(parser)
    add = parser.add_argument
    add("--before", required=True, help="the weights that the alignment began with")
    add("--systems", nargs="+", required=True, metavar="NAME=WEIGHTS", help="the weights after it")
    add("--pairs", nargs="*", default=[], metavar="A:B", help="systems to compare, paired")
    add("--samples", type=int, default=2, help="of each person and system")
    add("--batch", type=int, default=64, help="persons at once")
    parser.set_defaults(name="align_grpo")


def measure(options: argparse.Namespace) -> Findings:
    """ValueError for systems or pairs that are not named."""
    check_persons(options, 4)
    systems = dict(named(options.systems))
    if BEFORE in systems:
        raise ValueError(f"--systems: {BEFORE} is what --before names")
    chosen = {BEFORE: options.before, **systems}
    rollouts = {name: Rollout.load(folder, options) for name, folder in chosen.items()}
    cases = motion_cases(options)
    tracks = {name: sampled(rollout, cases, options) for name, rollout in rollouts.items()}
    words = {name: name.replace("_", " ") for name in chosen}
    pairs = [(name, BEFORE) for name in systems]
    pairs += [pair_of(text, rollouts) for text in options.pairs]
    return Findings(
        "Habits of the motion before and after GRPO",
        levels(cases, tracks, words, pairs),
        recipe=", ".join(sorted({rollouts[name].recipe for name in systems})),
        weights={f"motion {name}": of.hashes()["motion"] for name, of in rollouts.items()},
        notes=[
            cases_note(options, "; the first frame's motion is given"),
            f"{options.samples} samples of each person and system",
            *(f"{name}: {rollout.described()}" for name, rollout in rollouts.items()),
        ],
    )
