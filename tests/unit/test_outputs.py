"""Live outputs: HLS that plays while it grows and after a kill, fragmented mp4 on a pipe, RTMP.

No test waits for time to pass: processes say by a line or a file descriptor how far they are.
"""

import io
import multiprocessing
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction
from multiprocessing.connection import Connection
from pathlib import Path

import av
import pytest
import torch
from torch import Tensor

from avatar_v.generate import on_disk
from avatar_v.generate.on_disk import GrowingMp4, HlsPlaylist
from avatar_v.generate.output_base import Output
from avatar_v.generate.outputs import (
    FragmentedPipe,
    RtmpPush,
    kind_of,
    output_of,
)
from avatar_v.generate.writer import Writer

PATIENCE_S = 300.0
"""Of waits for a process that ends at once unless the code is wrong; CI machines are busy."""


FORK = multiprocessing.get_context("fork")  # a child that is there at once, without imports


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


def writer_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "writer"]


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        try:
            os.close(end)
        except OSError:
            continue  # the test closed it


def drain(fd: int, into: list[bytes]) -> threading.Thread:
    def run() -> None:
        while data := os.read(fd, 1 << 16):
            into.append(data)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("out", "kind"),
    [("a/b.mp4", "mp4"), ("B.M3U8", "hls"), ("rtmp://host/app/key", "rtmp"), ("-", "stdout")],
)
def test_the_name_tells_the_kind(out: str, kind: str) -> None:
    assert kind_of(out) == kind


@pytest.mark.parametrize("out", ["x.avi", "x", "http://host/x", ""])
def test_other_names_are_refused(out: str) -> None:
    with pytest.raises(ValueError, match=r"an \.mp4 file, an \.m3u8 playlist"):
        kind_of(out)


# --- HLS ---


def test_a_finished_playlist_plays_whole(tmp_path: Path) -> None:
    path = tmp_path / "live.m3u8"
    write(HlsPlaylist(path), 7)
    text = path.read_text()
    assert "#EXT-X-PLAYLIST-TYPE:EVENT" in text
    assert '#EXT-X-MAP:URI="live_init.mp4"' in text
    assert text.rstrip().endswith("#EXT-X-ENDLIST")
    frames, samples = num_decoded(str(path))
    assert frames == 70
    assert samples >= 70 * 640  # AAC fills its last frame
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"live.m3u8", "live_init.mp4", *(p.name for p in segments(path))}
    assert len(segments(path)) >= 2
    assert writer_threads() == []


def test_tracks_of_hls_start_together(tmp_path: Path) -> None:
    path = tmp_path / "live.m3u8"
    write(HlsPlaylist(path), 5)
    with av.open(joined(path)) as container:
        first = {}
        for packet in container.demux():
            if packet.pts is not None:
                first.setdefault(packet.stream.type, packet.pts * packet.time_base)
    # AAC's first packet is its encoder's delay, 1024 samples before the sound
    assert abs(first["video"] - first["audio"]) <= Fraction(1024, 16_000)


def test_a_new_playlist_replaces_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "live.m3u8"
    write(HlsPlaylist(path), 8)
    (tmp_path / "live_notes.m4s").write_text("mine")
    (tmp_path / "other_00001.m4s").write_text("mine")
    write(HlsPlaylist(path), 3)
    assert num_decoded(str(path))[0] == 30
    left = {p.name for p in tmp_path.iterdir()} - {p.name for p in segments(path)}
    assert left == {"live.m3u8", "live_init.mp4", "live_notes.m4s", "other_00001.m4s"}


def test_a_failure_of_the_model_leaves_what_was_made(tmp_path: Path) -> None:
    path = tmp_path / "live.m3u8"

    def interrupted() -> None:
        with Writer(HlsPlaylist(path)) as writer:
            for _ in range(20):  # the queue is short: all but its blocks are encoded by then
                writer.write(*block())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "#EXT-X-ENDLIST" in path.read_text()
    assert num_decoded(str(path))[0] >= 150
    assert writer_threads() == []


def test_a_percent_sign_in_the_path_is_refused() -> None:
    with pytest.raises(ValueError, match="may not hold a %"):
        kind_of("a/50%d.m3u8")


def write_for_ever(path: str, told: Connection) -> None:
    frames = torch.zeros(25, 3, 32, 32, dtype=torch.uint8)
    with Writer(output_of(path)) as writer:
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
        with Writer(output_of(path)) as writer:
            for _ in range(40):
                writer.write(frames, torch.zeros(6400))
    except OSError as error:
        told.send(str(error))


@pytest.mark.parametrize("name", ["live.m3u8", "out.mp4"])
def test_after_a_kill_hls_plays_and_no_broken_mp4_is_in_place(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    reader, told = FORK.Pipe(duplex=False)
    process = FORK.Process(target=write_for_ever, args=(str(path), told))
    process.start()
    while reader.recv() < 25 * 15:  # 4 blocks wait, one is in hand: the others are encoded
        continue
    process.kill()
    process.join()
    if name == "out.mp4":
        assert not path.exists()
        return
    listed = segments(path)
    assert len(listed) >= 5
    assert all(segment.is_file() for segment in listed)
    assert "#EXT-X-ENDLIST" not in path.read_text()
    assert num_decoded(joined(path))[0] >= 5 * 25
    with av.open(str(path), options={"live_start_index": "0"}) as container:  # as a player does
        assert next(container.decode(video=0)).width == 32


@pytest.mark.parametrize("quota", [25_000, 60_000, 90_000])
def test_a_disk_that_fills_up_leaves_what_is_listed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: int
) -> None:
    """All files together have so many bytes; renaming and removing work, as on a disk."""
    left = [quota]

    class Full(io.FileIO):
        def write(self, data) -> int:
            num = min(left[0], len(data))
            left[0] -= num
            if num == 0 and len(data):
                raise OSError(28, "No space left on device")
            return super().write(data[:num])

    monkeypatch.setattr(on_disk, "open", lambda p, mode, buffering: Full(p, "w"), raising=False)
    path = tmp_path / "live.m3u8"
    draw = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 255, (25, 3, 32, 32), dtype=torch.uint8, generator=draw)

    def write_noise() -> None:
        with Writer(HlsPlaylist(path)) as writer:
            for _ in range(6):
                writer.write(frames, torch.zeros(16_000))

    with pytest.raises(OSError, match=r"live\.m3u8: writing failed \(.*No space left"):
        write_noise()
    assert not list(tmp_path.glob("*.tmp"))
    assert writer_threads() == []
    if quota > 25_000:  # else not even the first segment fits
        assert path.read_text().endswith("#EXT-X-ENDLIST\n")
        assert num_decoded(str(path))[0] == 25 * len(segments(path)) > 0


# --- a growing mp4 ---


def test_a_growing_mp4_plays_at_any_length(tmp_path: Path) -> None:
    path, growing = tmp_path / "out.mp4", tmp_path / "video.mp4"
    seen = []
    with Writer(GrowingMp4(path, growing)) as writer:
        for _ in range(12):
            writer.write(*block())
            if growing.exists() and growing.stat().st_size > (len(seen[-1]) if seen else 0):
                seen.append(growing.read_bytes())
        while not seen:  # 4 blocks wait at most, the others are being encoded
            if growing.exists():
                seen.append(growing.read_bytes())
    for data in seen:
        assert num_decoded(io.BytesIO(data))[0] % 10 == 0  # whole fragments
    assert num_decoded(str(path))[0] == 120
    assert [p.name for p in tmp_path.iterdir()] == ["out.mp4"]
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")  # players may begin before they have it all
    with av.open(str(path)) as container:
        video, audio = container.streams.video[0], container.streams.audio[0]
        assert video.start_time == audio.start_time == 0
        assert (
            video.duration * video.time_base
            == audio.duration * audio.time_base
            == Fraction(120, 25)
        )


def test_a_failure_leaves_a_growing_mp4_with_all_that_was_handed_over(tmp_path: Path) -> None:
    growing = tmp_path / "video.mp4"
    growing.write_bytes(b"of a run before")

    def failing(num_blocks: int) -> None:
        with Writer(GrowingMp4(tmp_path / "out.mp4", growing)) as writer:
            for _ in range(num_blocks):
                writer.write(*block())
            raise RuntimeError("the model")

    for num_blocks in (12, 3):
        with pytest.raises(RuntimeError, match="the model"):
            failing(num_blocks)
        assert [p.name for p in tmp_path.iterdir()] == ["video.mp4"]
        assert num_decoded(str(growing))[0] == 120  # also after the shorter one
    growing.unlink()
    with pytest.raises(RuntimeError, match="the model"):
        failing(0)
    assert list(tmp_path.iterdir()) == []
    assert writer_threads() == []


# --- stdout ---


def test_a_pipe_gets_a_whole_mp4_that_never_seeks_back(pipe: tuple[int, int]) -> None:
    data: list[bytes] = []
    reader = drain(pipe[0], data)
    write(FragmentedPipe(pipe[1]), 6)
    os.close(pipe[1])
    reader.join()
    frames, samples = num_decoded(io.BytesIO(b"".join(data)))
    assert frames == 60
    assert samples >= 60 * 640


def test_frames_leave_the_pipe_while_later_ones_are_made(pipe: tuple[int, int]) -> None:
    """Each second is a fragment: it can be read before the writer is told of the end."""
    num_seconds, seen = 4, b""
    with Writer(FragmentedPipe(pipe[1])) as writer:
        for _ in range(num_seconds):
            writer.write(*block(25))
        while seen.count(b"moof") < num_seconds - 1:  # the last one ends with the next's first
            seen += os.read(pipe[0], 1 << 16)
        rest: list[bytes] = []
        reader = drain(pipe[0], rest)
    os.close(pipe[1])
    reader.join()
    assert num_decoded(io.BytesIO(seen + b"".join(rest)))[0] == 25 * num_seconds


def test_a_reader_that_leaves_is_one_error(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    with pytest.raises(OSError, match=r"stdout: writing failed \(.*Broken pipe"):
        write(FragmentedPipe(pipe[1]), 50)
    assert writer_threads() == []


def test_a_reader_that_takes_nothing_is_one_error(pipe: tuple[int, int]) -> None:
    output = FragmentedPipe(pipe[1], patience_s=0.01)
    with pytest.raises(OSError, match=r"stdout: writing failed \(the other side did nothing"):
        write(output, 5_000)
    assert writer_threads() == []


def test_an_interrupt_does_not_wait_for_a_reader_that_hangs(pipe: tuple[int, int]) -> None:
    while select.select([], [pipe[1]], [], 0)[1]:  # full: the writer's first byte must wait
        os.write(pipe[1], b"0" * 4096)

    def interrupted() -> None:
        with Writer(FragmentedPipe(pipe[1], patience_s=PATIENCE_S)) as writer:
            writer.write(*block())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert writer_threads() == []


@pytest.mark.parametrize("name", ["out.mp4", "live.m3u8"])
def test_a_full_disk_is_one_error(tmp_path: Path, name: str) -> None:
    reader, told = FORK.Pipe(duplex=False)
    process = FORK.Process(target=write_to_a_full_disk, args=(str(tmp_path / name), told))
    process.start()
    process.join()
    assert reader.poll(), "it wrote 400 frames of noise to 20 kB"
    assert reader.recv().startswith(f"{tmp_path / name}: writing failed (")
    assert ".mp4" not in {p.suffix for p in tmp_path.iterdir() if "init" not in p.name}
    assert not list(tmp_path.glob(".*.part"))


# --- RTMP ---


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_no_rtmp_server_is_one_error() -> None:
    url = f"rtmp://127.0.0.1:{free_port()}/live/key"
    with pytest.raises(OSError, match=r"rtmp://.*writing failed \(.*refused"):
        write(RtmpPush(url), 3)
    assert writer_threads() == []


def test_an_rtmp_server_that_hangs_is_one_error() -> None:
    """It accepts the connection and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        url = f"rtmp://127.0.0.1:{server.getsockname()[1]}/live/key"
        with pytest.raises(OSError, match=r"rtmp://.*writing failed \(.* nothing"):
            write(RtmpPush(url, patience_s=0.5), 3)
    assert writer_threads() == []


LISTENER = """
import av, sys
count = 0
with av.open(sys.argv[1], options={"listen": "1"}, format="flv") as container:
    try:
        for packet in container.demux(video=0):
            count += packet.dts is not None
    except av.error.OSError:
        pass  # how libav's server sees the end of the connection
    print(count, *(stream.codec_context.name for stream in container.streams))
"""


def test_an_rtmp_server_gets_every_frame() -> None:
    port = free_port()
    url = f"rtmp://127.0.0.1:{port}/live/key"
    words = [sys.executable, "-c", LISTENER, url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            wait_for_listener(port, server)
            write(RtmpPush(url, patience_s=PATIENCE_S), 6)
            assert server.stdout is not None
            assert server.stdout.read().split() == ["60", "h264", "aac"]
        finally:
            server.kill()


def test_an_rtmp_server_that_goes_away_is_one_error() -> None:
    """It leaves after the first packets, and the frames go on."""
    port = free_port()
    url = f"rtmp://127.0.0.1:{port}/live/key"
    leaving = LISTENER.replace("count += packet.dts is not None", "sys.exit()")
    words = [sys.executable, "-c", leaving, url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for_listener(port, server)
            with pytest.raises(OSError, match=r"rtmp://.*writing failed \("):
                write(RtmpPush(url, patience_s=PATIENCE_S), 5_000)
        finally:
            server.kill()
    assert writer_threads() == []


def wait_for_listener(port: int, server: subprocess.Popen) -> None:
    """Until the server listens: a connection to ask would be taken for the stream. The probe lets
    the server bind beside it, and fails to bind once it listens."""
    while server.poll() is None:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return
    raise AssertionError("the listener ended")
