"""Where a video goes: an mp4 file, an HLS playlist, an RTMP server or stdout, told by ``--out``.

Each output opens one PyAV container for writer.py, which encodes, and knows what to do when the
video is whole, given up, or stuck on a consumer that takes nothing. Live ones (all but mp4) can be
watched while they grow.
"""

import os
import re
import subprocess
import sys
import uuid
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal

import av
from av.container import OutputContainer

from avatar_v.generate.pipes import PATIENCE_S, PipeWriter

STDOUT = "-"
RTMP = "rtmp://"
SEGMENT_S = 1
"""Of HLS, and of the fragments on stdout: what a kill can lose, and a player has to wait for."""

_FRAGMENTED = {"movflags": "frag_keyframe+empty_moov+default_base_moof", "flush_packets": "1"}


class Output(ABC):
    """What the writer needs; its thread opens, and any thread may interrupt."""

    is_live = True

    def __init__(self, name: str) -> None:
        self.name = name  # in error messages
        self.failure: OSError | None = None  # why bytes did not get out: libav does not always say

    @abstractmethod
    def open(self) -> OutputContainer:
        """A container that takes streams. OSError where the output cannot be written to."""

    def finish(self) -> None:  # noqa: B027 (an output without an end of its own)
        """The container is closed and the video whole. OSError if it did not arrive."""

    def abandon(self) -> None:  # noqa: B027
        """The last call, always: drop what is not whole, and wait for nobody."""

    def interrupt(self) -> None:  # noqa: B027
        """Make a write that waits for the consumer fail; a disk does not wait for anybody."""


def kind_of(out: str) -> Literal["mp4", "hls", "rtmp", "stdout"]:
    """ValueError for anything else, and for a playlist that libav could not name segments for."""
    if out == STDOUT:
        return "stdout"
    if out.startswith(RTMP):
        return "rtmp"
    match Path(out).suffix.lower():
        case ".mp4":
            return "mp4"
        case ".m3u8":
            if "%" in out:  # libav's names of segments are printf patterns, without an escape
                raise ValueError(f"{out}: the path of a playlist may not hold a %")
            return "hls"
    raise ValueError(
        f"{out}: the output is an .mp4 file, an .m3u8 playlist (HLS), {RTMP}… or - (stdout)"
    )


def output_of(out: str, *, growing: Path | None = None) -> Output:
    """The output of a name; ``growing`` is where an mp4 lies until it is whole."""
    match kind_of(out):
        case "mp4":
            return Mp4File(out, growing)
        case "hls":
            return HlsPlaylist(out)
        case "rtmp":
            return RtmpPush(out)
        case "stdout":
            return FragmentedPipe(sys.stdout.fileno())


class Mp4File(Output):
    """Grows under another name on the same disk (by default a hidden one beside its own), and
    takes its own when it is whole."""

    is_live = False

    def __init__(self, path: str | Path, growing: Path | None = None) -> None:
        super().__init__(str(path))
        self._path = Path(path)
        hidden = f".{self._path.name}.{uuid.uuid4().hex[:8]}.part"
        self._part = growing or self._path.with_name(hidden)

    def open(self) -> OutputContainer:
        return av.open(str(self._part), "w", format="mp4")

    def finish(self) -> None:
        os.replace(self._part, self._path)

    def abandon(self) -> None:
        self._part.unlink(missing_ok=True)


class HlsPlaylist(Output):
    """Fragmented mp4 segments beside a playlist that only ever grows and gets an end mark.

    Both are renamed into place when whole, so what is there plays at any moment, also after a kill.
    Replaces the playlist and segments of the same name.
    """

    def __init__(self, path: str | Path) -> None:
        super().__init__(str(path))
        self._path = Path(path)

    def open(self) -> OutputContainer:
        stem, folder = self._path.stem, self._path.parent
        self._path.unlink(missing_ok=True)
        for old in folder.iterdir():
            if re.fullmatch(re.escape(stem) + r"_(\d{5,}\.m4s|init\.mp4)(\.tmp)?", old.name):
                old.unlink()
        options = {
            "hls_segment_type": "fmp4",
            "hls_playlist_type": "event",
            "hls_time": str(SEGMENT_S),
            "hls_list_size": "0",
            "hls_flags": "independent_segments+temp_file",
            "hls_fmp4_init_filename": f"{stem}_init.mp4",  # beside the playlist
            "hls_segment_filename": f"{folder / stem}_%05d.m4s",
        }
        return av.open(self.name, "w", format="hls", options=options, io_open=self._open_file)

    def _open_file(self, path: str, flags: int, options: dict[str, str]) -> "_File":
        return _File(path, self)


class FragmentedPipe(Output):
    """Fragmented mp4 to a file descriptor; players read it from a pipe as it comes."""

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


class RtmpPush(Output):
    """FLV to an RTMP server, through a process of our own (push.py) that speaks the protocol.

    libav's network calls hold Python's lock and cannot be called off; a process can be ended.
    """

    def __init__(self, url: str, *, patience_s: float = PATIENCE_S) -> None:
        super().__init__(url)
        self._patience_s = patience_s
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: PipeWriter | None = None

    def open(self) -> OutputContainer:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "avatar_v.generate.push", self.name],
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


class _File:
    """One file of an HLS stream. libav's muxer goes on when a disk is full: here it is noted."""

    def __init__(self, path: str, output: HlsPlaylist) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115  libav says when to close
        self._output = output

    def write(self, data: bytes) -> int:
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            self._output.failure = self._output.failure or error
            raise
        return len(data)

    def close(self) -> None:
        self._file.close()
