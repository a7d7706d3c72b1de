"""Whether a sound carries a mark (sound_mark.py), and of which id.

As detect.py has it for pictures, bound of false alarms included: a matched filter over all numbers
that the first cycle may have and all places where it may begin, at the speed that it plays at and
at a few others. What is compared with signs is how much louder a band is for ten milliseconds than
in those that follow, freed of what its neighbours in time and frequency do, too.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from avatar_v.safety.detect import DetectedMark, best_read, least_z
from avatar_v.safety.key import PUBLIC_KEY
from avatar_v.safety.sound_mark import (
    CELLS_PER_S,
    HIGH_HZ,
    LOW_HZ,
    NUM_BANDS,
    PAIRS,
    sound_key,
)
from avatar_v.safety.watermark import NUM_BYTES, NUM_CYCLES, NUM_WORDS, places
from avatar_v.types import SAMPLE_RATE_HZ

STEPS = 4
"""Places a cell at which it may begin."""
STEP = SAMPLE_RATE_HZ // CELLS_PER_S // STEPS
SPAN, BINS = 320, 512
"""Samples of a spectrum, and of its Fourier transform."""
SPEEDS = (0.95, 0.96, 0.98, 25 / 24, 1.02, 1.05)
"""Of copies that play faster or slower, with the pitch or without. A speed between them is not
found: over a section it may be wrong by a cell."""
SECTION_S, LEAST_S = 20, 2.0
"""Of what is looked at at once, and of what says anything."""
LOUD_DB, RANGE_DB = 30.0, 15.0
"""Bands so much quieter than the loudest count less, down to nothing `RANGE_DB` below: pauses."""
LARGE = 1.2
"""Changes are limited to so many times their mean size in a band."""
AROUND = 9
"""Bands of whose mean a change is freed."""
PHASES = 2 * PAIRS * STEPS
NUM_PLAIN = NUM_WORDS**NUM_BYTES * NUM_CYCLES * PHASES
"""Ids and beginnings at one speed."""


@dataclass(frozen=True)
class Section:
    """Changes of the bands from each place on, in the order of `STEP`."""

    key: bytes
    changes: Float[Tensor, "t bands"]
    num_frames: int

    def signs(self, speed: float) -> Float[Tensor, "phases t cells2"]:
        """As `detect.best_read` takes them: of each pair of cells in each cycle, for every place
        where the first cycle may begin."""
        num = int(len(self.changes) * speed) // PHASES - 1
        pair = 2 * STEPS * torch.arange(num * PAIRS)
        at = (torch.arange(PHASES)[:, None] + pair) / speed
        rows = self.changes[at.round().long().clamp(max=len(self.changes) - 1)]
        return rows.view(PHASES, num, PAIRS * NUM_BANDS)[..., places()]


def detect_sound(
    parts: Iterable[Float[Tensor, " _s"]], key: bytes = PUBLIC_KEY
) -> DetectedMark | None:
    """The mark in the parts of a sound at 16 kHz, which are read until it is found; its frames are
    those of 25 a second. None for less than 2 s."""
    found, num = [], 0.0
    for i, part in enumerate(_sections(parts), start=1):
        if len(part) < LEAST_S * SAMPLE_RATE_HZ:
            break
        num += len(part)
        section = Section(sound_key(key), _changes(part), 25 * len(part) // SAMPLE_RATE_HZ)
        silent = not bool(section.changes.any())  # and nothing is to be tried
        best = best_read(section, [1.0], least_z(NUM_PLAIN, i))
        if not (best.is_marked or silent):
            others = best_read(section, SPEEDS, least_z(NUM_PLAIN * len(SPEEDS), i))
            best = max(best, others, key=lambda one: one.z - one.least_z)
        found.append(best)
        if best.id is not None:
            break
    if not found:
        return None
    best = max(found, key=lambda one: (one.id is not None, one.z - one.least_z))
    return dataclasses.replace(best, num_frames=int(25 * num / SAMPLE_RATE_HZ))


def _changes(sound: Float[Tensor, " s"]) -> Float[Tensor, "t bands"]:
    """How much louder each band is in the cell that begins at each place than in the next one."""
    padded = F.pad(sound, (SPAN // 2, SPAN // 2))
    window = torch.hann_window(SPAN)
    spectrum = torch.stft(padded, BINS, STEP, SPAN, window, center=False, return_complex=True)
    frequency = torch.arange(BINS // 2 + 1) * SAMPLE_RATE_HZ / BINS
    edges = torch.linspace(LOW_HZ, HIGH_HZ, NUM_BANDS + 1)[:, None]
    inside = ((frequency >= edges[:-1]) & (frequency < edges[1:])).float()
    power = F.avg_pool1d((inside @ spectrum.abs().square())[None], STEPS, 1)[0]
    level = 10 * torch.log10(power + 1e-12)
    around = F.pad(level[None], (STEPS, STEPS), mode="replicate")[0]
    rest = level - (around[:, : -2 * STEPS] + around[:, 2 * STEPS :]) / 2
    changes = rest[:, :-STEPS] - rest[:, STEPS:]
    mean = F.avg_pool1d(changes.T[:, None], AROUND, 1, AROUND // 2, count_include_pad=False)
    changes = changes - mean[:, 0].T
    louder = torch.maximum(level[:, :-STEPS], level[:, STEPS:])
    weight = ((louder - louder.max() + LOUD_DB + RANGE_DB) / RANGE_DB).clamp(0, 1)
    size = (weight * changes.abs()).sum(1, keepdim=True) / weight.sum(1, keepdim=True).clamp(min=1)
    return ((changes / (LARGE * size + 1e-6)).clamp(-1, 1) * weight).T


def _sections(parts: Iterable[Float[Tensor, " _s"]]) -> Iterable[Float[Tensor, " s"]]:
    """The sound in stretches of `SECTION_S`, the last one shorter."""
    size, rest = SECTION_S * SAMPLE_RATE_HZ, torch.zeros(0)
    for part in parts:
        rest = torch.cat([rest, part])
        while len(rest) >= size:
            yield rest[:size]
            rest = rest[size:]
    yield rest
