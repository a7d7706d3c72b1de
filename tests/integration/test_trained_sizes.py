"""From shards to a video in a wide picture at 24 frames a second, and through all stages in a tall
one at 30: what a run was trained with, the format of its pictures, the length of its windows and
the shift of its times, is what generation takes; its card says it."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

from avatar_v import cli
from avatar_v.base.video_format import VideoFormat
from avatar_v.generate.run import run
from avatar_v.media.reading import encode_video_bytes, probe, read_video
from avatar_v.media.writer import write_wav
from avatar_v.request.request import Request, Weights
from avatar_v.shards.writer import write_shard
from avatar_v.weights.card import read_card
from tiny_run import STAGES, losses, make_clip, make_shards, run_stage

WIDE, TALL = VideoFormat(48, 32, 24), VideoFormat(48, 80, 30)
OBJECTIVE = {
    "window_latents": {0: 1, 1: 4, 3: 5},  # the first run ends before step 3
    "resolution": {0: 1.0, 1: 0.5, 2: 0.7, 3: 1.0},
    "shift": 2.0,
}
FEW = ("--trainer.val_check_interval=2", "--model.init_args.optim.num_warmup_steps=1")
STEPS = {"1_t2v": 4, "refiner_adversarial": 3}
"""Windows of one latent come first; the discriminator counts from step 2. Two of other stages."""
MADE = ("3_motion", "4c_distill_motion", "4e_self_forcing", "5a_grpo_video", "5b_dpo_video")


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

    make_speech(WIDE)
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


@pytest.fixture(scope="module")
def tall(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder in which all stages were trained in order, each from the weights of others, in
    tall pictures at 30 frames a second."""
    folder = tmp_path_factory.mktemp("tall")
    make_shards(folder, TALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        make_speech(TALL)
        for stage in STAGES:
            few = [*FEW, f"--trainer.max_steps={num_steps(stage)}"]
            if not stage.startswith("own_face"):  # of one clip
                few.append("--data.init_args.batch_size=2")
            if stage.startswith("5b_dpo"):
                few += make_pairs(stage)
            run_stage(stage, *few)
        yield folder


@pytest.mark.slow
def test_all_stages_train_tall_pictures_at_30_frames_a_second(tall: Path) -> None:
    for stage in STAGES:
        found = losses(f"runs/tiny/{stage}")
        assert len(found) == num_steps(stage), stage
        assert all(map(math.isfinite, found)), stage
        if (weights := tall / "runs/tiny" / stage / "weights").exists():
            assert read_card(weights).can.video == TALL, stage


@pytest.mark.slow
@pytest.mark.parametrize("stage", MADE)
def test_weights_of_tall_pictures_make_them_with_their_own_motion(tall: Path, stage: str) -> None:
    is_causal = read_card(f"runs/tiny/{stage}/weights").can.causal_block is not None
    assert is_causal == (stage == "4e_self_forcing")
    check_video(stage, TALL)
    check_video(stage, VideoFormat(64, 48, 30), size="64x48")


@pytest.mark.slow
def test_a_refiner_of_a_factor_that_is_no_whole_number(tall: Path) -> None:
    """Tall pictures 2.25 times as large. In training both sizes are whole tokens."""
    large = VideoFormat(144, 288, 30)
    write_shard("high/a.tar", [make_clip(i, large) for i in range(2)])
    encode = ["--shards", "high", "--out", "high_latents", "--vae", "runs/tiny/3_sft/weights/vae"]
    assert cli.main(["shards", "encode", *encode, "--low", "2.25", "--drop-video"]) == 0
    numbers = {
        "model.init_args.refinement.factor": 2.25,
        "data.init_args.train": "high_latents",
        "data.init_args.validation": "high_latents",
        "data.init_args.batch_size": 1,
        "data.init_args.decode_video": False,
        "trainer.max_steps": 2,
        "trainer.default_root_dir": "runs/larger",
    }
    run_stage("refiner", *FEW, *(f"--{key}={value}" for key, value in numbers.items()))
    can = read_card("runs/larger/weights").can
    assert (can.video, can.factor) == (large, 2.25)
    for stage in ("4c_distill_motion", "4e_self_forcing"):
        check_video(stage, VideoFormat(108, 180, 30), refiner="runs/larger/weights")
    check_video(stage, VideoFormat(144, 288, 30), size="144x288", refiner="runs/larger/weights")


def num_steps(stage: str) -> int:
    return STEPS.get(stage, 2)


def make_pairs(stage: str) -> list[str]:
    """Pairs that weights of these stages made, where the recipe reads them."""
    kind, out = ("--video",) if stage.endswith("video") else (), f"made/{stage}"
    words = ["--weights", "runs/tiny/3_listening/weights", "--shards", "shards/tiny/train"]
    words += ["--out", out, "--pairs", "2", "--frames", "17", *kind]
    assert cli.main(["shards", "pairs", *words]) == 0
    return [f"--data.init_args.{of}={out}" for of in ("train", "validation")]


def make_speech(shown: VideoFormat) -> None:
    """A reference in larger pictures of this format, and a second that is said."""
    video = make_clip(0, shown.scaled(2.0)).video
    assert video is not None
    Path("me.mp4").write_bytes(encode_video_bytes(video, frame_rate_hz=shown.frame_rate_hz))
    write_wav("talk.wav", 0.1 * torch.randn(16_000, generator=torch.Generator().manual_seed(0)))


def check_video(
    stage: str, expected: VideoFormat, *, size: str | None = None, refiner: str | None = None
) -> None:
    """What weights make of `make_speech`, with a motion of their own, is of this format."""
    asked = Request.of(
        reference="me.mp4", audio="talk.wav", out=f"{stage}.mp4", overwrite=True,
        face_crop=False, motion="meter", num_steps=2, size=size,
    )  # fmt: skip
    made = run(asked, Weights(f"runs/tiny/{stage}/weights", refiner=refiner, device="cpu"))
    motion = [clip.motion for clip in made if clip.motion is not None]
    if refiner is None:  # clips that are refined come without it
        moved = torch.cat(motion)
        assert len(moved) == expected.frame_rate_hz
        assert moved.isfinite().all()
        assert (moved != moved[0]).any(1)[1:].all()
    assert made.record is not None
    assert made.record.video == expected
    assert made.record.num_frames == expected.frame_rate_hz
    info = probe(f"{stage}.mp4")
    assert info.frame_rate_hz == pytest.approx(expected.frame_rate_hz)
    assert info.duration_s == pytest.approx(1, abs=0.1)
    shown = read_video(f"{stage}.mp4", frame_rate_hz=expected.frame_rate_hz)
    assert shown.shape == (expected.frame_rate_hz, 3, *expected.size)
