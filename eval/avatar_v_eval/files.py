"""Files that measurements write for a program to read: sound as WAV, pictures as PNG."""

import wave
from pathlib import Path

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

from avatar_v.types import SAMPLE_RATE_HZ


def write_wav(path: Path, audio: Float[Tensor, " s"]) -> None:
    """16-bit mono at 16 kHz."""
    samples = (audio.double() * 32768).round().clamp(-32768, 32767).numpy().astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE_HZ)
        file.writeframes(samples.tobytes())


def write_png(path: Path, picture: Tensor) -> None:
    """An uint8 picture "3 h w", exactly."""
    Image.fromarray(np.ascontiguousarray(picture.permute(1, 2, 0).numpy())).save(path)
