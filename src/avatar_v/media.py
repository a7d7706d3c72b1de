"""Media files and bytes to tensors, through PyAV: the lowest reading layer of every data path.

What comes out is always on the project's grid: RGB uint8 frames "f 3 h w" at 25 frames a second,
upright and with square pixels, and mono float32 audio at 16 kHz. In a file that has both, frame 0
and sample 0 are the same moment. Every failure is a ValueError naming the file and its trouble.
Writing videos to watch is not here (generate/media.py); the H.264 bytes of a shard are.
"""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path

import av
import numpy as np
import torch
from av.container import InputContainer
from av.error import FFmpegError
from av.stream import Disposition
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream
from jaxtyping import Float, UInt8
from torch import Tensor

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

    @property
    def has_video(self) -> bool:
        return self.width is not None

    @property
    def has_audio(self) -> bool:
        return self.sample_rate_hz is not None


def probe(path: str | Path) -> MediaInfo:
    """Streams and sizes of a media file. ValueError if it is missing or no media file."""
    with _open(path) as container:
        video = _video_stream(container)
        audio = container.streams.audio[0] if container.streams.audio else None
        duration = container.duration
        rate = video.average_rate if video else None
        return MediaInfo(
            path=str(path),
            duration_s=None if duration is None else duration / av.time_base,
            width=video.codec_context.width if video else None,
            height=video.codec_context.height if video else None,
            frame_rate_hz=None if rate is None else float(rate),
            sample_rate_hz=audio.codec_context.sample_rate if audio else None,
            num_channels=audio.codec_context.layout.nb_channels if audio else None,
        )


def iter_video(
    path: str | Path, *, frame_rate_hz: int = FRAME_RATE_HZ, max_side: int | None = None
) -> Iterator[Frame]:
    """Frames of a video (or the one frame of an image file), lazily, one in memory at a time.

    Any frame rate, constant or varying, becomes ``frame_rate_hz``: each source frame goes to the
    grid time nearest to its own and stays until the next one's, so sync with the audio is kept to
    half a frame. ``max_side`` reduces larger pictures while they are converted. A file that is
    missing, unreadable, damaged, or without video or frames is a ValueError of the ``next`` that
    meets it.
    """
    with _open(path) as container:
        stream = _video_stream(container)
        if stream is None:
            raise ValueError(f"{path}: no video stream; expected a video or an image")
        aspect = float(stream.codec_context.sample_aspect_ratio or 1)
        reformatter, num_given = VideoReformatter(), 0
        for frame, count in _on_grid(_decoded(container, stream, path), frame_rate_hz):
            picture = _upright(frame, aspect, max_side, reformatter)
            for _ in range(count):
                yield picture
            num_given += count
        if num_given == 0:
            raise ValueError(f"{path}: the video stream holds no frames")


def read_video(
    path: str | Path, *, max_frames: int | None = None, frame_rate_hz: int = FRAME_RATE_HZ
) -> Frames:
    """All frames of ``iter_video``, or the first ``max_frames`` of them, in one tensor."""
    frames = []
    for frame in iter_video(path, frame_rate_hz=frame_rate_hz):
        frames.append(frame)
        if len(frames) == max_frames:
            break
    shapes = {tuple(frame.shape) for frame in frames}
    if len(shapes) > 1:
        raise ValueError(f"{path}: the picture changes size within the video, {sorted(shapes)}")
    return torch.stack(frames)


def iter_audio(path: str | Path, *, sample_rate_hz: int = SAMPLE_RATE_HZ) -> Iterator[Waveform]:
    """The first audio stream as mono float32 (the mean of its channels), in parts as they are
    decoded, from any rate and format.

    In a file with video, sample 0 is the moment of the first video frame: a late audio track is
    padded with silence, an early one cut. Full scale is ±1. ValueError for a missing or unreadable
    file, no audio stream, no samples, or, behind the last part, samples that are not finite.
    """
    with _open(path) as container:
        if not container.streams.audio:
            raise ValueError(f"{path}: no audio stream; expected speech to be in it")
        zero_s = _first_frame_time(path) if _video_stream(container) else None
        num_read = num_bad = num_early = 0
        for time_s, samples in _samples(container, path, sample_rate_hz):
            if num_read == 0 and time_s is not None and zero_s is not None:
                num_early = round((zero_s - time_s) * sample_rate_hz)
                if num_early < 0:
                    yield torch.zeros(-num_early)
            num_read += len(samples)
            num_bad += int((~np.isfinite(samples)).sum())
            cut = min(max(num_early, 0), len(samples))
            num_early -= cut
            if cut < len(samples):
                yield torch.from_numpy(samples[cut:])
    if num_read == 0:
        raise ValueError(f"{path}: the audio stream holds no samples")
    if num_bad > 0:
        raise ValueError(f"{path}: {num_bad} of {num_read} audio samples are NaN or infinite")


def read_audio(path: str | Path, *, sample_rate_hz: int = SAMPLE_RATE_HZ) -> Waveform:
    """All of ``iter_audio`` in one tensor; the same errors."""
    read = bytearray()  # grows in place, unlike a list of parts
    for part in iter_audio(path, sample_rate_hz=sample_rate_hz):
        read += part.numpy().tobytes()
    return torch.from_numpy(np.frombuffer(read, np.float32))


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


def decode_video_bytes(data: bytes, name: str = "video") -> Frames:
    """Every frame of ``encode_video_bytes``; ``name`` (file and key) goes into the ValueError."""
    try:
        with av.open(io.BytesIO(data), "r") as container:
            stream = container.streams.video[0]
            stream.thread_count = 1  # clips are short: a pool of threads costs more than it saves
            convert = VideoReformatter().reformat  # one for all: each holds a scaler of its own
            frames = [
                convert(frame, format="rgb24").to_ndarray() for frame in container.decode(stream)
            ]
    except (FFmpegError, IndexError) as error:
        raise ValueError(f"{name}: not a readable video, {len(data)} bytes ({error})") from error
    if not frames:
        raise ValueError(f"{name}: the video holds no frames")
    return torch.from_numpy(np.stack(frames)).permute(0, 3, 1, 2).contiguous()


def _open(path: str | Path) -> InputContainer:
    if not Path(path).is_file():
        what = "a folder" if Path(path).is_dir() else "no such file"
        raise ValueError(f"{path}: {what}; expected a video, image or audio file")
    try:
        return av.open(str(path), "r")
    except FFmpegError as error:
        raise ValueError(f"{path}: not a readable media file ({error.strerror})") from error


def _video_stream(container: InputContainer) -> VideoStream | None:
    """The first real video stream; the cover picture of a music file is none."""
    for stream in container.streams.video:
        if not stream.disposition & Disposition.attached_pic:
            return stream
    return None


def _decoded(
    container: InputContainer, stream: VideoStream, path: str | Path
) -> Iterator[VideoFrame]:
    stream.thread_type = "AUTO"
    try:
        yield from container.decode(stream)
    except FFmpegError as error:
        raise ValueError(f"{path}: the video is damaged and cannot be decoded ({error})") from error


def _on_grid(frames: Iterator[VideoFrame], rate_hz: int) -> Iterator[tuple[VideoFrame, int]]:
    """Source frames with the number of grid frames each fills; the sum is the video's duration."""
    held, held_slot = None, 0
    start = end = Fraction(0)
    for frame in frames:
        if frame.pts is None or frame.time_base is None:  # a stream without times: as they come
            time, duration = start + Fraction(held_slot + 1, rate_hz), None
        else:
            time, duration = frame.pts * frame.time_base, frame.duration * frame.time_base
        if held is None:
            start = time
        elif (slot := _nearest((time - start) * rate_hz)) > held_slot:
            yield held, slot - held_slot
            held_slot = slot
        held, end = frame, time + (duration or Fraction(1, rate_hz))
    if held is not None:
        yield held, max(_nearest((end - start) * rate_hz) - held_slot, 1 if held_slot == 0 else 0)


def _nearest(value: Fraction) -> int:
    return int(value + Fraction(1, 2))


def _upright(
    frame: VideoFrame, aspect: float, max_side: int | None, reformatter: VideoReformatter
) -> Frame:
    """RGB with square pixels, turned as the file's rotation metadata asks."""
    width, height = frame.width * aspect, frame.height
    reduction = min(1.0, max_side / max(width, height)) if max_side else 1.0
    size = (max(1, round(width * reduction)), max(1, round(height * reduction)))
    picture = reformatter.reformat(frame, *size, "rgb24", interpolation="AREA").to_ndarray()
    turned = np.rot90(picture, k=round(frame.rotation / 90) % 4)  # both count anticlockwise
    return torch.from_numpy(np.ascontiguousarray(turned.transpose(2, 0, 1)))


def _samples(
    container: InputContainer, path: str | Path, sample_rate_hz: int
) -> Iterator[tuple[float | None, np.ndarray]]:
    """Parts of the first audio stream, each with the time at which the stream begins."""
    resampler = av.AudioResampler(format="fltp", rate=sample_rate_hz)  # keeps the channels
    begin_s, is_first = None, True
    try:
        for frame in chain(container.decode(container.streams.audio[0]), [None]):
            if is_first and frame is not None:
                begin_s, is_first = frame.time, False
            for part in resampler.resample(frame):
                yield begin_s, part.to_ndarray().mean(0).astype(np.float32, copy=False)
    except FFmpegError as error:
        raise ValueError(f"{path}: the audio cannot be decoded ({error})") from error


def _first_frame_time(path: str | Path) -> float | None:
    with _open(path) as container:
        stream = _video_stream(container)
        assert stream is not None
        for frame in _decoded(container, stream, path):
            return frame.time
    return None
