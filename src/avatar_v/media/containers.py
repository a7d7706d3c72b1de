"""Media opened for reading: regular files of known containers, and nothing that such a file names.

Playlists and other containers that point to further files (HLS, DASH, concat, SDP, numbered images)
are refused, and no protocol is allowed, so a file that is opened is the only one that is read.
Sizes, rates and durations beyond sane limits are refused before anything is decoded; the limit on
pixels is the decoder's too, because headers may lie. Frames and samples are reading.py's.
"""

import errno
import io
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
from av.audio.stream import AudioStream
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Disposition
from av.video.stream import VideoStream

from avatar_v.base.outside import check_pulled, regular_file, why_not
from avatar_v.media.wav_sizes import size_patch

VIDEO_FORMATS = (
    *("mov", "matroska", "avi", "mpegts", "mpeg", "flv", "ogg", "asf", "mxf", "dv"),
    *("gif", "apng", "yuv4mpegpipe"),
)
AUDIO_FORMATS = (
    "wav",
    "w64",
    "aiff",
    "au",
    "caf",
    "flac",
    "mp3",
    "aac",
    "ac3",
    "eac3",
    "amr",
    "wv",
)
IMAGE_FORMATS = tuple(
    f"{name}_pipe" for name in ("jpeg", "png", "webp", "bmp", "tiff", "jpegxl", "ppm", "pgm")
)
"""FFmpeg's names of the containers that are read; none of them opens another file."""

MAX_PIXELS = 2**26
"""Of one picture: 8192 x 8192. Above 8K video (2^25) and the usual 50-megapixel photograph."""
MIN_SIDE = 8
"""Pixels: a smaller picture shows nobody."""
MIN_RATE_HZ, MAX_RATE_HZ = 4_000, 768_000
"""Of sound: below lies no speech, and each sample of a 1 Hz file would become 16,000."""
MAX_CHANNELS = 64
MAX_DURATION_S = 24 * 3600
MAX_STREAMS = 512
"""Each tile of a picture counts as one; a telephone's 48 million pixels are in 192."""
STILL_BRANDS = {"mif1", "mif2", "heic", "heix", "avif"}
"""Of HEIF: pictures in the container of mp4."""
STATES_DURATION = {"mov", "matroska", "avi", "wav", "w64", "aiff", "au", "caf", "flac"}
_BUFFER = 1 << 18  # bytes a read


@contextmanager
def open_media(path: str | Path) -> Iterator[InputContainer]:
    """The container at ``path``. ValueError unless it is a regular file of a known container."""
    with open(regular_file(path), "rb", buffering=0) as file:
        container = _open(file, (*VIDEO_FORMATS, *AUDIO_FORMATS, *IMAGE_FORMATS), str(path))
        with container:
            yield container


@contextmanager
def open_bytes(data: bytes, *formats: str) -> Iterator[InputContainer]:
    """A container of these formats in memory. FFmpegError if it is none."""
    container = av.open(io.BytesIO(data), "r", options=_options(formats))
    with container:
        yield container


def is_link_circle(path: str | Path) -> bool:
    """Whether following the links of ``path`` never ends."""
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def video_stream(container: InputContainer, path: str | Path) -> VideoStream | None:
    """The video stream that the file has players show, or else its first, with a decoder; the
    cover picture of a music file is none.

    ValueError for a picture or a duration beyond the limits. The decoder keeps to them too.
    """
    _check_duration(container, path)
    for stream in sorted(
        container.streams.video, key=lambda s: not s.disposition & Disposition.default
    ):
        if stream.codec_context is None or stream.disposition & Disposition.attached_pic:
            continue
        check_pixels(stream.codec_context.width, stream.codec_context.height, path)
        stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
        large = stream.codec_context.width * stream.codec_context.height > MAX_PIXELS // 8
        stream.thread_type = "SLICE" if large else "AUTO"  # each thread of AUTO holds a picture
        return stream
    return None


def is_image(container: InputContainer) -> bool:
    """Whether the file holds a picture that does not move."""
    names = container.metadata
    brands = names.get("major_brand", "") + names.get("compatible_brands", "")
    is_heif = {brands[i : i + 4] for i in range(0, len(brands), 4)} & STILL_BRANDS
    return bool(is_heif) or container.format.name.endswith("_pipe")


def is_tiled(container: InputContainer) -> bool:
    """Whether the picture of a HEIC or AVIF file is in tiles, each of them a stream."""
    if not is_image(container):
        return False
    shown = [s.disposition for s in container.streams.video if s.disposition & Disposition.default]
    tiles = [s for s in container.streams.video if s.disposition & Disposition.dependent]
    return bool(tiles) and all(disposition & Disposition.dependent for disposition in shown)


def audio_stream(
    container: InputContainer, path: str | Path, track: int | None = None
) -> AudioStream | None:
    """The audio stream ``track``, counted from 1; else the first of those with a decoder that the
    file flags as its default, or the first of all. ValueError for a rate, number of channels or
    duration beyond the limits, or a ``track`` that is not there or has no decoder."""
    _check_duration(container, path)
    streams = [s for s in container.streams.audio if s.codec_context is not None]
    if track is not None:
        num = len(container.streams.audio)
        if not 1 <= track <= num:
            raise ValueError(f"{path}: no sound track {track}; it has {num}, counted from 1")
        streams = [s for s in streams if s == container.streams.audio[track - 1]]
        if not streams:
            raise ValueError(f"{path}: no decoder for its sound track {track}")
    if not streams:
        return None
    stream = next((s for s in streams if s.disposition & Disposition.default), streams[0])
    rate, channels = stream.codec_context.sample_rate, stream.codec_context.layout.nb_channels
    if not MIN_RATE_HZ <= rate <= MAX_RATE_HZ:
        raise ValueError(
            f"{path}: its sound has {rate} samples a second; "
            f"from {MIN_RATE_HZ} to {MAX_RATE_HZ} can be read"
        )
    if channels > MAX_CHANNELS:
        raise ValueError(f"{path}: its sound has {channels} channels, at most {MAX_CHANNELS}")
    return stream


def missing(container: InputContainer, kind: str) -> str:
    """Why there is no such stream to read, ``kind`` being video or audio."""
    streams = container.streams.video if kind == "video" else container.streams.audio
    unknown = any(stream.codec_context is None for stream in streams)
    return f"no decoder for its {kind} stream" if unknown else f"no {kind} stream"


def check_pixels(width: float | int, height: int, path: str | Path) -> None:
    """ValueError for a picture that is too large to be decoded."""
    if width * height > MAX_PIXELS:
        raise ValueError(
            f"{path}: a picture of {width:.0f} x {height:.0f} pixels; "
            f"at most {MAX_PIXELS} pixels (8192 x 8192) can be read"
        )


def decoded(
    container: InputContainer, stream: VideoStream | AudioStream, path: str | Path
) -> Iterator[Any]:
    """The frames of a stream. ValueError where it is damaged.

    A fault in the last packet only ends the frames, as a file that was cut ends; ``early_end``
    tells.
    """
    kind, num_given, fault = stream.type, 0, None
    try:
        for packet in container.demux(stream):
            if fault is not None and packet.size:
                raise fault
            try:
                frames: list[Any] = packet.decode()
            except FFmpegError as error:
                fault = error
                continue
            yield from frames
            num_given += len(frames)
        if fault is not None and num_given == 0:
            raise fault
    except FFmpegError as error:
        large = f", or of more than {MAX_PIXELS} pixels," if kind == "video" else ""
        why = error.strerror or error
        raise ValueError(
            f"{path}: the {kind} is damaged{large} and cannot be decoded ({why})"
        ) from error


def extent(path: str | Path) -> tuple[float, int]:
    """Seconds from the first packet to the end of the last one, or those of all packets of a sound
    together if they are more; and the packets of the video streams, of which none holds more than
    one picture. ValueError as for ``open_media``.

    Headers are not asked: a browser's recording has no duration there, and others may lie.
    """
    with open_media(path) as container:
        try:
            packets = _walk(container)
        except FFmpegError as error:
            raise ValueError(f"{path}: cannot be read to its end ({error.strerror})") from error
        length_s = max(packets.end_s - packets.start_s, packets.sound_s)
        return length_s, 1 if is_tiled(container) else packets.num_pictures


def early_end(path: str | Path) -> str | None:
    """One sentence about a file that ends before its header says, or in the middle of a packet.

    None for a whole one, and where the container states no duration (ts, ogg). Packets are read,
    not decoded, but for a JPEG, whose decoder fills up what is missing.
    """
    with open_media(path) as container:
        try:
            if container.format.name == "jpeg_pipe":
                container.streams.video[0].codec_context.options = {"err_detect": "explode"}
                next(container.decode(video=0), None)
            packets = _walk(container)
        except FFmpegError as error:
            return f"{path} is cut or damaged ({error.strerror})"
        names = {*container.format.name.split(",")}
        stated_s = (container.duration or 0) / av.time_base
    states = names & STATES_DURATION or ("mp3" in names and _has_frame_count(path))
    if states and stated_s - packets.end_s > max(0.5, 0.02 * stated_s):
        held_s = f"{packets.end_s:.1f} s"
        return f"{path} ends early: it holds {held_s} of the {stated_s:.1f} s in its header"
    if packets.num_damaged:
        return f"{path} is cut or damaged: {packets.num_damaged} of its packets are not whole"
    return None


class _Nameless:
    """An open file without its name, from which FFmpeg would guess what it holds, and a WAV with
    its size."""

    def __init__(self, file: io.RawIOBase) -> None:
        self._read, self.seek, self.tell = file.read, file.seek, file.tell
        self._patch = size_patch(file)

    def read(self, size: int) -> bytes:
        """For PyAV."""
        at = self.tell()
        data = self._read(size) or b""
        if self._patch is None or at >= self._patch.offset + len(self._patch.data):
            return data
        whole = bytearray(data)
        for i, byte in enumerate(self._patch.data, self._patch.offset - at):
            if 0 <= i < len(whole):
                whole[i] = byte
        return bytes(whole)


def _open(file: io.RawIOBase, formats: tuple[str, ...], path: str) -> InputContainer:
    try:
        return av.open(
            _Nameless(file),
            "r",
            options=_options(formats),
            metadata_errors="replace",  # of a title in Latin-1
            buffer_size=_BUFFER,
        )
    except FFmpegError as error:
        why = error.strerror
        if error.errno == errno.EINVAL:  # FFmpeg's answer to a container that is not allowed
            why = "its container is none that is read, such as mp4, mkv, webm, wav or png"
        check_pulled(path)
        raise ValueError(f"{path}: not a readable media file ({why})") from error
    except OSError as error:  # of the file below, such as a damaged disk
        raise ValueError(f"{path}: cannot be read ({why_not(error)})") from error


def _options(formats: tuple[str, ...]) -> dict[str, str]:
    return {
        "format_whitelist": ",".join(formats),
        "protocol_whitelist": "none",  # the file is read here, and no other is opened
        "enable_drefs": "0",
        "max_streams": str(MAX_STREAMS),
        "max_pixels": str(MAX_PIXELS),
    }


def _check_duration(container: InputContainer, path: str | Path) -> None:
    duration_s = (container.duration or 0) / av.time_base
    if not 0 <= duration_s <= MAX_DURATION_S:
        raise ValueError(
            f"{path}: its header says that it lasts {duration_s:.0f} s; "
            f"at most {MAX_DURATION_S} s (a day) can be read"
        )


@dataclass(frozen=True)
class _Packets:
    """All packets of a file."""

    start_s: float
    end_s: float
    sound_s: float  # of the sound stream whose packets last longest, one behind the other
    num_pictures: int
    num_damaged: int


def _walk(container: InputContainer) -> _Packets:
    start_s, end_s, num_pictures, num_damaged = math.inf, 0.0, 0, 0
    sounds_s = {stream.index: 0.0 for stream in container.streams.audio}
    for packet in container.demux():
        num_pictures += packet.stream.type == "video" and packet.size > 0
        num_damaged += packet.is_corrupt
        if packet.time_base is None:
            continue
        duration_s = float((packet.duration or 0) * packet.time_base)
        if packet.pts is not None:
            time_s = float(packet.pts * packet.time_base)
            end_s = max(end_s, time_s + duration_s)
            start_s = start_s if packet.is_discard else min(start_s, time_s)
        if packet.stream.type == "audio" and not packet.is_discard:
            sounds_s[packet.stream.index] += duration_s
    sound_s = max(sounds_s.values(), default=0.0)
    return _Packets(min(start_s, end_s), end_s, sound_s, num_pictures, num_damaged)


def _has_frame_count(path: str | Path) -> bool:
    """Whether an mp3 says how long it is; otherwise its duration is a guess from its size."""
    with open(path, "rb") as file:
        head = file.read(1 << 16)
    return any(name in head for name in (b"Xing", b"Info", b"VBRI"))
