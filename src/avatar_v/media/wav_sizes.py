"""WAV files that say no size, or a placeholder, as every program does that writes one to a pipe.

Whoever speaks while it makes the speech does not know its length when the header is written. Such a
file holds sound up to its end; FFmpeg would call it cut.
"""

import io
import os
from typing import NamedTuple

MARKS = (2**31, 2**32)
NEAR = 4096
"""Bytes around a mark, such as the length of a header, that writers subtract or round by."""
ROUND_SIZE = 2_000_000_000
MAX_CHUNKS = 64


class Patch(NamedTuple):
    """Bytes that take the place of others."""

    offset: int
    data: bytes


def size_patch(file: io.RawIOBase) -> Patch | None:
    """What gives the WAV or RF64 file at its beginning its true size; None for any other file, one
    that says its size, and one that was cut behind a header that did. Leaves it at its beginning.
    """
    try:
        return _size_patch(file)
    finally:
        file.seek(0)


def _size_patch(file: io.RawIOBase) -> Patch | None:
    head = file.read(12) or b""
    if head[:4] not in (b"RIFF", b"RF64") or head[8:] != b"WAVE":
        return None
    end, at, align, long_size = file.seek(0, os.SEEK_END), 12, 1, None
    for _ in range(MAX_CHUNKS):
        file.seek(at)
        chunk = file.read(8) or b""
        if len(chunk) < 8:
            return None
        size, body = int.from_bytes(chunk[4:], "little"), at + 8
        match chunk[:4]:
            case b"fmt ":
                align = int.from_bytes((file.read(14) or b"")[12:], "little") or 1
            case b"ds64":
                long_size = Patch(body + 8, (file.read(16) or b"")[8:])
            case b"data":
                field = Patch(at + 4, chunk[4:])
                if head[:4] == b"RF64" and long_size is not None:
                    field = long_size
                return _patched(field, end - body, align)
        at = body + size + size % 2
    return None


def _patched(field: Patch, there: int, align: int) -> Patch | None:
    """The ``field`` with the size of the samples that are ``there``, if it is a placeholder."""
    size, width = int.from_bytes(field.data, "little"), len(field.data)
    marks = (*MARKS, 2**63, 2**64) if width == 8 else MARKS
    near = any(abs(mark - size) <= NEAR for mark in marks) or abs(ROUND_SIZE - size) <= 64
    if there == 0 or not (size == 0 or (near and size > there)):
        return None
    whole = there - there % align
    return Patch(field.offset, min(whole, 2 ** (8 * width) - 1).to_bytes(width, "little"))
