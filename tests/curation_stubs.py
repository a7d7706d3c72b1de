"""Stages that read no file: importable by worker processes, too."""

import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from avatar_v_data.curation.kinds import is_among
from avatar_v_data.curation.select import is_number
from avatar_v_data.curation.stages import Clip, FootageRecording, Reader, Reads, Result, Seen, Stage


@dataclass(frozen=True)
class Count(Stage):
    """Counts the letters of the file's name. "deadly" ends its process, as often as files named
    0, 1 … can be made in ``deaths``, and so does "burnt" for its GPU's sake; "odd" is no number;
    "full" and "big" are this machine's fault."""

    add: int = 0
    busy_s: float = 0.0
    deaths: str = ""
    most: int = 1 << 30

    name: ClassVar[str] = "count"
    version: ClassVar[int] = 1
    reads: ClassVar[Reads] = "file"

    def begin(self, seen: Seen) -> Reader:
        name = seen.recording.name
        if self.busy_s:
            time.sleep(self.busy_s)
        if name == "bad":
            raise ValueError(f"{seen.recording.path}: holds no frames")
        if name.startswith("full"):
            raise OSError("no space left")
        if name == "big":
            raise MemoryError
        if name in ("deadly", "burnt") and (num := len(os.listdir(self.deaths))) < self.most:
            (Path(self.deaths) / str(num)).touch()
            if name == "burnt":
                raise torch.AcceleratorError("unspecified launch failure")
            time.sleep(0.3)  # what was done before has been told by then
            os.kill(os.getpid(), 9)
        number = math.nan if name == "odd" else len(name) + self.add
        return Reader({"letters": number, "none": None})


@dataclass(frozen=True)
class Double(Stage):
    """One that needs it."""

    name: ClassVar[str] = "double"
    version: ClassVar[int] = 1
    reads: ClassVar[Reads] = "file"
    needs: ClassVar[tuple[str, ...]] = ("count",)

    def begin(self, seen: Seen) -> Reader:
        twice = 2 * seen.results["count"]["letters"]
        return Reader({"twice": twice, "clips": [{"a": 1}, {"a": 2}]})


@dataclass(frozen=True)
class Last(Stage):
    """One that uses both."""

    name: ClassVar[str] = "last"
    version: ClassVar[int] = 1
    reads: ClassVar[Reads] = "file"
    needs: ClassVar[tuple[str, ...]] = ("count",)
    uses: ClassVar[tuple[str, ...]] = ("double",)

    def begin(self, seen: Seen) -> Reader:
        twice = seen.results.get("double", {"twice": -1})["twice"]
        return Reader({"sum": seen.results["count"]["letters"] + twice})


def recordings(*names: str) -> list[FootageRecording]:
    return [FootageRecording(f"/{name}", name, "1") for name in names]


def undeclared(stage: Stage, row: Result) -> list[str]:
    """Numbers and words of a clip's row that the stage's class does not name."""
    return [
        name
        for name, value in row.items()
        if (is_number(value) and not is_among(name, stage.numbers))
        or (isinstance(value, str) and name not in stage.texts)
    ]


FILE = FootageRecording("x.mp4", "x.mp4", "")


def scores(stage: Stage, frames: torch.Tensor, *spans: tuple[int, int]) -> list[Result]:
    """What a stage says of clips of these frames."""
    reader = stage.begin(Seen(FILE))
    for number, (start, stop) in enumerate(spans):
        reader.clip(Clip(number, start, stop, list(frames[start:stop])))
    rows = reader.finish()["clips"]
    assert not [name for row in rows for name in undeclared(stage, row)]
    return rows
