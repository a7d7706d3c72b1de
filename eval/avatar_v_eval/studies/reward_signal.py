"""What the rewards of a recipe can teach, before anything is trained.

A reward can move a policy only where three things hold: samples are not yet as the persons are
(room), samples of one condition differ in it (spread), and independent batches agree in which
direction the weights should go (the cosine of their gradients). Each reward of the two `RECIPES`,
the second over the first, is measured alone on the same rollouts, in three ways:
as the recipe sets it, with credit for each latent frame; whole, as one number for a sample that all
of its frames and components earn; and as the recipe sets it with advantages dealt out at random
(``grpo.control random``), the floor. Nothing is updated.
"""

import argparse
import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.progress import track
from avatar_v.models.base import hash_folder
from avatar_v.planning.recipe import read_recipe
from avatar_v.rewards.levels import blink_gap, excursion_gap
from avatar_v.rewards.shipped import MOUTH_OPEN, YAW
from avatar_v.rewards.terms import (
    NothingRewarded,
    Rewards,
    RewardTerm,
    Samples,
    load_reward,
)
from avatar_v.stages.align_grpo import AlignGRPO
from avatar_v.stages.policies import Situation
from avatar_v.stages.policy_gradient import Rolled, advantages_of
from avatar_v.types import Batch
from avatar_v.weights.card import read_card, weights_folder
from avatar_v.weights.presets import format_of
from avatar_v_eval.intervals import mean_of
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number

RECIPES = ("recipes/5a_grpo.yaml", "recipes/small.yaml")
WAYS = {
    "local": "credit for each latent frame",
    "whole": "one number for a sample",
    "random": "advantages dealt at random",
}
GAPS = {"blinks": "blink rate", "sway": "sway", "amplitude": "mouth amplitude"}
LEAST_PAIRS = 4


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--weights", required=True, help="the policy before alignment: of 4c_distill_motion.yaml")
    add("--shards", required=True, metavar="DIR", help="clips of motion and sound, in pairs")
    add("--pairs", type=int, default=8, help="of batches whose gradients are compared")
    add("--batch-size", type=int, default=12, help="conditions in a batch")
    add("--group-size", type=int, default=8, help="samples of a condition")
    add("--seed", type=int, default=0)
    parser.set_defaults(name="reward_signal")


def measure(options: argparse.Namespace) -> Findings:
    """ValueError for fewer than four pairs of batches, and for what `avatar-v run` refuses."""
    if options.pairs < LEAST_PAIRS:
        raise ValueError(f"--pairs is at least {LEAST_PAIRS}, got {options.pairs}")
    folder = weights_folder(options.weights)
    recipe = read_recipe(RECIPES, words_of(options, str(folder)))
    stage = recipe.model
    assert isinstance(stage, AlignGRPO)
    stage.configure_model()
    batches = _batches(recipe.data, 2 * options.pairs)
    numbers = room(stage, batches)
    terms = stage.rewards.terms
    stage.rewards = Rewards([*terms, *map(whole_of, terms)])
    found: dict[tuple[str, str], list[Signal]] = {}
    for index, batch in enumerate(track(batches, "rollouts and gradients")):
        for key, one in signals(stage, terms, batch, index).items():
            found.setdefault(key, []).append(one)
    for way in WAYS:
        for term in terms:
            numbers |= told(term.label, way, found[term.label, way])
    return Findings(
        "What rewards can teach",
        numbers,
        recipe=" ".join(RECIPES),
        weights={"pipeline": hash_folder(folder)},
        notes=[
            f"{2 * options.pairs} batches of {options.batch_size} conditions with "
            f"{options.group_size} samples each, from {options.shards}; cosines over "
            f"{options.pairs} pairs of batches that share no clip and no noise",
            "intervals over batches, those of cosines over pairs of batches",
        ],
    )


def words_of(options: argparse.Namespace, folder: str) -> list[str]:
    """The recipe's options for these weights: a student takes its own steps."""
    settings = {
        "model.init_args.models.init_from": folder,
        "model.init_args.seed": options.seed,
        "model.init_args.grpo.group_size": options.group_size,
        "data.init_args.train": options.shards,
        "data.init_args.validation": "null",
        "data.init_args.batch_size": options.batch_size,
        "data.init_args.seed": options.seed,
        "data.init_args.cache": "false",
    }
    card = read_card(folder)
    steps = card.can.motion_steps
    if steps is not None:
        settings |= {
            "model.init_args.exploration.sampler": "student",
            "model.init_args.exploration.num_steps": steps,
            "model.init_args.exploration.window": 1,
            "model.init_args.exploration.shift": format_of(card).shift,
            "model.init_args.guidance.audio": 1.0,
            "model.init_args.guidance.motion": 1.0,
        }
    return [word for key, value in settings.items() for word in (f"--{key}", str(value))]


def _batches(data: Any, num: int) -> list[Batch]:
    """The first batches of an epoch. ValueError where it has fewer."""
    data.setup()
    found = list(itertools.islice(data.train_dataloader(), num))
    if len(found) < num:
        raise ValueError(f"{data.train_folder} has {len(found)} batches, and {num} are compared")
    return found


def whole_of(term: RewardTerm) -> RewardTerm:
    """The same reward as one number for a sample, which all of its components earn."""
    inner = {"path": term.path, "options": term.options}
    return dataclasses.replace(
        term, path=f"{__name__}.Whole", options=inner, credit=(), name=f"{term.label}_whole"
    )


class Whole:
    """A reward's mean over the latent frames that a sample made."""

    def __init__(self, path: str, options: dict[str, Any]) -> None:
        self.reward = load_reward(RewardTerm(path, options=options))

    def __call__(
        self, frames: Any, audio: Tensor, reference: Batch, motion: Tensor, *, num_given: int,
        **columns: Any,
    ) -> Any:  # fmt: skip
        value = self.reward(frames, audio, reference, motion, num_given=num_given, **columns)
        if isinstance(value, Tensor) and value.dim() > 1:
            return value[:, num_given:].mean(1)
        return value


@dataclasses.dataclass(frozen=True)
class Signal:
    """Of one reward in one batch."""

    gradient: Float[Tensor, " p"] | None  # None where the reward says nothing
    spread: float  # of its advantages, before they are weighted


def signals(
    stage: AlignGRPO, terms: Sequence[RewardTerm], batch: Batch, index: int
) -> dict[tuple[str, str], Signal]:
    """Of one rollout what each reward alone would do to the weights, in each way. The rewards of
    the stage are the ``terms`` and `whole_of` each."""
    situation, generator = begun(stage, batch, index)
    try:
        rolled = stage.roll(situation, generator)
    except NothingRewarded:
        return {(term.label, way): Signal(None, 0.0) for term in terms for way in WAYS}
    found = {}
    for term in terms:
        for way in WAYS:
            one = whole_of(term) if way == "whole" else term
            numbers = dataclasses.replace(
                stage.grpo, control="random" if way == "random" else "none"
            )
            advantages, logs = advantages_of(
                rolled.values, [one], situation.layout, numbers, generator
            )
            alone = dataclasses.replace(rolled, advantages=advantages)
            spread = float(logs[f"advantage_{one.label}"])
            found[term.label, way] = Signal(_gradient(stage, situation, alone), spread)
    return found


def _gradient(stage: AlignGRPO, situation: Situation, rolled: Rolled) -> Tensor | None:
    """That of the policy's loss at the weights as they are, where any distance from the start has
    none; None where it is 0."""
    stage.zero_grad(set_to_none=True)
    for number in range(len(rolled.moves)):
        stage.policy_loss(situation, rolled, number, first=True)[0].backward()
    grads = [p.grad.flatten() for p in stage.network.parameters() if p.grad is not None]
    stage.zero_grad(set_to_none=True)
    gradient = torch.cat(grads)
    return gradient if bool(gradient.any()) else None


def begun(stage: AlignGRPO, batch: Batch, index: int) -> tuple[Situation, torch.Generator]:
    """The situation of a batch, as training has it at that index."""
    drawn = stage.begin(batch, index)
    situation = Situation(batch, drawn.windows, drawn.clean, drawn.cond, stage.grpo.group_size)
    return situation, drawn.generator


def room(stage: AlignGRPO, batches: list[Batch]) -> dict[str, Number]:
    """By how much the level of each habit in samples is below the persons' own (levels.py)."""
    found: dict[str, list[float]] = {name: [] for name in GAPS}
    for index, batch in enumerate(track(batches, "levels")):
        samples = stage.plain_samples(batch, index)
        assert samples.reference is not None
        for name, gap in gaps(samples).items():
            if gap is not None:
                found[name].append(float(gap))
    return {
        f"room_{name}": mean_of(np.array(values)).described(
            f"{GAPS[name]} below the persons' own, relative"
        )
        for name, values in found.items()
        if len(values) > 1
    }


def gaps(samples: Samples) -> dict[str, Tensor | None]:
    reference, motion, given = samples.reference, samples.motion, samples.num_given
    assert reference is not None
    return {
        "blinks": blink_gap(reference, motion, given),
        "sway": excursion_gap(YAW, reference, motion, given),
        "amplitude": excursion_gap(MOUTH_OPEN, reference, motion, given),
    }


def told(name: str, way: str, found: list[Signal]) -> dict[str, Number]:
    """The spread of a reward's advantages, and how well gradients of two batches agree."""
    spreads = np.array([one.spread for one in found])
    numbers = {
        f"spread_{way}_{name}": mean_of(spreads).described(
            f"spread of advantages in groups, {name}: {WAYS[way]}"
        )
    }
    cosines = [
        float(torch.nn.functional.cosine_similarity(a.gradient, b.gradient, dim=0))
        for a, b in zip(found[::2], found[1::2], strict=True)
        if a.gradient is not None and b.gradient is not None
    ]
    if len(cosines) > 1:
        numbers[f"cosine_{way}_{name}"] = mean_of(np.array(cosines)).described(
            f"cosine of two batches' gradients, {name}: {WAYS[way]}"
        )
    return numbers
