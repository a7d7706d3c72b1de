"""Training speed: tokens per second and how long each step waits for the loader.

The wait is the time between the end of a step and the start of the next; an interval in which the
trainer validated or saved a checkpoint is left out, with its step.
"""

import time
from typing import Any

import lightning as L

from avatar_v.base import checks


class Throughput(L.Callback):
    """Logs ``speed/tokens_per_s``, ``speed/step_s`` and ``speed/loader_share`` every few steps.

    The stage's ``training_step`` returns ``num_tokens`` beside its loss: the tokens one rank has
    trained on. ``loader_share`` is wait / (wait + step), 0 to 1.
    """

    def __init__(self, every_num_steps: int = 50, num_warmup_steps: int = 5) -> None:
        """The first ``num_warmup_steps`` batches of a run are not measured."""
        checks.count("every_num_steps", every_num_steps)
        checks.count("num_warmup_steps", num_warmup_steps, least=0)
        self.every_num_steps = every_num_steps
        self.num_warmup_steps = num_warmup_steps
        self.totals = Totals()  # of the whole run, for benchmarks
        self._window = Totals()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._num_seen = 0
        self._ended_s = time.perf_counter()
        self._interrupted = True

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        self._started_s = time.perf_counter()
        self._wait_s = self._started_s - self._ended_s
        self._measured = not self._interrupted and self._num_seen >= self.num_warmup_steps
        self._interrupted = False
        self._num_seen += 1

    def on_train_batch_end(self, trainer, pl_module, outputs: Any, batch, batch_idx) -> None:
        self._ended_s = time.perf_counter()
        if not self._measured:
            return
        step_s = self._ended_s - self._started_s
        for totals in (self._window, self.totals):
            totals.add(step_s, self._wait_s, outputs["num_tokens"])
        if self._window.num_steps >= self.every_num_steps:
            for name, value in self._window.rates().items():
                pl_module.log(f"speed/{name}", value, prog_bar=name == "tokens_per_s")
            self._window = Totals()

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._interrupted = True

    def on_save_checkpoint(self, trainer, pl_module, checkpoint) -> None:
        self._interrupted = True


class Totals:
    """Sums over measured steps."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_tokens = 0
        self.step_s = 0.0
        self.wait_s = 0.0

    def add(self, step_s: float, wait_s: float, num_tokens: int) -> None:
        self.num_steps += 1
        self.num_tokens += num_tokens
        self.step_s += step_s
        self.wait_s += wait_s

    def rates(self) -> dict[str, float]:
        """Averages. ValueError before the first measured step."""
        if not self.num_steps:
            raise ValueError("no step was measured yet")
        whole_s = self.step_s + self.wait_s
        return {
            "tokens_per_s": self.num_tokens / whole_s,
            "step_s": whole_s / self.num_steps,
            "loader_share": self.wait_s / whole_s,
        }
