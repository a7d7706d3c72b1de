"""A stage of the engine: what it reads of a recording, and what it says of it, a JSON object.

A stage is a small class: its settings are its dataclass fields, and it says by its ``reads`` what
it is given. All that read frames share one pass through the file (passes.py), which decodes each
frame once: those that read ``frames`` see all of them, then one of ``results`` decides which become
clips, and those that read ``clips`` are given each clip's frames as soon as that is decided. Those
that read ``clip sounds`` hear each clip, and no frame is decoded for them.

A stage only scores; limits are for later (select.py), so that a limit that changes runs no model
again. With its version and its weights its settings are part of the name under which a result is
kept: whatever changes one of them changes the name, and so the names of all that depend on it.
"""

import dataclasses
import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.media.reading import read_audio
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v_data.import_plan import ImportPart

Frame = UInt8[Tensor, "3 h w"]
Frames = UInt8[Tensor, "f 3 h w"]
Waveform = Float[Tensor, " s"]
Result = dict[str, Any]
Reads = Literal["file", "sound", "frames", "results", "clips", "clip sounds"]

MAX_SIDE = 480
"""Pixels: what models of the engine look at is no larger, so that a clip fits into memory."""
FAILED = "failed"
"""The key of a result that is the reason why there is none."""
MEMORY = (MemoryError, torch.OutOfMemoryError)
MACHINE = (OSError, ImportError, *MEMORY, torch.AcceleratorError)
"""Errors of this machine, and no results of a recording."""
ALL = 1 << 62
"""A frame behind all others."""
TICK = 5
"""Frames from one in which faces are looked for to the next. Lists by tick have one entry each."""
TICKS_PER_S = FRAME_RATE_HZ / TICK


@dataclass(frozen=True)
class FootageRecording:
    """One file of footage. ``state`` changes when the file does, or its ``parts``."""

    path: str
    name: str  # its path within the folder, as it can be printed
    state: str
    parts: tuple[ImportPart, ...] = ()  # what a manifest takes of it; none: all of it
    left_out: tuple[tuple[int, int], ...] = ()  # frames that are not looked at (prints.py)
    why: str = ""  # no stage behind the prints looks at any of it, "" where they do
    frame_rate_hz: int = FRAME_RATE_HZ  # that its frames are read at, with 640 samples each
    heard: str = ""  # path of the sound that the person listens to, "" for none

    @classmethod
    def of(
        cls,
        path: Path,
        name: str,
        parts: Sequence[ImportPart] = (),
        frame_rate_hz: int = FRAME_RATE_HZ,
        heard: str = "",
    ) -> "FootageRecording":
        """By size and time of change: hours of video are not read to name them."""
        spans = [(part.start, part.stop, part.sound_late) for part in parts]
        words = ":".join(map(str, spans))
        words += "" if frame_rate_hz == FRAME_RATE_HZ else f" at {frame_rate_hz}"
        words += f" hears {_state(Path(heard))}" if heard else ""
        known = {"frame_rate_hz": frame_rate_hz, "heard": heard}
        return cls(str(path), name, f"{_state(path)}{words}", tuple(parts), **known)


def _state(path: Path) -> str:
    try:
        stat = os.stat(path)
    except OSError:
        return "missing"
    return f"{stat.st_size}:{stat.st_mtime_ns}"


@dataclass
class Seen:
    """A recording in hand: what other stages say of it so far, and where files go."""

    recording: FootageRecording
    results: dict[str, Result] = field(default_factory=dict)
    files: Path = Path()  # where a stage may leave a file, under its result's key
    keys: Mapping[str, str] = field(default_factory=dict)  # of the results, by stage
    damage: str = ""  # why the frames ended before the file did

    @cached_property
    def audio(self) -> Waveform:
        """Mono, 16 kHz at 25 frames a second. ValueError where the file has none that can be
        read."""
        rate = SAMPLES_PER_FRAME * self.recording.frame_rate_hz
        return read_audio(self.recording.path, sample_rate_hz=rate)

    @cached_property
    def heard(self) -> Waveform | None:
        """Whom the person listens to, as ``audio``; None: nobody. ValueError as there."""
        rate = SAMPLES_PER_FRAME * self.recording.frame_rate_hz
        path = self.recording.heard
        return read_audio(path, sample_rate_hz=rate) if path else None


@dataclass(frozen=True)
class Clip:
    """The frames ``start`` to ``stop`` of a recording, ``number`` among its clips."""

    number: int
    start: int
    stop: int
    frames: Sequence[Any]  # of Frame, read when they are asked for: ValueError where one cannot be

    def stacked(self) -> Frames:
        return torch.stack(list(self.frames))

    def some(self, num: int) -> Frames:
        """So many of them, evenly spread, or all."""
        at = torch.linspace(0, len(self.frames) - 1, num).round().long().unique().tolist()
        return torch.stack([self.frames[number] for number in at])

    def sound(self, audio: Waveform) -> Float[Tensor, " n"]:
        """With silence where the file has none."""
        part = audio[self.start * SAMPLES_PER_FRAME : self.stop * SAMPLES_PER_FRAME]
        missing = (self.stop - self.start) * SAMPLES_PER_FRAME - len(part)
        return torch.nn.functional.pad(part, (0, missing))


class Reader:
    """A stage at work on one recording. ``columns`` is what it can say already."""

    def __init__(self, columns: Result | None = None) -> None:
        self.columns: Result = columns or {}

    def frame(self, number: int, picture: Frame) -> None:
        """The next frame, for a stage that reads frames."""

    def decide(self, num_frames: int, *, ended: bool) -> int:
        """For one that reads results, behind so many frames: add to ``columns["clips"]`` what is
        decided, in order, and say which is the first frame that a later clip may have, `ALL` for
        none."""
        return ALL

    def clip(self, clip: Clip) -> None:
        """The next clip, for a stage that reads clips."""

    def finish(self) -> Result:
        """All that the stage has to say, when the recording has ended."""
        return self.columns


class Stage(ABC):
    """The base of all stages, which are frozen dataclasses. A result is a function of the recording
    and of the results of ``needs`` alone. ValueError of any method: the recording has nothing for
    this stage, which is a result, too."""

    name: ClassVar[str]
    version: ClassVar[int]
    reads: ClassVar[Reads]
    needs: ClassVar[tuple[str, ...]] = ()
    """Stages whose results this one reads."""
    uses: ClassVar[tuple[str, ...]] = ()
    """And those that it reads where the plan has them; prints where they are made beforehand."""
    numbers: ClassVar[tuple[str, ...]] = ()
    """Columns of each clip that a limit can name; one that ends in "_" stands for all that begin
    so, whose names weights say."""
    texts: ClassVar[tuple[str, ...]] = ()
    """Those that are words."""
    vectors: ClassVar[tuple[str, ...]] = ()
    """Those that are unit vectors."""
    whole: ClassVar[bool] = True
    """Whether a recording whose frames end in an error has no result."""

    @property
    def side(self) -> int:
        """Pixels of the longer side of the frames, at most."""
        return MAX_SIDE

    def weights(self) -> str:
        """A hash of what is loaded, "" for a formula. Nothing is loaded for it. ValueError
        that says what to supply."""
        return ""

    @abstractmethod
    def begin(self, seen: Seen) -> Reader:
        """Start on a recording. One that reads the file or its sound is done then, and gives all
        that it has to say."""


class ClipScorer(Stage):
    """The base of stages that look at each clip by itself."""

    reads: ClassVar[Reads] = "clips"

    @abstractmethod
    def score(self, clip: Clip, seen: Seen) -> Result:
        """The columns of a clip."""

    def begin(self, seen: Seen) -> Reader:
        return _Scores(self, seen)


class SoundScorer(ClipScorer):
    """The base of stages that hear each clip by itself, when all are known, and see no frame."""

    reads: ClassVar[Reads] = "clip sounds"

    def begin(self, seen: Seen) -> Reader:
        return _Heard(self, seen)


class _Scores(Reader):
    def __init__(self, stage: ClipScorer, seen: Seen) -> None:
        super().__init__({"clips": []})
        self._stage, self._seen = stage, seen

    def clip(self, clip: Clip) -> None:
        self.columns["clips"].append(self._stage.score(clip, self._seen))


class _Heard(_Scores):
    def finish(self) -> Result:
        for number, span in enumerate(self._seen.results["clips"]["clips"]):
            self.clip(Clip(number, span["start"], span["stop"], ()))
        return self.columns


def stage_identity(stage: Stage) -> str:
    """What of a stage its results depend on. Weights are hashed for it: ask once a run."""
    settings = dataclasses.asdict(stage)  # pyright: ignore[reportArgumentType]
    return json.dumps([stage.name, stage.version, settings, stage.weights()], sort_keys=True)


def result_key(identity: str, recording: FootageRecording, inputs: Sequence[str]) -> str:
    """The name of a stage's result: of all that it depends on, 32 hex digits."""
    words = [identity, recording.name, recording.state, *inputs]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]


def seconds(frames: int) -> float:
    """Of a number of frames."""
    return frames / FRAME_RATE_HZ


def rounded(values: Tensor, digits: int = 4) -> list:
    """A tensor as JSON takes it."""
    return torch.round(values.double(), decimals=digits).tolist()
