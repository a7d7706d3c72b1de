"""weights/average.py: the mean of pipelines, and what cannot be averaged."""

import dataclasses
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from avatar_v.cli import main
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.motion_net import MotionNet
from avatar_v.models.text import UMT5TextEncoder
from avatar_v.models.vae import VideoVAE
from avatar_v.weights.average import average_pipelines, replace_decoder
from avatar_v.weights.card import Card, read_card
from avatar_v.weights.presets import build, preset
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import (
    load_pipeline,
    read_json,
    save_motion_net,
    save_pipeline,
    write_json,
)
from random_models import randomise
from text_models import write_umt5


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
    words = ["weights", "average", str(tiny_weights), str(other), "--out"]
    assert main([*words, str(tmp_path / "m")]) == 0
    assert main([*words, str(tmp_path / "half"), "--dtype", "float16"]) == 0
    folders = (tiny_weights, other, tmp_path / "m", tmp_path / "half")
    states = [load_file(folder / "dit" / "model.safetensors") for folder in folders]
    for key, value in states[2].items():
        assert torch.equal(value, (states[0][key] + states[1][key]) / 2)
        assert torch.equal(states[3][key], value.half())
    assert "mean of" in read_card(tmp_path / "m").recipe
    load_pipeline(tmp_path / "m")


def with_motion(source: Path, out: Path, value: float) -> Path:
    """A copy with a motion network of which each number is ``value``."""
    shutil.copytree(source, out)
    net = MotionNet(preset("tiny").motion(32))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(value)
    save_motion_net(out / "motion", net)
    return out


def test_motion_networks_are_averaged(tiny_weights: Path, tmp_path: Path) -> None:
    one, two = (with_motion(tiny_weights, tmp_path / str(i), float(i)) for i in (1, 2))
    average_pipelines([one, two], tmp_path / "m")
    net = load_pipeline(tmp_path / "m")[1].motion_net
    assert net is not None
    assert all((parameter == 1.5).all() for parameter in net.parameters())
    with pytest.raises(ValueError, match=r"1 has a motion network and .*weights has none"):
        average_pipelines([tiny_weights, one], tmp_path / "never")


def test_a_frozen_text_encoder_is_the_same_in_all(tmp_path: Path) -> None:
    """All of UMT5 lies in text/backbone, in text itself there are no weights."""
    for name in "abc":
        dit, conditioner = build("tiny", seed=ord(name))
        if name != "b":  # a and b have the same one
            torch.manual_seed(ord(name))
            (tmp_path / "umt5" / name).mkdir(parents=True)
            umt5 = write_umt5(tmp_path / "umt5" / name)
        dit = AvatarDiT(dataclasses.replace(dit.config, text_dim=16))
        conditioner.vae = build("tiny", seed=0)[1].vae
        conditioner.text_encoder = UMT5TextEncoder(umt5, num_tokens=10)
        save_pipeline(tmp_path / name, dit, conditioner, Card("tiny"))
    average_pipelines([tmp_path / "a", tmp_path / "b"], tmp_path / "m")
    found, expected = (load_pipeline(tmp_path / name)[1].text_encoder for name in "ma")
    torch.testing.assert_close(found.state_dict(), expected.state_dict(), rtol=0, atol=0)
    with pytest.raises(ValueError, match="differ in text/backbone"):
        average_pipelines([tmp_path / "c", tmp_path / "a"], tmp_path / "never")


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
