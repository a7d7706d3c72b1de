"""Is a candidate right, and how long does it take beside the baseline.

Both run in boxes of their own and are stopped whenever they are not measured. For each measurement
fresh inputs are drawn here, from a seed of the system's, while both stand still; then one after the
other is continued, told to compute and stopped again, and the time between is taken here. All
results of all measurements are compared here with the scope's own before their times count. A time
holds what a message costs and the copies of the results, the same for both, which draws their ratio
towards 1.

The ratio differs from start to start of the two processes: each has its own place in memory. More
measurements of one start do not average that out. So the winner is measured over several starts.
"""

import contextlib
import dataclasses
import fcntl
import json
import math
import mmap
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.stats import quantile_test, sem
from scipy.stats import t as student
from torch import Tensor

from avatar_v.kernels import scopes, switch
from avatar_v.kernels.evolve import layout
from avatar_v.kernels.evolve.sandbox import Box, Fault
from avatar_v.kernels.evolve.spec import Spec

GATE = 3
"""Measurements whose results alone count, before any time does."""
STARTS = 6
"""Of both processes, when the winner is measured again."""
IDLE_S = 2e-3
"""Of computing while a process should stand still, for the moment in which it is stopped."""
BASELINES = {
    "eager": "def build(scope):\n    return scope\n",
    "inductor": "import torch\n\n\ndef build(scope):\n    return torch.compile(scope)\n",
}


@dataclass(frozen=True)
class Verdict:
    """``speedup`` is the baseline's time over the candidate's, with a 95 % interval. Of one start
    of the processes: the median over ``pairs``, and the interval holds for this start alone. Of
    more: the geometric mean of the starts' medians, with Student's t interval over the starts.
    ``error`` is the largest difference from the scope's own results."""

    status: str
    reason: str = ""
    speedup: float = 0.0
    low: float = 0.0
    high: float = 0.0
    pairs: int = 0
    error: float = 0.0
    starts: int = 1


class Runner:
    """A candidate's process, and the memory that is shared with it."""

    def __init__(self, spec: Spec, code: str, *, isolated: bool) -> None:
        self._spec, self._stack = spec, contextlib.ExitStack()
        _, given, results = layout.scope_of(spec)
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="avatar_v_box")))
        folder.chmod(0o755)
        (folder / "candidate.py").write_text(code, encoding="utf-8")
        (folder / "spec.json").write_text(json.dumps(dataclasses.asdict(spec)))
        memory = self._sealed(layout.num_bytes(spec, given, results))
        self.slots = layout.slots(spec, memory, given, results)
        (orders, self._orders), (self._answers, answers) = os.pipe(), os.pipe()
        kept = [self._memory, orders, answers]
        module = "avatar_v.kernels.evolve.worker"
        self.box = Box(
            [sys.executable, "-m", module, *map(str, kept)], folder, spec.limits,
            threads=spec.threads, cuda=spec.device == "cuda", isolated=isolated, kept=kept,
        )  # fmt: skip
        self._stack.callback(self.box.close)
        for descriptor in (orders, answers):
            os.close(descriptor)
        for descriptor in (self._memory, self._orders, self._answers):
            self._stack.callback(os.close, descriptor)
        self._computed_s = 0.0

    def close(self) -> None:
        self._stack.close()

    def build(self) -> None:
        """`Fault` where its code raises an error, takes too long or leaves processes."""
        self._expect(b"b", self._spec.limits.build_s)
        self.box.stop()
        self.box.check_memory()
        self._computed_s = self.box.computed_s()

    def measure(self, seconds: float) -> float:
        """Seconds of one go over all slots. `Fault` for all that is not computing in time."""
        if self.box.computed_s() - self._computed_s > IDLE_S:
            raise Fault("cheat", "computed while it should stand still")
        start = time.perf_counter()
        self.box.go()
        with contextlib.suppress(BrokenPipeError):  # the answer tells
            os.write(self._orders, b"g")
        self._expect(b"d", seconds)
        self.box.stop()
        took = time.perf_counter() - start
        self.box.check_memory()
        before, self._computed_s = self._computed_s, self.box.computed_s()
        if self._computed_s - before > 1.1 * self._spec.threads * took + IDLE_S:
            raise Fault("cheat", f"computed on more than {self._spec.threads} threads")
        return took if self._spec.clock == "wall" else self._computed_s - before

    def _expect(self, word: bytes, seconds: float) -> None:
        if self.box.wait(self._answers, seconds) != word:
            raise Fault("cheat", "spoke out of turn")

    def _sealed(self, size: int) -> mmap.mmap:
        """Memory that no one can make shorter: reading it would end this process."""
        self._memory = os.memfd_create("avatar_v", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(self._memory, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(self._memory, fcntl.F_ADD_SEALS, seals)
        return mmap.mmap(self._memory, size)


class Bench:
    """The baseline, ready; candidates are judged against it one after the other."""

    def __init__(self, spec: Spec, *, isolated: bool = True) -> None:
        self._spec, self._isolated = spec, isolated
        self._function, self._given, self._results = layout.scope_of(spec)
        self._baseline: Runner | None = None

    def close(self) -> None:
        if self._baseline is not None:
            self._baseline.close()
        self._baseline = None

    def judge(self, code: str) -> Verdict:
        """The gate, then ``pairs`` of measurements in one start: cheap, and part of it is luck."""
        return self._judge(code, self._spec.pairs)

    def judge_again(self, code: str) -> Verdict:
        """``final_pairs`` over `STARTS` fresh starts of both processes."""
        found: list[Verdict] = []
        for _ in range(STARTS):
            self.close()
            found.append(self._judge(code, max(2, -(-self._spec.final_pairs // STARTS))))
            if found[-1].status != "ok":
                return found[-1]
        return over_starts(found)

    def _judge(self, code: str, pairs: int) -> Verdict:
        found: list[tuple[float, float]] = []
        baseline = self._ready()
        candidate = None
        try:
            candidate = Runner(self._spec, code, isolated=self._isolated)
            self._pass_gate(candidate)
            for turn in range(pairs):
                order = [baseline, candidate] if turn % 2 else [candidate, baseline]
                times, error = self._pair(order, self._spec.limits.window_s)
                found.append((times[order.index(baseline)] / times[order.index(candidate)], error))
        except Fault as fault:
            if not self._stands(baseline):
                raise ValueError(f"the baseline failed: {fault.reason}") from fault
            return Verdict(fault.kind, fault.reason)
        finally:
            if candidate is not None:
                candidate.close()
        return summary(found)

    def _pass_gate(self, runner: Runner) -> None:
        """The first measurement compiles; behind it no more processes and threads may begin."""
        runner.build()
        self._pair([runner], self._spec.limits.build_s)
        runner.box.close_ranks()
        for _ in range(GATE - 1):
            self._pair([runner], self._spec.limits.window_s)

    def _ready(self) -> Runner:
        if self._baseline is None:
            self._baseline = Runner(self._spec, BASELINES[self._spec.baseline],
                                    isolated=self._isolated)  # fmt: skip
            try:
                self._pass_gate(self._baseline)
            except Fault as fault:
                self.close()
                raise ValueError(f"the baseline failed: {fault.kind}, {fault.reason}") from fault
        return self._baseline

    def _stands(self, baseline: Runner) -> bool:
        try:
            baseline.box.stop()
        except Fault:
            return False
        return True

    def _pair(self, runners: list[Runner], seconds: float) -> tuple[list[float], float]:
        """One measurement of each with the same fresh inputs: times, and the last one's error."""
        generator = torch.Generator().manual_seed(secrets.randbits(62))
        drawn = [
            [torch.randn(x.shape, generator=generator).to(x.dtype) for x in self._given]
            for _ in range(self._spec.calls)
        ]
        with switch.using("plain"), torch.no_grad():
            expected = [scopes.tensors_of(self._function(*given)) for given in drawn]
        times, error = [], 0.0
        for runner in runners:
            for (given, kept), fresh in zip(runner.slots, drawn, strict=True):
                for place, x in zip(given, fresh, strict=True):
                    place.copy_(x)
                for place in kept:
                    place.fill_(torch.nan)
            times.append(runner.measure(seconds))
            error = max(error, self._check(runner, drawn, expected))
        return times, error

    def _check(
        self, runner: Runner, drawn: list[list[Tensor]], expected: list[list[Tensor]]
    ) -> float:
        """The largest difference; `Fault` for one that is too large, and for changed inputs."""
        largest = 0.0
        for (given, kept), fresh, right in zip(runner.slots, drawn, expected, strict=True):
            if not all(map(torch.equal, given, fresh)):
                raise Fault("wrong", "changed its inputs")
            for result, its in zip(kept, right, strict=True):
                off = (result.double() - its.double()).abs()
                bound = self._spec.absolute + self._spec.relative * its.double().abs()
                if not bool((off <= bound).all()):  # also of NaN
                    raise Fault("wrong", f"differs by {off.nan_to_num(torch.inf).max().item():.3g}")
                largest = max(largest, off.max().item())
        return largest


def summary(found: list[tuple[float, float]]) -> Verdict:
    """Of (speed-up, error) of all pairs of one start."""
    ratios = sorted(ratio for ratio, _ in found)
    test: Any = quantile_test(ratios)
    interval = test.confidence_interval(0.95)
    value = float(torch.tensor(ratios, dtype=torch.float64).quantile(0.5))
    error = max(error for _, error in found)
    return Verdict("ok", "", value, float(interval.low), float(interval.high), len(ratios), error)


def over_starts(found: Sequence[Verdict]) -> Verdict:
    """Of the verdicts of single starts. Logarithms, so that a ratio and its inverse weigh alike."""
    logs = [math.log(one.speedup) for one in found]
    mean, half = sum(logs) / len(logs), student.ppf(0.975, len(logs) - 1) * float(sem(logs))
    value, low, high = (math.exp(x) for x in (mean, mean - half, mean + half))
    error = max(one.error for one in found)
    return Verdict("ok", "", value, low, high, sum(x.pairs for x in found), error, len(found))
