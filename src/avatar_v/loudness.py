"""One loudness for every sound that enters a model: from shards in training, from files in use.

The encoders scale by constants (models/audio.py), so a model trained on one level and run on
another would hear something new. Both edges call this function.
"""

import math
from collections.abc import Iterator

import numpy as np
import pyloudnorm
import torch
from jaxtyping import Float
from scipy.signal import lfilter
from torch import Tensor

from avatar_v.recording import Sound
from avatar_v.types import SAMPLE_RATE_HZ

LOUDNESS_LUFS = -23.0
SILENCE_LUFS = -60.0
"""Anything quieter is silence, not speech to be raised (our choice)."""
BLOCK_S, STEP_S, GATE_LUFS, GATE_LU = 0.4, 0.1, -70.0, -10.0  # of BS.1770
PART_S = 5
"""Filtered at once, in float64: a sound of an hour takes no more memory than one of a minute."""


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
