"""Where a step of GRPO spends its time: rollout, pictures, rewards, update; and its peak of memory.

Each recipe takes its steps at the small size in a process of its own, on clips of noise with the
sizes of its data, by the shipped weights. Peak memory is the process's largest resident size.
"""

import argparse
import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from torch import Tensor
from torch.optim import Optimizer

from avatar_v.planning.recipe import read_recipe
from avatar_v.request.record import peak_rss_mib
from avatar_v.rewards.terms import Rewards, RewardTerm, Samples
from avatar_v.stages.align_grpo import AlignGRPO
from avatar_v.stages.optim import build_optimizer
from avatar_v.stages.policies import Situation
from avatar_v.types import Batch
from avatar_v.weights.random import make_batch
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.processes import in_a_process
from avatar_v_eval.protocol import Findings

SIDE, LATENT_CHANNELS = 64, 16
T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    """A recipe, the weights whose networks it moves, and the frames of its clips."""

    recipe: str
    weights: str
    num_frames: int
    words: str


CASES = (
    Case("5a_grpo", "small", 401, "GRPO of motion"),
    Case("5a_grpo_video", "small_student", 49, "GRPO of pictures"),
)
PHASES = {
    "rollout_s": "rollout",
    "pictures_s": "pictures for the rewards",
    "rewards_s": "rewards",
    "update_s": "update",
    "step_s": "whole step",
}


class Stopwatch:
    """Seconds that functions took, added up by name."""

    def __init__(self) -> None:
        self.spent: defaultdict[str, float] = defaultdict(float)

    def of(self, name: str, fn: Callable[..., T]) -> Callable[..., T]:
        """``fn``, timed."""

        def timed(*args: Any) -> T:
            begin = time.perf_counter()
            result = fn(*args)
            self.spent[name] += time.perf_counter() - begin
            return result

        return timed


class TimedRewards(Rewards):
    """The same rewards, timed."""

    def __init__(self, terms: Sequence[RewardTerm], stopwatch: Stopwatch) -> None:
        super().__init__(terms)
        self.stopwatch = stopwatch

    def __call__(self, samples: Samples) -> dict[str, Tensor]:
        return self.stopwatch.of("rewards_s", super().__call__)(samples)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="speed_alignment")
    parser.add_argument("--repeats", type=int, default=3, help="steps, after one of warm-up")


def measure(options: argparse.Namespace) -> Findings:
    numbers, notes = {}, []
    for case in CASES:
        times, peak, sizes = in_a_process(steps, case, options.repeats)
        for key, words in PHASES.items():
            numbers[f"{case.recipe}_{key}"] = median_of_repeats(times[key]).described(
                f"{case.words}: {words}", unit="s"
            )
        numbers[f"{case.recipe}_peak_mib"] = median_of_repeats([peak]).described(
            f"{case.words}: peak memory", unit="MiB"
        )
        notes.append(f"{case.words}: {sizes}")
    return Findings(
        "Phases of a step of GRPO",
        numbers,
        recipe="recipes/5a_grpo.yaml and 5a_grpo_video.yaml with recipes/small.yaml",
        notes=[*notes, "clips of noise, fp32, shipped weights; peak: the process's largest size"],
    )


def steps(case: Case, repeats: int) -> tuple[dict[str, list[float]], float, str]:
    """Seconds of each phase by step, the peak in MiB, and the sizes in words."""
    fresh = [f"--model.init_args.models.{name}" for name in ("init_from", "vae")]
    options = [word for name in fresh for word in (name, "null")]
    recipe = read_recipe([f"recipes/{case.recipe}.yaml", "recipes/small.yaml"], options)
    stage = cast(AlignGRPO, recipe.fresh_stage(checkpoints=False))
    stage.models = dataclasses.replace(stage.models, init_from=case.weights)
    stage.load_networks()
    # the motion network of two steps does not ship: the same layers cost the same
    stage.models = dataclasses.replace(stage.models, init_from=None)
    stage.set_motion_stats()
    stage.settle_networks()
    stopwatch = Stopwatch()
    stage.policy.samples = stopwatch.of("pictures_s", stage.policy.samples)
    stage.rewards = TimedRewards(stage.rewards.terms, stopwatch)
    num = int(recipe.data.batch_size)
    channels = LATENT_CHANNELS if case.recipe.endswith("video") else None
    batch = make_batch(num, case.num_frames, SIDE, latent_channels=channels, has_reference=True)
    optimizer = build_optimizer(stage.network, stage.optim)
    spent: dict[str, list[float]] = {key: [] for key in PHASES}
    for index in range(repeats + 1):
        stopwatch.spent.clear()
        one_step(stage, batch, index, optimizer, stopwatch)
        for key in PHASES if index > 0 else ():
            spent[key].append(stopwatch.spent[key])
    sizes = f"{num} conditions of {stage.grpo.group_size} samples, {stage.window_length} latents"
    return spent, peak_rss_mib(), sizes


def one_step(
    stage: AlignGRPO, batch: Batch, index: int, optimizer: Optimizer, stopwatch: Stopwatch
) -> None:
    """A rollout and its update, as `AlignGRPO.iterate` makes them, timed."""
    start = time.perf_counter()
    begun = stage.begin(batch, index)
    situation = Situation(batch, begun.windows, begun.clean, begun.cond, stage.grpo.group_size)
    rolled = stage.roll(situation, begun.generator)
    middle = time.perf_counter()
    for number in range(len(rolled.moves)):
        loss, _ = stage.policy_loss(situation, rolled, number, first=True)
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    end = time.perf_counter()
    judged = stopwatch.spent["pictures_s"] + stopwatch.spent["rewards_s"]
    stopwatch.spent |= {
        "rollout_s": middle - start - judged,
        "update_s": end - middle,
        "step_s": end - start,
    }
