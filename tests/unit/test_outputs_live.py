"""generate/pipes, generate/push: a reader of stdout or a server gets all, or one error ends it."""

import io
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction

import pytest

from avatar_v.media.outputs import FragmentedPipe, RtmpPush
from avatar_v.media.writer import Writer
from written import PATIENCE_S, block, num_decoded, packet_times, write, writer_threads


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


# --- stdout ---


def test_a_pipe_gets_a_whole_mp4_that_never_seeks_back(pipe: tuple[int, int]) -> None:
    data: list[bytes] = []
    reader = drain(pipe[0], data)
    write(FragmentedPipe(pipe[1]), 6)
    os.close(pipe[1])
    reader.join()
    frames, samples = num_decoded(io.BytesIO(b"".join(data)))
    assert packet_times(data)["video"] == [Fraction(i, 25) for i in range(60)]
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


def test_a_descriptor_that_is_full_is_no_path() -> None:
    """What disk stdout lies on is the shell's."""
    failed = pytest.raises(OSError, match=r"^stdout: writing failed \(.*No space left")
    with open("/dev/full", "wb") as full, failed:
        write(FragmentedPipe(full.fileno()), 50)


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
