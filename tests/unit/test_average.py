"""weights/average.py: the mean of pipelines, and what cannot be averaged."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from avatar_v.cli import main
from avatar_v.models.vae import VideoVAE
from avatar_v.weights.average import average_pipelines, replace_decoder
from avatar_v.weights.card import Card, read_card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import load_pipeline, read_json, save_pipeline, write_json
from random_models import randomise


@pytest.fixture(scope="module")
def tiny_weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("average") / "weights"
    dit, conditioner = build("tiny", seed=1, motion_stats=motion_stats())
    randomise(dit)
    save_pipeline(folder, dit, conditioner, Card("tiny"))
    return folder


def shifted(source: Path, out: Path, by: float, *, drop: str = "") -> Path:
    """A copy whose DiT's numbers are ``by`` larger."""
    shutil.copytree(source, out)
    file = out / "dit" / "model.safetensors"
    state = {key: value + by for key, value in load_file(file).items() if key != drop}
    save_file(state, file)
    return out


def test_the_mean_lies_between(tiny_weights: Path, tmp_path: Path) -> None:
    other = shifted(tiny_weights, tmp_path / "other", 1.0)
    assert (
        main(["weights", "average", str(tiny_weights), str(other), "--out", str(tmp_path / "m")])
        == 0
    )
    states = [
        load_file(f / "dit" / "model.safetensors") for f in (tiny_weights, other, tmp_path / "m")
    ]
    for key, value in states[2].items():
        expected = (states[0][key].float() + states[1][key].float()) / 2
        torch.testing.assert_close(value.float(), expected, atol=2e-3, rtol=1e-3)  # float16
    assert "mean of" in read_card(tmp_path / "m").recipe
    load_pipeline(tmp_path / "m")


def test_a_pipeline_takes_the_decoder_of_a_vae_with_the_same_encoder(
    tiny_weights: Path, tmp_path: Path
) -> None:
    before, source = load_pipeline(tiny_weights)
    tuned = VideoVAE.from_pretrained(tiny_weights / "vae")
    with torch.no_grad():
        tuned.core.decoder.conv_in.weight.mul_(1.5)
    tuned.save_pretrained(tmp_path / "tuned")
    words = ["weights", "decoder", str(tiny_weights), str(tmp_path / "tuned"), "--out"]
    assert main([*words, str(tmp_path / "out")]) == 0
    dit, conditioner = load_pipeline(tmp_path / "out")
    assert conditioner.vae.encoder_hash() == source.vae.encoder_hash()
    assert conditioner.vae.hash() not in (source.vae.hash(), "")
    torch.testing.assert_close(dit.state_dict(), before.state_dict(), atol=2e-3, rtol=1e-3)
    with torch.no_grad():
        tuned.core.encoder.conv_in.weight.mul_(1.5)
    tuned.save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="another encoder"):
        replace_decoder(tiny_weights, tmp_path / "other", tmp_path / "never")
    assert not (tmp_path / "never").exists()


def test_what_cannot_be_averaged_is_named(tiny_weights: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two folders"):
        average_pipelines([tiny_weights], tmp_path / "m")
    cut = shifted(tiny_weights, tmp_path / "cut", 0.0, drop="patch_embed.weight")
    with pytest.raises(ValueError, match=r"patch_embed\.weight is in 1 of 2"):
        average_pipelines([cut, tiny_weights], tmp_path / "m")
    wide = shifted(tiny_weights, tmp_path / "wide", 0.0)
    config = wide / "dit" / "config.json"
    write_json(config, {**read_json(config), "ffn_dim": 128})
    with pytest.raises(ValueError, match="differ in dit/config"):
        average_pipelines([wide, tiny_weights], tmp_path / "m")
    blurred = shifted(tiny_weights, tmp_path / "blurred", 0.0)
    file = blurred / "vae" / "model.safetensors"
    save_file({key: value + 1 for key, value in load_file(file).items()}, file)
    with pytest.raises(ValueError, match="different VAEs"):
        average_pipelines([blurred, tiny_weights], tmp_path / "m")
    assert not (tmp_path / "m").exists()
