"""A fit by time, not by steps: it ends when its share of an hour that is paid for is over.

The trainer's ``max_steps`` are then the ticks of a clock: the learning rate follows the share of
the time that has passed, warm-up included, whatever number of steps that makes.
"""

import json
import math
import time
from pathlib import Path
from typing import Any

import lightning as L

from avatar_v.base import checks
from avatar_v.base.flops import FlopCount
from avatar_v.base.paths import whole_file
from avatar_v.callbacks.record import Export
from avatar_v.training.engine import Engine, steps_made

TIME_BOX = "time_box.json"
LEAST_COUNTED = 4
"""Batches behind the first whose operations are counted, at least, in whole turns of all roles.
Compiled parts run uncompiled in them."""


class TimeBox(L.Callback):
    """Ends the fit after ``seconds`` of training, on one rank; validation follows. Prints a line
    every ``line_s``; every ``keep_s`` lets `Export` write the weights as they are; in the end
    writes ``default_root_dir/time_box.json``: seconds, steps, loss, speed and the numbers of
    validation.

    ``peak_tflops`` of the device, for the share of it that is reached; None where it is not known.
    """

    def __init__(
        self,
        seconds: float,
        peak_tflops: float | None = None,
        line_s: float = 10.0,
        keep_s: float = 30.0,
    ) -> None:
        for name, value in {"seconds": seconds, "line_s": line_s, "keep_s": keep_s}.items():
            checks.positive(name, value)
        self.seconds, self.peak_tflops = seconds, peak_tflops
        self.line_s, self.keep_s = line_s, keep_s
        self._counter: FlopCount | None = None
        self._counted, self._fit_s = range(0), 0.0
        self._num_batches = self._num_tokens = self._counted_tokens = self._flops = 0
        self._last: dict[str, Any] = {}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """ValueError for several ranks, each of which has a clock of its own."""
        if trainer.world_size > 1:
            raise ValueError(f"a TimeBox ends a fit of one rank, got {trainer.world_size}")

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        turn = trainer.accumulate_grad_batches
        if isinstance(pl_module, Engine):
            turn *= pl_module.updates.accumulate_grad_batches * max(_updates_per_step(pl_module))
        self._counted = range(1, 1 + turn * math.ceil(LEAST_COUNTED / turn))
        self._begin_s = self._line_s = self._kept_s = time.monotonic()
        self._line_tokens = 0

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx) -> None:
        if self._num_batches in self._counted:
            self._counter = FlopCount()
            self._counter.__enter__()

    def on_train_batch_end(self, trainer, pl_module, outputs: Any, batch, batch_idx) -> None:
        num_tokens = outputs["num_tokens"]
        if self._counter is not None:
            self._flops += self._counter.num
            self._counted_tokens += num_tokens
            self._end_count()
        self._num_batches += 1
        self._num_tokens += num_tokens
        now = time.monotonic()
        self._fit_s = now - self._begin_s
        share = self._fit_s / self.seconds
        _set_clocks(trainer, pl_module, min(share, 1.0))
        if share >= 1:
            trainer.should_stop = True
        if share >= 1 or now - self._line_s >= self.line_s:
            self._tell(trainer, pl_module, float(outputs["loss"].detach()), now)
        if share < 1 and now - self._kept_s >= self.keep_s:
            self._kept_s = now
            for callback in trainer.callbacks:  # pyright: ignore[reportAttributeAccessIssue]
                if isinstance(callback, Export):
                    callback.write(trainer, pl_module)

    def on_exception(self, trainer, pl_module, exception) -> None:
        self._end_count()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        numbers = {
            name: round(float(value), 5)
            for name, value in trainer.callback_metrics.items()
            if not name.startswith(("train", "speed", "step"))
        }
        row = {"fit_s": round(self._fit_s, 1), **self._last, "numbers": numbers}
        with whole_file(Path(trainer.default_root_dir) / TIME_BOX) as partial:
            partial.write_text(json.dumps(row))

    def _end_count(self) -> None:
        if self._counter is not None:
            self._counter.__exit__(None, None, None)
            self._counter = None

    def _tell(self, trainer: L.Trainer, module: L.LightningModule, loss: float, now: float) -> None:
        rate = (self._num_tokens - self._line_tokens) / max(now - self._line_s, 1e-9)
        self._line_s, self._line_tokens = now, self._num_tokens
        step = steps_made(trainer, module)
        self._last = {"step": step, "loss": round(loss, 5), "tokens_per_s": round(rate)}
        if self._counted_tokens:
            tflops = rate * self._flops / self._counted_tokens / 1e12
            self._last["tflops"] = round(tflops, 4)
            if self.peak_tflops is not None:
                self._last["share_of_peak"] = round(tflops / self.peak_tflops, 4)
        words = ", ".join(f"{name} {value}" for name, value in self._last.items())
        done = f"{now - self._begin_s:.0f} of {self.seconds:.0f} s"
        print(f"{Path(trainer.default_root_dir).name}: {done}, {words}", flush=True)


def _set_clocks(trainer: L.Trainer, module: L.LightningModule, share: float) -> None:
    """Let every schedule stand at this share of its steps."""
    times = _updates_per_step(module) if isinstance(module, Engine) else [1]
    for config, num in zip(trainer.lr_scheduler_configs, times, strict=True):
        last = num * trainer.max_steps - 2  # a step follows, and stays inside
        config.scheduler.last_epoch = int(share * last)  # pyright: ignore[reportAttributeAccessIssue]


def _updates_per_step(engine: Engine) -> list[int]:
    """Of every trained role."""
    return [role.updates_per_step for role in engine.roles().values() if role.optim is not None]
