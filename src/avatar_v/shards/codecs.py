"""Sound of a clip as FLAC, by PyAV; an uncompressed one needs none of it."""

import io

import av
import numpy as np
import torch
from av.audio.frame import AudioFrame
from av.error import FFmpegError
from jaxtyping import Int16
from torch import Tensor

from avatar_v.media.containers import open_bytes
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME


def encode_flac(audio: Int16[Tensor, " s"], sample_rate_hz: int = SAMPLE_RATE_HZ) -> bytes:
    """16 kHz mono."""
    file = io.BytesIO()
    with av.open(file, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=sample_rate_hz)
        stream.layout = "mono"
        frame = AudioFrame.from_ndarray(audio.numpy()[None], format="s16", layout="mono")
        frame.sample_rate = sample_rate_hz
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file.getvalue()


def decode_flac(data: bytes, name: str, num_frames: int) -> Int16[Tensor, " s"]:
    """The sound of a clip of so many frames; silence is small however long it lasts. ValueError,
    with ``name``, for what is damaged, longer or of other samples."""
    parts, left = [], num_frames * SAMPLES_PER_FRAME
    try:
        with open_bytes(data, "flac") as container:
            for frame in container.decode(audio=0):
                left -= frame.samples
                if left < 0:
                    raise ValueError(f"{name}: longer than the {num_frames} frames of its clip")
                parts.append(frame.to_ndarray()[0])
    except (FFmpegError, IndexError) as error:
        raise ValueError(f"{name}: damaged, {len(data)} bytes ({error})") from error
    samples = np.concatenate(parts) if parts else np.zeros(0, np.int16)
    if samples.dtype != np.int16:
        raise ValueError(f"{name}: expected 16-bit audio, got {samples.dtype}")
    return torch.from_numpy(samples)
