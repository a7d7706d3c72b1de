"""Media files and bytes to tensors, through PyAV: the lowest reading layer of every data path.

What comes out is always on the project's grid: RGB uint8 frames "f 3 h w" at 25 frames a second,
upright and with square pixels, and mono float32 audio at 16 kHz, the voice of the track's channels
(channels.py). In a file that has both, frame 0 and sample 0 are the same moment. Every failure is a
ValueError naming the file and its trouble. Which files are opened, and within which limits, is
containers.py's; how frames and samples come to their times is timeline.py's. Videos to watch are
written by writer.py; the H.264 bytes of a shard are here.
"""

import io
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import torch
from av.container import InputContainer
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.media.containers import (
    audio_stream,
    decoded,
    is_tiled,
    missing,
    open_bytes,
    open_media,
    video_stream,
)
from avatar_v.media.delivered import SoundFormat
from avatar_v.media.hdr import kind_of_colours
from avatar_v.media.pictures import PictureConverter, checked, open_tiled, read_tiled
from avatar_v.media.timeline import aligned, on_grid
from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ

Frame = UInt8[Tensor, "3 h w"]
Frames = UInt8[Tensor, "f 3 h w"]
Waveform = Float[Tensor, " s"]


@dataclass(frozen=True)
class MediaInfo:
    """What a file's headers say, before any frame is decoded; None where it has no such stream."""

    path: str
    duration_s: float | None
    width: int | None  # as stored: rotation metadata is applied only when frames are read
    height: int | None
    frame_rate_hz: float | None  # the average; the file may vary around it
    sample_rate_hz: int | None
    num_channels: int | None
    layout: str | None = None  # FFmpeg's name of the channels' places
    track: int | None = None  # which of the sound tracks this is, counted from 1
    num_tracks: int = 0  # of sound
    no_video: str = ""  # why there is none to read: no stream, or no decoder for it
    no_audio: str = ""
    colours: str = ""  # "HLG", "PQ" or "BT.2020" where its pictures are converted to BT.709

    @property
    def has_video(self) -> bool:
        return self.width is not None

    @property
    def has_audio(self) -> bool:
        return self.sample_rate_hz is not None


def probe(path: str | Path, *, track: int | None = None) -> MediaInfo:
    """Streams and sizes of a media file; a stream without a decoder counts as none.

    ValueError if it is missing, no media file, or beyond the limits of containers.py, and without
    the sound ``track`` that is asked for.
    """
    with open_media(path) as container:
        video, audio = video_stream(container, path), audio_stream(container, path, track)
        duration = container.duration
        rate = video.average_rate if video else None
        width, height = _size(container, video, path) if video else (None, None)
        return MediaInfo(
            path=str(path),
            duration_s=None if duration is None else duration / av.time_base,
            width=width,
            height=height,
            frame_rate_hz=None if rate is None else float(rate),
            sample_rate_hz=audio.codec_context.sample_rate if audio else None,
            num_channels=audio.codec_context.layout.nb_channels if audio else None,
            layout=audio.codec_context.layout.name if audio else None,
            track=container.streams.audio.index(audio) + 1 if audio else None,
            num_tracks=len(container.streams.audio),
            no_video="" if video else missing(container, "video"),
            no_audio="" if audio else missing(container, "audio"),
            colours=_colours(video) if video else "",
        )


def colour_note(path: str | Path) -> str | None:
    """One sentence about pictures whose colours are converted; None for standard range. ValueError
    as for `probe`."""
    colours = probe(path).colours
    if not colours:
        return None
    return f"{path} has {colours} colours; they are converted to standard range (BT.709)"


def iter_video(
    path: str | Path, *, frame_rate_hz: int = FRAME_RATE_HZ, max_side: int | None = None
) -> Iterator[Frame]:
    """Frames of a video (or the one frame of an image file), lazily, one in memory at a time.

    Any frame rate, constant or varying, becomes ``frame_rate_hz``: each source frame goes to the
    grid time nearest to its own and stays until the next one's, so sync with the audio is kept to
    half a frame. ``max_side`` reduces larger pictures while they are converted. A file that is
    missing, unreadable, damaged, or without video or frames, times that jump back, and a picture
    that is too large or too small, or changes its size, are a ValueError of the ``next`` that
    meets it.
    """
    for picture in iter_pictures(path, frame_rate_hz=frame_rate_hz):
        yield picture.at(max_side)


def iter_pictures(path: str | Path, *, frame_rate_hz: int = FRAME_RATE_HZ) -> Iterator["Picture"]:
    """`iter_video` before its pictures are converted, which each does when it is asked to, at any
    size: for several readers of one pass, and for holding many in the space of the decoder's."""
    with open_media(path) as container:
        stream = video_stream(container, path)
        if stream is None:
            why = missing(container, "video")
            raise ValueError(f"{path}: {why}; expected a video or an image")
        num_given = 0
        if is_tiled(container):
            aspect, frames = 1.0, iter([read_tiled(path, _colours(stream))])
        else:
            stated = stream.sample_aspect_ratio or stream.codec_context.sample_aspect_ratio
            aspect = float(stated or 1)  # the container's goes before the codec's, as players do
            frames = checked(decoded(container, stream, path), aspect, path)
        convert = PictureConverter(container, path, aspect=aspect)
        shapes: dict[int | None, tuple[int, ...]] = {}
        for frame, count in on_grid(frames, frame_rate_hz, path):
            picture = Picture(frame, convert, shapes, f"{num_given / frame_rate_hz:.2f} s", path)
            for _ in range(count):
                yield picture
            num_given += count
        if num_given == 0:
            raise ValueError(f"{path}: the video stream holds no frames")


class Picture:
    """A frame of a video, in the decoder's own form until it is asked for."""

    def __init__(
        self,
        frame: VideoFrame,
        convert: PictureConverter,
        shapes: dict[int | None, tuple[int, ...]],
        where: str,
        path: str | Path,
    ) -> None:
        self._frame, self._convert, self._shapes = frame, convert, shapes
        self._where, self._path = where, path
        self._made: dict[int | None, Frame] = {}

    def at(self, max_side: int | None = None, *, keep: bool = True) -> Frame:
        """RGB, reduced to ``max_side``; with ``keep`` the next call gives the same tensor.
        ValueError where the video has changed its size."""
        if max_side in self._made:
            return self._made[max_side]
        picture = self._convert(self._frame, max_side)
        first = self._shapes.setdefault(max_side, tuple(picture.shape))
        if picture.shape != first:
            before, after = (f"{shape[2]} x {shape[1]}" for shape in (first, picture.shape))
            raise ValueError(
                f"{self._path}: the picture changes its size from {before} to {after} pixels "
                f"{self._where} into the video; cut the video there"
            )
        if keep:
            self._made[max_side] = picture
        return picture


def read_video(
    path: str | Path, *, max_frames: int | None = None, frame_rate_hz: int = FRAME_RATE_HZ
) -> Frames:
    """All frames of ``iter_video``, or the first ``max_frames`` of them, in one tensor."""
    frames = []
    for frame in iter_video(path, frame_rate_hz=frame_rate_hz):
        frames.append(frame)
        if len(frames) == max_frames:
            break
    return torch.stack(frames)


def iter_audio(
    path: str | Path, *, sample_rate_hz: int = SAMPLE_RATE_HZ, track: int | None = None
) -> Iterator[Waveform]:
    """The voice of a sound track (channels.VoiceChannel) as mono float32, in parts as they are
    decoded, from any rate and format.

    ``track`` counts from 1; by default the track that the file flags as its default, else the
    first. In a file with video, sample 0 is the moment of the first video frame: a late audio track
    is padded with silence, an early one cut. Holes in its times, as lost packets and a muted track
    leave them, are filled with silence, and what overlaps is cut. Full scale is ±1. ValueError for
    a missing or unreadable file, no such audio stream, no samples, times that jump back, or,
    behind the last part, samples that are not finite.
    """
    for part in aligned(path, track, sample_rate_hz, None):
        yield torch.from_numpy(part[0])


def iter_channels(
    path: str | Path, form: SoundFormat, *, track: int | None = None
) -> Iterator[Waveform]:
    """The sound of ``iter_audio`` in a ``form``, its channels interleaved; the same errors."""
    layout = None if form.layout == "mono" else form.layout
    for part in aligned(path, track, form.sample_rate_hz, layout):
        yield torch.from_numpy(np.ascontiguousarray(part.T).reshape(-1))


def read_audio(
    path: str | Path, *, max_samples: int | None = None, sample_rate_hz: int = SAMPLE_RATE_HZ
) -> Waveform:
    """All of ``iter_audio``, or the first ``max_samples`` of it, in one tensor; the same errors, of
    what is read."""
    read = bytearray()  # grows in place, unlike a list of parts
    for part in iter_audio(path, sample_rate_hz=sample_rate_hz):
        read += part.numpy().tobytes()
        if max_samples is not None and len(read) >= 4 * max_samples:
            break
    audio = torch.from_numpy(np.frombuffer(read, np.float32))[:max_samples]
    if num_bad := int((~audio.isfinite()).sum()):
        raise ValueError(f"{path}: {num_bad} of {len(audio)} audio samples are NaN or infinite")
    return audio


def encode_video_bytes(
    video: Frames, *, crf: int = 8, frame_rate_hz: int = FRAME_RATE_HZ, preset: str = "medium"
) -> bytes:
    """H.264 (yuv444p: colour at full resolution) in mp4, any size, odd ones too.

    One encoder thread and no macroblock tree (x264's reads memory that it has not written), so that
    the same frames give the same bytes in every process. At crf 8 the mean error is one to two grey
    levels of 255.
    """
    if video.shape[0] == 0:
        raise ValueError(f"a video needs at least one frame, got shape {tuple(video.shape)}")
    file = io.BytesIO()
    options = {"crf": str(crf), "preset": preset, "threads": "1", "mbtree": "0"}
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=frame_rate_hz, options=options)
        stream.height, stream.width = video.shape[2:]
        stream.pix_fmt = "yuv444p"
        for picture in video.permute(0, 2, 3, 1).contiguous().cpu().numpy():
            container.mux(stream.encode(VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return file.getvalue()


def decode_video_bytes(data: bytes, name: str = "video", *, most: int | None = None) -> Frames:
    """Every frame of ``encode_video_bytes``; ``name`` (file and key) goes into the ValueError, as
    it does where there are more than ``most``."""
    try:
        with open_bytes(data, "mov") as container:
            stream = container.streams.video[0]
            stream.thread_count = 1  # clips are short: a pool of threads costs more than it saves
            convert = VideoReformatter().reformat  # one for all: each holds a scaler of its own
            stop = None if most is None else most + 1
            frames = [
                convert(frame, format="rgb24").to_ndarray()
                for frame in itertools.islice(container.decode(stream), stop)
            ]
    except (FFmpegError, IndexError) as error:
        raise ValueError(f"{name}: not a readable video, {len(data)} bytes ({error})") from error
    if not frames:
        raise ValueError(f"{name}: the video holds no frames")
    if most is not None and len(frames) > most:
        raise ValueError(f"{name}: longer than the {most} frames of its clip")
    return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2).contiguous()


def _size(container: InputContainer, stream: VideoStream, path: str | Path) -> tuple[int, int]:
    """Of the pictures, as stored."""
    if is_tiled(container):
        with open_tiled(path) as image:
            return image.size
    return stream.codec_context.width, stream.codec_context.height


def _colours(stream: VideoStream) -> str:
    return kind_of_colours(stream.codec_context.color_trc, stream.codec_context.color_primaries)
