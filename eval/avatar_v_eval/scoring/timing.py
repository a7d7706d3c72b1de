"""The time that a system took for a case: a small JSON file beside its video.

``CASE.timing.json`` holds ``total_s``, from the request to the finished video, ``ttff_s`` where the
system streams, ``hardware``, and ``words`` on what is counted. Time to first frame is counted as
Live Avatar's supplement does: sound arrives in real time, and waiting for it is part.
"""

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path

from avatar_v.base.outside import read_json
from avatar_v_eval.records import hardware

SUFFIX = ".timing.json"
NO_TIMING = "the system reports no timing"


@dataclass(frozen=True)
class SystemTiming:
    """Seconds of wall clock; ``ttff_s`` is None where frames come only when all are done."""

    total_s: float
    hardware: str
    ttff_s: float | None = None
    words: str = ""

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
    try:
        timing = SystemTiming(**read_json(path))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path.name} is no timing ({error}): expected total_s, hardware"
        ) from error
    for name, value in (("total_s", timing.total_s), ("ttff_s", timing.ttff_s)):
        if value is None and name == "ttff_s":
            continue
        if not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise ValueError(f"{path.name}: {name} is seconds above 0, got {value!r}")
    if not isinstance(timing.hardware, str) or not timing.hardware.strip():
        raise ValueError(f"{path.name}: hardware is a name, got {timing.hardware!r}")
    return timing


def machine(precision: str = "") -> str:
    """This one in words: its accelerator, or its processor and cores, and the precision of networks
    where that is known."""
    found = hardware()
    name = found["gpu"] if found["gpu"] != "none" else f"{found['cpu']}, {found['cores']} cores"
    return f"{name}, {precision}" if precision else name
