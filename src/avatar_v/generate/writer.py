"""Frames and sound to an H.264 + AAC mp4, written while later frames are still being made.

Encoding runs in a thread behind a bounded queue: neither a slow disk nor a slow model lets frames
pile up. The file grows under a temporary name in the output's folder and takes its own name when it
is whole; after an error or an interrupt neither file nor thread is left.
"""

import os
import queue
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import av
import numpy as np
import torch
from av.audio.frame import AudioFrame
from av.container import OutputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ, SAMPLES_PER_FRAME

CRF = 16
"""x264 quality. At 64 pixels a lower one costs visible detail and saves only kilobytes."""
AUDIO_BIT_RATE = 96_000
MAX_WAITING = 16
"""Blocks of frames in the queue, at most."""


class Mp4Writer:
    """``with Mp4Writer(path, audio) as writer: writer.write(frames)``, in playing order.

    ``audio`` is mono in [-1, 1] at 16 kHz. Video frame i carries samples 640 i … 640 (i + 1), so
    both tracks have the same length whatever was written: sound beyond the last frame is left out
    and missing sound is silence. The picture size is that of the first frames and must be even
    (H.264 yuv420p). Replaces an existing file: who asks the user first is generate/inputs.py.
    """

    def __init__(self, path: str | Path, audio: Float[Tensor, " s"]) -> None:
        self.path = Path(path)
        self.num_frames = 0
        self._part = self.path.with_name(f".{self.path.name}.{uuid.uuid4().hex[:8]}.part")
        self._audio = audio
        self._queue: queue.Queue[np.ndarray | None] = queue.Queue(MAX_WAITING)
        self._ended = False
        self._error: Exception | None = None
        self._size: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._work, name="mp4-writer", daemon=True)

    def __enter__(self) -> "Mp4Writer":
        self._thread.start()
        return self

    def write(self, frames: UInt8[Tensor, "f 3 h w"]) -> None:
        """Hand frames over; waits where the encoder is behind. Raises what the encoder met."""
        self._raise_error()
        height, width = frames.shape[2:]
        if height % 2 or width % 2:
            raise ValueError(f"an mp4 picture has even sides, got {width} x {height}")
        if self._size not in (None, (height, width)):
            raise ValueError(f"the picture changed size from {self._size} to {(height, width)}")
        self._size = (height, width)
        if frames.shape[0]:
            self._queue.put(frames.permute(0, 2, 3, 1).contiguous().cpu().numpy())
            self.num_frames += frames.shape[0]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._queue.put(None)
                self._thread.join()
                self._raise_error()
                os.replace(self._part, self.path)
        finally:  # also where an interrupt comes in the middle of the lines above
            if self._thread.is_alive():
                self._drop_waiting()
                self._queue.put(None)
                self._thread.join()
            self._part.unlink(missing_ok=True)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise OSError(f"{self.path}: writing failed ({self._error})") from self._error

    def _drop_waiting(self) -> None:
        while True:
            try:
                self._queue.get_nowait()
            except queue.Empty:
                return

    def _work(self) -> None:
        """The thread. It lives until the end mark, even after an error, so nobody waits in vain."""
        try:
            first = next(self._blocks(), None)
            if first is None:
                raise ValueError("no frames were made")
            with av.open(str(self._part), "w", format="mp4") as container:
                self._encode(container, first)
        except Exception as error:
            self._error = error
            for _ in self._blocks():
                pass

    def _blocks(self) -> Iterator[np.ndarray]:
        while not self._ended:
            block = self._queue.get()
            if block is None:
                self._ended = True
                return
            yield block

    def _encode(self, container: OutputContainer, first: np.ndarray) -> None:
        video = container.add_stream("libx264", rate=FRAME_RATE_HZ, options={"crf": str(CRF)})
        video.height, video.width = first.shape[1:3]
        video.pix_fmt = "yuv420p"
        video.codec_context.color_range = ColorRange.MPEG
        video.codec_context.colorspace = Colorspace.ITU709
        sound = container.add_stream("aac", rate=SAMPLE_RATE_HZ, layout="mono")
        sound.bit_rate = AUDIO_BIT_RATE
        index, block = 0, first
        while True:
            for picture in block:
                container.mux(video.encode(_yuv(picture)))
                container.mux(sound.encode(_sound(self._audio, index)))
                index += 1
            following = next(self._blocks(), None)
            if following is None:
                break
            block = following
        container.mux(video.encode(None))
        container.mux(sound.encode(None))


def _yuv(picture: np.ndarray) -> VideoFrame:
    """BT.709 limited range, as the stream is tagged: players then show the colours we made."""
    frame = VideoFrame.from_ndarray(picture, format="rgb24")
    return frame.reformat(
        format="yuv420p",
        dst_colorspace=Colorspace.ITU709,
        dst_color_range=ColorRange.MPEG,
    )


def _sound(audio: Tensor, index: int) -> AudioFrame:
    """The samples of video frame ``index``, padded with silence."""
    samples = audio[index * SAMPLES_PER_FRAME : (index + 1) * SAMPLES_PER_FRAME]
    block = torch.zeros(1, SAMPLES_PER_FRAME)
    block[0, : len(samples)] = samples.clamp(-1, 1)
    frame = AudioFrame.from_ndarray(block.numpy(), format="fltp", layout="mono")
    frame.sample_rate = SAMPLE_RATE_HZ
    frame.pts = index * SAMPLES_PER_FRAME
    return frame
