"""MFCCs of many waveforms at once, on their own device: what a loss reads of the sound.

The same numbers as `avatar_v.critics.sync.mfcc`, which is python_speech_features on the CPU and
which scores are made with; a loss must not wait for the device to bring the sound there.
"""

import functools
import math

import python_speech_features
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.critics.sync import NUM_COEFFICIENTS, STEP_SAMPLES, STEP_SPAN
from avatar_v.types import SAMPLE_RATE_HZ

NUM_FILTERS, FFT_SIZE, LIFTER, PRE_EMPHASIS = 26, 512, 22, 0.97
"""The defaults of python_speech_features.mfcc."""
EPSILON = torch.finfo(torch.float64).eps


def batched_mfcc(audio: Float[Tensor, "b s"]) -> Float[Tensor, "b t 13"]:
    """Row i of a waveform starts at sample 160 i and spans 400; computed in fp64, given in fp32."""
    samples = (audio.double() * 32768).round().clamp(-32768, 32767)
    samples = torch.cat([samples[:, :1], samples[:, 1:] - PRE_EMPHASIS * samples[:, :-1]], dim=1)
    num = max(1, math.ceil((audio.shape[1] - STEP_SPAN) / STEP_SAMPLES) + 1)
    missing = (num - 1) * STEP_SAMPLES + STEP_SPAN - audio.shape[1]
    frames = F.pad(samples, (0, max(missing, 0))).unfold(1, STEP_SPAN, STEP_SAMPLES)[:, :num]
    power = torch.fft.rfft(frames, n=FFT_SIZE).abs().square() / FFT_SIZE
    filters, cosines = (table.to(audio.device) for table in _tables())
    energy = _positive(power.sum(-1))
    rows = _positive(power @ filters).log() @ cosines
    return torch.cat([energy.log()[..., None], rows[..., 1:]], dim=-1).float()


def _positive(x: Tensor) -> Tensor:
    return torch.where(x == 0, EPSILON, x)


@functools.cache
def _tables() -> tuple[Float[Tensor, "bin filter"], Float[Tensor, "filter 13"]]:
    """The mel filters; and the orthonormal cosine transform, its coefficients liftered."""
    filters = python_speech_features.get_filterbanks(NUM_FILTERS, FFT_SIZE, SAMPLE_RATE_HZ)
    k = torch.arange(NUM_COEFFICIENTS, dtype=torch.float64)
    n = torch.arange(NUM_FILTERS, dtype=torch.float64)[:, None]
    cosines = math.sqrt(2 / NUM_FILTERS) * torch.cos(math.pi * k * (2 * n + 1) / (2 * NUM_FILTERS))
    lift = 1 + LIFTER / 2 * torch.sin(math.pi * k / LIFTER)
    return torch.from_numpy(filters).T.contiguous(), cosines * lift
