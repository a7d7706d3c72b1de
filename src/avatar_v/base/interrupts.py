"""Ctrl-C while modules are imported, and while worker processes begin.

An interrupt inside an import leaves half a module behind, and libraries that try an import and go
on without it swallow the interrupt, too. A terminal sends SIGINT to all processes of a command: a
worker that is only being imported cannot answer it (but by a traceback), and whoever starts it must
not lose it.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

IMPORTING = "<frozen importlib._bootstrap"
"""The file of Python's own frames below an import."""
AGAIN_S = 0.05
"""Seconds until a signal that fell into an import is sent again."""
_ignored: set[int] = set()


@contextmanager
def interrupts_behind_imports() -> Iterator[None]:
    """Inside, SIGINT raises KeyboardInterrupt, but not before the imports that it falls into are
    done. Nothing is changed in another thread than the main one, and where SIGINT is answered in
    another way already."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def ignore(number: int) -> None:
    """From here to the end of the process nobody listens, whoever puts `interrupted` back."""
    _ignored.add(number)
    signal.signal(number, signal.SIG_IGN)


def is_ignored(number: int) -> bool:
    return number in _ignored


def interrupted(number: int, frame: FrameType | None) -> None:
    """A handler: KeyboardInterrupt, or the same signal again where a module is being imported;
    nothing for one of `ignore`."""
    if number in _ignored:
        return
    while frame is not None:
        if frame.f_code.co_filename.startswith(IMPORTING):
            main = threading.main_thread().ident
            assert main is not None, "it has begun"
            timer = threading.Timer(AGAIN_S, signal.pthread_kill, (main, number))
            timer.daemon = True
            timer.start()
            return
        frame = frame.f_back
    raise KeyboardInterrupt


@contextmanager
def first_interrupt(answer: Callable[[], bool]) -> Iterator[None]:
    """Inside, the first SIGINT calls ``answer``; each later one, and one that ``answer`` does not
    take (False), is answered as before. Nothing is changed in another thread than the main one, and
    where SIGINT is ignored."""
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before is signal.SIG_IGN:
        yield
        return

    def once(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, before)
        if not answer():
            signal.raise_signal(number)

    signal.signal(signal.SIGINT, once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
