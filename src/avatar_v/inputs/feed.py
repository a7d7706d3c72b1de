"""Packets of a conversation as one steady sound, which goes on while nobody speaks.

A `SoundFeed` stands between whoever pushes packets, of any size and at any time, and
live.LiveSound, which takes what is due by a clock. Silence takes the place of what is late, lost,
faulty or not there, so the person keeps moving, and the time of the sound keeps to the clock: where
the sender's clock is faster or slower, pauses become shorter or longer. The sound of texts
(said.py) comes in beside the packets, and ends where somebody speaks. Nothing of a video is known
here (generate/session.py).
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME

LEAD_S = 0.2
"""Sound is given so long before its time at most, so that an interruption finds the rest here."""
IDLE_S, PATIENCE_S = 0.1, 0.2
"""While nobody speaks silence is given so long behind its time; within speech, where the next
packet may only be late, so long. The difference is the jitter that no word is cut by."""
MOST_BEHIND_S = 0.5
"""Whoever takes the sound later than this cannot keep up: the time in between is left out."""
MOST_GAP_S = 1.0
"""Longer gaps in a sender's numbers are a new beginning, and no silence is filled in."""
MOST_PACKET_S = 60.0
MOST_WAIT_S = 600.0  # of sound that may be pushed as fast as it is made
PIECE = SAMPLE_RATE_HZ // 100
"""Samples by which a pause becomes shorter or longer."""
STEADY_S, HARD_S = 0.01, 0.03
"""So far from its steady place sound is moved in pauses; farther, wherever it is."""
WINDOW_S = 5.0
"""Of packets' times, of which the latest decides: jitter is not drift."""
QUIET = 0.02
"""Below it, of 1, a frame is a pause: -34 dB."""
BARGE_S = 0.1
"""So long packets follow each other above it until they end a text: a click does not."""
AHEAD_S = 10.0
"""Of the sound of texts that waits; whoever makes it waits then."""


@dataclass(frozen=True)
class FeedCounts:
    """What happened to a sound on its way in."""

    num_bad: int = 0  # packets with NaN or infinite samples: silence took their place
    late_s: float = 0.0  # came twice, or after what follows it: dropped
    lost_s: float = 0.0  # missing in the sender's numbers: silence
    dropped_s: float = 0.0  # too much waited: the oldest was dropped
    interrupted_s: float = 0.0  # dropped by `SoundFeed.interrupt`, or by packets within a text
    unheard_s: float = 0.0  # pauses and clicks in packets while a text was said: dropped
    skipped_s: float = 0.0  # time left out, since the video is made more slowly than it plays


def checked_packet(samples: Tensor | np.ndarray) -> Float[Tensor, " s"]:
    """A packet as the library keeps it, in memory of its own. ValueError for anything but float
    samples in a row, and for more than a minute."""
    samples = torch.as_tensor(samples)
    if samples.ndim != 1 or not samples.is_floating_point():
        kind = f"{str(samples.dtype).removeprefix('torch.')} {tuple(samples.shape)}"
        raise ValueError(f"a packet is float, of shape (s,) and in [-1, 1], got {kind}")
    if len(samples) > MOST_PACKET_S * SAMPLE_RATE_HZ:
        length_s = len(samples) / SAMPLE_RATE_HZ
        raise ValueError(f"a packet has at most {MOST_PACKET_S:g} s, got {length_s:.0f} s")
    return samples.detach().cpu().float().clone()


class SoundFeed:
    """``push`` from one thread, `say` from a second, and iterate in another.

    ``clock`` gives seconds that never go back; None: the sound itself is the clock, and everything
    is given as soon as it is there. ``most_wait_s`` is for a microphone, whose sound must not wait:
    what is more than that is dropped, oldest first, and pauses keep sound and clock together. None
    is for sound that is pushed as fast as it is made, which is given in its own time. With a clock
    the sound begins with silence of ``silent_s``, which nobody waits for: the first picture is
    there before anybody speaks.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] | None,
        most_wait_s: float | None = None,
        silent_s: float = 0.0,
    ) -> None:
        self.counts = FeedCounts()
        self._clock, self._most_wait_s, self._silent_s = clock, most_wait_s, silent_s
        self._changed = threading.Condition()
        self._waiting: deque[Tensor] = deque()
        self._num_waiting = self._given = 0  # samples
        self._began: float | None = None  # by the clock, at the sound's first sample
        self._next: int | None = None  # of the sender's numbers
        self._silence = 0  # samples of it since the last packet
        self._idle = True  # silence was given last
        self._lows: deque[tuple[float, float]] = deque()
        """When packets came, and how far ahead of the clock the sound was that they follow."""
        self._since = 0.0  # when they begin
        self._ended = self._stopped = False
        self._turn = 0  # of texts: an interruption begins another
        self._num_expected = 0  # texts of this turn whose sound is not all here
        self._num_said = 0  # samples of them, behind all others that wait
        self._is_saying = False  # such samples were given last
        self._knocks: list[Tensor] = []  # packets that may be the beginning of speech

    def push(self, samples: Tensor | np.ndarray, at: int | None = None) -> None:
        """Hand over a packet "s", 16 kHz mono in [-1, 1]. ``at`` is the number of its first sample,
        as its sender counts: it tells what was lost. One with NaN is silent and counted: a fault of
        a device for a moment is no reason to end a conversation. While a text is said, speech in
        the packets interrupts it, and all else in them is dropped. ValueError for anything but
        float samples in a row, and for more than waits at most."""
        samples = checked_packet(samples)
        with self._changed:
            if self._most_wait_s is None and self._num_waiting > MOST_WAIT_S * SAMPLE_RATE_HZ:
                raise ValueError(f"{MOST_WAIT_S:g} s of sound wait already: push more when less do")
            if not bool(torch.isfinite(samples).all()):
                samples = torch.zeros(len(samples))
                self._count(num_bad=1)
            if at is not None:
                samples = self._placed(samples, at)
            self._silence = 0
            self._note_arrival()
            self._append(self._heard(samples))
            if self._most_wait_s is not None:
                most = round(self._most_wait_s * SAMPLE_RATE_HZ)
                over = max(0, self._num_waiting - self._num_said - most)
                self._count(dropped_s=len(self._pop(over)) / SAMPLE_RATE_HZ)
            self._changed.notify_all()

    def interrupt(self) -> None:
        """Drop all sound that waits: what has been given is all that will be spoken of it."""
        with self._changed:
            self._count(interrupted_s=len(self._pop(self._num_waiting)) / SAMPLE_RATE_HZ)
            self._idle = True
            self._turn, self._num_expected = self._turn + 1, 0
            self._num_said, self._is_saying = 0, False
            self._knocks.clear()
            self._changed.notify_all()

    @property
    def is_saying(self) -> bool:
        """Whether a text is said or waits."""
        return self._num_expected > 0 or self._num_said > 0 or self._is_saying

    def expect(self) -> int:
        """A text is about to be said: an end waits for it. The turn that it belongs to."""
        with self._changed:
            if self._ended or self._stopped:
                raise ValueError("the conversation has ended: no more texts are said")
            self._num_expected += 1
            return self._turn

    def say(self, samples: Float[Tensor, " s"], turn: int) -> bool:
        """Hand over the next sound of a text, behind all that waits, as soon as less than `AHEAD_S`
        of such sound does. False, and it is dropped, where its turn is over."""
        most = AHEAD_S * SAMPLE_RATE_HZ
        with self._changed:
            self._changed.wait_for(lambda: self._is_over(turn) or self._num_said < most)
            if self._is_over(turn):
                return False
            self._append(samples)
            self._num_said += len(samples)
            self._changed.notify_all()
            return True

    def said(self, turn: int) -> None:
        """All sound of one text of a turn is here."""
        with self._changed:
            if not self._is_over(turn):
                self._num_expected -= 1
            self._changed.notify_all()

    def end(self) -> None:
        """No more packets: what waits is given, and then the sound ends."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def stop(self) -> None:
        """The sound ends now, wherever it is waited for."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def __iter__(self) -> Iterator[Float[Tensor, " s"]]:
        while True:
            with self._changed:
                found = self.take()
                if found is None:
                    return
                if not isinstance(found, Tensor):
                    self._changed.wait(None if math.isinf(found) else found)
                    continue
            yield found

    def take(self) -> Float[Tensor, " s"] | float | None:
        """The sound that is due; seconds until some may be, if nothing comes; None at the end."""
        with self._changed:
            if self._stopped or (self._ended and self._num_waiting == self._num_expected == 0):
                return None
            if self._clock is None or self._ended:
                return self._give(self._num_waiting) if self._num_waiting else math.inf
            if self._began is None:
                self._given = round(self._silent_s * SAMPLE_RATE_HZ)
                self._began = self._clock() - self._given / SAMPLE_RATE_HZ
                if self._given:
                    return torch.zeros(self._given)
            ahead_s = self._ahead(self._began, self._clock())
            if self._num_waiting >= SAMPLES_PER_FRAME:
                if ahead_s >= LEAD_S:
                    return ahead_s - LEAD_S + 1e-3
                samples = self._give(SAMPLES_PER_FRAME)
                return samples if self._is_saying else self._steady(samples)
            late_s = -ahead_s - SAMPLES_PER_FRAME / SAMPLE_RATE_HZ
            late_s -= IDLE_S if self._idle else PATIENCE_S
            if late_s < 0:
                return 1e-3 - late_s
            return self._filled()

    def _ahead(self, began: float, now: float) -> float:
        """Seconds that the sound given so far is ahead of the clock."""
        ahead_s = self._given / SAMPLE_RATE_HZ - (now - began)
        if -ahead_s > MOST_BEHIND_S:
            skipped_s = -ahead_s - IDLE_S
            self._began = began + skipped_s
            self._count(skipped_s=skipped_s)
            self._lows.clear()
            ahead_s = -IDLE_S
        return ahead_s

    def _note_arrival(self) -> None:
        """Of a packet: that the sound before it was taken late says nothing of its sender."""
        if self._clock is None or self._began is None:
            return
        now = self._clock()
        ahead_s = (self._given + self._num_waiting) / SAMPLE_RATE_HZ - (now - self._began)
        if not self._lows:
            self._since = now
        while self._lows and self._lows[0][0] < now - WINDOW_S:
            self._lows.popleft()
        while self._lows and self._lows[-1][1] >= ahead_s:
            self._lows.pop()  # the first of these is the lowest of the window
        self._lows.append((now, ahead_s))

    def _steady(self, samples: Tensor) -> Tensor:
        """A frame, longer or shorter where the sound of a microphone has left its place: a packet
        is to arrive when silence would be given about now."""
        if not self._lows or self._most_wait_s is None:
            return samples
        if self._lows[-1][0] < self._since + WINDOW_S:
            return samples
        off_s = self._lows[0][1] + IDLE_S + SAMPLES_PER_FRAME / SAMPLE_RATE_HZ / 2
        is_quiet = float(samples.abs().max()) < QUIET
        if abs(off_s) <= (STEADY_S if is_quiet else HARD_S):
            return samples
        shift = -PIECE if off_s > 0 else PIECE
        self._given += shift
        self._lows = deque((at, low + shift / SAMPLE_RATE_HZ) for at, low in self._lows)
        return samples[:shift] if shift < 0 else torch.cat([samples, samples[-shift:].flip(0)])

    def _filled(self) -> Tensor:
        """A frame of what waits, with silence behind it."""
        samples = torch.zeros(SAMPLES_PER_FRAME)
        rest = self._give(self._num_waiting)
        samples[: len(rest)] = rest
        num = SAMPLES_PER_FRAME - len(rest)
        self._given, self._silence, self._idle = self._given + num, self._silence + num, True
        self._is_saying = False
        self._lows.clear()
        return samples

    def _give(self, num: int) -> Tensor:
        self._given, self._idle = self._given + num, False
        num_said = max(0, num - (self._num_waiting - self._num_said))
        self._is_saying = num_said > 0 and self._clock is not None
        if num_said:
            self._num_said -= num_said
            self._lows.clear()  # its pace is not that of a microphone
            self._changed.notify_all()
        return self._pop(num)

    def _is_over(self, turn: int) -> bool:
        return self._stopped or turn != self._turn

    def _heard(self, samples: Tensor) -> Tensor:
        """What is heard of a packet. While a text is said that is nothing, or the speech that ends
        the text, from its beginning."""
        is_loud = len(samples) > 0 and float(samples.abs().max()) >= QUIET
        knocks = torch.cat([*self._knocks, samples])
        if self.is_saying and is_loud and len(knocks) < BARGE_S * SAMPLE_RATE_HZ:
            self._knocks.append(samples)
            return torch.zeros(0)
        self._knocks.clear()
        if self.is_saying and not is_loud:
            self._count(unheard_s=len(knocks) / SAMPLE_RATE_HZ)
            return torch.zeros(0)
        if self.is_saying:
            self.interrupt()
        return knocks

    def _placed(self, samples: Tensor, at: int) -> Tensor:
        """A packet behind those before it: behind silence for what is lost between, less what has
        been given for it, and without what was there before."""
        gap = 0 if self._next is None else at - self._next
        if abs(gap) > MOST_GAP_S * SAMPLE_RATE_HZ:
            gap = 0
        self._next = max(at + len(samples), self._next or 0) if gap < 0 else at + len(samples)
        if gap > 0:
            self._count(lost_s=gap / SAMPLE_RATE_HZ)
            return torch.cat([torch.zeros(max(0, gap - self._silence)), samples])
        elif gap < 0:
            self._count(late_s=min(-gap, len(samples)) / SAMPLE_RATE_HZ)
        return samples[max(0, -gap) :]

    def _append(self, samples: Tensor) -> None:
        if len(samples):
            self._waiting.append(samples)
            self._num_waiting += len(samples)

    def _pop(self, num: int) -> Tensor:
        parts, self._num_waiting = [torch.zeros(0)], self._num_waiting - num
        while num:
            first = self._waiting.popleft()
            parts.append(first[:num])
            if len(first) > num:
                self._waiting.appendleft(first[num:])
            num -= len(parts[-1])
        return torch.cat(parts)

    def _count(self, **more: float | int) -> None:
        old = vars(self.counts)
        self.counts = replace(self.counts, **{k: old[k] + v for k, v in more.items()})
