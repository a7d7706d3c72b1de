"""The time that a system took for a case: a small JSON file beside its video.

``CASE.timing.json`` holds ``total_s``, from the request to the finished video, ``ttff_s`` where the
system streams, ``hardware``, and ``words`` on what is counted. Time to first frame is counted as
Live Avatar's supplement does: sound arrives in real time, and waiting for it is part.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from avatar_v.base.outside import read_json
from avatar_v.base.stored import Within, built
from avatar_v_eval.records import hardware

SUFFIX = ".timing.json"
NO_TIMING = "the system reports no timing"


Seconds = Annotated[float, Within(1e-9, 1e9)]


@dataclass(frozen=True)
class SystemTiming:
    """Seconds of wall clock; ``ttff_s`` is None where frames come only when all are done."""

    total_s: Seconds
    hardware: str
    ttff_s: Seconds | None = None
    words: str = ""

    def __post_init__(self) -> None:
        if not self.hardware.strip():
            raise ValueError(f"hardware is a name, got {self.hardware!r}")

    @property
    def notes(self) -> tuple[str, ...]:
        """The facts that a reader needs beside the number."""
        return (self.hardware, self.words) if self.words else (self.hardware,)


def load_timing(path: Path | None) -> SystemTiming:
    """The timing in a file; ValueError where the system gave none, or a damaged one."""
    if path is None:
        raise ValueError(NO_TIMING)
    return read_timing(path)


def timing_path(video: Path) -> Path:
    """Where the timing of a video lies."""
    return video.with_name(video.stem + SUFFIX)


def reported(video: Path) -> Path | None:
    """The timing file of a video, if there is one."""
    path = timing_path(video)
    return path if path.is_file() else None


def write_timing(video: Path, timing: SystemTiming) -> Path:
    """Whole or not at all."""
    path = timing_path(video)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(dataclasses.asdict(timing)) + "\n", encoding="utf-8")
    partial.replace(path)
    return path


def read_timing(path: Path) -> SystemTiming:
    """ValueError for anything but positive seconds and the name of the hardware."""
    return built(SystemTiming, read_json(path), where=path.name, sparse=True)


def machine(precision: str = "") -> str:
    """This one in words: its accelerator, or its processor and cores, and the precision of networks
    where that is known."""
    found = hardware()
    name = found["gpu"] if found["gpu"] != "none" else f"{found['cpu']}, {found['cores']} cores"
    return f"{name}, {precision}" if precision else name
