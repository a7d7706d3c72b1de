"""Workers on this machine: this process itself, or processes that it starts.

One that dies is seen at once, by the system's own word. Standard error is theirs, too.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue

from avatar_v.base.interrupts import interrupts_deferred
from avatar_v_data.curation.engine import Job, Outcome, perform
from avatar_v_data.curation.plan import Resources
from avatar_v_data.curation.stages import Stage
from avatar_v_data.threads import one_thread


class Here:
    """One worker, which is this process."""

    def __init__(self, stages: Sequence[Stage], files: Path) -> None:
        self._stages, self._files = stages, files
        self._jobs: deque[tuple[int, Job]] = deque()
        self._num, self._begun = 0, list[int]()

    def start(self, kind: Resources) -> int:
        self._num += 1
        self._begun.append(self._num)
        return self._num

    def send(self, worker: int, job: Job) -> None:
        self._jobs.append((worker, job))

    def outcomes(self, timeout_s: float) -> list[Outcome]:
        if self._begun:
            begun, self._begun = self._begun, []
            return [Outcome(worker, is_ready=True) for worker in begun]
        worker, job = self._jobs.popleft()
        with one_thread():
            return [perform(worker, self._stages, self._files, job)]

    def close(self) -> None:
        self._jobs.clear()


class Processes:
    """A process for each worker, with the models that it has loaded."""

    def __init__(self, stages: Sequence[Stage], files: Path) -> None:
        self._stages, self._files = tuple(stages), files
        self._context = multiprocessing.get_context("spawn")
        self._num = 0
        self._pipes: dict[int, Connection] = {}
        self._processes: dict[int, BaseProcess] = {}

    def start(self, kind: Resources) -> int:
        self._num += 1
        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=_work, args=(self._num, self._stages, self._files, theirs), daemon=True
        )
        with interrupts_deferred():
            process.start()
        theirs.close()
        self._pipes[self._num], self._processes[self._num] = ours, process
        return self._num

    def send(self, worker: int, job: Job) -> None:
        try:
            self._pipes[worker].send(job)
        except OSError:
            return  # it is dead, which `outcomes` says

    def outcomes(self, timeout_s: float) -> list[Outcome]:
        worker_of = {pipe: worker for worker, pipe in self._pipes.items()}
        found = []
        for pipe in wait(list(worker_of), timeout_s):
            worker = worker_of[pipe]  # pyright: ignore[reportArgumentType]
            try:
                found.append(self._pipes[worker].recv())
            except (EOFError, OSError):
                self._pipes.pop(worker).close()
                self._processes.pop(worker).join()
                found.append(Outcome(worker, is_dead=True))
        return found

    def close(self) -> None:
        """What they are at is lost, which costs time and no result."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join()


def _work(number: int, stages: Sequence[Stage], files: Path, pipe: Connection) -> None:
    """In a worker: jobs to outcomes until the leader ends or dies, and this process with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    jobs: SimpleQueue[Job] = SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, jobs), daemon=True).start()
    pipe.send(Outcome(number, is_ready=True))
    with one_thread():
        while True:
            outcome = perform(number, stages, files, jobs.get())
            pipe.send(outcome)


def _receive(pipe: Connection, jobs: SimpleQueue[Job]) -> None:
    """Beside the work, so that neither side waits for the other to read."""
    while True:
        try:
            jobs.put(pipe.recv())
        except (EOFError, OSError):
            os._exit(0)
