"""Memory of a process in which conversations come and go.

What they use is let go. glibc's malloc keeps it, in an arena for each of many threads: fifty
conversations left 86 MiB that nothing used. Where malloc is another one, nothing is done here.
"""

import ctypes

ARENA_MAX = -8  # of glibc's malloc.h
ARENAS = 2
"""Instead of eight for a core. Speech was made into frames as fast with two."""


def keep_few_arenas() -> None:
    """Of malloc, from now on."""
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(ARENA_MAX, ARENAS)


def give_back() -> None:
    """Return to the system what was freed."""
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
