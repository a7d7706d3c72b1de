"""An inaudible mark in a sound, which carries the id of the marks in frames (watermark.py).

Spread spectrum (Cox et al. 1997) on the levels of bands, as Kirovski and Malvar 2003, *Spread-
spectrum watermarking of audio signals*, have it: in each of `NUM_BANDS` bands the sound is made a
little louder for ten milliseconds, then as much quieter, or the other way round. So the mark
follows the sound in time and frequency, where the sound itself hides it, and silence stays silent.
Signs are those of a picture's cycle, of a key of their own: sixteen bands by sixteen pairs.

Filters are of minimum phase and take past samples alone: the mark adds no delay, and a sound may
come in blocks. sound_detect.py reads it.
"""

import hashlib
import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.safety.watermark import CELLS, Mark

NUM_BANDS, PAIRS = CELLS, CELLS
LOW_HZ, HIGH_HZ = 300.0, 3700.0
"""What telephones and codecs of few bits keep of speech."""
CELLS_PER_S = 100
STRENGTH_DB = 0.8
"""By which a band is louder or quieter."""
FADE = 0.25
"""The share of a cell in which the filter before it goes over into its own."""
FILTER_S = 0.032
"""Of the Fourier transforms that filters are made with; they are half as long."""
EDGE = 0.2
"""The share of a band at each side, over which its change sets in."""


def sound_key(key: bytes) -> bytes:
    """The key of a sound's signs: pictures do not give them away."""
    return hashlib.sha256(b"sound" + key).digest()


class SoundMarker:
    """``marker(sound)`` draws a mark into the blocks of one sound in their order."""

    def __init__(self, mark: Mark, sample_rate_hz: int) -> None:
        self._mark = Mark(mark.id, sound_key(mark.key))
        self._rate_hz = sample_rate_hz
        self._shapes = _band_shapes(sample_rate_hz)
        self._num_taps = self._shapes.shape[1] - 1
        self._filters: dict[int, Float[Tensor, " taps"]] = {}
        self._cycle, self._signs = -1, torch.zeros(0)
        self._past = torch.zeros(0)  # "c taps - 1"
        self._num = 0

    def __call__(self, sound: Float[Tensor, "c s"]) -> Float[Tensor, "c s"]:
        if not self._num:
            self._past = sound.new_zeros(len(sound), self._num_taps - 1)
        known = torch.cat([self._past, sound], 1)
        parts, start, end = [], self._num, self._num + sound.shape[1]
        while start < end:
            cell = start * CELLS_PER_S // self._rate_hz
            stop = min(end, -(-(cell + 1) * self._rate_hz // CELLS_PER_S))
            at = start - self._num
            part = known[:, at : at + stop - start + self._num_taps - 1]
            parts.append(self._filtered(part, cell, start))
            start = stop
        self._past, self._num = known[:, sound.shape[1] :], end
        return torch.cat(parts, 1) if parts else sound

    def _filtered(self, part: Float[Tensor, "c n"], cell: int, start: int) -> Float[Tensor, "c m"]:
        """The samples from ``start`` on, of one cell."""
        both = torch.stack([self._filter(cell - 1), self._filter(cell)])[:, None]
        before, own = F.conv1d(part[:, None], both.flip(-1)).unbind(1)
        first = -(-cell * self._rate_hz // CELLS_PER_S)
        time = (start - first + 0.5 + torch.arange(own.shape[1])) * CELLS_PER_S / self._rate_hz
        weight = 0.5 - 0.5 * torch.cos(torch.pi * (time / FADE).clamp(max=1))
        return before + weight * (own - before)

    def _filter(self, cell: int) -> Float[Tensor, " taps"]:
        """Of minimum phase: the folded cepstrum of its gains."""
        if cell not in self._filters:
            self._filters = {k: v for k, v in self._filters.items() if k >= cell - 1}
            gains = self._changes(cell) @ self._shapes
            cepstrum = torch.fft.irfft(gains * (STRENGTH_DB * math.log(10) / 20))
            half = len(cepstrum) // 2
            cepstrum[1:half] *= 2
            cepstrum[half + 1 :] = 0
            self._filters[cell] = torch.fft.irfft(torch.fft.rfft(cepstrum).exp())[:half]
        return self._filters[cell]

    def _changes(self, cell: int) -> Float[Tensor, " bands"]:
        """Of each band in a cell: louder, +1, or quieter; none before the first one."""
        if cell < 0:
            return torch.zeros(NUM_BANDS)
        cycle, pair = divmod(cell // 2, PAIRS)
        if cycle != self._cycle:
            self._cycle, self._signs = cycle, self._mark.signs(cycle)
        return self._signs[pair] * (1 - 2 * (cell % 2))


def _band_shapes(sample_rate_hz: int) -> Float[Tensor, "bands bins"]:
    """How much of its change a band shows at each frequency, 0 to 1."""
    half = round(FILTER_S * sample_rate_hz / 2)
    frequency = torch.arange(half + 1) * sample_rate_hz / (2 * half)
    edges = torch.linspace(LOW_HZ, HIGH_HZ, NUM_BANDS + 1)
    at = (frequency - edges[:-1, None]) / (edges[1:] - edges[:-1])[:, None]
    inside = (torch.minimum(at, 1 - at) / EDGE).clamp(0, 1)
    return 0.5 - 0.5 * torch.cos(torch.pi * inside)
