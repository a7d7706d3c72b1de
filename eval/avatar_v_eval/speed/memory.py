"""Memory by the length of a video, which should not make it grow.

One ``avatar-v generate`` process per duration, in turns, mp4 writing included; its peak is that of
its own record. Few sampling steps: every step reuses the memory of the one before. In each process
the resident memory is also read while it runs: from its first tenth to its last one it may not
grow. A temporary file grows with the video, its sound, 64 kB a second. ``--seconds 10 3600 --preset
tiny --name speed_memory_hour`` is an hour with small, untrained networks.
"""

import argparse
import json
import os
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from avatar_v.base import checks
from avatar_v.media.writer import Mp4Writer, write_wav
from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.weights.card import DEFAULT_WEIGHTS, Card
from avatar_v.weights.presets import build
from avatar_v.weights.weights import save_pipeline
from avatar_v_eval.cases import drawn_clips, rendered_video
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import AVATAR_V

CLIP_FRAMES = 101
LOOK_S = 0.2  # how often resident memory is read
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True)
class MemoryRun:
    """One process."""

    peak_mib: float
    resident_mib: tuple[float, ...]  # while frames were written
    took_s: float

    @property
    def growth(self) -> float:
        """Of resident memory from the second to the last tenth of the run."""
        first, last = (len(self.resident_mib) * i // 10 for i in (1, 9))
        begin = np.median(self.resident_mib[first : 2 * first + 1])
        return float(np.median(self.resident_mib[last:]) / begin - 1)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--preset", choices=("tiny",), help="untrained weights, not --weights")
    add("--weights", default=DEFAULT_WEIGHTS, help="folder, or the name of shipped weights")
    add("--seconds", type=int, nargs="+", default=(10, 60, 600), help="durations")
    add("--steps", type=int, default=2, help="of the sampler")
    add("--repeats", type=int, default=2)


def measure(options: argparse.Namespace) -> Findings:
    for name in ("repeats", "steps"):
        checks.count(f"--{name}", getattr(options, name))
    for seconds in options.seconds:
        checks.count("--seconds", seconds)
    runs: dict[int, list[MemoryRun]] = {seconds: [] for seconds in options.seconds}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights = options.weights
        if options.preset is not None:
            weights = str(folder / "weights")
            save_pipeline(weights, *build(options.preset), Card(options.preset, recipe="none"))
        for _ in range(options.repeats):
            for seconds in options.seconds:
                runs[seconds].append(one_run(seconds, weights, options.steps, folder))
    words = f"untrained, {options.preset}" if options.preset else options.weights
    return Findings(
        "Memory by the length of the video",
        summarise_runs(runs),
        notes=[
            f"weights: {words}; one `avatar-v generate --steps {options.steps}` process per "
            f"duration and turn, {options.repeats} turns; lowest and highest of the turns",
            f"growth within a run: resident memory, read every {LOOK_S} s, in the last tenth over "
            "the second one",
        ],
    )


def summarise_runs(runs: dict[int, list[MemoryRun]]) -> dict[str, Number]:
    """Peaks, their growth over the shortest video within each turn, growth within runs, time."""
    shortest, *longer = sorted(runs)
    base = [run.peak_mib for run in runs[shortest]]
    numbers = {}
    for seconds in (shortest, *longer):
        numbers[f"peak_{seconds}s"] = median_of_repeats(
            [run.peak_mib for run in runs[seconds]]
        ).described(f"peak memory, {_length(seconds)} of video", unit="MiB")
    for seconds in longer:
        grown = [run.peak_mib / b - 1 for run, b in zip(runs[seconds], base, strict=True)]
        numbers[f"growth_{seconds}s"] = median_of_repeats(grown).described(
            f"growth of peak memory from {_length(shortest)} to {_length(seconds)}",
            target="|·| < 0.05",
        )
        numbers[f"within_{seconds}s"] = median_of_repeats(
            [run.growth for run in runs[seconds]]
        ).described(f"growth of memory while {_length(seconds)} are made", target="|·| < 0.05")
        numbers[f"took_{seconds}s"] = median_of_repeats(
            [run.took_s for run in runs[seconds]]
        ).described(f"whole command, {_length(seconds)} of video", unit="s")
    return numbers


def one_run(seconds: int, weights: str, num_steps: int, folder: Path) -> MemoryRun:
    """`avatar-v generate` over so many seconds of speech; RuntimeError where it fails."""
    (clip,) = drawn_clips("test", 1, num_frames=CLIP_FRAMES)
    reference, sound = folder / "reference.mp4", folder / "speech.wav"
    with Mp4Writer(reference, clip.audio) as writer:
        writer.write(rendered_video(clip))
    num = seconds * FRAME_RATE_HZ
    write_wav(sound, clip.audio.repeat(-(-num // CLIP_FRAMES))[: num * SAMPLES_PER_FRAME])
    words = [
        *("generate", "--reference", str(reference), "--audio", str(sound)),
        *("--out", str(folder / "out.mp4"), "--overwrite", "--steps", str(num_steps)),
        *("--weights", weights),
    ]
    begin = time.perf_counter()
    child = subprocess.Popen([*AVATAR_V, *words], stdout=subprocess.DEVNULL)
    resident: list[float] = []
    ended = threading.Event()
    looks = threading.Thread(target=_look, args=(child.pid, folder, resident, ended))
    looks.start()
    child.wait()
    ended.set()
    looks.join()
    if child.returncode:
        raise RuntimeError(f"avatar-v {' '.join(words)} ended with {child.returncode}")
    took_s = time.perf_counter() - begin
    # its own account: the system's for a child begins with what this process held when it began
    timing = json.loads((folder / "out.json").read_text())["timing"]
    return MemoryRun(timing["peak_rss_mib"], tuple(resident), took_s)


def _look(pid: int, folder: Path, resident: list[float], ended: threading.Event) -> None:
    """Resident memory of the process from the first frames in the file on."""
    growing = folder / ".out.mp4.part" / "video.mp4"
    while not ended.wait(LOOK_S):
        if growing.exists():
            pages = Path(f"/proc/{pid}/statm").read_text().split()
            if len(pages) > 1 and int(pages[1]):
                resident.append(int(pages[1]) * PAGE_MIB)


def _length(seconds: int) -> str:
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"
