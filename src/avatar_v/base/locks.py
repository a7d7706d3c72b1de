"""A folder that one process works in at a time, by the lock of a file."""

import fcntl
import os
from pathlib import Path


def exclusive(path: str | Path, taken: str) -> int:
    """A descriptor that holds the lock in ``path``, which is made; the system frees it with the
    process. ValueError ``taken`` where another process holds it; OSError on a file system without
    locks."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if isinstance(error, BlockingIOError):
            raise ValueError(taken) from error
        raise
    return lock
