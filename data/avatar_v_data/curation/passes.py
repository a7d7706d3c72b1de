"""One pass through a recording for all stages that it has to go through: each frame decoded once.

Frames that no clip can have any more are let go: of a recording of any length two clips' frames
are held at most, besides what stages keep, such as its sound. Stages whose results are there
already are not run: where it is known which stretches are clips, no frame beside them is kept.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar, overload

from avatar_v.media.reading import Picture, iter_pictures
from avatar_v_data.curation.stages import (
    ALL,
    FAILED,
    MACHINE,
    MAX_SIDE,
    TICK,
    Clip,
    FootageRecording,
    Frame,
    Reader,
    Reads,
    Result,
    Seen,
    Stage,
)
from avatar_v_data.curation.store import unkept

_T = TypeVar("_T")


@dataclass
class Examined:
    """The results of a pass, and the seconds that each stage took."""

    results: dict[str, Result] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)


def examine(
    recording: FootageRecording,
    stages: Sequence[Stage],
    known: Mapping[str, Result],
    files: Path = Path(),
    keys: Mapping[str, str] | None = None,
) -> Examined:
    """The results of ``stages``, in an order in which each finds what it needs among those before
    it and among ``known``.

    A stage that refuses, or that needs one that did, has its reason under `FAILED`. Errors
    of `MACHINE` are raised.
    """
    work = _Reading(Seen(recording, dict(known), files, keys or {}), stages)
    for stage in stages:
        work.begin(stage)
    work.read()
    for stage in stages:
        work.finish(stage)
    results = {stage.name: work.seen.results[stage.name] for stage in stages}
    return Examined(results, work.seconds)


class _Reading:
    def __init__(self, seen: Seen, stages: Sequence[Stage]) -> None:
        self.seen, self.stages = seen, stages
        self.seconds = {stage.name: 0.0 for stage in stages}
        self._readers: dict[str, Reader] = {}
        self._held: deque[Picture] = deque()
        self._first = 0  # the number of the first frame that is held
        self._num_clips = 0  # that were given to the stages that read them

    def begin(self, stage: Stage) -> None:
        """Start a stage; one that reads no frames is done at once."""
        if not self._has_needs(stage):
            return
        reader = self._guarded(stage, lambda: stage.begin(self.seen))
        if reader is not None:
            self._readers[stage.name] = reader
            self.seen.results[stage.name] = reader.columns
            if stage.reads in ("file", "sound"):
                self.finish(stage)

    def finish(self, stage: Stage) -> None:
        """Settle what a stage has to say, unless it is settled."""
        reader = self._readers.get(stage.name)
        if reader is None or not self._has_needs(stage):
            return
        if self.seen.damage and stage.whole and stage.reads not in ("file", "sound"):
            self._refuse(stage, f"{stage.name}: {self.seen.damage}")
            return
        result = self._guarded(stage, reader.finish)
        if result is None:
            return
        if why := unkept(result):
            self._refuse(stage, f"{stage.name}: its result cannot be kept: {why}")
            return
        self.seen.results[stage.name] = result
        self._readers.pop(stage.name)

    def read(self) -> None:
        """Bring the frames to all stages that have begun and read some."""
        opened = self._decide(0, ended=False)
        if not self._wants_more(opened):
            return
        path, rate, num = self.seen.recording.path, self.seen.recording.frame_rate_hz, 0
        begin = time.monotonic()
        try:
            for num, picture in enumerate(iter_pictures(path, frame_rate_hz=rate), 1):
                self._see(num, picture)
                if num % TICK == 0:
                    opened = self._decide(num, ended=False)
                    self._deliver(num, opened)
                    if not self._wants_more(opened):
                        break
            else:
                self._end(num)
        except MACHINE:
            raise
        except Exception as error:  # a decoder's, too: one recording never ends a run
            self.seen.damage = _reason(error, path)
            self._end(num)
        spent = sum(self.seconds.values())
        self.seconds["decode"] = max(time.monotonic() - begin - spent, 0.0)

    def _see(self, num: int, picture: Picture) -> None:
        for stage, reader in self._of("frames"):
            frame = picture.at(stage.side)
            self._guarded(stage, lambda r=reader, f=frame: r.frame(num - 1, f))
        if self._of("clips"):
            self._held.append(picture)

    def _end(self, num: int) -> None:
        """All frames were seen: what reads them settles first, then the last clips."""
        for stage, _ in self._of("frames"):
            self.finish(stage)
        self._deliver(num, self._decide(num, ended=True))
        if self._of("clips") and self._num_clips < len(self._clips()):
            stop = self._clips()[self._num_clips]["stop"]
            why = self.seen.damage or f"the video ends before frame {stop}"
            for stage, _ in self._of("clips"):
                self._refuse(stage, f"{stage.name}: {why}")

    def _decide(self, num: int, *, ended: bool) -> int:
        """The first frame that a clip may have which is not decided yet."""
        opened = ALL
        for stage, reader in self._of("results"):
            first = self._guarded(stage, lambda r=reader: r.decide(num, ended=ended))
            opened = ALL if first is None else first
        return opened

    def _deliver(self, num: int, opened: int) -> None:
        """Give the clips that have all their frames, and let go of what none needs."""
        clips = self._clips() if self._of("clips") else []
        while self._num_clips < len(clips) and clips[self._num_clips]["stop"] <= num:
            span = clips[self._num_clips]
            part = islice(self._held, span["start"] - self._first, span["stop"] - self._first)
            pictures = list(part)
            for stage, reader in self._of("clips"):
                frames = _Frames(pictures, stage.side)
                clip = Clip(self._num_clips, span["start"], span["stop"], frames)
                self._guarded(stage, lambda r=reader, c=clip: r.clip(c))
            self._num_clips += 1
        if self._num_clips < len(clips):
            opened = min(opened, clips[self._num_clips]["start"])
        while self._held and self._first < opened:
            self._held.popleft()
            self._first += 1
        if not self._held:
            self._first = num

    def _wants_more(self, opened: int) -> bool:
        """Whether a further frame is of use."""
        is_left = self._num_clips < len(self._clips()) or opened < ALL
        return bool(self._of("frames")) or bool(
            (self._of("clips") or self._of("results")) and is_left
        )

    def _clips(self) -> list[Result]:
        return self.seen.results.get("clips", {}).get("clips", [])

    def _of(self, reads: Reads) -> list[tuple[Stage, Reader]]:
        """Those that have begun and not ended."""
        own = [stage for stage in self.stages if stage.reads == reads]
        return [(s, self._readers[s.name]) for s in own if s.name in self._readers]

    def _guarded(self, stage: Stage, call: Callable[[], _T]) -> _T | None:
        """``call``'s value; None where it refuses, which ends the stage and those that need it."""
        begin = time.monotonic()
        try:
            return call()
        except MACHINE:
            raise  # of this machine and not of the recording
        except Exception as error:  # a decoder's or a model's, too
            self._refuse(stage, f"{stage.name}: {_reason(error, self.seen.recording.path)}")
            return None
        finally:
            self.seconds[stage.name] += time.monotonic() - begin

    def _refuse(self, stage: Stage, reason: str) -> None:
        self.seen.results[stage.name] = {FAILED: reason}
        self._readers.pop(stage.name, None)
        for other in self.stages:
            if other.name in self._readers:
                self._has_needs(other)

    def _has_needs(self, stage: Stage) -> bool:
        """Whether no stage that this one needs has failed; where one has, this one does."""
        needed = [self.seen.results[name] for name in stage.needs]
        reasons = [result[FAILED] for result in needed if FAILED in result]
        if reasons:
            self.seen.results[stage.name] = {FAILED: reasons[0]}
            self._readers.pop(stage.name, None)
        return not reasons


class _Frames(Sequence[Frame]):
    """A clip's frames at one size, of which only the engine's own is kept."""

    def __init__(self, pictures: Sequence[Picture], side: int) -> None:
        self._pictures, self._side = pictures, side

    def __len__(self) -> int:
        return len(self._pictures)

    @overload
    def __getitem__(self, at: int) -> Frame: ...

    @overload
    def __getitem__(self, at: slice) -> list[Frame]: ...

    def __getitem__(self, at: int | slice) -> Frame | list[Frame]:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        return self._pictures[at].at(self._side, keep=self._side <= MAX_SIDE)


def _reason(error: Exception, path: str) -> str:
    reason = str(error).removeprefix(f"{path}: ")
    return reason if isinstance(error, ValueError) else f"{type(error).__name__}: {reason}"
