"""Raw bytes from stdin and to stdout, with waits that end.

A blocking read or write cannot be called off, and one whose other side hangs lasts for ever. These
give up after ``patience_s`` without progress, and at once when ``interrupt`` is called from another
thread. POSIX only: they wait with select. inputs/live.py and outputs.py say what the bytes mean.
"""

import os
import select
import threading
import time
from collections.abc import Iterator

PATIENCE_S = 30.0
_SLICE_S = 0.1  # how often a wait looks whether it was called off
_BLOCK = 4096  # bytes; a pipe that select calls writable takes that many without blocking


class PipeReader:
    """Blocks of bytes from a file descriptor, as they arrive, to its end.

    TimeoutError where nothing arrives for ``patience_s``.
    """

    def __init__(self, fd: int, *, patience_s: float = PATIENCE_S) -> None:
        self._fd, self._patience_s = fd, patience_s
        self._interrupted = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        while _ready(self._fd, "read", self._patience_s, self._interrupted):
            block = os.read(self._fd, _BLOCK)
            if not block:
                return
            yield block

    def interrupt(self) -> None:
        """Ends a wait, and every later one, as the end of the stream would."""
        self._interrupted.set()


class PipeWriter:
    """The file object that PyAV writes a stream to; nothing is buffered here.

    TimeoutError where the reader takes nothing for ``patience_s``; BrokenPipeError where it is
    gone.
    """

    def __init__(self, fd: int, *, patience_s: float = PATIENCE_S) -> None:
        self._fd, self._patience_s = fd, patience_s
        self._interrupted = threading.Event()

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        while view:
            if not _ready(self._fd, "write", self._patience_s, self._interrupted):
                raise InterruptedError("called off")
            view = view[os.write(self._fd, view[:_BLOCK]) :]
        return len(data)

    def interrupt(self) -> None:
        """Makes a wait, and every later one, raise InterruptedError."""
        self._interrupted.set()


def _ready(fd: int, way: str, patience_s: float, interrupted: threading.Event) -> bool:
    """Waits until ``fd`` can be read or written; False if it was interrupted before."""
    end = time.monotonic() + patience_s
    reads, writes = ([fd], []) if way == "read" else ([], [fd])
    while not interrupted.is_set():
        if any(select.select(reads, writes, [], min(_SLICE_S, patience_s))):
            return True
        if time.monotonic() >= end:
            raise TimeoutError(f"the other side did nothing for {patience_s:g} s")
    return False
