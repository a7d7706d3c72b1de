"""The voice of somebody else, whom the person listens to, on the clock of the video.

A finished sound begins with the video. A live one has no clock: what has arrived when frames are
made is what the person hears in them. Where less has arrived, the rest is silence; where more waits
than `SLACK_S`, the oldest is dropped, so that nobody answers late for ever.
"""

import hashlib
import threading

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int16
from torch import Tensor

from avatar_v.media.sound import HighPass, measure_level, resampled
from avatar_v.types import FRAME_RATE_HZ, SAMPLE_RATE_HZ, SAMPLES_PER_FRAME

SLACK_S = 0.5
KEPT_S = 30
"""Of a live sound so much is kept: its level is measured on it, and encoders look back into it."""
_FULL = 32767


class HeardSound:
    """``push`` takes 16 kHz mono samples; `window` gives what the networks take. Safe for two
    threads: one hears, one makes frames."""

    def __init__(self, *, is_live: bool, frame_rate_hz: int = FRAME_RATE_HZ) -> None:
        self._is_live, self._rate = is_live, frame_rate_hz
        self._high, self._lock = HighPass(), threading.Lock()
        self._parts: list[Int16[Tensor, " s"]] = []  # what has no place yet
        self._placed, self._start = torch.zeros(0, dtype=torch.int16), 0  # from this sample on
        self._gain: float | None = None  # of a finished sound

    def push(self, samples: Float[Tensor, " s"]) -> None:
        """The next of the sound. Samples that are not finite count as silence."""
        with self._lock:
            sound = self._high(samples.detach().cpu().float().nan_to_num(0.0, 0.0, 0.0))
            self._parts.append((sound.clamp(-1, 1) * _FULL).round().to(torch.int16))

    def whole(self) -> Float[Tensor, " s"]:
        """A finished sound at its own level, 640 samples a frame of the video."""
        with self._lock:
            self._join()
        return self._at_rate(self._placed / _FULL)

    def gain(self) -> float:
        """The factor that brings it to the loudness of training: of a live one, its last 30 s."""
        with self._lock:
            if self._is_live or self._gain is None:
                self._join()
                self._gain = measure_level(self._placed / _FULL).gain
            return self._gain

    def window(self, start: int, stop: int, heard: int) -> Float[Tensor, " t"]:
        """The frames from ``start`` to ``stop``, silent from frame ``heard`` on. Of a live sound,
        what waits gets its place up to that frame, and what had a place keeps it."""
        first, last, end = (f * SAMPLE_RATE_HZ // self._rate for f in (start, stop, heard))
        with self._lock:
            self._join(end)
            part = self._placed[max(first - self._start, 0) : max(end - self._start, 0)]
            before = max(0, self._start - first)  # is forgotten
        sound = F.pad(part / _FULL, (before, 0))
        sound = F.pad(sound, (0, last - first - len(sound)))
        num = (stop - start) * SAMPLES_PER_FRAME
        sound = self._at_rate(sound)[:num]
        return F.pad(sound, (0, num - len(sound)))

    def digest(self) -> str:
        """8 hex digits of a finished sound."""
        with self._lock:
            self._join()
            return hashlib.sha256(self._placed.numpy().tobytes()).hexdigest()[:8]

    def _join(self, end: int | None = None) -> None:
        """Give what waits its place; of a live sound up to the sample ``end``."""
        waiting = torch.cat([*self._parts, self._placed[:0]])
        if not self._is_live:
            self._placed, self._parts = torch.cat([self._placed, waiting]), []
            return
        num = 0 if end is None else max(0, end - self._start - len(self._placed))
        if num == 0:
            return
        slack = num + round(SLACK_S * SAMPLE_RATE_HZ)
        waiting = waiting[max(0, len(waiting) - slack) :]
        taken = F.pad(waiting[:num], (0, num - len(waiting[:num])))
        placed = torch.cat([self._placed, taken])
        old = max(0, len(placed) - KEPT_S * SAMPLE_RATE_HZ)
        self._placed, self._start = placed[old:].clone(), self._start + old
        self._parts = [waiting[num:].clone()]

    def _at_rate(self, sound: Float[Tensor, " s"]) -> Float[Tensor, " t"]:
        return resampled(sound, SAMPLE_RATE_HZ, SAMPLES_PER_FRAME * self._rate)
