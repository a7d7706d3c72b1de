"""Worker processes on this machine, and how far all workers have come.

Each holds the models of its stages for as long as it lives. One that dies is replaced, and what it
had in hand is taken up by another, up to `MOST_DEATHS` times (store.py).
"""

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

from avatar_v.base.interrupts import interrupts_deferred
from avatar_v_data.curation.reconcile import CurationTask, reconcile
from avatar_v_data.curation.store import MOST_DEATHS, CurationStore
from avatar_v_data.threads import one_thread

LOOK_S = 1.0
"""Between two looks at what is finished."""
PATIENCE_S = 2.0
"""For workers to end what they are at, when the run is interrupted; then they are killed, which
costs time and no result."""


def work(
    tasks: Sequence[CurationTask],
    folder: Path,
    num_workers: int,
    on_progress: Callable[[int, int], None] = lambda num_done, num: None,
) -> None:
    """Finish ``tasks`` in so many processes (one: in this one), with others' help or without.

    OSError where workers keep failing without a result.
    """
    store = CurationStore(folder)
    if num_workers == 1:
        with one_thread():
            reconcile(tasks, store, on_progress=on_progress)
        return
    keys = {task.key for task in tasks}
    on_progress(len(keys & store.finished()), len(keys))
    context = multiprocessing.get_context("spawn")
    stopping = context.Event()
    num_started, allowed = 0, num_workers + MOST_DEATHS * len(tasks)
    processes: list[BaseProcess] = []
    try:
        while num_left := _left(keys, store, on_progress):
            for process in processes:
                if process.exitcode and process.pid is not None:
                    store.died(process.pid)
            processes = [process for process in processes if process.is_alive()]
            while len(processes) < min(num_workers, num_left):
                if num_started >= allowed:
                    raise OSError("workers keep dying without a result; see what they printed")
                process = context.Process(target=_worker, args=(list(tasks), folder, stopping))
                with interrupts_deferred():
                    process.start()
                processes.append(process)
                num_started += 1
            time.sleep(LOOK_S)
    finally:
        stopping.set()
        for process in processes:
            process.join(PATIENCE_S)
            process.kill()
            process.join()


def _left(keys: set[str], store: CurationStore, on_progress: Callable[[int, int], None]) -> int:
    """Tasks that are not finished."""
    num_done = len(keys & store.finished())
    on_progress(num_done, len(keys))
    return len(keys) - num_done


def _worker(tasks: list[CurationTask], folder: Path, stopping: Event) -> None:
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    with one_thread():
        reconcile(tasks, CurationStore(folder), is_stopping=stopping.is_set)
