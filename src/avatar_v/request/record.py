"""out.json: what was asked, with which weights and code it was made, and how long it took."""

import dataclasses
import json
import os
import platform
import resource
import sys
import time
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from avatar_v.base.command_line import commit_of
from avatar_v.base.paths import whole_file
from avatar_v.base.video_format import VideoFormat
from avatar_v.engines.scene import SceneCandidate
from avatar_v.engines.voice import Said
from avatar_v.engines.writing import Written
from avatar_v.request.request import LIVE, Request
from avatar_v.safety.consent import Consented

PACKAGES = ("avatar_v", "torch", "av")


@dataclass(frozen=True)
class Timing:
    """Seconds of wall clock; the first frame counts from the moment the models are loaded, or from
    the arrival of the first sample of a live sound."""

    load_s: float
    first_frame_s: float
    total_s: float  # of generating and writing, without loading
    frames_per_s: float
    peak_rss_mib: float  # of the process so far
    read_s: float | None = None  # of reading files and following faces, before loading
    wall_s: float | None = None  # from the command's beginning to its end


def measure_timing(
    num_frames: int,
    started: float,
    read_s: float,
    begin: float,
    loaded: float,
    first: float,
    arrived: float | None,
) -> Timing:
    """Of a run that ends now, from the times of `time.perf_counter` when the command began, loading
    began and ended, the first frame came, and the first sample of a live sound arrived."""
    end = time.perf_counter()
    return Timing(
        load_s=round(loaded - begin, 3),
        first_frame_s=round(first - (arrived or loaded), 3),
        total_s=round(end - loaded, 3),
        frames_per_s=round(num_frames / (end - loaded), 2),
        peak_rss_mib=round(peak_rss_mib(), 1),
        read_s=round(read_s, 3),
        wall_s=round(end - started, 3),
    )


@dataclass(frozen=True)
class SpokenTrack:
    """The sound track of a file that is spoken."""

    track: int  # counted from 1
    num_tracks: int
    sample_rate_hz: int
    layout: str
    loudness_lufs: float  # of the voice in it
    delivered_hz: int
    delivered_layout: str


@dataclass(frozen=True)
class ReferenceCheck:
    """How the pictures of a reference compare with those that the weights know."""

    fidelity_db: float | None  # the lowest of its pictures; None: not measured
    least_db: float | None  # what all but 1 % of the VAE's training pictures reach
    people: str  # whom the weights were trained on
    note: str = ""  # why nothing was measured


@dataclass(frozen=True)
class Record:
    """Everything needed to make the same video again, and to judge what it cost."""

    request: Request
    num_frames: int
    video: VideoFormat
    reference_frame: int | None  # the frame of the reference it starts from; None: another, or none
    warnings: tuple[str, ...]
    weights: str  # name or folder
    weights_hash: str
    weights_card: dict[str, Any]
    precision: str
    device: str
    timing: Timing  # of this run alone
    reference_check: ReferenceCheck | None = None  # whether the weights know such pictures
    resumed_chunks: int = 0  # that an interrupted run had made
    offload: bool = False  # weights waited in main memory
    shard: bool = False  # each rank had its part of the weights
    compile: bool = False  # blocks were compiled
    refiner: str | None = None  # folder of the refiner, where there was one
    lora: tuple[str, ...] = ()  # adapters in the weights, with their scales
    scene: tuple[SceneCandidate, ...] = ()  # of --scene, the best first, which begins the video
    said: Said | None = None  # the script of a speech that was made; the .wav beside has its sound
    enhanced: Written | None = None  # of --enhance: what was asked, and the request's words
    track: SpokenTrack | None = None  # of a file of speech
    watermark: str | None = None  # the id that the frames carry
    consented: Consented | None = None  # of the person, where --consent asked for it
    trace: str | None = None  # of OpenTelemetry, where the server writes traces
    commit: str | None = field(default_factory=lambda: commit_of() or None)
    versions: dict[str, str] = field(default_factory=lambda: versions())
    machine: str = field(default_factory=lambda: machine())

    @property
    def fell_behind_s(self) -> float:
        """Of a live sound: by how much its last frame came later than its first; 0 of a file's."""
        if self.request.person.audio != LIVE:
            return 0.0
        return self.timing.total_s - self.timing.first_frame_s - self.length_s

    @property
    def length_s(self) -> float:
        """Seconds of the video."""
        return self.num_frames / self.video.frame_rate_hz


def save_record(path: str | Path, record: Record, **more: Any) -> None:
    """Write ``record`` and further entries as JSON; the file appears whole or not at all."""
    values = {**dataclasses.asdict(record), **more}
    with whole_file(path) as part:
        part.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def machine() -> str:
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"


def rss_mib() -> float:
    """The memory this process holds now; where no /proc tells, the most it has held."""
    status = Path("/proc/self/status")
    if status.is_file():
        return int(status.read_text().split("VmRSS:")[1].split()[0]) / 2**10
    return peak_rss_mib()


def peak_rss_mib() -> float:
    """The most memory this process has held at once."""
    status = Path("/proc/self/status")
    if status.is_file():  # getrusage's would begin with what the parent held when it forked
        return int(status.read_text().split("VmHWM:")[1].split()[0]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
