"""Ctrl-C while worker processes begin.

A terminal sends SIGINT to all processes of a command. A worker that is only being imported cannot
answer it (but by a traceback), and whoever starts it must not lose it.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Inside, SIGINT waits; at the end it is answered, as it would have been before.

    Processes that begin inside have it blocked, for good unless they unblock it: they end when who
    started them says so. Only the main thread can defer; in another one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting = []
    # The handler is for signals that other threads receive, the mask for the processes.
    before = signal.signal(signal.SIGINT, lambda number, _: waiting.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)  # one that is pending arrives here
        signal.signal(signal.SIGINT, before)
        if waiting:
            signal.raise_signal(signal.SIGINT)
