"""Stage 3 reads frames for its reference: from shards, through the command, to weights."""

from pathlib import Path

import pytest

from avatar_v.weights.card import Card, read_card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import save_pipeline
from shard_command import run
from tiny_run import losses, make_shards, run_stage


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tiny shards, as latents with stills beside them."""
    monkeypatch.chdir(tmp_path)
    make_shards(tmp_path)
    save_pipeline(tmp_path / "start", *build("tiny", motion_stats=motion_stats()), Card("tiny"))
    for name in ("train", "validation"):
        words = (
            "--shards",
            f"shards/tiny/{name}",
            "--out",
            f"latents/{name}",
            "--vae",
            "start/vae",
        )
        assert run("encode", *words, "--threads", "1", "--stills") == 0
    return tmp_path


@pytest.mark.parametrize("stage", ["3_pictures", "3_sft"])
def test_a_stage_trains_on_stills(folder: Path, stage: str) -> None:
    words = (
        "--data.init_args.train=latents/train",
        "--data.init_args.validation=latents/validation",
        "--data.init_args.decode_video=false",
        "--model.init_args.models.init_from=start",
        "--trainer.max_steps=4",
        "--trainer.default_root_dir=out",
    )
    run_stage(stage, *words, "--model.init_args.personality.stills_share=1.0")
    shown = losses("out")
    assert len(shown) == 4
    assert read_card("out/weights").can.stills == 16
    run_stage(
        stage, *words, "--trainer.default_root_dir=whole",
        "--model.init_args.personality.stills_share=0.0",
    )  # fmt: skip
    assert losses("whole") != shown
    assert read_card("whole/weights").can.stills == 0
