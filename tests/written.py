"""Short films written through an output and read back as a player would."""

import contextlib
import io
import resource
import signal
import threading
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path

import av
import numpy as np
import torch
from torch import Tensor

from avatar_v.media.files import Output
from avatar_v.media.outputs import build_output
from avatar_v.media.writer import Writer

PATIENCE_S = 300.0
"""Of waits for a process that ends at once unless the code is wrong; CI machines are busy."""


def block(num: int = 10) -> tuple[Tensor, Tensor]:
    frames = torch.zeros(num, 3, 32, 32, dtype=torch.uint8)
    frames[:, 1] = torch.arange(num)[:, None, None] * 20
    return frames, 0.3 * torch.sin(torch.arange(num * 640) * 0.2)


def write(output: Output, num_blocks: int) -> None:
    with Writer(output) as writer:
        for _ in range(num_blocks):
            writer.write(*block())


def num_decoded(file: str | io.BytesIO) -> tuple[int, int]:
    """Video frames and audio samples that a player gets."""
    with av.open(file) as container:
        frames = sum(1 for _ in container.decode(video=0))
    if isinstance(file, io.BytesIO):
        file.seek(0)
    with av.open(file) as container:
        return frames, sum(frame.samples for frame in container.decode(audio=0))


def segments(playlist: Path) -> list[Path]:
    lines = playlist.read_text().splitlines()
    return [playlist.parent / line for line in lines if line and not line.startswith("#")]


def joined(playlist: Path) -> io.BytesIO:
    """What a player that follows the playlist has at this moment."""
    init = playlist.with_name(f"{playlist.stem}_init.mp4")
    return io.BytesIO(b"".join(path.read_bytes() for path in (init, *segments(playlist))))


def played(path: str) -> list[np.ndarray]:
    """All pictures that a player shows of a file or playlist, "h w 3"."""
    file = joined(Path(path)) if path.endswith(".m3u8") else path
    with av.open(file) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def assert_same_pictures(path: str, other: str) -> None:
    """The files or playlists show the same, bit for bit; the message says how they differ."""
    shown, expected = played(path), played(other)
    assert len(shown) == len(expected)
    apart = {
        i: int(np.abs(a.astype(int) - b).max())
        for i, (a, b) in enumerate(zip(shown, expected, strict=True))
        if not np.array_equal(a, b)
    }
    assert not apart, f"largest difference by picture, of 255: {apart}"


def writer_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "writer"]


def write_for_ever(path: str, told: Connection) -> None:
    frames = torch.zeros(25, 3, 32, 32, dtype=torch.uint8)
    with Writer(build_output(path)) as writer:
        while True:
            writer.write(frames, torch.zeros(25 * 640))
            told.send(writer.num_frames)


def write_to_a_full_disk(path: str, told: Connection) -> None:
    """A limit on the size of files stands for it: writing fails in the same call."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    draw = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 255, (10, 3, 64, 64), dtype=torch.uint8, generator=draw)
    try:
        with Writer(build_output(path)) as writer:
            for _ in range(40):
                writer.write(frames, torch.zeros(6400))
    except OSError as error:
        told.send(str(error))


def packet_times(pieces: list[bytes]) -> dict[str, list[Fraction]]:
    """Of an mp4 that comes in pieces, and may end early: seconds of its packets, by stream."""
    times: dict[str, list[Fraction]] = {"video": [], "audio": []}
    with contextlib.suppress(av.FFmpegError), av.open(io.BytesIO(b"".join(pieces))) as container:
        for packet in container.demux():
            if packet.pts is not None:
                times[packet.stream.type].append(packet.pts * packet.time_base)
    return times
