"""The motion of a clip: mouth from visemes; head, eyes, brows from style; rare invalid moments.

All of it is a function of time and of seeded draws, so that a longer clip begins like a shorter.
"""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.base.seeds import stream
from avatar_v.types import MOTION_NAMES
from avatar_v.world.speech import Speech, frame_times_s
from avatar_v.world.style import Habits
from avatar_v.world.viseme import mouth_shape

_COVER_CHANCE = 0.012  # a second of clip: a hand or object passes before the face
_TURN_CHANCE = 0.015  # a second of clip: the person looks away


def motion_track(speech: Speech, style: Habits, *, seed: int) -> Float[Tensor, "f m"]:
    """Motion per frame in the order of MOTION_NAMES; ranges as stated there.

    The mouth depends on speech and style alone; ``seed`` (of the clip) draws the rest.
    """
    times_s = frame_times_s(speech.num_frames, speech.frame_rate_hz)
    parts = _mouth(speech, style, times_s)
    parts |= _smile(parts["mouth_open"], style, times_s, stream("smile", seed))
    parts |= _head(speech, style, times_s, seed)
    parts |= _eyes(speech, style, times_s, seed)
    parts["cover"] = _moments(times_s, _COVER_CHANCE, (0.5, 1.1), 0.12, stream("cover", seed))[0]
    track = np.stack([parts[name] for name in MOTION_NAMES], axis=1)
    return torch.from_numpy(track.astype(np.float32))


def _mouth(speech: Speech, style: Habits, times_s: np.ndarray) -> dict[str, np.ndarray]:
    shape = mouth_shape(
        speech.phases, times_s, style.mouth_amplitude, style.lip_gesture, style.smoothing_s
    )
    names = ("mouth_open", "mouth_width", "mouth_round", "teeth", "tongue", "jaw")
    return dict(zip(names, shape.T, strict=True))


def _smile(
    opening: np.ndarray, style: Habits, times_s: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """Smiles come and go; asymmetry shows only in a smile or an open mouth, never at rest."""
    smile, _ = _moments(times_s, style.smile_rate_hz, (0.6, 2.0), 0.25, rng)
    raised = smile * style.smile_amount
    lopsided = style.smile_asymmetry * np.clip(raised + 0.3 * opening, 0, 1)
    return {"corner_raise": raised, "corner_asymmetry": lopsided}


def _head(speech: Speech, style: Habits, times_s: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    accent = _accent(speech, times_s, 0.08)
    turn, side = _moments(times_s, _TURN_CHANCE, (0.6, 1.4), 0.22, stream("turn", seed))
    yaw = style.sway_yaw * _sway(times_s, style.sway_hz, stream("yaw", seed))
    pitch = style.sway_pitch * _sway(times_s, style.sway_hz, stream("pitch", seed))
    roll = style.sway_roll * _sway(times_s, style.sway_hz, stream("roll", seed))
    return {
        "yaw": yaw * (1 - turn) + turn * side * 1.15,
        "pitch": pitch - style.nod_on_stress * accent,
        "roll": roll,
    }


def _eyes(speech: Speech, style: Habits, times_s: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    shut = _blinks(times_s, style, stream("blink", seed))
    right = 0.5 + 0.5 * style.gaze_side
    rng = stream("gaze", seed)
    away, side = _moments(times_s, style.gaze_away_rate_hz, (0.3, 1.2), 0.05, rng, right)
    amount = away * style.gaze_away_amount
    rng = stream("gaze drift", seed)
    gaze_x = np.clip(amount * side + 0.08 * _sway(times_s, 0.5, rng), -1, 1)
    gaze_y = np.clip(amount * rng.uniform(-0.5, 0.5) + 0.05 * _sway(times_s, 0.4, rng), -1, 1)
    brow = style.brow_on_stress * _accent(speech, times_s, 0.12)
    brow = brow + 0.08 * _sway(times_s, 0.2, stream("brow", seed))
    return {
        "eye_open": 1 - shut,
        "gaze_x": gaze_x,
        "gaze_y": gaze_y,
        "brow": np.clip(brow, -1, 1),
    }


def _sway(times_s: np.ndarray, hz: float, rng: np.random.Generator) -> np.ndarray:
    """A smooth wander with spread near 1 in [-2, 2]: four sinusoids around a frequency."""
    rates = hz * np.array([0.5, 1.0, 1.7, 2.6]) * rng.uniform(0.8, 1.25, 4)
    phases = rng.uniform(0, 2 * np.pi, 4)
    weights = np.array([0.7, 0.8, 0.35, 0.15])
    return (weights * np.sin(2 * np.pi * rates * times_s[:, None] + phases)).sum(axis=1)


def _accent(speech: Speech, times_s: np.ndarray, sigma_s: float) -> np.ndarray:
    """Stress in time as smooth bumps in [0, 1], about one per stressed syllable."""
    bumps = np.zeros_like(times_s)
    for segment in speech.segments:
        if segment.stress > 0:
            middle_s = (segment.start_s + segment.end_s) / 2
            bumps += segment.stress * np.exp(-0.5 * ((times_s - middle_s) / sigma_s) ** 2)
    return np.minimum(bumps, 1.0)


def _blinks(times_s: np.ndarray, style: Habits, rng: np.random.Generator) -> np.ndarray:
    """0 open … 1 shut: blinks in a Poisson process, quick to shut and slower to open."""
    shut = np.zeros_like(times_s)
    start_s = -style.blink_duration_s
    while True:
        start_s += style.blink_duration_s + rng.exponential(1 / style.blink_rate_hz)
        if start_s > times_s[-1]:
            return shut
        x = (times_s - start_s) / style.blink_duration_s
        lid = np.minimum(x / 0.3, (1 - x) / 0.5)
        shut = np.maximum(shut, np.clip(lid, 0, 1))


def _moments(
    times_s: np.ndarray,
    rate_hz: float,
    length_s: tuple[float, float],
    ramp_s: float,
    rng: np.random.Generator,
    right: float = 0.5,
) -> tuple[np.ndarray, np.ndarray]:
    """Events of a Poisson process: how far on (0 … 1, smooth ramps), and the sign of the last.

    The sign is positive with probability ``right``.
    """
    level, sign = np.zeros_like(times_s), np.ones_like(times_s)
    start_s = 0.0
    while True:
        start_s += rng.exponential(1 / rate_hz)
        if start_s > times_s[-1]:
            return level, sign
        end_s = start_s + 2 * ramp_s + rng.uniform(*length_s)
        ramp = np.clip(np.minimum(times_s - start_s, end_s - times_s) / ramp_s, 0, 1)
        level = np.maximum(level, ramp * ramp * (3 - 2 * ramp))
        sign = np.where(times_s >= start_s, 1.0 if rng.random() < right else -1.0, sign)
        start_s = end_s
