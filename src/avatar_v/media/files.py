"""Outputs of the writer that lie on a disk: an mp4, an mp4 that plays while it grows, HLS.

An `Output` opens one PyAV container and has an end in every case. Whatever ends the process, the
file under the name that was asked for is whole, and a file that is not whole yet plays as far as it
is written. libav's muxers go on when a disk is full; here the fault is noted.
"""

import os
import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

import av
from av.container import OutputContainer
from av.error import FFmpegError

from avatar_v.media.containers import open_media
from avatar_v.media.push import copy_packets

SEGMENT_S = 1
"""Of HLS, and of the fragments on stdout: what a kill can lose, and a player has to wait for."""
FRAGMENT_S = 0.4
"""Of an mp4 that grows."""
END = "#EXT-X-ENDLIST"


class Output(ABC):
    """The writer's thread opens it, and any thread may interrupt. By default one that is watched
    while it grows: no frame waits in the encoder, and every second begins with a key frame."""

    x264: Mapping[str, str] = MappingProxyType({"tune": "zerolatency", "sc_threshold": "0"})
    key_frame_every_s: int | None = SEGMENT_S
    """Seconds; None is as often as x264 likes."""
    least_coded_hz = 0
    """Rate of the sound in the file, at least. A packet of AAC has 1,024 samples: the higher the
    rate, the sooner it is full."""
    on_disk = True
    """Whether ``name`` is the path of a file."""

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


class Mp4File(Output):
    """Grows under a hidden name beside its own, and takes its own when it is whole. Cannot be
    watched before; nothing is left of one that fails."""

    x264 = MappingProxyType({})
    key_frame_every_s = None

    def __init__(self, path: str | Path) -> None:
        super().__init__(str(path))
        self._path = Path(path)
        self._part = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex[:8]}.part")

    def open(self) -> OutputContainer:
        return av.open(str(self._part), "w", format="mp4")

    def finish(self) -> None:
        os.replace(self._part, self._path)

    def abandon(self) -> None:
        self._part.unlink(missing_ok=True)


class GrowingMp4(Output):
    """Fragments in the file ``growing``, which plays at any moment and stays if the video does not
    get whole; then its packets as a plain mp4 with the index in front.

    A file that lies there is replaced once there is more than in it.
    """

    x264 = MappingProxyType({"rc-lookahead": "10"})  # frames that wait in the encoder; else 40
    key_frame_every_s = None

    def __init__(self, path: str | Path, growing: Path) -> None:
        super().__init__(str(path))
        self._path, self._growing = Path(path), growing
        self._whole = growing.with_suffix(".whole")
        self._file: _Fragments | None = None

    def open(self) -> OutputContainer:
        self._file = _Fragments(self._growing, self)
        options = {
            "movflags": "empty_moov+default_base_moof+delay_moov",  # delayed, it knows both starts
            "frag_duration": str(int(FRAGMENT_S * 1e6)),
            "flush_packets": "1",
        }
        return av.open(self._file, "w", format="mp4", options=options)

    def finish(self) -> None:
        assert self._file is not None
        self._file.take_place()
        options = {"movflags": "faststart"}
        with (
            open_media(self._growing) as source,
            av.open(str(self._whole), "w", format="mp4", options=options) as target,
        ):
            copy_packets(source, target)
        os.replace(self._whole, self._path)
        self._growing.unlink()

    def abandon(self) -> None:
        self._whole.unlink(missing_ok=True)
        if self._file is not None:
            self._file.close()
        if not _plays(self._growing):
            self._growing.unlink(missing_ok=True)


class HlsPlaylist(Output):
    """Fragmented mp4 segments beside a playlist that only ever grows and gets an end mark.

    Both are renamed into place when whole, so what is there plays at any moment, also after a kill.
    Replaces the playlist and segments of the same name, unless the video ``goes_on``: then it is
    made from its first frame again, but the segments listed there stay as they are, and the
    playlist changes once there is more than it lists. Segments are equally long, whatever they
    show, so that one run's follow the other's without a seam.
    """

    def __init__(self, path: str | Path, *, goes_on: bool = False) -> None:
        super().__init__(str(path))
        self._path = Path(path)
        self._goes_on = goes_on
        self._before = ""  # the playlist that must not get shorter
        self._kept: set[str] = set()

    def open(self) -> OutputContainer:
        stem, folder = self._path.stem, self._path.parent
        if self._goes_on and self._path.exists():
            self._before = _without_end(self._path.read_text())
        if self._before:
            self._kept = {*_segments(self._before), f"{stem}_init.mp4"}
        else:
            self._remove()
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

    def abandon(self) -> None:
        """A player learns of the end also where the disk is full."""
        if self.failure is not None and self._path.exists():
            text = self._path.read_text()
            if END not in text:
                with suppress(OSError), self._path.open("a") as file:
                    file.write(END + "\n")

    def _remove(self) -> None:
        self._path.unlink(missing_ok=True)
        ours = re.escape(self._path.stem) + r"_(\d{5,}\.m4s|init\.mp4)(\.tmp)?"
        for old in self._path.parent.iterdir():
            if re.fullmatch(ours, old.name):
                old.unlink()

    def _open_file(self, path: str, flags: int, options: dict[str, str]) -> "_File | _Written":
        place = Path(path.removesuffix(".tmp"))
        if place == self._path:
            return _Playlist(Path(path), self, self._before)
        if place.name in self._kept and place.exists():
            return _Written(Path(path), self, place)
        return _File(Path(path), self)


class _File:
    """One file of an output, for PyAV. One that was not written whole is removed, so that libav
    cannot rename it into its place."""

    def __init__(self, path: Path, output: Output) -> None:
        self._file = open(path, "wb", buffering=0)  # noqa: SIM115  libav says when to close
        self._path = path
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
        if self._output.failure is not None:
            self._path.unlink(missing_ok=True)


class _Fragments(_File):
    """Whole fragments only; takes the place of the file at ``path`` once it is the longer one."""

    def __init__(self, path: Path, output: Output) -> None:
        super().__init__(path.with_suffix(".new"), output)
        self._place = path
        self._longest = path.stat().st_size if path.exists() else 0
        self._rest = b""  # the fragment that is coming
        self._num = 0  # bytes of those that are there

    def write(self, data: bytes) -> int:
        if self._output.failure is not None:
            raise self._output.failure
        self._rest += data
        whole = _fragments_end(self._rest)
        if whole:
            self._append(self._rest[:whole])
            self._rest = self._rest[whole:]
        return len(data)

    def take_place(self) -> None:
        if self._path != self._place:
            os.replace(self._path, self._place)
            self._path = self._place

    def close(self) -> None:
        self._file.close()
        if self._path != self._place:
            self._path.unlink(missing_ok=True)

    def _append(self, data: bytes) -> None:
        try:
            super().write(data)
        except OSError:
            self._file.truncate(self._num)
            raise
        self._num += len(data)
        if self._num > self._longest:
            self.take_place()


class _Playlist(_File):
    """Written when it is closed; as it was ``before`` where it would be shorter."""

    def __init__(self, path: Path, output: Output, before: str) -> None:
        super().__init__(path, output)
        self._before, self._text = before, b""

    def write(self, data: bytes) -> int:
        self._text += data
        return len(data)

    def close(self) -> None:
        text = self._text.decode()
        if len(_segments(text)) < len(_segments(self._before)):
            text = self._before + (END + "\n" if END in text else "")
        with suppress(OSError):  # it is noted, and the playlist that is there stays
            super().write(text.encode())
        super().close()


class _Written:
    """A file of an interrupted run that is made again and stays as it is."""

    def __init__(self, path: Path, output: Output, place: Path) -> None:
        self._path, self._output, self._place = path, output, place

    def write(self, data: bytes) -> int:
        return len(data)

    def close(self) -> None:
        """libav will rename ``path`` into ``place``."""
        try:
            if self._path != self._place:
                shutil.copy2(self._place, self._path)
        except OSError as error:
            self._output.failure = self._output.failure or error
            self._path.unlink(missing_ok=True)


def _segments(playlist: str) -> list[str]:
    return [line for line in playlist.splitlines() if line and not line.startswith("#")]


def _without_end(playlist: str) -> str:
    """Without the end mark and the segment that the end cut short; "" where no segment is left."""
    lines = playlist.splitlines()
    if END in lines:
        names = [i for i, line in enumerate(lines) if line.startswith("#EXTINF")]
        lines = lines[: names[-1]] if names else []
    text = "".join(f"{line}\n" for line in lines)
    return text if _segments(text) else ""


def _fragments_end(data: bytes) -> int:
    """How many bytes of ``data``, a row of mp4 boxes, end with the last whole "mdat"."""
    start = end = 0
    while (size := int.from_bytes(data[start : start + 4])) and start + size <= len(data):
        is_last = data[start + 4 : start + 8] == b"mdat"
        start += size
        end = start if is_last else end
    return end


def _plays(path: Path) -> bool:
    try:
        with open_media(path) as container:
            return next(container.decode(video=0), None) is not None
    except (ValueError, FFmpegError, IndexError):  # missing, empty, or without a stream
        return False
