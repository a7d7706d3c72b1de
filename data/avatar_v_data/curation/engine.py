"""Leading workers through the passes of a run: who has what in hand, what is lost, what is stored.

The workers are processes of this machine (local.py) or actors of a Ray cluster (on_ray.py); both
keep their models for as long as they live. This process alone decides and writes. Each worker has
at most `IN_HAND` passes, so that it never waits and nothing piles up. What a worker had in hand
when it died is given to others; a pass that killed `MOST_DEATHS` of them in a row is given up. One
that a machine cannot do (a disk, a package) is left for another run, and the rest is made.
"""

import json
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch

from avatar_v.shards.writer import write_text_atomically
from avatar_v_data.curation.passes import Examined, examine
from avatar_v_data.curation.plan import Resources
from avatar_v_data.curation.reconcile import Pass
from avatar_v_data.curation.stages import (
    FAILED,
    MACHINE,
    MEMORY,
    FootageRecording,
    Result,
    Stage,
)
from avatar_v_data.curation.store import CurationStore, Row

IN_HAND = 2
MOST_DEATHS = 3
FLUSH_S = 5.0
"""Between two writes of results: what is lost at most where this process is killed."""
WAIT_S = 0.5
STATUS_FILE = "status.json"
RATE_S = 600.0
"""Of the past, over which the rate is measured."""


@dataclass(frozen=True)
class Job:
    """A pass as a worker gets it."""

    recording: FootageRecording
    keys: dict[str, str]
    known: dict[str, Result]


@dataclass(frozen=True)
class Outcome:
    """What came of a job."""

    worker: int
    examined: Examined | None = None
    error: Exception | None = None  # of MACHINE
    busy_s: float = 0.0
    is_dead: bool = False  # and with it the worker, with all that it had in hand
    is_ready: bool = False  # nothing but that the worker has begun: it may be sent jobs


@runtime_checkable
class Workers(Protocol):
    """Workers of all kinds. A number is never given twice."""

    def start(self, kind: Resources) -> int: ...

    def send(self, worker: int, job: Job) -> None: ...

    def outcomes(self, timeout_s: float) -> list[Outcome]:
        """What came since the last call, in the order in which each worker got it."""
        ...

    def close(self) -> None: ...


@dataclass
class RunStatus:
    """How far a run has come; `status.json`."""

    total: int  # passes
    done: int = 0
    failed: int = 0
    deaths: int = 0
    workers: int = 0
    busy: float = 0.0  # share of the workers' time
    per_hour: float = 0.0
    left_s: float | None = None
    started: float = field(default_factory=time.time)
    updated: float = 0.0


def perform(worker: int, stages: Sequence[Stage], files: Path, job: Job) -> Outcome:
    """What a worker does with a job. AcceleratorError: this process can do nothing more on its
    GPU, and is to end."""
    begin = time.monotonic()
    own = [stage for stage in stages if stage.name in job.keys]
    try:
        examined = examine(job.recording, own, job.known, files, job.keys)
    except torch.AcceleratorError:
        raise
    except MACHINE as error:
        return Outcome(worker, error=error, busy_s=time.monotonic() - begin)
    return Outcome(worker, examined, busy_s=time.monotonic() - begin)


def run_passes(
    passes: Iterable[Pass],
    store: CurationStore,
    workers: Workers,
    num_workers: int,
    on_progress: Callable[[int, int], None] = lambda num_done, num: None,
) -> RunStatus:
    """Have all ``passes`` made and stored. OSError or ImportError, when all else is stored, where
    a machine cannot do one of them."""
    leader = _Leader(list(passes), store, workers, num_workers)
    leader.flush()
    on_progress(0, leader.status.total)
    try:
        while leader.is_left():
            leader.hand_out()
            leader.take(workers.outcomes(WAIT_S))
            on_progress(leader.status.done, leader.status.total)
    finally:
        leader.flush()
        workers.close()
    if leader.error is not None:
        raise leader.error
    return leader.status


class _Leader:
    def __init__(
        self, passes: list[Pass], store: CurationStore, workers: Workers, num_workers: int
    ) -> None:
        self.status = RunStatus(total=len(passes))
        self.error: Exception | None = None  # the first of a machine that three tries met
        self._lost: set[str] = set()  # keys that it keeps from being made now
        self._num_lost = 0  # passes
        self._store, self._workers = store, workers
        self._finished = store.finished()
        self._ready: dict[Resources, deque[Pass]] = {}
        self._waiting: dict[str, list[Pass]] = {}  # by the first result that they lack
        for one in passes:
            self._queue(one)
        kinds = {one.kind for one in passes}
        self._most = {kind: kind.workers or num_workers for kind in kinds}
        self._in_hand: dict[int, deque[Pass]] = {}
        self._kind: dict[int, Resources] = {}
        self._up: set[int] = set()
        self._deaths: Counter[int] = Counter()  # by the pass
        self._rows: dict[str, Row] = {}  # that are not stored yet
        self._barren = 0  # deaths and errors since the last result
        self._flushed = time.monotonic()
        self._ends: deque[float] = deque()
        self._busy = self._there = 0.0  # seconds of work, and of workers that have begun
        self._counted = time.monotonic()

    def is_left(self) -> bool:
        return self.status.done + self._num_lost < self.status.total

    def hand_out(self) -> None:
        """Start workers for what waits, and give each that has begun something to do: one for which
        a cluster has no room yet holds nothing back."""
        for kind, ready in self._ready.items():
            own = [w for w, its in self._kind.items() if its == kind]
            free = sum(IN_HAND - len(self._in_hand[w]) for w in own)
            for _ in range(min(self._most[kind] - len(own), len(ready) - free)):
                own.append(worker := self._workers.start(kind))
                self._in_hand[worker], self._kind[worker] = deque(), kind
            for depth in range(IN_HAND):
                for worker in self._up.intersection(own):
                    if ready and len(self._in_hand[worker]) == depth:
                        self._give(worker, ready.popleft())

    def take(self, outcomes: Sequence[Outcome]) -> None:
        """Keep what came, and let others do what a dead worker had in hand."""
        now = time.monotonic()
        self._there += len(self._up) * (now - self._counted)
        self._counted = now
        for outcome in outcomes:
            if outcome.is_dead:
                self._bury(outcome.worker)
            if outcome.is_ready:
                self._up.add(outcome.worker)
            if outcome.is_dead or outcome.is_ready:
                continue
            one = self._in_hand[outcome.worker].popleft()
            self._busy += outcome.busy_s
            if outcome.error is not None:
                self._count_barren(outcome.error, self._kind[outcome.worker])
                self._blame(one, outcome.error)
            else:
                assert outcome.examined is not None
                self._barren = 0
                self._keep(one, outcome.examined)
        if time.monotonic() - self._flushed > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Store what has come, and how far the run is."""
        self._store.commit(list(self._rows.values()))
        self._rows, self._flushed, now = {}, time.monotonic(), time.time()
        self.status.workers = len(self._up)
        self.status.busy = min(self._busy / max(self._there, 1e-3), 1.0)
        while self._ends and self._ends[0] < now - RATE_S:
            self._ends.popleft()
        status = self.status
        past = min(RATE_S, max(now - status.started, 1e-3))
        status.per_hour = 3600 * len(self._ends) / past
        left = status.total - status.done
        status.left_s = 3600 * left / status.per_hour if status.per_hour else None
        status.updated = now
        write_text_atomically(self._store.folder / STATUS_FILE, json.dumps(asdict(status)))

    def _queue(self, one: Pass) -> None:
        lacks = one.lacks(self._finished)
        if not self._lost.isdisjoint(one.inputs.values()):
            self._lose(one)
        elif lacks is None:
            self._ready.setdefault(one.kind, deque()).append(one)
        else:
            self._waiting.setdefault(lacks, []).append(one)

    def _give(self, worker: int, one: Pass) -> None:
        rows = self._rows
        known = {
            name: rows[key].result if key in rows else self._store.result(key)
            for name, key in one.inputs.items()
        }
        self._in_hand[worker].append(one)
        self._workers.send(worker, Job(one.recording, one.keys, known))

    def _keep(self, one: Pass, found: Examined) -> None:
        rest = found.seconds.get("decode", 0.0) / len(one.keys)  # shared by its stages
        for name, key in one.keys.items():
            spent = found.seconds.get(name, 0.0) + rest
            self._rows[key] = Row(name, key, one.recording.name, found.results[name], spent)
        self._finished.update(one.keys.values())
        self._ends.append(time.time())
        self.status.done += 1
        self.status.failed += any(FAILED in result for result in found.results.values())
        self._queue_behind(one)

    def _lose(self, one: Pass) -> None:
        """Another run makes it, and what needs it."""
        self._lost.update(one.keys.values())
        self._num_lost += 1
        self._queue_behind(one)

    def _queue_behind(self, one: Pass) -> None:
        for key in one.keys.values():
            for other in self._waiting.pop(key, ()):
                self._queue(other)

    def _bury(self, worker: int) -> None:
        """The first in hand is what it died at; the rest goes to the front."""
        in_hand = self._in_hand.pop(worker)
        kind = self._kind.pop(worker)
        self.status.deaths += 1
        why = OSError("workers keep dying without a result; see what they printed")
        self._count_barren(why, kind)
        first = in_hand.popleft() if in_hand else None
        self._up.discard(worker)
        self._ready.setdefault(kind, deque()).extendleft(reversed(in_hand))
        if first is not None:
            self._blame(first, None)

    def _count_barren(self, error: Exception, kind: Resources) -> None:
        """Raise it where no worker comes to a result any more."""
        self._barren += 1
        if self._barren > MOST_DEATHS * (self._most[kind] + 3):
            raise error

    def _blame(self, one: Pass, error: Exception | None) -> None:
        """A pass killed a worker, or failed for its machine's sake: others come first, and the
        third time it is given up, for good where it takes more memory than there is."""
        self._deaths[id(one)] += 1
        if self._deaths[id(one)] < MOST_DEATHS:
            self._ready.setdefault(one.kind, deque()).append(one)
        elif error is None or isinstance(error, MEMORY):
            what = "its worker died" if error is None else "there was too little memory"
            why = f"{what} {MOST_DEATHS} times{' (memory?)' if error is None else ''}"
            self._keep(one, Examined({name: {FAILED: f"{name}: {why}"} for name in one.keys}))
        else:
            self.error = self.error or error
            self._lose(one)
