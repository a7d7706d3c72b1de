"""Mouth shapes from phonemes: targets, blended by dominance functions, with closures that do close.

Coarticulation after Cohen & Massaro, "Modeling coarticulation in synthetic visual speech" (1993):
each phase pulls the mouth towards its target with a dominance that decays exponentially around it;
the shape is the dominance-weighted mean. Lips lead the sound: dominance decays more slowly
before a phase than after it. A lip closure (p, b, m) is contact, no target: it gates the opening.
"""

from collections.abc import Iterator

import numpy as np
from scipy.ndimage import gaussian_filter1d

from avatar_v.world.timing import Phases

CHANNELS = ("open", "width", "round", "teeth", "tongue", "jaw")

# phase: (opening, width, rounding, teeth, tongue, jaw, dominance)
_TARGETS = {
    "SIL": (0.00, 0.00, 0.00, 0.00, 0.00, 0.00, 0.9),
    "BR": (0.35, 0.00, 0.00, 0.20, 0.00, 0.35, 0.9),
    "AA": (0.95, 0.00, 0.00, 0.25, 0.10, 0.95, 1.0),
    "AE": (0.78, 0.45, 0.00, 0.55, 0.15, 0.75, 1.0),
    "AH": (0.55, 0.05, 0.00, 0.30, 0.10, 0.55, 0.8),
    "AO": (0.72, -0.40, 0.55, 0.10, 0.00, 0.75, 1.0),
    "EH": (0.52, 0.35, 0.00, 0.50, 0.15, 0.50, 1.0),
    "ER": (0.32, -0.20, 0.35, 0.35, 0.30, 0.35, 0.9),
    "IH": (0.32, 0.35, 0.00, 0.50, 0.25, 0.30, 0.8),
    "IY": (0.24, 0.80, 0.00, 0.65, 0.35, 0.20, 1.0),
    "UH": (0.32, -0.40, 0.50, 0.15, 0.10, 0.30, 0.8),
    "UW": (0.20, -0.85, 0.95, 0.00, 0.05, 0.20, 1.1),
    "B": (0.00, 0.00, 0.00, 0.00, 0.00, 0.10, 1.5),
    "P": (0.00, 0.00, 0.00, 0.00, 0.00, 0.10, 1.5),
    "M": (0.00, 0.00, 0.00, 0.00, 0.00, 0.10, 1.5),
    "D": (0.16, 0.15, 0.00, 0.55, 0.85, 0.15, 0.8),
    "T": (0.15, 0.15, 0.00, 0.55, 0.85, 0.14, 0.8),
    "N": (0.17, 0.12, 0.00, 0.50, 0.85, 0.16, 0.8),
    "G": (0.28, 0.10, 0.00, 0.35, 0.30, 0.30, 0.5),
    "K": (0.27, 0.10, 0.00, 0.35, 0.30, 0.28, 0.5),
    "NG": (0.28, 0.10, 0.00, 0.35, 0.30, 0.30, 0.5),
    "F": (0.07, 0.15, 0.00, 0.75, 0.00, 0.10, 1.4),
    "V": (0.07, 0.15, 0.00, 0.75, 0.00, 0.10, 1.4),
    "TH": (0.20, 0.10, 0.00, 0.50, 1.00, 0.15, 1.1),
    "DH": (0.20, 0.10, 0.00, 0.50, 1.00, 0.15, 0.9),
    "S": (0.12, 0.35, 0.00, 0.95, 0.30, 0.06, 1.2),
    "Z": (0.12, 0.35, 0.00, 0.95, 0.30, 0.06, 1.2),
    "SH": (0.20, -0.50, 0.65, 0.90, 0.30, 0.12, 1.2),
    "ZH": (0.20, -0.50, 0.65, 0.90, 0.30, 0.12, 1.2),
    "HH": (0.40, 0.00, 0.00, 0.25, 0.00, 0.40, 0.2),
    "L": (0.30, 0.10, 0.00, 0.40, 0.95, 0.25, 0.8),
    "R": (0.25, -0.35, 0.50, 0.25, 0.40, 0.25, 0.9),
    "W": (0.10, -0.90, 1.00, 0.00, 0.00, 0.15, 1.3),
    "Y": (0.20, 0.60, 0.00, 0.50, 0.40, 0.15, 0.8),
    "P+": (0.25, 0.00, 0.10, 0.00, 0.00, 0.20, 0.1),
    "B+": (0.25, 0.00, 0.10, 0.00, 0.00, 0.20, 0.1),
    "T+": (0.18, 0.15, 0.00, 0.60, 0.50, 0.15, 0.6),
    "D+": (0.18, 0.15, 0.00, 0.60, 0.50, 0.15, 0.6),
    "K+": (0.30, 0.10, 0.00, 0.35, 0.20, 0.30, 0.4),
    "G+": (0.30, 0.10, 0.00, 0.35, 0.20, 0.30, 0.4),
}
_CLOSED = ("P", "B", "M")
_DECAY_BEFORE_HZ = 20.0  # anticipation, slower
_DECAY_AFTER_HZ = 30.0
_RELEASE_S = 0.035  # from contact to free opening
_BLOCK = 1024  # times; a clip of 40 s is one
_REACH_S = 40.0  # exp(-20 x 40) is 0
_LABIODENTAL_OPEN = 0.10  # f and v keep the lower lip at the teeth


def mouth_shape(
    phases: Phases, times_s: np.ndarray, amplitude: float, gesture: float, smoothing_s: float
) -> np.ndarray:
    """Mouth shape at regular times, shape (times, 6) in the order of CHANNELS.

    ``amplitude`` scales opening and jaw, ``gesture`` width and rounding; opening, rounding, teeth,
    tongue and jaw are in [0, 1], width in [-1, 1].
    """
    parts = [
        (near, times, _blended(near, times, amplitude, gesture))
        for near, times in _blocks(phases, times_s)
    ]
    shape = np.concatenate([each for _, _, each in parts])
    if smoothing_s > 0:
        step_s = times_s[1] - times_s[0] if len(times_s) > 1 else 1.0
        shape = gaussian_filter1d(shape, smoothing_s / step_s, axis=0, mode="nearest")
    ends = np.cumsum([len(times) for _, times, _ in parts])[:-1]
    shapes = zip(parts, np.split(shape, ends), strict=True)
    return np.concatenate([_contact(near, times, each) for (near, times, _), each in shapes])


def _blocks(phases: Phases, times_s: np.ndarray) -> Iterator[tuple[Phases, np.ndarray]]:
    """Runs of the times, each with the phases that anything of is left there: memory is that of a
    run, however long the speech."""
    if len(times_s) <= _BLOCK:
        yield phases, times_s
        return
    for i in range(0, len(times_s), _BLOCK):
        times = times_s[i : i + _BLOCK]
        near = (phases.end_s > times[0] - _REACH_S) & (phases.start_s < times[-1] + _REACH_S)
        kept = {name: value[near] for name, value in vars(phases).items()}
        yield Phases(**kept), times


def _blended(phases: Phases, times_s: np.ndarray, amplitude: float, gesture: float) -> np.ndarray:
    table = np.array([_TARGETS[name] for name in phases.names])
    targets, strength = table[:, :6].copy(), table[:, 6]
    targets[:, (0, 5)] *= (amplitude * (0.85 + 0.3 * phases.stress))[:, None]
    targets[:, 1:3] *= gesture
    before = np.maximum(phases.start_s - times_s[:, None], 0)
    after = np.maximum(times_s[:, None] - phases.end_s, 0)
    dominance = strength * np.exp(-before * _DECAY_BEFORE_HZ - after * _DECAY_AFTER_HZ)
    dominance **= 1.5  # sharper than linear, so that short phases reach their targets
    return np.einsum("tp,pc->tc", dominance, targets) / dominance.sum(axis=1, keepdims=True)


def _contact(phases: Phases, times_s: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Close the lips during p, b, m; hold them near the teeth during f, v; hide what is behind."""
    freedom = _freedom(phases, times_s, _CLOSED)
    shape[:, 0] *= freedom
    labiodental = _LABIODENTAL_OPEN + _freedom(phases, times_s, ("F", "V"))
    shape[:, 0] = np.minimum(shape[:, 0], labiodental)
    visible = np.clip(shape[:, 0] / 0.06, 0, 1)
    shape[:, 3:5] *= visible[:, None]
    wide = np.maximum(shape[:, (0, 5)], 0)
    shape[:, (0, 5)] = wide / (1 + wide**4) ** 0.25  # soft limit at 1
    low = np.array([0, -1, 0, 0, 0, 0])
    return np.clip(shape, low, 1)


def _freedom(phases: Phases, times_s: np.ndarray, names: tuple[str, ...]) -> np.ndarray:
    """0 inside phases of these names, rising to 1 over _RELEASE_S beside them."""
    chosen = np.isin(phases.names, names)
    if not chosen.any():
        return np.ones_like(times_s)
    start, end = phases.start_s[chosen], phases.end_s[chosen]
    distance = np.maximum(start - times_s[:, None], times_s[:, None] - end).min(axis=1)
    return np.sin(np.clip(distance / _RELEASE_S, 0, 1) * (np.pi / 2)) ** 2
