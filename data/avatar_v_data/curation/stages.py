"""A stage of the engine: one recording, and what other stages say of it, to a JSON object.

A stage only scores; limits are for later (select.py), so that a limit that changes runs no model
again. Its settings are the fields of its class. With its version and its weights they are part of
the name under which a result is kept: whatever changes one of them changes the name, and so the
names of all results that depend on it.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from avatar_v.media.reading import iter_video, read_audio
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME

Frame = UInt8[Tensor, "3 h w"]
Frames = UInt8[Tensor, "f 3 h w"]
Waveform = Float[Tensor, " s"]
Result = dict[str, Any]

MAX_SIDE = 480
"""Pixels: what models of the engine look at is no larger, so that a clip fits into memory."""
EVERY = 5
"""Frames from one look for faces to the next; all lists "of looks" have one entry each."""


@dataclass(frozen=True)
class FootageRecording:
    """One file of footage. ``state`` changes when the file does."""

    path: str
    name: str  # its path within the folder, as it can be printed
    state: str

    @classmethod
    def of(cls, path: Path, name: str) -> "FootageRecording":
        """By size and time of change: hours of video are not read to name them."""
        try:
            stat = os.stat(path)
        except OSError:
            return cls(str(path), name, "missing")
        return cls(str(path), name, f"{stat.st_size}:{stat.st_mtime_ns}")

    def frames(self) -> Iterator[Frame]:
        """25 a second, one in memory at a time. ValueError for a file that cannot be read."""
        return iter_video(self.path, max_side=MAX_SIDE)

    def audio(self) -> Waveform:
        """16 kHz mono."""
        return read_audio(self.path)


@runtime_checkable
class Stage(Protocol):
    """``run`` is a pure function of the recording and ``needs``; settings are dataclass fields."""

    name: ClassVar[str]
    version: ClassVar[int]
    needs: ClassVar[tuple[str, ...]]

    def weights(self) -> str:
        """A hash of what is loaded, "" for a formula. Nothing is loaded for it. ValueError or
        ImportError that says what to supply."""
        ...

    def run(self, recording: FootageRecording, results: Mapping[str, Result]) -> Result:
        """ValueError for a recording that has nothing for this stage: a result, too."""
        ...


def stage_identity(stage: Stage) -> str:
    """What of a stage its results depend on. Weights are hashed for it: ask once a run."""
    settings = dataclasses.asdict(stage)  # pyright: ignore[reportArgumentType]
    return json.dumps([stage.name, stage.version, settings, stage.weights()], sort_keys=True)


def result_key(identity: str, recording: FootageRecording, inputs: Sequence[str]) -> str:
    """The name of a stage's result: of all that it depends on, 32 hex digits."""
    words = [identity, recording.name, recording.state, *inputs]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:32]


def clip_frames(
    recording: FootageRecording, spans: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, Frames]]:
    """Number and frames of each span, start to stop, ascending, in one pass through the video."""
    held: list[Frame] = []
    waiting = list(enumerate(spans))
    for number, frame in enumerate(recording.frames()):
        if not waiting:
            return
        index, (start, stop) = waiting[0]
        if start <= number < stop:
            held.append(frame)
        if number == stop - 1:
            yield index, torch.stack(held)
            held = []
            waiting.pop(0)
    if waiting:
        raise ValueError(f"the video ends before frame {waiting[0][1][1]}")


def clip_sound(audio: Waveform, start: int, stop: int) -> Float[Tensor, " n"]:
    """The sound of frames, with silence where the file has none."""
    part = audio[start * SAMPLES_PER_FRAME : stop * SAMPLES_PER_FRAME]
    return torch.nn.functional.pad(part, (0, (stop - start) * SAMPLES_PER_FRAME - len(part)))


def seconds(frames: int) -> float:
    """Of a number of frames."""
    return frames / FRAME_RATE_HZ


def rounded(values: Tensor, digits: int = 4) -> list:
    """A tensor as JSON takes it."""
    return torch.round(values.double(), decimals=digits).tolist()
