"""A sound of any length, its samples in a file or in memory, and what the networks take of it.

The encoders scale by constants (models/audio.py), so a model trained on one level and run on
another would hear something new; what lies below any voice (an offset, rumble, the hum of mains)
they would hear as sound. Training prepares the sound of its shards, generation that of its files,
live sound and references, and all of them call `high_passed` and `loudness_gain`. What a video
delivers is the sound as it came (delivered.py).
"""

import math
import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.types import SAMPLE_RATE_HZ

HIGHPASS_HZ, HIGHPASS_ORDER, RIPPLE_DB, STOP_DB = 80.0, 6, 0.1, 60.0
"""Of an elliptic filter: few voices go lower, and hum of 50 Hz is 75 dB down, of 60 Hz 31 dB. (A
Butterworth filter of order 4 lets a third of either through, and the mouth moves with it.)"""
LOUDNESS_LUFS = -23.0
FAINT_LUFS = -60.0
"""Anything quieter may be speech or a room's noise: it is raised until its quietest tenth, which is
the pauses of speech, has reached this level (our choice)."""
SILENCE_LUFS = -80.0
"""Anything quieter is silence: 16 bits hold no speech there (our choice)."""
FLOOR_S = 0.04
"""Of the stretches among which the quietest tenth is looked for: a pause between words is longer.
"""
BLOCK_S, STEP_S, GATE_LUFS, GATE_LU = 0.4, 0.1, -70.0, -10.0  # of BS.1770
PART_S = 5
"""Filtered at once, in float64: a sound of an hour takes no more memory than one of a minute."""
_BYTES = 4  # of a float32


class TemporarySound:
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


Sound = Float[Tensor, " s"] | TemporarySound
"""A whole sound, in memory or not."""


def resampled(
    sound: Float[Tensor, " n"], rate_hz: int, to_hz: int = SAMPLE_RATE_HZ
) -> Float[Tensor, " s"]:
    """A sound at another rate, by the resampler that files pass."""
    if rate_hz == to_hz:
        return sound
    from av import AudioFrame, AudioResampler  # not installed where nothing but shards is read

    frame = AudioFrame.from_ndarray(sound.numpy()[None], format="fltp", layout="mono")
    frame.sample_rate = rate_hz
    resampler = AudioResampler(format="fltp", rate=to_hz)
    parts = [*resampler.resample(frame), *resampler.resample(None)]
    return torch.from_numpy(np.concatenate([part.to_ndarray()[0] for part in parts]))


class HighPass:
    """``high(part)`` gives each part of a sound, in order, without what lies below a voice: an
    offset, rumble, the hum of mains. Causal, so that a sound that arrives in parts becomes bit for
    bit what it becomes as a whole; before its first sample there is silence."""

    def __init__(self) -> None:
        order, rate = HIGHPASS_ORDER, SAMPLE_RATE_HZ
        self._sections = np.asarray(
            scipy.signal.ellip(
                order, RIPPLE_DB, STOP_DB, HIGHPASS_HZ, "highpass", fs=rate, output="sos"
            )
        )
        self._state = np.zeros((len(self._sections), 2))

    def __call__(self, part: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
        if len(part) == 0:  # sosfilt takes none
            return part
        samples = part.detach().cpu().double().numpy()
        samples, self._state = scipy.signal.sosfilt(self._sections, samples, zi=self._state)
        return torch.from_numpy(samples).float()


def high_passed(sound: Sound) -> Sound:
    """A whole 16 kHz sound through `HighPass`."""
    high = HighPass()
    if isinstance(sound, TemporarySound):
        return TemporarySound(high(part) for part in sound.split(PART_S * SAMPLE_RATE_HZ))
    return high(sound)


def prepared(audio: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """A whole 16 kHz sound as the networks take it: `high_passed`, then `normalise_loudness`."""
    heard = high_passed(audio)
    assert isinstance(heard, Tensor)
    return normalise_loudness(heard)


def normalise_loudness(audio: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """``audio`` (16 kHz) at -23 LUFS, integrated loudness of ITU-R BS.1770 as by pyloudnorm.

    Silence (quieter than -80 LUFS, or empty) is returned as it is, and what is quieter than -60
    LUFS is raised as far as its noise allows (`measure_level`); audio shorter than the standard's
    400 ms block is measured as a repetition of itself. The result may exceed ±1, and is not
    clipped. ValueError for NaN or infinite samples.
    """
    return audio * loudness_gain(audio)


def loudness_gain(audio: Sound) -> float:
    """The factor of ``normalise_loudness``; 1 for silence. ValueError as there."""
    return measure_level(audio).gain


@dataclass(frozen=True)
class Level:
    """How loud a sound is, and the gain that the networks take it with."""

    lufs: float
    gain: float = 1.0

    def warnings(self, name: str, *, gain_db: float | None = None) -> tuple[str, ...]:
        """What is odd about speech of this level, where ``gain_db`` does not take its place."""
        if self.lufs < SILENCE_LUFS:
            return (f"{name} is silent; the mouth will stay still",)
        if self.lufs >= FAINT_LUFS or gain_db is not None:
            return ()
        raised_db = 20 * math.log10(self.gain)
        faint = f"{name} is very quiet ({self.lufs:.0f} LUFS)"
        if self.lufs + raised_db > LOUDNESS_LUFS - 1:
            return (f"{faint}; it was heard {raised_db:.0f} dB louder, and its noise with it",)
        return (
            f"{faint}, and its noise lets it be heard only {raised_db:.0f} dB louder: the mouth "
            "may hardly move; record it louder, or raise it with --gain",
        )


def measure_level(audio: Sound) -> Level:
    """The loudness and the factor of ``normalise_loudness``. Below -70 LUFS, where the standard's
    gate lets nothing through, blocks are compared with the loudest one alone. ValueError for NaN or
    infinite samples."""
    if len(audio) == 0:
        return Level(-math.inf)
    block = int(BLOCK_S * SAMPLE_RATE_HZ)
    if len(audio) < block:
        audio = audio[:].repeat(math.ceil(block / len(audio)))
    powers = _block_powers(audio)
    loudness = _gated(powers)
    if loudness < FAINT_LUFS:
        loudness = _gated(powers, gate_lufs=-math.inf)
    if loudness < SILENCE_LUFS:
        return Level(loudness)
    raised_db = LOUDNESS_LUFS - loudness
    if loudness < FAINT_LUFS:
        raised_db = min(raised_db, max(0.0, FAINT_LUFS - _noise_floor(audio)))
    return Level(loudness, 10 ** (raised_db / 20))


def integrated_loudness(audio: Sound) -> float:
    """LUFS of 400 ms or more at 16 kHz: up to rounding pyloudnorm's, but in parts. ValueError for
    NaN or infinite samples."""
    return _gated(_block_powers(audio))


def _block_powers(audio: Sound) -> np.ndarray:
    """K-weighted mean squares of the standard's overlapping blocks."""
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
    return np.array(powers)


def _noise_floor(audio: Sound) -> float:
    """LUFS of the quietest tenth of a sound."""
    size, powers = int(FLOOR_S * SAMPLE_RATE_HZ), []
    for part in _weighted(audio):  # whole stretches each, but the last
        whole = part[: len(part) // size * size].reshape(-1, size)
        powers.append(np.square(whole).mean(1))
    with np.errstate(divide="ignore"):
        return float(_lufs(np.percentile(np.concatenate(powers), 10)))


def _weighted(audio: Sound) -> Iterator[np.ndarray]:
    """K-weighted parts that follow each other."""
    import pyloudnorm  # with scipy.signal, a second of imports

    filters = pyloudnorm.Meter(SAMPLE_RATE_HZ)._filters.values()
    states = [np.zeros(len(stage.a) - 1) for stage in filters]
    for part in audio.split(PART_S * SAMPLE_RATE_HZ):
        if not bool(torch.isfinite(part).all()):
            raise ValueError("audio holds NaN or infinite samples")
        samples = part.detach().cpu().double().numpy()
        for i, stage in enumerate(filters):
            samples, states[i] = scipy.signal.lfilter(stage.b, stage.a, samples, zi=states[i])
            samples = stage.passband_gain * samples
        yield samples


def _gated(powers: np.ndarray, gate_lufs: float = GATE_LUFS) -> float:
    with np.errstate(divide="ignore"):
        levels = _lufs(powers)
        loud = levels >= gate_lufs
        if not loud.any() or not powers.any():
            return -math.inf
        gate = max(_lufs(powers[loud].mean()) + GATE_LU, gate_lufs)
        return float(_lufs(powers[levels > gate].mean()))


def _lufs(power):
    """Of one mean square, or of an array of them."""
    return -0.691 + 10 * np.log10(power)
