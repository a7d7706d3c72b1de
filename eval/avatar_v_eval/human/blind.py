"""Copies of a study's videos that say nothing about where they come from.

Generators sign their files: names, dates, titles, "encoder" tags, provenance boxes. The copy holds
the same coded pictures and sound, not re-encoded, in a fresh mp4 whose index comes first, so it
plays before it is loaded. What stays is inside the pictures: size, codec, and marks such as x264's
own SEI text. Copying also opens every file, so a broken one is found before a rater meets it.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

import av
from av.error import FFmpegError

from avatar_v.media.containers import open_media


def blinded_copies(files: Iterable[Path], folder: Path) -> dict[Path, Path]:
    """Original → copy, made in ``folder`` where there is none of the same path, size and time.

    Raises ValueError naming a file that is no video.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)  # also one of before: the videos of a study are not everybody's
    copies = {}
    for file in dict.fromkeys(files):
        state = file.stat()
        key = f"{file.resolve()}|{state.st_size}|{state.st_mtime_ns}"
        copy = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.mp4"
        if not copy.is_file():
            _copy(file, copy)
        copies[file] = copy
    return copies


@lru_cache(4096)
def duration_s(copy: Path) -> float:
    """Of a copy, as its index states it."""
    with open_media(copy) as container:
        return (container.duration or 0) / av.time_base


def _copy(source: Path, target: Path) -> None:
    part = target.with_suffix(f".{os.getpid()}-{secrets.token_hex(4)}.part")  # of this server
    try:
        with (
            open_media(source) as before,
            av.open(
                str(part),
                "w",
                format="mp4",
                options={"movflags": "faststart", "fflags": "bitexact"},
            ) as after,
        ):
            if not before.streams.video:
                raise ValueError(f"{source} has no picture")
            kept = [*before.streams.video[:1], *before.streams.audio[:1]]
            streams = {stream.index: after.add_stream_from_template(stream) for stream in kept}
            for packet in before.demux(*kept):
                if packet.dts is not None:
                    packet.stream = streams[packet.stream.index]
                    after.mux(packet)
        part.replace(target)
    except FFmpegError as error:
        raise ValueError(f"{source} is no mp4 that can be shown: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)
