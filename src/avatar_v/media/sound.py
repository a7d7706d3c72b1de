"""A sound of any length: its samples in a file or in memory, and one loudness for all of them.

The encoders scale by constants (models/audio.py), so a model trained on one level and run on
another would hear something new. Training levels the sound of its shards, generation that of its
files, and both call `loudness_gain`.
"""

import math
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator

import numpy as np
import pyloudnorm
import torch
from av import AudioFrame, AudioResampler
from jaxtyping import Float
from scipy.signal import lfilter
from torch import Tensor

from avatar_v.types import SAMPLE_RATE_HZ

LOUDNESS_LUFS = -23.0
SILENCE_LUFS = -60.0
"""Anything quieter is silence, not speech to be raised (our choice)."""
BLOCK_S, STEP_S, GATE_LUFS, GATE_LU = 0.4, 0.1, -70.0, -10.0  # of BS.1770
PART_S = 5
"""Filtered at once, in float64: a sound of an hour takes no more memory than one of a minute."""
_BYTES = 4  # of a float32


class Recording:
    """Float32 samples in a temporary file without a name, gone with this object.

    It takes what a tensor "s" takes where sound is read in order: ``len``, slices of step 1 (new
    tensors, safe from several threads) and ``split``. OSError, naming the folder, if its disk is
    full.
    """

    def __init__(self, parts: Iterable[Tensor]) -> None:
        self._file = tempfile.TemporaryFile(prefix="avatar_v_sound_", buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        for part in parts:
            self._append(part.numpy().tobytes())
        self._length = self._file.tell() // _BYTES

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, span: slice) -> Float[Tensor, " s"]:
        start, stop, step = span.indices(len(self))
        if step != 1:
            raise ValueError(f"a recording is read in order, got a step of {step}")
        if stop <= start:
            return torch.zeros(0)
        data, wanted = bytearray(), (stop - start) * _BYTES
        while len(data) < wanted:  # the system reads 2 GiB at once at most
            at = start * _BYTES + len(data)
            data += os.pread(self._file.fileno(), wanted - len(data), at)
        return torch.frombuffer(data, dtype=torch.float32)

    def split(self, size: int) -> Iterator[Float[Tensor, " s"]]:
        """Parts of ``size`` samples, the last one shorter."""
        return (self[start : start + size] for start in range(0, len(self), size))

    def _append(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            folder = tempfile.gettempdir()
            raise OSError(
                f"{folder} has no room for the sound ({error}); let TMPDIR name another folder"
            ) from error


Sound = Float[Tensor, " s"] | Recording
"""A whole sound, in memory or not."""


def resampled(
    sound: Float[Tensor, " n"], rate_hz: int, to_hz: int = SAMPLE_RATE_HZ
) -> Float[Tensor, " s"]:
    """A sound at another rate, by the resampler that files pass."""
    if rate_hz == to_hz:
        return sound
    frame = AudioFrame.from_ndarray(sound.numpy()[None], format="fltp", layout="mono")
    frame.sample_rate = rate_hz
    resampler = AudioResampler(format="fltp", rate=to_hz)
    parts = [*resampler.resample(frame), *resampler.resample(None)]
    return torch.from_numpy(np.concatenate([part.to_ndarray()[0] for part in parts]))


def normalise_loudness(audio: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """``audio`` (16 kHz) at -23 LUFS, integrated loudness of ITU-R BS.1770 as by pyloudnorm.

    Silence (quieter than -60 LUFS, or empty) is returned as it is; audio shorter than the
    standard's 400 ms block is measured as a repetition of itself. The result may exceed ±1, and
    is not clipped. ValueError for NaN or infinite samples.
    """
    return audio * loudness_gain(audio)


def loudness_gain(audio: Sound) -> float:
    """The factor of ``normalise_loudness``; 1 for silence. ValueError as there."""
    if len(audio) == 0:
        return 1.0
    block = int(BLOCK_S * SAMPLE_RATE_HZ)
    if len(audio) < block:
        audio = audio[:].repeat(math.ceil(block / len(audio)))
    loudness = integrated_loudness(audio)
    if loudness < SILENCE_LUFS:
        return 1.0
    return 10 ** ((LOUDNESS_LUFS - loudness) / 20)


def integrated_loudness(audio: Sound) -> float:
    """LUFS of 400 ms or more at 16 kHz: up to rounding pyloudnorm's, but in parts. ValueError for
    NaN or infinite samples."""
    block, step = BLOCK_S * SAMPLE_RATE_HZ, STEP_S * SAMPLE_RATE_HZ
    num = int(np.round((len(audio) / SAMPLE_RATE_HZ - BLOCK_S) / STEP_S) + 1)
    powers, before, rest = [], 0, np.zeros(0)
    for part in _weighted(audio):
        rest = np.concatenate([rest, part])
        while len(powers) < num:
            begin, end = int(len(powers) * step), int(len(powers) * step + block)
            if min(end, len(audio)) > before + len(rest):
                break
            powers.append(np.square(rest[begin - before : end - before]).sum() / block)
        keep = max(0, int(len(powers) * step) - before)
        before, rest = before + keep, rest[keep:]
    return _gated(np.array(powers))


def _weighted(audio: Sound) -> Iterator[np.ndarray]:
    """K-weighted parts that follow each other."""
    filters = pyloudnorm.Meter(SAMPLE_RATE_HZ)._filters.values()
    states = [np.zeros(len(stage.a) - 1) for stage in filters]
    for part in audio.split(PART_S * SAMPLE_RATE_HZ):
        if not bool(torch.isfinite(part).all()):
            raise ValueError("audio holds NaN or infinite samples")
        samples = part.detach().cpu().double().numpy()
        for i, stage in enumerate(filters):
            samples, states[i] = lfilter(stage.b, stage.a, samples, zi=states[i])
            samples = stage.passband_gain * samples
        yield samples


def _gated(powers: np.ndarray) -> float:
    with np.errstate(divide="ignore"):
        levels = _lufs(powers)
        loud = levels >= GATE_LUFS
        if not loud.any():
            return -math.inf
        gate = max(_lufs(powers[loud].mean()) + GATE_LU, GATE_LUFS)
        return float(_lufs(powers[levels > gate].mean()))


def _lufs(power):
    """Of one mean square, or of an array of them."""
    return -0.691 + 10 * np.log10(power)
