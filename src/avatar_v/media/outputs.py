"""Where a video goes: an mp4 file, an HLS playlist, an RTMP server or stdout, told by ``--out``.

The outputs that a consumer takes from this process are here: they end when the video is whole or
given up, and when the consumer is stuck. Outputs on a disk are files.py's, and writer.py encodes.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import av
from av.container import OutputContainer

from avatar_v.media.files import GrowingMp4, HlsPlaylist, Mp4File, Output
from avatar_v.media.kinds import output_kind
from avatar_v.media.pipes import PATIENCE_S, PipeWriter

_FRAGMENTED = {"movflags": "frag_keyframe+delay_moov+default_base_moof", "flush_packets": "1"}


def build_output(out: str, *, growing: Path | None = None, goes_on: bool = False) -> Output:
    """The output of a name. ``growing`` is where an mp4 lies, and can be watched, until it is
    whole; ``goes_on`` if the video begins as that of an interrupted run did."""
    match output_kind(out):
        case "mp4":
            return Mp4File(out) if growing is None else GrowingMp4(out, growing)
        case "hls":
            return HlsPlaylist(out, goes_on=goes_on)
        case "rtmp":
            return RtmpPush(out)
        case "stdout":
            return FragmentedPipe(sys.stdout.fileno())


class FragmentedPipe(Output):
    """Fragmented mp4 to a file descriptor; players read it from a pipe as it comes."""

    on_disk = False

    def __init__(self, fd: int, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__("stdout")
        self._pipe = PipeWriter(fd, patience_s=patience_s)

    def open(self) -> OutputContainer:
        return av.open(self, "w", format="mp4", options=_FRAGMENTED)

    def write(self, data: bytes) -> int:
        """For PyAV: this object is the file it writes to."""
        try:
            return self._pipe.write(data)
        except OSError as error:
            self.failure = self.failure or error
            raise

    def interrupt(self) -> None:
        self._pipe.interrupt()


class FragmentStream(Output):
    """Fragmented mp4 to a function, a fragment for each frame: a viewer waits for no other.

    A packet of pictures or sound leaves as soon as the one behind it is there, not when both have
    come as far. FFmpeg's own option for fragments of a frame gives every third one a wrong time.
    ``give`` takes the bytes in the writer's thread, and raises OSError to end the writing.
    """

    on_disk = False
    least_coded_hz = 48_000

    def __init__(self, name: str, give: Callable[[bytes], None]) -> None:
        super().__init__(name)
        self._give = give

    def open(self) -> OutputContainer:
        each = {
            "movflags": "delay_moov+default_base_moof",  # so that sound and pictures begin together
            "frag_duration": "1",
            "max_interleave_delta": "1",
            "flush_packets": "1",
        }
        return av.open(self, "w", format="mp4", options=each)

    def write(self, data: bytes) -> int:
        """For PyAV: this object is the file it writes to."""
        try:
            self._give(bytes(data))
        except OSError as error:
            self.failure = self.failure or error
            raise
        return len(data)


class RtmpPush(Output):
    """FLV to an RTMP server, through a process of our own (push.py) that speaks the protocol.

    libav's network calls hold Python's lock and cannot be called off; a process can be ended.
    """

    on_disk = False

    def __init__(self, url: str, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__(url)
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: PipeWriter | None = None

    def open(self) -> OutputContainer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "avatar_v.media.push", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us alone: we end it in order
        )
        assert self._process.stdin is not None
        self._pipe = PipeWriter(self._process.stdin.fileno(), patience_s=self._patience_s)
        return av.open(self, "w", format="flv", options={"flush_packets": "1"})

    def write(self, data: bytes) -> int:
        """For PyAV: this object is the file it writes to."""
        assert self._pipe is not None
        try:
            return self._pipe.write(data)
        except OSError as error:
            gone = isinstance(error, BrokenPipeError)
            self.failure = self.failure or (OSError(self._last_words()) if gone else error)
            raise self.failure from None

    def finish(self) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            status = self._process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the server took nothing for {self._patience_s:g} s") from None
        if status:
            raise OSError(self._last_words())

    def abandon(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stderr):
            assert pipe is not None
            pipe.close()

    def interrupt(self) -> None:
        if self._pipe is not None:
            self._pipe.interrupt()

    def _last_words(self) -> str:
        assert self._process is not None
        assert self._process.stderr is not None
        words = self._process.stderr.read().decode(errors="replace").strip().splitlines()
        return words[-1] if words else "the connection ended"
