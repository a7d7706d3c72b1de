"""The stretches that a manifest takes of a recording, or all of it, as clips of one length.

The clips follow each other without a gap. The last one moves back to the end of its stretch, over
frames of the clip before, so that no speech is lost; a rest of less than an eighth of a clip is
left out, with a reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from avatar_v.base.words import counted
from avatar_v_data.curation.stages import ALL, Reader, Reads, Result, Seen, Stage
from avatar_v_data.import_plan import ImportPart

SMALLEST_REST = 1 / 8
"""Of a clip."""


@dataclass(frozen=True)
class PartStage(Stage):
    """In the place of `ClipStage` where nothing is to be looked for. A file that is damaged gives
    the clips before the damage."""

    num_frames: int

    name: ClassVar[str] = "clips"
    version: ClassVar[int] = 1
    reads: ClassVar[Reads] = "results"
    needs: ClassVar[tuple[str, ...]] = ("probe",)
    whole: ClassVar[bool] = False

    def begin(self, seen: Seen) -> Reader:
        return _Parts(self.num_frames, seen)


class _Parts(Reader):
    def __init__(self, num: int, seen: Seen) -> None:
        self.columns = {"clips": [], "dropped": []}
        self._num, self._seen, self._part, self._used = num, seen, 0, 0
        self._parts = seen.recording.parts or (ImportPart("", "", "", ""),)

    def decide(self, num_frames: int, *, ended: bool) -> int:
        while self._part < len(self._parts):
            part = self._parts[self._part]
            is_over = ended or (part.stop is not None and part.stop <= num_frames)
            stop = num_frames if part.stop is None else min(part.stop, num_frames)
            if not is_over or self._seen.damage:
                whole = max(stop - part.start, 0) // self._num
                self._add(part.start + self._num * n for n in range(self._used, whole))
                self._used = max(whole, self._used)
                if not is_over:
                    begin = part.start + self._num * self._used
                    return begin - self._num + 1 if self._used else begin
            else:
                starts, why = windows(part.start, stop, self._num)
                self._add(starts[self._used :])
                if why:
                    begin = part.start + self._num * len(starts)
                    self._drop(f"{begin}-{stop - 1}" if stop > begin else "", why)
            self._part, self._used = self._part + 1, 0
        return ALL

    def finish(self) -> Result:
        if self._seen.damage:
            self._drop("", self._seen.damage)
        return self.columns

    def _add(self, starts: Iterator[int] | list[int]) -> None:
        self.columns["clips"] += [{"start": n, "stop": n + self._num} for n in starts]

    def _drop(self, frames: str, reason: str) -> None:
        self.columns["dropped"].append({"frames": frames, "reason": reason})


def windows(start: int, stop: int, num: int) -> tuple[list[int], str]:
    """The first frames of the clips of ``num`` frames from ``start`` to ``stop``, and why a rest
    is left out, "" where none is."""
    starts = list(range(start, stop - num + 1, num))
    rest = stop - start - num * len(starts)
    if starts and rest >= SMALLEST_REST * num:
        return [*starts, stop - num], ""
    if rest > 0:
        few = "a rest of" if starts else "too short:"
        return starts, f"{few} {counted(rest, 'frame')}, a clip has {num}"
    return starts, f"the video ends before frame {start}" if rest < 0 else ""
