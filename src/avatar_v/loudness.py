"""One loudness for every sound that enters a model: from shards in training, from files in use.

The encoders scale by constants (models/audio.py), so a model trained on one level and run on
another would hear something new. Both edges call this function.
"""

import math

import pyloudnorm
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.types import SAMPLE_RATE_HZ

LOUDNESS_LUFS = -23.0
SILENCE_LUFS = -60.0
"""Anything quieter is silence, not speech to be raised (our choice)."""


def normalise_loudness(audio: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """``audio`` (16 kHz) at -23 LUFS, integrated loudness of ITU-R BS.1770 through pyloudnorm.

    Silence (quieter than -60 LUFS, or empty) is returned as it is; audio shorter than the
    standard's 400 ms block is measured as a repetition of itself. The result may exceed ±1, and
    is not clipped. ValueError for NaN or infinite samples.
    """
    return audio * loudness_gain(audio)


def loudness_gain(audio: Float[Tensor, " s"]) -> float:
    """The factor of ``normalise_loudness``; 1 for silence. ValueError as there."""
    if not bool(torch.isfinite(audio).all()):
        raise ValueError("audio holds NaN or infinite samples")
    if audio.numel() == 0:
        return 1.0
    samples = audio.detach().cpu().double()
    block = int(0.4 * SAMPLE_RATE_HZ)
    samples = samples.repeat(math.ceil(block / samples.numel()))
    loudness = pyloudnorm.Meter(SAMPLE_RATE_HZ).integrated_loudness(samples.numpy())
    if loudness < SILENCE_LUFS:
        return 1.0
    return 10 ** ((LOUDNESS_LUFS - loudness) / 20)
