"""A voice per person and the source-filter synthesis of speech at 16 kHz.

Glottal pulses (KLGLOTT88: Klatt & Klatt 1990) with jitter and shimmer, and aspiration noise, go
through a cascade of five formant resonators and a nasal pole-zero pair (Klatt 1980) that follow
smooth trajectories; frication and bursts are noise in fixed bands with gains in time.
Speaking rate belongs to style.py, since it also moves the mouth.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.signal import lfilter, sosfilt

from avatar_v.base.seeds import stream
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.world.splits import split_of
from avatar_v.world.timing import Phases

BLOCK = 80  # samples of one filter setting: 5 ms
_BLOCK_S = BLOCK / SAMPLE_RATE_HZ


@dataclass(frozen=True)
class Voice:
    """What a voice sounds like whatever it says."""

    person_id: int
    pitch_hz: float
    tract_length_cm: float  # formants scale with its inverse
    breathiness: float  # 0 clear … 1 breathy
    open_quotient: float  # share of a glottal period with airflow
    jitter: float  # relative spread of periods
    shimmer: float  # relative spread of pulse heights
    intonation: float  # factor on pitch movement
    noise_db: float  # microphone noise, relative to full scale


def sample_voice(person_id: int) -> Voice:
    """The voice of a person. Long tracts go with low pitch, as in people."""
    split_of(person_id)
    rng = stream("voice", person_id)
    size = rng.uniform(-1, 1)
    return Voice(
        person_id=person_id,
        pitch_hz=float(150 * 2 ** (-0.55 * size + rng.normal(0, 0.15))),
        tract_length_cm=float(16.3 + 1.1 * size + rng.normal(0, 0.3)),
        breathiness=float(rng.uniform(0.0, 1.0)),
        open_quotient=float(rng.uniform(0.5, 0.75)),
        jitter=float(rng.uniform(0.003, 0.02)),
        shimmer=float(rng.uniform(0.02, 0.10)),
        intonation=float(rng.uniform(0.4, 1.6)),
        noise_db=float(rng.uniform(-66, -48)),
    )


# phase: F1, F2, F3 in Hz for a 17.5 cm tract (vowels: Peterson & Barney 1952, men); voicing,
# aspiration, frication levels; noise band; nasality. The levels make close vowels, nasals and
# fricatives at least as loud as open vowels, so that loudness does not tell how open the mouth is.
_ACOUSTICS = {
    "SIL": (500, 1500, 2500, 0.0, 0.0, 0.0, "th", 0),
    "BR": (600, 1400, 2400, 0.0, 1.63, 0.15, "k", 0),
    "AA": (730, 1090, 2440, 0.49, 0.0, 0.0, "th", 0),
    "AE": (660, 1720, 2410, 0.76, 0.0, 0.0, "th", 0),
    "AH": (620, 1220, 2400, 0.69, 0.0, 0.0, "th", 0),
    "AO": (570, 840, 2410, 0.53, 0.0, 0.0, "th", 0),
    "EH": (530, 1840, 2480, 0.76, 0.0, 0.0, "th", 0),
    "ER": (490, 1350, 1690, 1.08, 0.0, 0.0, "th", 0),
    "IH": (390, 1990, 2550, 1.31, 0.0, 0.0, "th", 0),
    "IY": (270, 2290, 3010, 1.53, 0.0, 0.0, "th", 0),
    "UH": (440, 1020, 2240, 1.2, 0.0, 0.0, "th", 0),
    "UW": (300, 870, 2240, 1.26, 0.0, 0.0, "th", 0),
    "P": (300, 900, 2200, 0.0, 0.0, 0.0, "p", 0),
    "T": (300, 1750, 2700, 0.0, 0.0, 0.0, "t", 0),
    "K": (300, 1950, 2350, 0.0, 0.0, 0.0, "k", 0),
    "P+": (400, 900, 2200, 0.0, 0.98, 1.76, "p", 0),
    "T+": (400, 1750, 2700, 0.0, 0.8, 1.91, "t", 0),
    "K+": (400, 1950, 2350, 0.0, 0.74, 1.78, "k", 0),
    "B": (220, 900, 2200, 0.65, 0.0, 0.0, "p", 0),
    "D": (220, 1750, 2700, 0.67, 0.0, 0.0, "t", 0),
    "G": (220, 1950, 2350, 0.67, 0.0, 0.0, "k", 0),
    "B+": (350, 900, 2200, 0.68, 0.0, 0.79, "p", 0),
    "D+": (350, 1750, 2700, 0.71, 0.0, 1.06, "t", 0),
    "G+": (350, 1950, 2350, 0.69, 0.0, 1.04, "k", 0),
    "M": (250, 1000, 2200, 1.89, 0.0, 0.0, "p", 1),
    "N": (250, 1600, 2650, 1.95, 0.0, 0.0, "t", 1),
    "NG": (250, 2100, 2700, 1.97, 0.0, 0.0, "k", 1),
    "F": (320, 1100, 2300, 0.0, 0.16, 2.86, "f", 0),
    "V": (300, 1100, 2300, 1.1, 0.0, 0.92, "f", 0),
    "TH": (320, 1350, 2600, 0.0, 0.13, 2.02, "th", 0),
    "DH": (300, 1350, 2600, 1.02, 0.0, 0.68, "th", 0),
    "S": (320, 1650, 2600, 0.0, 0.08, 3.33, "s", 0),
    "Z": (300, 1650, 2600, 0.96, 0.0, 2.3, "s", 0),
    "SH": (320, 1850, 2500, 0.0, 0.08, 3.27, "sh", 0),
    "ZH": (300, 1850, 2500, 0.95, 0.0, 2.28, "sh", 0),
    "HH": (550, 1500, 2500, 0.2, 1.76, 0.2, "k", 0),
    "L": (360, 1150, 2800, 1.14, 0.0, 0.0, "th", 0),
    "R": (340, 1150, 1550, 1.13, 0.0, 0.0, "th", 0),
    "W": (300, 650, 2200, 1.13, 0.0, 0.0, "th", 0),
    "Y": (270, 2250, 3000, 1.53, 0.0, 0.0, "th", 0),
}
# noise band: centre and bandwidth in Hz, before scaling with the tract
_BANDS = {
    "p": (900.0, 900.0),
    "t": (4200.0, 2200.0),
    "k": (1900.0, 700.0),
    "f": (4200.0, 5000.0),
    "th": (6200.0, 3000.0),
    "s": (5600.0, 1500.0),
    "sh": (2900.0, 1200.0),
}
_BAND_NAMES = tuple(_BANDS)
_BANDWIDTHS_HZ = np.array([70.0, 90.0, 140.0, 220.0, 300.0])
_HIGH_FORMANTS_HZ = (3500.0, 4500.0)
_NASAL_POLE_HZ, _NASAL_ZERO_HZ = 270.0, 500.0
_LEVEL = 0.05
_PIECE_S = 60
"""Of a long speech so much is made at a time: hours of it would not fit into memory."""


@dataclass(frozen=True)
class _Controls:
    """Synthesis parameters per block of 5 ms."""

    formants_hz: np.ndarray  # (blocks, 5)
    voicing: np.ndarray
    aspiration: np.ndarray
    frication: np.ndarray  # (blocks, bands)
    nasality: np.ndarray
    pitch_hz: np.ndarray
    gain: np.ndarray  # of the effort


def synthesise(phases: Phases, voice: Voice, num_samples: int, seed_id: int) -> np.ndarray:
    """The sound of these phases in this voice: float32 (num_samples,) in [-1, 1], 16-bit steps.

    The 16-bit grid makes stored audio lossless and hides differences of the last float bit.
    """
    cuts_s = [*map(float, range(_PIECE_S, num_samples // SAMPLE_RATE_HZ, _PIECE_S))]
    return np.concatenate([*synthesise_pieces(phases, voice, num_samples, seed_id, cuts_s)])


def synthesise_pieces(
    phases: Phases, voice: Voice, num_samples: int, seed_id: int, cuts_s: Sequence[float]
) -> Iterator[np.ndarray]:
    """The same in pieces, cut at about these times, which rise, and each made when it is asked for:
    filters and draws go on where they were."""
    num_blocks = -(-num_samples // BLOCK)
    controls = _controls(phases, voice, num_blocks)
    edges = sorted({0, *(round(cut_s / _BLOCK_S) for cut_s in cuts_s), num_blocks})
    spans = [slice(*edge) for edge in itertools.pairwise(edges)]
    source = _source(controls, voice, seed_id, spans)
    parts = (spans, _tract(controls, source, spans), _frication(controls, voice, seed_id, spans))
    room, state = stream("room", seed_id), np.zeros(1)
    for span, voiced, hissed in zip(*parts, strict=True):
        num = min(span.stop * BLOCK, num_samples) - span.start * BLOCK
        sound = _LEVEL * (voiced + hissed)[:num]
        noise, state = _low_pass(room.standard_normal(num), 0.5, state)
        sound += 10 ** (voice.noise_db / 20) * noise
        yield (np.round(np.tanh(sound) * 32767) / 32768).astype(np.float32)


def _controls(phases: Phases, voice: Voice, num_blocks: int) -> _Controls:
    """Piecewise targets on the block grid, smoothed: formants slowly, gains quickly."""
    middle_s = (np.arange(num_blocks) + 0.5) * _BLOCK_S
    index = np.clip(np.searchsorted(phases.end_s, middle_s, "right"), 0, len(phases.names) - 1)
    rows = [_ACOUSTICS[name] for name in phases.names]
    numbers = np.array([row[:6] + row[7:] for row in rows], dtype=np.float64)[index]
    bands = np.array([_BAND_NAMES.index(row[6]) for row in rows])[index]
    whispered = phases.whispered[index]
    scale = 17.5 / voice.tract_length_cm
    formants = np.tile([0.0, 0.0, 0.0, *_HIGH_FORMANTS_HZ], (num_blocks, 1))
    formants[:, :3] = _smooth(numbers[:, :3], 0.016)
    frication = np.zeros((num_blocks, len(_BANDS)))
    frication[np.arange(num_blocks), bands] = numbers[:, 5]
    voicing = np.where(whispered, 0.0, numbers[:, 3])
    aspiration = numbers[:, 4] + np.where(whispered, 0.6 * numbers[:, 3], 0.0)
    semitones = _smooth(phases.semitones[index], 0.04) * voice.intonation
    return _Controls(
        formants_hz=np.minimum(formants * scale, 0.45 * SAMPLE_RATE_HZ),
        voicing=_smooth(voicing, 0.006),
        aspiration=_smooth(aspiration, 0.006),
        frication=_smooth(frication, 0.005),
        nasality=_smooth(numbers[:, 6], 0.010),
        pitch_hz=voice.pitch_hz * 2 ** (semitones / 12),
        gain=10 ** (_smooth(phases.effort_db[index], 0.03) / 20),
    )


def _smooth(values: np.ndarray, sigma_s: float) -> np.ndarray:
    return gaussian_filter1d(values, sigma_s / _BLOCK_S, axis=0, mode="nearest", truncate=3.0)


def _samples(blocks: np.ndarray, span: slice) -> np.ndarray:
    """Block values to the samples of some blocks, linear between block middles."""
    at = (np.arange(span.start * BLOCK, span.stop * BLOCK) + 0.5) / BLOCK - 0.5
    known = np.arange(max(span.start - 1, 0), min(span.stop + 1, len(blocks)))
    return np.interp(at, known, blocks[known])


def _source(
    controls: _Controls, voice: Voice, seed_id: int, spans: list[slice]
) -> Iterator[np.ndarray]:
    """What excites the tract: pulses of the glottis, and the noise of breath."""
    noise = stream("aspiration", seed_id, voice.person_id)
    voicing, aspiration = controls.voicing * controls.gain, controls.aspiration * controls.gain
    pulsing = _glottis(controls, voice, seed_id, spans)
    for span, (pulses, flow) in zip(spans, pulsing, strict=True):
        breath = voice.breathiness * 0.12 * _samples(voicing, span) * flow
        hiss = _samples(aspiration, span) * 0.35 + breath
        yield pulses * _samples(voicing, span) + noise.standard_normal(len(hiss)) * hiss


def _glottis(
    controls: _Controls, voice: Voice, seed_id: int, spans: list[slice]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Derivative of the glottal flow, and the flow itself in [0, 1], both per sample."""
    rng, spread = stream("glottis", seed_id, voice.person_id), np.zeros((0, 2))
    turns, phases, state = np.zeros(1), np.zeros(1), np.zeros(1)
    for span in spans:
        pitch = _samples(controls.pitch_hz, span) / SAMPLE_RATE_HZ
        turns = np.cumsum(np.append(turns[-1], pitch))[1:]
        cycle = np.floor(turns).astype(np.int64)
        spread = np.concatenate([spread, rng.standard_normal((cycle[-1] + 1 - len(spread), 2))])
        pitch *= 1 + voice.jitter * spread[cycle, 0]
        phases = np.cumsum(np.append(phases[-1], pitch))[1:]
        height = 1 + voice.shimmer * spread[cycle, 1]
        x = np.minimum((phases - np.floor(phases)) / voice.open_quotient, 1.0)
        flow = 6.75 * x * x * (1 - x)
        derivative = np.where(x < 1, 2 * x - 3 * x * x, 0.0)
        tilt = 0.25 + 0.35 * voice.breathiness
        tilted, state = _low_pass(derivative * height, tilt, state)
        yield 3.0 * tilted, flow


def _low_pass(signal: np.ndarray, pole: float, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The signal of one pole, and the state behind it."""
    return lfilter([1 - pole], [1.0, -pole], signal, zi=state)


def _tract(
    controls: _Controls, sources: Iterator[np.ndarray], spans: list[slice]
) -> Iterator[np.ndarray]:
    """The cascade of resonators, block by block with carried state."""
    radius = np.exp(-np.pi * _BANDWIDTHS_HZ / SAMPLE_RATE_HZ)
    state = np.zeros((6, 2))
    for span, source in zip(spans, sources, strict=True):
        angle = 2 * np.pi * controls.formants_hz[span] / SAMPLE_RATE_HZ
        sections = np.zeros((len(angle), 6, 6))
        sections[:, :5, 3] = 1.0
        sections[:, :5, 4] = -2 * radius * np.cos(angle)
        sections[:, :5, 5] = radius**2
        sections[:, :5, 0] = sections[:, :5, 3:].sum(axis=2)
        sections[:, 5] = _nasal(controls.nasality[span])
        out = np.empty_like(source)
        for i, section in enumerate(sections):
            piece = slice(i * BLOCK, (i + 1) * BLOCK)
            out[piece], state = sosfilt(section, source[piece], zi=state)
        yield out * _samples(1 - 0.45 * controls.nasality, span)


def _nasal(nasality: np.ndarray) -> np.ndarray:
    """A pole-zero pair that cancels where nasality is 0; unit gain at 0 Hz. Shape (blocks, 6)."""
    radius = np.exp(-np.pi * 100 / SAMPLE_RATE_HZ)
    zero_hz = _NASAL_POLE_HZ + nasality * (_NASAL_ZERO_HZ - _NASAL_POLE_HZ)
    section = np.ones((len(nasality), 6))
    for at, hz in ((0, zero_hz), (3, _NASAL_POLE_HZ)):
        section[:, at + 1] = -2 * radius * np.cos(2 * np.pi * hz / SAMPLE_RATE_HZ)
        section[:, at + 2] = radius**2
    section[:, :3] *= (section[:, 3:].sum(axis=1) / section[:, :3].sum(axis=1))[:, None]
    return section


def _frication(
    controls: _Controls, voice: Voice, seed_id: int, spans: list[slice]
) -> Iterator[np.ndarray]:
    """Noise in bands, each with its gain in time."""
    rng, scale = stream("frication", seed_id, voice.person_id), 17.5 / voice.tract_length_cm
    used = [i for i in range(len(_BANDS)) if controls.frication[:, i].max() > 0]
    bands = [_BANDS[_BAND_NAMES[i]] for i in used]
    filters = [_band(min(centre * scale, 7200.0), width) for centre, width in bands]
    states = [np.zeros((2, 2)) for _ in used]
    for span in spans:
        noise = rng.standard_normal((span.stop - span.start) * BLOCK)
        sound = np.zeros(len(noise))
        for k, i in enumerate(used):
            shaped, states[k] = sosfilt(filters[k], noise, zi=states[k])
            sound += shaped * _samples(controls.frication[:, i] * controls.gain, span)
        yield sound


def _band(centre_hz: float, width_hz: float) -> np.ndarray:
    """Two equal resonators with zeros at 0 Hz and Nyquist; output power about that of the input."""
    radius = np.exp(-np.pi * width_hz / SAMPLE_RATE_HZ)
    angle = 2 * np.pi * centre_hz / SAMPLE_RATE_HZ
    peak = (1 - radius**2) / 2
    one = [peak, 0.0, -peak, 1.0, -2 * radius * np.cos(angle), radius**2]
    sections = np.array([one, one])
    sections[0, :3] *= np.sqrt(SAMPLE_RATE_HZ / (2 * width_hz))
    return sections
