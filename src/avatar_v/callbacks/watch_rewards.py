"""WatchRewards: does a reward move what it stands for, or is it hacked?

A reward that rises while metrics that were never rewarded fall is being exploited. Both are read on
validation persons every so many steps, from the same noise each time, so that a difference from the
start is one of the weights.
"""

import csv
import itertools
import math
from pathlib import Path
from typing import Any

import lightning as L
import torch
from jaxtyping import Float
from lightning.pytorch.utilities import move_data_to_device
from torch import Tensor

from avatar_v.base import checks
from avatar_v.base.paths import whole_file
from avatar_v.callbacks.ema import averaged
from avatar_v.objectives.align_grpo import AlignGRPO
from avatar_v.rewards.terms import Rewards, RewardSamples, RewardTerm, known

CLEAR = 2.0
"""Standard errors of a mean difference over samples from which on it counts."""
Values = dict[str, Float[Tensor, " n"]]


class WatchRewards(L.Callback):
    """Writes ``default_root_dir/watch.csv``, a row each ``every_num_steps`` with the means of every
    reward and metric and the last KL, and at the end ``watch.png``, one plot of them.

    ``metrics`` judge like rewards and are none of the stage's (rewards/metrics.py); more is better.
    ``rewards`` stand for the stage's own where those are no measure: the credit of a habit is 0 at
    its goal. The run ends where, ``patience`` times running, the weighted reward is clearly above
    that of the start and a metric clearly below its own: by two standard errors over samples.
    """

    def __init__(
        self,
        metrics: list[RewardTerm],
        rewards: list[RewardTerm] | None = None,
        every_num_steps: int = 10,
        num_batches: int = 2,
        patience: int = 2,
    ) -> None:
        """``num_batches`` of the validation data are judged. ValueError without metrics."""
        checks.count("every_num_steps", every_num_steps)
        checks.count("num_batches", num_batches)
        checks.count("patience", patience)
        self.metrics = Rewards(metrics, watch=True)
        self.rewards = None if rewards is None else Rewards(rewards, watch=True)
        self.every_num_steps, self.num_batches = every_num_steps, num_batches
        self.patience = patience
        self._start: Values = {}
        self._num_bad = 0
        self._last_step = -1
        self._kl = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"start": self._start, "num_bad": self._num_bad, "last_step": self._last_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._start, self._num_bad = state_dict["start"], state_dict["num_bad"]
        self._last_step = state_dict["last_step"]

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """ValueError, before networks are loaded, for a metric that is a reward or has its judge,
        or has the name of another column."""
        if stage != "fit":
            return
        rewards = _stage(pl_module).rewards.terms
        judges = {one.hash() for of in _stage(pl_module).rewards.judges.values() for one in of}
        own = [*rewards, *(self.rewards.terms if self.rewards else ())]
        rewarded = [(term.path, term.options) for term in rewards]
        taken = {term.label for term in own} | {"step", "reward", "kl"}
        for metric in self.metrics.terms:
            if (metric.path, metric.options) in rewarded:
                raise ValueError(f"{metric.label} is a reward of the run, and no metric of it: it "
                                 "is watched already")  # fmt: skip
            if judges & {one.hash() for one in self.metrics.judges[metric.label]}:
                raise ValueError(f"{metric.label}: its judge is rewarded, and no longer tells "
                                 "whether the model is good")  # fmt: skip
            if metric.label in taken:
                raise ValueError(f"metric {metric.path}: a column of watch.csv is {metric.label} "
                                 "already; give it another name")  # fmt: skip

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        stage = _stage(pl_module)
        if not self._start:
            self._watch(trainer, stage)
            return
        rows = [row for row in read_watch(_path(trainer)) if row["step"] <= stage.step]
        _write(_path(trainer), rows)

    def on_train_batch_end(self, trainer, pl_module, outputs: Any, batch, batch_idx) -> None:
        stage = _stage(pl_module)
        self._kl = float(outputs["terms"].get("kl", 0.0))
        is_due = stage.step - max(self._last_step, 0) >= self.every_num_steps
        if is_due:
            self._watch(trainer, stage)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.is_global_zero:
            plot_watch(read_watch(_path(trainer)), _path(trainer).with_suffix(".png"))

    def _watch(self, trainer: L.Trainer, stage: AlignGRPO) -> None:
        """A row, and the end of the run where it says so."""
        self._last_step = stage.step
        values = self._values(trainer, stage)
        self._start = self._start or values
        names = [term.label for term in self.metrics.terms]
        changes = {name: change(values[name], self._start[name]) for name in ("reward", *names)}
        fallen = [name for name in names if changes[name] < -CLEAR]
        is_bad = changes["reward"] > CLEAR and bool(fallen)
        self._num_bad = self._num_bad + 1 if is_bad else 0
        means = {name: float(value.nanmean()) for name, value in values.items()}
        if trainer.is_global_zero:
            row = {"step": float(stage.step), **means, "kl": self._kl}
            _write(_path(trainer), [*read_watch(_path(trainer)), row] if stage.step else [row])
        ends = self._num_bad >= self.patience
        if ends:
            print(f"stopped at step {stage.step}: the reward rises and {', '.join(fallen)} falls")
        if trainer.strategy.reduce_boolean_decision(ends, all=False):
            trainer.should_stop = True

    @torch.no_grad()
    def _values(self, trainer: L.Trainer, stage: AlignGRPO) -> Values:
        """Every reward, their weighted sum and every metric, for each sample."""
        rewards = self.rewards or stage.rewards
        loader = trainer.datamodule.val_dataloader()  # pyright: ignore[reportAttributeAccessIssue]
        parts: dict[str, list[Tensor]] = {}
        with averaged(trainer, stage):
            # batches are read outside the precision's context: PyTorch stacks no fp16 inside it
            for index, batch in enumerate(itertools.islice(loader, self.num_batches)):
                with trainer.precision_plugin.forward_context():
                    samples = stage.plain_samples(move_data_to_device(batch, stage.device), index)
                    found = self._score(rewards, samples)
                for name, value in found.items():
                    parts.setdefault(name, []).append(value.cpu())
        if not parts:
            raise ValueError("there is nothing to watch rewards on: set data.init_args.validation")
        torch.clear_autocast_cache()
        return {name: torch.cat(values) for name, values in parts.items()}

    def _score(self, rewards: Rewards, samples: RewardSamples) -> Values:
        found = {name: _per_sample(x) for name, x in rewards(samples).items()}
        found["reward"] = torch.stack(
            [term.weight * found[term.label].nan_to_num() for term in rewards.terms]
        ).sum(0)
        return found | {name: _per_sample(x) for name, x in self.metrics(samples).items()}


def change(now: Float[Tensor, " n"], start: Float[Tensor, " n"]) -> float:
    """The mean difference of samples with the same noise, in its standard errors; of samples that
    all differ alike ±infinity, 0 where nothing is known."""
    difference = (now - start)[known(now - start)].double()
    if len(difference) < 2:
        return 0.0
    mean, error = float(difference.mean()), float(difference.std()) / len(difference) ** 0.5
    return 0.0 if mean == 0 else mean / error if error > 0 else math.copysign(math.inf, mean)


def read_watch(path: Path) -> list[dict[str, float]]:
    """The rows of a file; none if it does not exist."""
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def plot_watch(rows: list[dict[str, float]], path: Path) -> None:
    """Rewards, metrics and KL over steps, each from its start in a panel of its own; none of no
    row."""
    if not rows:
        return
    from matplotlib.figure import Figure  # slow to import, and not needed before a run ends

    names = [name for name in rows[0] if name != "step"]
    figure = Figure(figsize=(3 * len(names), 2.6), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        axes.plot([row["step"] for row in rows], [row[name] for row in rows], marker=".")
        axes.set_title(name)
        axes.set_xlabel("update")
        axes.grid(alpha=0.3)
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=120, format="png")


def _stage(module: L.LightningModule) -> AlignGRPO:
    if not isinstance(module, AlignGRPO):
        raise ValueError(f"WatchRewards serves AlignGRPO, got {type(module).__name__}")
    return module


def _per_sample(values: Float[Tensor, "b *l"]) -> Float[Tensor, " b"]:
    return values if values.dim() == 1 else values.nanmean(1)


def _path(trainer: L.Trainer) -> Path:
    return Path(trainer.default_root_dir) / "watch.csv"


def _write(path: Path, rows: list[dict[str, float]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial, open(partial, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]) if rows else [])
        writer.writeheader()
        for row in rows:
            written = {name: f"{value:.6g}" for name, value in row.items()}
            writer.writerow({**written, "step": int(row["step"])})
