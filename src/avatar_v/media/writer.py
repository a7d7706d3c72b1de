"""Frames and sound to H.264 + AAC, encoded while later frames are still being made.

Encoding runs in a thread behind a bounded queue: neither a slow consumer nor a slow model lets
frames pile up, and a consumer that fails or hangs ends the writing with one OSError. Where the
bytes go, and what is left of them after a failure, is for files.py and outputs.py; no thread is
left in any case.
"""

import queue
import threading
import wave
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler
from av.container import OutputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace
from av.video.stream import VideoStream
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.base.paths import full_disk, whole_file
from avatar_v.media.delivered import SoundFormat
from avatar_v.media.files import Mp4File, Output
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME

CRF = 16
"""x264 quality. At 64 pixels a lower one costs visible detail and saves only kilobytes."""
MAX_WAITING = 4
"""Blocks of frames in the queue, at most."""

_Block = tuple[np.ndarray, np.ndarray]  # RGB pictures "f h w 3" uint8, and their samples "c s"


class Writer:
    """``with Writer(output) as writer: writer.write(frames, sound)``, in playing order.

    ``sound`` is in [-1, 1] and has a ``form``, mono at 16 kHz beside 25 frames a second unless
    told: 640 samples for each frame, so both tracks have the same length whatever was written. The
    picture size is that of the first frames and must be even (H.264 yuv420p).
    """

    def __init__(self, output: Output, form: SoundFormat | None = None) -> None:
        self.num_frames = 0
        self._output, self._form = output, form or SoundFormat()
        self._queue: queue.Queue[_Block | None] = queue.Queue(MAX_WAITING)
        self._ended = False
        self._error: Exception | None = None
        self._size: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._work, name="writer", daemon=True)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def write(self, frames: UInt8[Tensor, "f 3 h w"], sound: Float[Tensor, "*c s"]) -> None:
        """Hand frames over, and their sound (mono: with or without an axis of channels); waits
        where the encoder is behind. Raises what the encoder met."""
        self._raise_error()
        height, width = frames.shape[2:]
        if height % 2 or width % 2:
            raise ValueError(f"an mp4 picture has even sides, got {width} x {height}")
        if self._size not in (None, (height, width)):
            raise ValueError(f"the picture changed size from {self._size} to {(height, width)}")
        sound, each = torch.atleast_2d(sound), self._form.samples_per_frame
        if sound.shape != (self._form.num_channels, len(frames) * each):
            raise ValueError(
                f"{len(frames)} frames have {each} samples each, in {self._form.num_channels} "
                f"channels, got {sound.shape[1]} in {sound.shape[0]}"
            )
        self._size = (height, width)
        if frames.shape[0]:
            pictures = frames.permute(0, 2, 3, 1).contiguous().cpu().numpy()
            self._queue.put((pictures, sound.clamp(-1, 1).cpu().numpy()))
            self.num_frames += frames.shape[0]

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self._queue.put(None)
                self._thread.join()
                self._raise_error()
                self._finish()
        finally:  # also where an interrupt comes in the middle of the lines above
            if self._thread.is_alive():
                if kind is None or not issubclass(kind, Exception):
                    self._output.interrupt()  # who stops us does not wait for a slow consumer
                self._queue.put(None)  # behind the frames that wait: they were handed over
                self._thread.join()
            self._output.abandon()

    def _finish(self) -> None:
        try:
            self._output.finish()
        except OSError as error:
            raise self._named(error) from error

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._named(self._error) from self._error

    def _named(self, error: Exception) -> OSError:
        """The error with the output's name; of a file with its disk's, where that is full."""
        name = self._output.name
        full = full_disk(error, name) if self._output.on_disk else None
        return full or OSError(f"{name}: writing failed ({error})")

    def _check_output(self) -> None:
        if self._output.failure is not None:
            raise self._output.failure

    def _work(self) -> None:
        """The thread. It lives until the end mark, even after an error, so nobody waits in vain."""
        try:
            first = next(self._blocks(), None)
            if first is None:
                raise ValueError("no frames were made")
            with self._output.open() as container:
                self._encode(container, first)
            self._check_output()
        except Exception as error:
            self._error = self._output.failure or error
            for _ in self._blocks():
                pass

    def _blocks(self) -> Iterator[_Block]:
        while not self._ended:
            block = self._queue.get()
            if block is None:
                self._ended = True
                return
            yield block

    def _encode(self, container: OutputContainer, first: _Block) -> None:
        height, width = first[0].shape[1:3]
        form = self._form
        video = _video_stream(container, height, width, form.frame_rate_hz, self._output)
        coded_hz = max(form.coded_hz, self._output.least_coded_hz)
        sound = container.add_stream("aac", rate=coded_hz, layout=form.layout)
        sound.bit_rate = form.bit_rate
        coded = None  # where AAC has no such rate, or another is asked for
        if coded_hz != form.sample_rate_hz:
            coded = AudioResampler(format="fltp", layout=form.layout, rate=coded_hz)
        index, block = 0, first
        while True:
            parts = np.split(block[1], len(block[0]), axis=1)
            for picture, samples in zip(block[0], parts, strict=True):
                container.mux(video.encode(_yuv(picture)))
                part = _sound(samples, index, form)
                for at_rate in (part,) if coded is None else coded.resample(part):
                    container.mux(sound.encode(at_rate))
                index += 1
            self._check_output()
            following = next(self._blocks(), None)
            if following is None:
                break
            block = following
        container.mux(video.encode(None))
        for at_rate in () if coded is None else coded.resample(None):
            container.mux(sound.encode(at_rate))
        container.mux(sound.encode(None))


class Mp4Writer:
    """``with Mp4Writer(path, audio) as writer: writer.write(frames)``: the sound is known before.

    Video frame i carries samples 640 i … 640 (i + 1) of ``audio``: sound beyond the last frame is
    left out and missing sound is silence. Replaces an existing file without asking; after an error
    or an interrupt neither file nor thread is left.
    """

    def __init__(self, path: str | Path, audio: Float[Tensor, " s"]) -> None:
        self._writer = Writer(Mp4File(path))
        self._audio = audio

    @property
    def num_frames(self) -> int:
        return self._writer.num_frames

    def __enter__(self) -> "Mp4Writer":
        self._writer.__enter__()
        return self

    def write(self, frames: UInt8[Tensor, "f 3 h w"]) -> None:
        """As ``Writer.write``."""
        start, num = self.num_frames * SAMPLES_PER_FRAME, len(frames) * SAMPLES_PER_FRAME
        sound = self._audio[start : start + num]
        self._writer.write(frames, F.pad(sound, (0, num - len(sound))))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._writer.__exit__(kind, *rest)


def write_wav(
    path: str | Path, samples: Float[Tensor, " s"], sample_rate_hz: int = SAMPLE_RATE_HZ
) -> None:
    """Mono 16-bit PCM, at 16 kHz unless told, which reads back exactly (x / 32768); samples beyond
    [-1, 1) are clipped. The file appears whole or not at all."""
    pcm = (samples.double() * 32768).round().clamp(-32768, 32767).to(torch.int16)
    with whole_file(path) as partial, wave.open(str(partial), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(sample_rate_hz)
        file.writeframes(pcm.numpy().astype("<i2").tobytes())


def _video_stream(
    container: OutputContainer, height: int, width: int, frame_rate_hz: int, output: Output
) -> VideoStream:
    # x264's macroblock tree reads memory that it has not written: without it the same frames give
    # the same video in every process
    options = {"crf": str(CRF), "mbtree": "0", **output.x264}
    video = container.add_stream("libx264", rate=frame_rate_hz, options=options)
    if output.key_frame_every_s is not None:
        video.codec_context.gop_size = output.key_frame_every_s * frame_rate_hz
    video.height, video.width = height, width
    video.pix_fmt = "yuv420p"
    video.codec_context.color_range = ColorRange.MPEG
    video.codec_context.colorspace = Colorspace.ITU709
    return video


def _yuv(picture: np.ndarray) -> VideoFrame:
    """BT.709 limited range, as the stream is tagged: players then show the colours we made."""
    frame = VideoFrame.from_ndarray(picture, format="rgb24")
    return frame.reformat(
        format="yuv420p",
        dst_colorspace=Colorspace.ITU709,
        dst_color_range=ColorRange.MPEG,
    )


def _sound(samples: np.ndarray, index: int, form: SoundFormat) -> AudioFrame:
    """The sound "c s" of video frame ``index``."""
    samples = np.ascontiguousarray(samples)
    frame = AudioFrame.from_ndarray(samples, format="fltp", layout=form.layout)
    frame.sample_rate = form.sample_rate_hz
    frame.pts = index * form.samples_per_frame
    return frame
