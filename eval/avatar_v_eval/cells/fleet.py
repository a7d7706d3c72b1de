"""Cells, nodes and what runs on them, in simpy: starts, ends, preemption, faults, and an account.

All ways to schedule (policies.py) meet the same work, the same faults and the same costs of a
start: data that are not in the cell are copied first, a gang starts in minutes, a fault is noticed
after a while and costs what was done since the last checkpoint.
"""

from collections import defaultdict
from collections.abc import Generator, Iterable
from typing import Any

import numpy as np
import simpy

from avatar_v_eval.cells.traces import (
    BACK_S,
    CLASSES,
    DAY_S,
    FAILS_S,
    HOUR_S,
    KINDS,
    NODE,
    NODES,
    PRICE_USD,
    REPAIR_S,
    SPOT,
    SPOT_PRICE,
    TAKEN_S,
    Trace,
    Work,
)  # fmt: skip

START_S = {"inference": 120.0, "training": 300.0, "data": 60.0}  # chosen
CHECKPOINT_S = HOUR_S  # between regular checkpoints of a training
WRITE_S = 120.0  # of the checkpoint at a preemption: GRACE_S of avatar-v launch
NOTICED_S = 600.0  # until a fault ends the others of a gang
COPY_S = {"inference": 120.0, "training": 1800.0, "data": 300.0}  # of data from another cell
PIECE_S = 600.0  # of data: what is begun is begun again; chosen
EVERY_S = 300.0  # a round of scheduling


class Cell:
    """Nodes with free GPUs, and who has the others."""

    def __init__(self, number: int) -> None:
        self.number, self.kind, self.spot = number, KINDS[number], number in SPOT
        self.size = NODES[number]
        self.free = np.full(self.size, NODE)
        self.up = np.ones(self.size, bool)
        self.on: list[set[Work]] = [set() for _ in range(self.size)]
        self.held = np.zeros((len(CLASSES), self.size), int)  # GPUs of a node, by class
        self.ends = np.zeros((len(CLASSES), self.size), int)  # GPUs of all that is on it, by class
        self.data: set[int] = set()  # teams whose data are here
        self.admitted = 0  # GPUs, those of gangs that wait for nodes with them
        self.price = PRICE_USD[self.kind] * (SPOT_PRICE if self.spot else 1.0)

    @property
    def open(self) -> np.ndarray:
        """Free GPUs by node, none of a node that is down."""
        return np.where(self.up, self.free, 0)

    def give(self, work: Work, node: int, sign: int = 1) -> None:
        """GPUs of a node to ``work``; back from it with ``sign`` -1."""
        gpus = sign * min(work.gpus, NODE)
        self.free[node] -= gpus
        self.held[work.rank, node] += gpus
        self.ends[work.rank, node] += sign * work.gpus
        (self.on[node].add if sign > 0 else self.on[node].remove)(work)
        assert 0 <= self.free[node] <= NODE

    def takes(self, work: Work) -> bool:
        """Whether it is a cell for such work at all."""
        if work.kind == "inference" and self.spot:
            return False
        if work.kind == "training" and self.kind == "l40s":
            return False
        return work.gpus <= self.size * NODE


class Fleet:
    """The cells and an account of their GPU seconds between ``begin_s`` and ``end_s``."""

    def __init__(self, trace: Trace, seed: int, begin_s: float, end_s: float) -> None:
        self.env = simpy.Environment()
        self.trace, self.begin_s, self.end_s = trace, begin_s, end_s
        self.cells = [Cell(i) for i in range(len(NODES))]
        for team, cell in enumerate(trace.home):
            self.cells[cell].data.add(team)
        self.gpu_s: dict[str, float] = defaultdict(float)
        self.usd = 0.0
        self.waits: dict[str, list[float]] = defaultdict(list)
        self.preempted = 0
        self.queue: list[Work] = []
        self.places: dict[tuple[int, str, int], Cell] = {}  # of teams, for work of a size
        self.running: dict[Work, simpy.Process] = {}
        self._segment: dict[Work, tuple[str, float]] = {}
        rng = np.random.default_rng([seed, 1])
        for cell in self.cells:
            for node in range(cell.size):
                self.env.process(self._faults(cell, node, rng.spawn(1)[0]))
        self.env.process(self._arrivals())

    def run(self, policy: Any) -> None:
        """Up to the end; ``policy.round(fleet)`` starts what may start."""

        def rounds() -> Generator[simpy.Event, Any, None]:
            while True:
                policy.round(self)
                yield self.env.timeout(EVERY_S)

        self.env.process(rounds())
        self.env.run(self.end_s)
        for work in list(self._segment):
            self._close(work)
        for work in self.queue:  # still waits
            if work.begun_s < 0 and work.arrives_s >= self.begin_s:
                self.waits[work.kind].append(self.end_s - work.arrives_s)

    def start(self, work: Work, cell: Cell, nodes: Iterable[int]) -> None:
        """Let work that waits run on ``nodes``: whole ones, or one in part."""
        self.hold(work, cell, nodes)
        self.queue.remove(work)
        self.begin(work, cell)

    def hold(self, work: Work, cell: Cell, nodes: Iterable[int]) -> None:
        """Give it GPUs, which do nothing yet."""
        work.cell = cell.number
        for node in nodes:
            cell.give(work, int(node))
            work.nodes.append(int(node))

    def begin(self, work: Work, cell: Cell) -> None:
        """Its GPUs begin."""
        if work.begun_s < 0:
            work.begun_s = self.env.now
            if work.arrives_s >= self.begin_s:
                self.waits[work.kind].append(self.env.now - work.arrives_s)
        self.segment(work, "starting")
        self.running[work] = self.env.process(self._runs(work, cell))

    def stop(self, work: Work, why: str) -> None:
        """Take its GPUs: ``preempted`` with a checkpoint, ``fault`` without. Data processing begins
        its last piece again; what inference has answered is answered."""
        self.running.pop(work).interrupt()
        state, since_s = self._segment[work]
        worked_s = self.env.now - since_s if state == "working" else 0.0
        lost_s = worked_s % PIECE_S if work.kind == "data" else 0.0
        if work.kind == "training" and why == "fault":
            lost_s = worked_s % CHECKPOINT_S
        work.done_s += worked_s - lost_s
        self._close(work, lost_s)
        self.preempted += why == "preempted"
        if why == "fault" and work.gpus > NODE:
            self.segment(work, "hanging")
            self.env.process(self._hangs(work))
        else:
            self._again(work)

    def segment(self, work: Work, state: str) -> None:
        """From now on its GPUs are in ``state``."""
        self._close(work)
        self._segment[work] = (state, self.env.now)

    def release(self, work: Work) -> None:
        """Give back its GPUs."""
        self._close(work)
        cell = self.cells[work.cell]
        for node in work.nodes:
            cell.give(work, node, -1)
        cell.admitted -= work.gpus
        work.nodes = []

    def _close(self, work: Work, lost_s: float = 0.0) -> None:
        if work not in self._segment:
            return
        state, since_s = self._segment.pop(work)
        now = self.env.now
        self._account(state, work, since_s, max(since_s, now - lost_s))
        self._account("lost", work, max(since_s, now - lost_s), now)

    def _account(self, state: str, work: Work, from_s: float, to_s: float) -> None:
        within = max(0.0, min(to_s, self.end_s) - max(from_s, self.begin_s))
        gpus = min(work.gpus, NODE) * len(work.nodes)  # that it holds
        self.gpu_s[state] += within * gpus
        self.usd += within / HOUR_S * gpus * self.cells[work.cell].price

    def _again(self, work: Work) -> None:
        self.release(work)
        self.queue.append(work)

    def _hangs(self, work: Work) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(NOTICED_S)
        self._again(work)

    def _runs(self, work: Work, cell: Cell) -> Generator[simpy.Event, Any, None]:
        again = work.starts > 0
        work.starts += 1
        try:
            if work.team not in cell.data:
                self.segment(work, "copying")
                yield self.env.timeout(COPY_S[work.kind])
                if work.kind != "data":  # which reads new material each time
                    cell.data.add(work.team)
            self.segment(work, "starting")
            yield self.env.timeout(START_S[work.kind] + (WRITE_S if again else 0.0))
            self.segment(work, "working")
            yield self.env.timeout(work.need_s - work.done_s)
        except simpy.Interrupt:
            return  # `stop` has seen to it
        self.running.pop(work)
        self.release(work)

    def _arrivals(self) -> Generator[simpy.Event, Any, None]:
        for work in self.trace.work:
            yield self.env.timeout(work.arrives_s - self.env.now)
            self.queue.append(work)

    def _faults(
        self, cell: Cell, node: int, rng: np.random.Generator
    ) -> Generator[simpy.Event, Any, None]:
        """Of one node, alike under all policies."""
        while True:
            fault_s = rng.exponential(FAILS_S)
            taken_s = rng.exponential(TAKEN_S) if cell.spot else np.inf
            yield self.env.timeout(min(fault_s, taken_s))
            cell.up[node] = False
            why = "fault" if fault_s < taken_s else "preempted"
            for work in sorted(cell.on[node], key=lambda one: one.number):
                if work in self.running:
                    self.stop(work, why)
                elif self._segment[work][0] == "waiting":  # for other nodes, too
                    self.segment(work, "waiting")
                    work.nodes.remove(node)
                    cell.give(work, node, -1)
            yield self.env.timeout(REPAIR_S if why == "fault" else rng.exponential(BACK_S))
            cell.up[node] = True


def simulated(policy: Any, trace: Trace, seed: int, days: float, warm_days: float) -> dict:
    """Shares of the fleet's GPU time behind the first days, waits in hours, and the price."""
    fleet = Fleet(trace, seed, warm_days * DAY_S, days * DAY_S)
    fleet.run(policy)
    whole = sum(NODES) * NODE * (days - warm_days) * DAY_S
    held = sum(fleet.gpu_s.values())
    working = fleet.gpu_s["working"]
    found = {
        "use": working / whole,
        "not_working": 1 - working / whole,
        "held": held / whole,
        "waste": (held - working) / whole,
        "waste_of_held": (held - working) / held,
        "usd_per_working_hour": fleet.usd / (working / HOUR_S),
    }
    for state in ("copying", "starting", "lost", "hanging", "waiting"):
        found[f"gpu_{state}"] = fleet.gpu_s[state] / whole
    for kind, waits in fleet.waits.items():
        found[f"wait_{kind}"] = float(np.quantile(waits, 0.9)) / HOUR_S
    return found
