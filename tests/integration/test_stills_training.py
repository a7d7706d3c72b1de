"""Stage 3 reads frames for its reference, and captions encoded ahead: from shards, through the
command, to weights."""

from pathlib import Path

import pytest

from avatar_v.weights.card import Card, read_card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import save_pipeline
from shard_command import run
from tiny_run import losses, make_shards, run_stage


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny shards, as latents with stills and encoded captions beside them."""
    folder = tmp_path_factory.mktemp("stills")
    make_shards(folder)
    save_pipeline(folder / "start", *build("tiny", motion_stats=motion_stats()), Card("tiny"))
    for name in ("train", "validation"):
        words = ["--shards", f"{folder}/shards/tiny/{name}", "--out", f"{folder}/latents/{name}"]
        words += ["--vae", f"{folder}/start/vae", "--threads", "1", "--stills"]
        words += ["--text", f"{folder}/start"]
        assert run("encode", *words) == 0
    return folder


@pytest.mark.parametrize("stage", ["3_pictures", "3_sft"])
def test_a_stage_trains_on_stills(
    folder: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    out, whole = f"{stage}/out", f"{stage}/whole"
    words = (
        "--data.init_args.train=latents/train",
        "--data.init_args.validation=latents/validation",
        "--data.init_args.decode_video=false",
        "--model.init_args.models.init_from=start",
        "--trainer.max_steps=3",
        "--trainer.limit_val_batches=0",
        f"--trainer.default_root_dir={out}",
    )
    run_stage(stage, *words, "--model.init_args.personality.stills_share=1.0")
    shown = losses(out)
    assert len(shown) == 3
    assert read_card(f"{out}/weights").can.stills == 16
    if stage == "3_pictures":  # one stage shows that the share of stills decides
        return
    run_stage(
        stage, *words, f"--trainer.default_root_dir={whole}",
        "--model.init_args.personality.stills_share=0.0",
    )  # fmt: skip
    assert losses(whole) != shown
    assert read_card(f"{whole}/weights").can.stills == 0


@pytest.mark.slow
def test_a_stage_trains_on_captions_that_were_encoded_ahead(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Losses are those with the encoder in the steps; another one, and one in training, is refused
    before the first."""
    monkeypatch.chdir(folder)
    words = [
        "--data.init_args.train=latents/train",
        "--data.init_args.validation=latents/validation",
        "--data.init_args.decode_video=false",
        "--model.init_args.models.init_from=start",
        "--model.init_args.objective.text_dropout=0.5",
        "--trainer.max_steps=3",
        "--trainer.limit_val_batches=0",
    ]
    lora, ahead = (
        "--model.init_args.trainable.parts=lora",
        "--model.init_args.models.stored_text=true",
    )
    for out, options in (("in_step", [lora]), ("ahead", [lora, ahead])):
        run_stage("3_sft", *words, *options, f"--trainer.default_root_dir={out}")
    # fp16 in the shards, and a caption is encoded without its neighbours
    assert losses("ahead") == pytest.approx(losses("in_step"), rel=1e-4)
    state = Path("weights/text/model.safetensors")
    assert ("ahead" / state).read_bytes() == ("in_step" / state).read_bytes()
    with pytest.raises(ValueError, match="this stage trains its text encoder"):
        run_stage("3_sft", *words, ahead)
    save_pipeline(Path("other"), *build("tiny", seed=1, motion_stats=motion_stats()), Card("tiny"))
    words[3] = "--model.init_args.models.init_from=other"
    with pytest.raises(
        ValueError, match=r"its caption is encoded by .*, models.stored_text expects"
    ):
        run_stage("3_sft", *words, lora, ahead, "--model.init_args.models.vae=start/vae")
