"""Jobs in threads of their own, and their states as they are streamed to the page.

A job ends when its stream is closed (Stop, a closed browser) or when the server ends, at the next
state that it gives: a step of the sampling is not cut.
"""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TypeVar

State = TypeVar("State")
_END = object()  # of a stream, whose states may be None


class JobThreads:
    """All jobs of a server."""

    def __init__(self) -> None:
        self._running: dict[threading.Thread, threading.Event] = {}
        self._is_over = False

    async def stream(
        self, begin: Callable[[], Generator[State, None, None]]
    ) -> AsyncGenerator[State]:
        """The states of a generator, which a thread drives; closing this closes the generator. A
        fault of it is raised here."""
        loop, states = asyncio.get_running_loop(), asyncio.Queue()
        stop, faults = threading.Event(), list[BaseException]()

        def tell(state: State | object) -> None:
            with contextlib.suppress(RuntimeError):  # the server is over, its loop closed
                loop.call_soon_threadsafe(states.put_nowait, state)

        def work() -> None:
            try:
                with contextlib.closing(begin()) as job:
                    for state in job:
                        tell(state)
                        if stop.is_set():
                            break
            except BaseException as error:
                faults.append(error)
            finally:
                tell(_END)
                del self._running[thread]

        thread = threading.Thread(target=work, name="job")
        self._running[thread] = stop
        if self._is_over:
            stop.set()
        thread.start()
        try:
            while (state := await states.get()) is not _END:
                yield state
            if faults:
                raise faults[0]
        finally:
            stop.set()

    def end(self) -> None:
        """Every job ends at its next state, one that begins from now on at its first."""
        self._is_over = True
        for stop in list(self._running.values()):
            stop.set()

    def wait(self, most_s: float) -> None:
        """Until all jobs have ended, or for ``most_s``."""
        end = time.monotonic() + most_s
        for thread in list(self._running):
            thread.join(max(0.0, end - time.monotonic()))
