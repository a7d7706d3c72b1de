"""Generation by the code as it is beside the code of an earlier commit, in turns.

The commit is unpacked into a temporary folder, with the weights that it shipped. Both make the same
video by ``avatar-v generate``, a process each, and their own records tell the times: of a denoising
step (many steps less few), to the first frame, and of a frame where the sound comes through a pipe.
"""

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from avatar_v.media.writer import Mp4Writer, write_wav
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v_eval.cases import drawn_clips, video_of
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import RESULTS_DIR
from avatar_v_eval.rollout import AVATAR_V
from avatar_v_eval.turns import ratio, turns_note

ROOT = RESULTS_DIR.parent.parent
REFERENCE_FRAMES, SPEECH_FRAMES = 101, 75
MANY, FEW = 24, 4
"""Steps of the sampler."""
LABELS = {
    "step": "a denoising step",
    "first_frame": "time to the first frame",
    "live": f"a frame, {FEW} steps, sound from a pipe",
}
WAV_HEADER = 44
"""Bytes of a WAV file before its samples, which are what a pipe takes."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="speed_commit")
    add = parser.add_argument
    add("commit", help="an earlier one of this repository")
    add("--weights", default="small", help="a name that both ship (%(default)s)")
    add("--repeats", type=int, default=5)


def measure(options: argparse.Namespace) -> Findings:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trees = {"now": ROOT, "before": unpacked(options.commit, folder / "before")}
        write_inputs(folder)
        times = {key: {tree: [] for tree in trees} for key in LABELS}
        for turn in range(options.repeats + 1):
            for tree in trees if turn % 2 else reversed(trees):
                took = one_turn(trees[tree], options.weights, folder)
                for key in LABELS if turn else ():
                    times[key][tree].append(took[key])
    numbers = {
        key: ratio(found, "now", "before").described(f"{LABELS[key]}: now over {options.commit}")
        for key, found in times.items()
    }
    return Findings(
        "Generation beside an earlier commit",
        numbers,
        notes=[
            f"`avatar-v generate --weights {options.weights}`, {MANY} and {FEW} steps, "
            f"{SPEECH_FRAMES} frames; {turns_note(options.repeats)}"
        ],
    )


def unpacked(commit: str, folder: Path) -> Path:
    """The files of ``commit`` in ``folder``. ValueError for one that the repository does not
    have."""
    folder.mkdir()
    given = subprocess.run(["git", "archive", commit, "--"], cwd=ROOT, capture_output=True)
    if given.returncode:
        said = given.stderr.decode(errors="replace").strip().splitlines()
        raise ValueError(f"commit {commit}: {said[-1] if said else 'git archive failed'}")
    subprocess.run(["tar", "-x", "-C", str(folder)], input=given.stdout, check=True)
    return folder


def write_inputs(folder: Path) -> None:
    """A reference clip and speech of a drawn person, in ``folder``."""
    (clip,) = drawn_clips("test", 1, num_frames=REFERENCE_FRAMES)
    with Mp4Writer(folder / "reference.mp4", clip.audio) as writer:
        writer.write(video_of(clip))
    write_wav(folder / "speech.wav", clip.audio[: SPEECH_FRAMES * SAMPLES_PER_FRAME])


def one_turn(tree: Path, weights: str, folder: Path) -> dict[str, float]:
    """Seconds of `LABELS` by the code of ``tree``."""
    many, few = (generated(tree, weights, folder, steps, "speech.wav") for steps in (MANY, FEW))
    live = generated(tree, weights, folder, FEW, "-")
    return {
        "step": (many["total_s"] - few["total_s"]) / (MANY - FEW),
        "first_frame": many["first_frame_s"],
        "live": 1 / live["frames_per_s"],
    }


def generated(tree: Path, weights: str, folder: Path, steps: int, audio: str) -> dict[str, float]:
    """What a run's record says of its time. RuntimeError where it fails."""
    out = folder / "out.mp4"
    words = ["--weights", weights, "--steps", str(steps), "--seed", "0", "--device", "cpu"]
    words += ["--reference", str(folder / "reference.mp4"), "--motion", "meter"]
    words += ["--no-face-crop"]
    words += ["--audio", audio if audio == "-" else str(folder / audio), "--out", str(out)]
    paths = os.pathsep.join(str(tree / part) for part in ("src", "eval", "data"))
    ran = subprocess.run(
        [*AVATAR_V, "generate", *words],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": paths},
        input=(folder / "speech.wav").read_bytes()[WAV_HEADER:] if audio == "-" else None,
        capture_output=True,
    )
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"{tree} --steps {steps} --audio {audio}: {said[-500:]}")
    timing = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))["timing"]
    for written in folder.glob("out.*"):
        written.unlink()
    return timing
