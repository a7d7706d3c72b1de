"""Random streams: each is named by a purpose and integer ids, and by nothing else.

A stream depends on no global state, so that a drawn clip has the same bytes and a chunk of video
the same noise in any process, in any order. Streams of different purposes are independent.
"""

import zlib

import numpy as np


def stream(purpose: str, *ids: int) -> np.random.Generator:
    """The random stream of ``purpose`` for these ids (non-negative integers)."""
    return np.random.Generator(np.random.PCG64(_sequence(purpose, ids)))


def derive(purpose: str, *ids: int) -> int:
    """A seed in [0, 2^63) made of a purpose and ids."""
    return int(_sequence(purpose, ids).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _sequence(purpose: str, ids: tuple[int, ...]) -> np.random.SeedSequence:
    if any(i < 0 for i in ids):
        raise ValueError(f"ids are non-negative integers, got {ids}")
    return np.random.SeedSequence([zlib.crc32(purpose.encode()), *ids])
