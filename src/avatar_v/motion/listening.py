"""What a person does who listens to somebody else: looks at them, and nods behind their phrases.

A rule, not a network: a listener's answer comes at the end of a phrase, some tenths of a second
into the pause (Ward & Tsukahara 2000), and eyes rest on whoever speaks (Argyle & Cook 1976). The
rule hears a second sound, and changes the motion that the model makes of the person's own; the
video follows as it follows all motion.
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

from avatar_v.motion.stats import MotionStats
from avatar_v.types import FRAME_RATE_HZ, MOTION_NAMES, SAMPLE_RATE_HZ, TEMPORAL_FACTOR

HOP = SAMPLE_RATE_HZ // 50
"""Samples of which it is asked whether somebody speaks."""
QUIET_DB, ABOVE_DB, LOUD_DB = -45.0, 10.0, -20.0
"""Speech is louder than the first, and than the quietest of the last seconds by the second number.
What is louder than the third always is."""
FLOOR_HOPS = 250
ONSET_S, PHRASE_S, PAUSE_S, LEFT_S = 0.06, 0.6, 0.24, 2.0
"""A voice begins with so much speech in a row; a phrase has so much of it, and ends with such a
pause; behind so long a one nobody is listened to any more."""
DELAY_S, NOD_S, REST_S = 0.2, 0.45, 1.0
"""From the end of a phrase to the nod, its length, and the least time between two."""
NOD_RAD = (0.07, 0.13)
LOOK, LOOK_S = 0.8, 0.4
"""The share of the way to the camera that eyes go, and the time that it takes."""
_PITCH, *_GAZE = (MOTION_NAMES.index(name) for name in ("pitch", "gaze_x", "gaze_y"))


@dataclass(frozen=True)
class Gesture:
    """What becomes of the motion of some latents, normalised: ``keep`` of it, and ``add``."""

    keep: Float[Tensor, "1 l md"]
    add: Float[Tensor, "1 l md"]

    def __call__(self, motion: Float[Tensor, "b n md"]) -> Float[Tensor, "b n md"]:
        """Of the first n of the latents."""
        num = motion.shape[1]
        return motion * self.keep[:, :num].to(motion) + self.add[:, :num].to(motion)


@dataclass(frozen=True)
class _Nod:
    start: int  # frames
    depth_rad: float
    cycles: int


class Listener:
    """``push`` the sound of somebody else; `gesture` gives what is done about it.

    ``is_live``: the sound comes while the video is made, so what it asks for is done in the next
    frames that are made. Else it is known ahead, and counts from the video's first frame. One that
    has heard nothing does nothing. ``seed`` decides depth and number of nods.
    """

    def __init__(self, *, is_live: bool, seed: int = 0, frame_rate_hz: int = FRAME_RATE_HZ) -> None:
        self.nods: list[_Nod] = []
        self._looks: list[list[float]] = []  # frames from which, and up to which, eyes rest
        self._is_live, self._rate = is_live, frame_rate_hz
        self._draw = torch.Generator().manual_seed(seed)
        self._rest = torch.zeros(0)
        self._levels: deque[float] = deque(maxlen=FLOOR_HOPS)
        self._floor = math.inf  # the least of these
        self._hops = self._voiced = self._row = self._pause = 0  # of the sound; of a phrase; …
        self._asked = 0  # frames that were made
        self._lock = threading.Lock()  # one hears, another makes frames

    def push(self, samples: Float[Tensor, " s"]) -> None:
        """The next of the sound, 16 kHz mono. Samples that are not finite count as silence."""
        with self._lock:
            self._push(samples)

    def _push(self, samples: Float[Tensor, " s"]) -> None:
        sound = torch.cat([self._rest, samples.detach().cpu().float().nan_to_num(0.0, 0.0, 0.0)])
        num = len(sound) // HOP
        self._rest = sound[num * HOP :].clone()
        power = sound[: num * HOP].reshape(num, HOP).square().mean(1)
        for level in (10 * torch.log10(power + 1e-10)).tolist():
            self._hop(level)

    def _hop(self, level: float) -> None:
        self._hops += 1
        self._levels.append(level)
        self._floor = min(self._levels) if self._hops % 25 == 0 else min(self._floor, level)
        hop_s = HOP / SAMPLE_RATE_HZ
        if level > max(QUIET_DB, min(self._floor + ABOVE_DB, LOUD_DB)):
            self._row += 1
            self._voiced += 1
            self._pause = 0
            if self._row * hop_s >= ONSET_S and not self._is_looking():
                self._looks.append([self._frame(0.0), math.inf])
            return
        self._row = 0
        self._pause += 1
        if self._pause == round(PAUSE_S / hop_s):
            if self._voiced * hop_s >= PHRASE_S:
                self._nod(self._frame(DELAY_S))
            self._voiced = 0
        if self._pause == round(LEFT_S / hop_s) and self._is_looking():
            self._looks[-1][1] = self._frame(0.0)

    def _is_looking(self) -> bool:
        return bool(self._looks) and self._looks[-1][1] == math.inf

    def _frame(self, delay_s: float) -> int:
        """The frame so long behind what was heard last, of those that are still to be made."""
        heard_s = self._hops * HOP / SAMPLE_RATE_HZ
        frame = self._asked if self._is_live else math.ceil((heard_s + delay_s) * self._rate)
        return max(frame, self._asked)

    def _nod(self, start: int) -> None:
        if self.nods and start < self._end(self.nods[-1]) + REST_S * self._rate:
            return
        depth = torch.empty(()).uniform_(*NOD_RAD, generator=self._draw)
        cycles = 1 + int(torch.randint(2, (), generator=self._draw))
        self.nods.append(_Nod(start, float(depth), cycles))

    def _end(self, nod: _Nod) -> float:
        return nod.start + nod.cycles * NOD_S * self._rate

    def gesture(self, start: int, stop: int, stats: MotionStats) -> Gesture | None:
        """Of the latents from ``start`` to ``stop`` of the video; None where nothing is done.
        Frames that were asked for before get what they got."""
        with self._lock:
            return self._gesture(start, stop, stats)

    def _gesture(self, start: int, stop: int, stats: MotionStats) -> Gesture | None:
        places = TEMPORAL_FACTOR * torch.arange(start, stop)[:, None] + torch.arange(-3, 1)
        frames = places.clamp(min=0).flatten()
        pitch, look = self._pitch(frames), self._look(frames)
        self._asked = max(self._asked, TEMPORAL_FACTOR * (stop - 1) + 1)
        if self._is_live:
            self._forget(int(frames[0]))
        if not bool(pitch.any() or look.any()):
            return None
        keep = torch.ones(len(frames), len(MOTION_NAMES))
        keep[:, _GAZE] = 1 - look[:, None]
        add = (keep - 1) * stats.mean
        add[:, _PITCH] += pitch
        packed = (keep, add / stats.deviation)
        kept, added = (rearrange(x, "(l k) m -> 1 l (k m)", k=TEMPORAL_FACTOR) for x in packed)
        return Gesture(kept, added)

    def _pitch(self, frames: Int[Tensor, " f"]) -> Float[Tensor, " f"]:
        """Radians; down is negative, and the second dip is the smaller one."""
        pitch = torch.zeros(len(frames))
        for nod in self.nods:
            phase = (frames - nod.start) / (NOD_S * self._rate)
            inside = (phase > 0) & (phase < nod.cycles)
            depth = nod.depth_rad * 0.6 ** phase.floor()
            pitch -= torch.where(inside, depth * (math.pi * phase).sin().square(), 0.0)
        return pitch

    def _look(self, frames: Int[Tensor, " f"]) -> Float[Tensor, " f"]:
        look, ramp = torch.zeros(len(frames)), LOOK_S * self._rate
        for first, last in self._looks:
            share = torch.minimum((frames - first) / ramp, (last + ramp - frames) / ramp)
            share = share.clamp(0, 1)
            look = torch.maximum(look, LOOK * share * share * (3 - 2 * share))
        return look

    def _forget(self, first: int) -> None:
        """What was over before frame ``first`` is not needed any more, but for the last of each."""
        self.nods = [n for n in self.nods[:-1] if self._end(n) >= first] + self.nods[-1:]
        over = first - LOOK_S * self._rate
        self._looks = [look for look in self._looks if look[1] >= over]

    def pitch(self, num_frames: int) -> Float[Tensor, " f"]:
        """What is added to the head's pitch in the first frames, in radians."""
        return self._pitch(torch.arange(num_frames))

    def digest(self) -> str:
        """8 hex digits of all that it does."""
        return hashlib.sha256(repr((self.nods, self._looks)).encode()).hexdigest()[:8]


def listening(
    parts: Iterable[Float[Tensor, " s"]], seed: int, frame_rate_hz: int = FRAME_RATE_HZ
) -> Listener:
    """Somebody who listens to a finished sound, 16 kHz mono in pieces, and to the silence behind
    it."""
    listener = Listener(is_live=False, seed=seed, frame_rate_hz=frame_rate_hz)
    for part in parts:
        listener.push(part)
    listener.push(torch.zeros(round((LEFT_S + 1) * SAMPLE_RATE_HZ)))
    return listener
