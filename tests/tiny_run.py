"""Tiny training runs for tests: shards whose bytes owe nothing to the world, and the recipes."""

import csv
import dataclasses
import shutil
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch

from avatar_v.base.video_format import VideoFormat
from avatar_v.recipe.cli import run_words
from avatar_v.shards.pairs import Judgment, Pair, PairPictures, encode_pair
from avatar_v.shards.schema import Meta, Sample
from avatar_v.shards.writer import write_shard
from avatar_v.types import MOTION_NAMES, SAMPLES_PER_FRAME

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
NUM_FRAMES, SQUARE = 33, VideoFormat(32, 32)
STAGES = (
    "0_vae", "0_vae_decoder", "1_t2v", "2_a2v", "3_pictures", "3_sft", "3_motion", "3_listening",
    "4a_distill_cfg", "4b_distill_dmd", "4c_distill_motion", "4d_causal_forcing",
    "4e_self_forcing", "5a_grpo", "5a_grpo_video", "5b_dpo", "5b_dpo_video", "own_face_vae",
    "own_face", "refiner", "refiner_adversarial", "refiner_decoder",
)  # fmt: skip


def make_shards(folder: Path, video: VideoFormat = SQUARE) -> None:
    """What recipes/tiny.yaml reads, below ``folder``. Integers alone, so the same everywhere."""
    shutil.copytree(_shards(video).name, folder / "shards" / "tiny", dirs_exist_ok=True)


@cache
def _shards(video: VideoFormat) -> tempfile.TemporaryDirectory[str]:
    """Made once for all tests of this process."""
    made = tempfile.TemporaryDirectory()
    for name, num_clips, first in (("train", 8, 0), ("validation", 4, 100), ("own", 1, 200)):
        clips = [make_clip(first + i, video) for i in range(num_clips)]
        write_shard(Path(made.name, name, "clips-000000.tar"), clips)
        for kind, make in (("pairs", make_pair), ("votes", make_video_pair)):
            pairs = [encode_pair(make(first + i, video)) for i in range(num_clips)]
            write_shard(Path(made.name, kind, name, "pairs-000000.tar"), pairs)
    return made


def make_clip(index: int, shown: VideoFormat = SQUARE) -> Sample:
    """A bright square that opens and closes with the loudness of a triangle wave."""
    frame = np.arange(NUM_FRAMES)
    opening = np.abs((frame * (1 + index % 3)) % 16 - 8)  # 0 … 8
    ramp = (np.arange(NUM_FRAMES * SAMPLES_PER_FRAME) * (7 + index % 5)) % 2000 - 1000
    audio = (ramp * np.repeat(opening, SAMPLES_PER_FRAME)).astype(np.int16)
    y, x = np.ogrid[: shown.height, : shown.width]
    video = np.zeros((NUM_FRAMES, 3, *shown.size), np.uint8)
    video[:] = (40 + 4 * ((x + 3 * y + 11 * index) % 32)).astype(np.uint8)
    for f in frame:
        video[f, index % 3, 16 : 17 + opening[f], 10:22] = 220
    box = torch.tensor([0.2, 0.2, 0.8, 0.9]).expand(NUM_FRAMES, 4).contiguous()
    mouth = torch.tensor([0.3, 0.5, 0.7, 0.8]).expand(NUM_FRAMES, 4).contiguous()
    motion = torch.zeros(NUM_FRAMES, len(MOTION_NAMES))
    motion[:, 0] = torch.from_numpy(opening / 8)
    return Sample(
        key=f"clip{index:04d}",
        meta=Meta(
            person=str(index // 2), scene=str(index), sentence=str(index),
            text=f"person {index // 2} in front of stripes", num_frames=NUM_FRAMES,
            height=shown.height, width=shown.width, licence="CC0-1.0", consent="synthetic",
            source="tests", frame_rate_hz=shown.frame_rate_hz,
            sample_rate_hz=SAMPLES_PER_FRAME * shown.frame_rate_hz,
        ),
        audio=torch.from_numpy(audio),
        motion=motion,
        face_box=box,
        mouth_box=mouth,
        landmarks=torch.zeros(NUM_FRAMES, 1, 2),
        valid=torch.ones(NUM_FRAMES, dtype=torch.bool),
        phonemes=torch.zeros(NUM_FRAMES, dtype=torch.int64),
        video=torch.from_numpy(video),
        heard=torch.from_numpy(audio[::-1].copy()) if index % 4 else None,
    )  # fmt: skip


def make_pair(index: int, shown: VideoFormat = SQUARE) -> Pair:
    """The clip's own motion against a mouth that opens to the quarter of it, in either order."""
    clip, reference = make_clip(index, shown), make_clip(index ^ 1, shown)
    meta = dataclasses.replace(clip.meta, height=0, width=0)
    little = clip.motion.clone()
    little[1:] *= 0.25
    own_first = index % 2 == 0
    first, second = (clip.motion, little) if own_first else (little, clip.motion)
    winner = "tie" if index % 4 == 3 else "first" if own_first else "second"
    return Pair(
        dataclasses.replace(clip, meta=meta, video=None),
        first,
        second,
        reference.motion,
        reference.valid,
        Judgment(winner, rater="tests", axis=("overall", "amplitude")[index % 3 == 0]),
    )


def make_video_pair(index: int, shown: VideoFormat = SQUARE) -> Pair:
    """The same with pictures: the one whose mouth opens little is dark."""
    pair, clip = make_pair(index, shown), make_clip(index, shown)
    assert clip.video is not None
    bright, dark = clip.video, clip.video // 2
    first, second = (bright, dark) if torch.equal(pair.first, clip.motion) else (dark, bright)
    portrait = make_clip(index ^ 1, shown).video
    assert portrait is not None
    return dataclasses.replace(pair, pictures=PairPictures(first, second, portrait[:2]))


def run_stage(stage: str, *options: str) -> None:
    """Train the tiny version of a recipe in the working directory."""
    assert (
        run_words("run", [str(RECIPES / f"{stage}.yaml"), str(RECIPES / "tiny.yaml"), *options])
        == 0
    )


def losses(folder: str | Path) -> list[float]:
    """The loss of every step of the run in ``folder``, steps 1, 2, … without a gap."""
    with open(Path(folder) / "loss.csv", newline="", encoding="utf-8") as file:
        rows = [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]
    assert [step for step, _ in rows] == list(range(1, len(rows) + 1))
    return [loss for _, loss in rows]
