"""From shards to a video in a wide picture at 24 frames a second: what a run was trained with, the
format of its pictures, the length of its windows and the shift of its times, is what generation
takes; its card says it."""

from pathlib import Path

import pytest
import torch
import yaml

from avatar_v.base.video_format import VideoFormat
from avatar_v.generate.run import run
from avatar_v.media.reading import encode_video_bytes, probe, read_video
from avatar_v.media.writer import write_wav
from avatar_v.request.request import Request, Weights
from avatar_v.weights.card import read_card
from tiny_run import make_clip, make_shards, run_stage

WIDE = VideoFormat(48, 32, 24)
OBJECTIVE = {
    "window_latents": {0: 1, 1: 4, 3: 5},  # the first run ends before step 3
    "resolution": {0: 1.0, 1: 0.5, 2: 0.7, 3: 1.0},
    "shift": 2.0,
}


def test_a_wide_picture_at_another_rate_from_shards_to_a_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_shards(tmp_path, WIDE)
    monkeypatch.chdir(tmp_path)
    train("1_t2v", models={"vae": None}, objective=OBJECTIVE)
    can = read_card("runs/tiny/1_t2v/weights").can
    assert (can.video, can.window_latents, can.shift) == (VideoFormat(32, 16, 24), 4, 2.0)
    train("2_a2v")
    train("3_sft", models={"init_from": "runs/tiny/2_a2v/weights"})
    train("refiner")
    can = read_card("runs/tiny/3_sft/weights").can
    assert (can.video, can.reference) == (WIDE, True)

    shown = make_clip(0, VideoFormat(96, 64, 24)).video
    assert shown is not None
    Path("me.mp4").write_bytes(encode_video_bytes(shown, frame_rate_hz=24))
    write_wav("talk.wav", 0.1 * torch.randn(16_000, generator=torch.Generator().manual_seed(0)))
    asked = Request.of(
        reference="me.mp4", audio="talk.wav", face_crop=False, motion="none", num_steps=1
    )
    weights = Weights("runs/tiny/3_sft/weights", refiner="runs/tiny/refiner/weights", device="cpu")
    for out, size in (("own.mp4", None), ("tall.mp4", "60x90")):
        record = run(asked.changed(out=out, size=size), weights).finish()
        info, (height, width) = probe(out), (64, 96) if size is None else (90, 60)
        assert (record.num_frames, record.video) == (24, VideoFormat(width, height, 24))
        assert info.frame_rate_hz == pytest.approx(24)
        assert read_video(out, frame_rate_hz=24).shape == (24, 3, height, width)
        assert info.duration_s == pytest.approx(1, abs=0.1)
        assert info.sample_rate_hz == 24_000  # the next after 16,000 that 24 frames divide


def train(stage: str, **model: object) -> None:
    """Two steps of the tiny version of a recipe."""
    changes = {"init_args": {"optim": {"num_warmup_steps": 1}, **model}}
    overlay = {"model": changes, "trainer": {"max_steps": 2}}
    Path("overlay.yaml").write_text(yaml.safe_dump(overlay), encoding="utf-8")
    run_stage(stage, "overlay.yaml")
