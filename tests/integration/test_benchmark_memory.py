"""Memory of `avatar-v-eval run` does not grow with the length of a video: 512 x 512, drawn faces.

A process scores a video of ten seconds and another one of a longer; the kernel says how much memory
each held at its highest (VmHWM). What the longer one has more of frames would be 390 MB.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from avatar_v.media.writer import Mp4Writer, write_wav
from avatar_v_eval.bench.manifest import BenchManifest, CaseFiles, file_hashes, write_manifest
from avatar_v_eval.bench.world70 import write_png
from bench_cases import world_clip

SIDE = 512
SECOND = 25  # frames

PROGRAM = """
import sys
from avatar_v_eval.cli import main
status = main(sys.argv[1:])
peak = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print("peak", peak[0].split()[1])
sys.exit(status)
"""


def make(folder: Path, num_seconds: int) -> None:
    """A case whose truth says the same second again and again; the reference is one second."""
    clip = world_clip(0, 4 * SECOND)
    assert clip.video is not None
    large = clip.video.repeat_interleave(SIDE // 64, 2).repeat_interleave(SIDE // 64, 3)
    sound = clip.audio.repeat(num_seconds // 4)
    for name, times, audio in (("reference", 1, clip.audio), ("truth", num_seconds // 4, sound)):
        (folder / name).mkdir(parents=True)
        with Mp4Writer(folder / name / "c.mp4", audio) as writer:
            for _ in range(times):
                writer.write(large)
    write_wav(folder / "c.wav", sound)
    write_png(folder / "c.png", large[0])
    files = {"reference": "reference/c.mp4", "audio": "c.wav", "image": "c.png"}
    files["truth"] = "truth/c.mp4"
    known = dict.fromkeys(("person", "language", "licence", "consent"), "x")
    case = CaseFiles(id="c", condition="same", sha256=file_hashes(folder, files), **known, **files)
    write_manifest(BenchManifest(folder.resolve(), "long", "drawn", (case,)))


def peak_mib(folder: Path, num_seconds: int) -> float:
    make(folder, num_seconds)
    command = [sys.executable, "-c", PROGRAM, "run", str(folder), "--out", str(folder / "out")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reasons = [line for line in done.stdout.splitlines() if line.startswith("truth,")]
    assert all("timing" in line for line in reasons), done.stdout  # no metric failed
    return int(done.stdout.split("peak")[1]) / 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="VmHWM is Linux's")
def test_memory_is_flat(tmp_path: Path) -> None:
    short = peak_mib(tmp_path / "short", 12)
    long = peak_mib(tmp_path / "long", 32)
    print(f"{short:.0f} MiB for 12 s, {long:.0f} MiB for 32 s")
    assert long < short + 150  # two equal runs differ by up to 90: the heap's holes
