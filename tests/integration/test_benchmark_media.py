"""`avatar-v-eval` on a real person, offline: from clips to rows; faces lost, absent, or two."""

from pathlib import Path

import polars as pl
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.media.reading import read_audio, read_video
from bench_cases import bench, write_video

pytestmark = pytest.mark.media
FRAMES = 30


def two_heads(frames: Tensor) -> Tensor:
    """The picture twice at half its size, side by side on grey."""
    small = F.interpolate(frames.float(), scale_factor=0.5, mode="area").byte()
    pair = torch.cat([small, small], 3)
    return torch.cat([pair, torch.full_like(pair, 90)], 2)


@pytest.mark.faces
def test_a_real_person_from_clips_to_rows(media: Path, tmp_path: Path):
    frames = read_video(media / "talking_head.mp4", max_frames=2 * FRAMES)
    audio = read_audio(media / "talking_head.mp4")
    for name, part in (("a", slice(0, FRAMES)), ("b", slice(FRAMES, 2 * FRAMES))):
        sound = audio[part.start * 640 : part.stop * 640]
        write_video(tmp_path / f"clips/p/{name}.mp4", frames[part], sound)
    assert bench("cases", "build", tmp_path / "clips", "--out", tmp_path / "cases") == 0
    shown, sound = frames[:FRAMES], audio[: FRAMES * 640]
    blank = torch.full_like(shown, 90)
    spoilt = {
        "none": blank,
        "lost": torch.cat([shown[: FRAMES // 2], blank[FRAMES // 2 :]]),
        "two": two_heads(shown),
    }
    words = ["run", tmp_path / "cases", "--metrics", "face_dlib", "style_landmarks", "flicker"]
    for name, video in spoilt.items():
        write_video(tmp_path / name / "p_a.mp4", video, sound)
        words += ["--system", f"{name}={tmp_path / name}"]
    assert bench(*words, "--out", tmp_path / "out") == 0
    table = pl.read_parquet(tmp_path / "out/cases.parquet").filter(pl.col("case") == "p_a")

    def of(system: str, output: str) -> dict:
        return table.filter((pl.col("system") == system) & (pl.col("output") == output)).row(
            0, named=True
        )

    assert of("truth", "face_dlib")["value"] < 0.6  # dlib's own threshold for one person
    assert of("truth", "face_dlib_found")["value"] == 1.0
    for output in ("face_dlib", "style_landmarks"):
        assert "no face was found" in of("none", output)["reason"]
    assert of("none", "flicker")["value"] < 0.5  # what needs no face is measured all the same
    assert 0 < of("lost", "face_dlib_found")["value"] < 1
    assert "1 s of motion" in of("lost", "style_landmarks")["reason"]
    assert "2 faces in one picture" in of("two", "face_dlib")["notes"]
