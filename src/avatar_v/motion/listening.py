"""Nods of a person who listens to somebody else.

A rule, for weights whose motion network hears one voice alone. It finds where a phrase ends in a
pause; there the head nods. Real listeners answer to more than pauses: to the pitch of the voice,
for one (Ward & Tsukahara 2000). Networks that hear both voices learn that
(recipes/3_listening.yaml). The nod is added to the motion that the model makes, and the video
follows it.
"""

import hashlib
import math
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from avatar_v.media.heard import HeardSound
from avatar_v.motion.stats import MotionStats
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES, SAMPLE_RATE_HZ, TEMPORAL_FACTOR

HOP = SAMPLE_RATE_HZ // 50
"""Samples that are judged together: speech or not."""
HOP_S = HOP / SAMPLE_RATE_HZ
QUIET_DB, ABOVE_DB, LOUD_DB = -45.0, 10.0, -20.0
"""Speech is louder than the first, and louder by the second than the quietest of the last five
seconds. What is louder than the third is speech in any case."""
FLOOR_HOPS = round(5 / HOP_S)
PHRASE_S, PAUSE_S = 0.6, 0.24
"""A phrase has at least so much speech, and ends with such a pause."""
DELAY_S, NOD_S, REST_S = 0.2, 0.45, 1.0
"""From the end of that pause to the nod; of one dip of the head; between two nods at least."""
NOD_RAD = (0.07, 0.13)
SECOND = 0.6
"""The second dip of a nod, as a share of the first."""
_PITCH = MOTION_NAMES.index("pitch")

Added = Float[Tensor, "1 _l md"]
"""What is added to the normalised motion of some latents."""


@dataclass(frozen=True)
class _Nod:
    start: int  # frames
    depth_rad: float
    dips: int


class Listener:
    """``push`` takes the sound of somebody else; `added` gives the nods. ``sound`` has what a
    network hears of it.

    ``is_live``: the sound comes while the video is made, so a nod begins with the next frames that
    are made. Else the sound is known ahead and begins with the video. ``seed`` decides how deep a
    nod is, and whether it has one dip or two. Safe for two threads: one hears, one makes frames.
    """

    def __init__(self, *, is_live: bool, seed: int = 0, frame_rate_hz: int = FRAME_RATE_HZ) -> None:
        self.nods: list[_Nod] = []
        self._is_live, self._rate = is_live, frame_rate_hz
        self.sound = HeardSound(is_live=is_live, frame_rate_hz=frame_rate_hz)
        self._draw = torch.Generator().manual_seed(seed)
        self._rest = torch.zeros(0)  # less than a hop
        self._levels: deque[float] = deque(maxlen=FLOOR_HOPS)
        self._floor = math.inf  # the least of these
        self._num_hops = self._num_spoken = self._num_silent = 0  # ever; of a phrase; of a pause
        self._num_made = 0  # frames
        self._lock = threading.Lock()

    def push(self, samples: Float[Tensor, " s"]) -> None:
        """The next of the sound, 16 kHz mono. Samples that are not finite count as silence."""
        self.sound.push(samples)
        with self._lock:
            sound = samples.detach().cpu().float().nan_to_num(0.0, 0.0, 0.0)
            sound = torch.cat([self._rest, sound])
            num = len(sound) // HOP
            self._rest = sound[num * HOP :].clone()
            power = sound[: num * HOP].reshape(num, HOP).square().mean(1)
            for level_db in (10 * torch.log10(power + 1e-10)).tolist():
                self._hear(level_db)

    def _hear(self, level_db: float) -> None:
        """One hop."""
        self._num_hops += 1
        self._levels.append(level_db)
        is_due = self._num_hops % 25 == 0  # the floor rises again twice a second
        self._floor = min(self._levels) if is_due else min(self._floor, level_db)
        if level_db > max(QUIET_DB, min(self._floor + ABOVE_DB, LOUD_DB)):
            self._num_spoken += 1
            self._num_silent = 0
            return
        self._num_silent += 1
        if self._num_silent == round(PAUSE_S / HOP_S):
            if self._num_spoken * HOP_S >= PHRASE_S:
                self._nod()
            self._num_spoken = 0

    def _nod(self) -> None:
        start = self._num_made
        if not self._is_live:
            start = math.ceil((self._num_hops * HOP_S + DELAY_S) * self._rate)
        if self.nods and start < self._end(self.nods[-1]) + REST_S * self._rate:
            return
        depth = torch.empty(()).uniform_(*NOD_RAD, generator=self._draw)
        dips = 1 + int(torch.randint(2, (), generator=self._draw))
        self.nods.append(_Nod(start, float(depth), dips))

    def _end(self, nod: _Nod) -> float:
        return nod.start + nod.dips * NOD_S * self._rate

    def added(self, start: int, stop: int, stats: MotionStats) -> Added | None:
        """To the motion of the latents from ``start`` to ``stop`` of the video; None where nobody
        nods. Frames that were asked for before get the same again."""
        frames = TEMPORAL_FACTOR * torch.arange(start, stop)[:, None] + torch.arange(-3, 1)
        frames = frames.clamp(min=0).flatten()  # the first latent holds its frame four times
        with self._lock:
            pitch = self._pitch(frames)
            self._num_made = max(self._num_made, int(frames[-1]) + 1)
            if self._is_live:  # what is over is not needed, but for the last nod's rest
                first = int(frames[0])
                self.nods = [n for n in self.nods[:-1] if self._end(n) >= first] + self.nods[-1:]
        if not bool(pitch.any()):
            return None
        motion = torch.zeros(len(frames), len(MOTION_NAMES))
        motion[:, _PITCH] = pitch / stats.deviation[_PITCH]
        return rearrange(motion, "(l k) m -> 1 l (k m)", k=TEMPORAL_FACTOR)

    def pitch(self, num_frames: int) -> Float[Tensor, " f"]:
        """What is added to the head's pitch in the first frames, in radians; down is negative."""
        return self._pitch(torch.arange(num_frames))

    def _pitch(self, frames: Int[Tensor, " f"]) -> Float[Tensor, " f"]:
        pitch = torch.zeros(len(frames))
        for nod in self.nods:
            phase = (frames - nod.start) / (NOD_S * self._rate)
            inside = (phase > 0) & (phase < nod.dips)
            depth = nod.depth_rad * SECOND ** phase.floor()
            pitch -= torch.where(inside, depth * (math.pi * phase).sin().square(), 0.0)
        return pitch

    def digest(self) -> str:
        """8 hex digits of all nods and of the sound."""
        return hashlib.sha256(f"{self.nods}{self.sound.digest()}".encode()).hexdigest()[:8]


def listening(
    parts: Iterable[Float[Tensor, " s"]], seed: int, frame_rate_hz: int = FRAME_RATE_HZ
) -> Listener:
    """A listener who knows a finished sound, 16 kHz mono in pieces, and the silence behind it."""
    listener = Listener(is_live=False, seed=seed, frame_rate_hz=frame_rate_hz)
    for part in parts:
        listener.push(part)
    listener.push(torch.zeros(SAMPLE_RATE_HZ))
    return listener


def with_added(motion: Float[Tensor, "b n md"], added: Added | None) -> Float[Tensor, "b n md"]:
    """The motion of the first n latents with what is `Listener.added` to it, if there is any."""
    return motion if added is None else motion + added[:, : motion.shape[1]].to(motion)
