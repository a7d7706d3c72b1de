"""Import and export of Wan's weights: round trips, and errors that name what is wrong."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file

from avatar_v.cli import main
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.refiner import as_refiner
from avatar_v.weights.weights import load_dit, read_state, save_dit
from random_models import make_cond, make_dit, randomise

WAN = {
    "num_attention_heads": 2, "attention_head_dim": 24, "in_channels": 16, "out_channels": 16,
    "text_dim": 32, "freq_dim": 32, "ffn_dim": 96, "num_layers": 2,
}  # fmt: skip


def save_wan(folder: Path, shard: str = "5GB", **changes: object) -> WanTransformer3DModel:
    model = WanTransformer3DModel(**{**WAN, **changes})
    randomise(model)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def weights(*words: str | Path) -> int:
    width = ["--audio-dim", "32"] if words[0] == "import-wan" else []
    return main(["weights", *map(str, words), *width])


@pytest.mark.parametrize("shard", ["5GB", "100KB"])
@pytest.mark.parametrize("place", [".", "transformer"])
def test_import_and_export_give_the_same_weights_back(
    tmp_path: Path, shard: str, place: str
) -> None:
    model = save_wan(tmp_path / "wan" / place, shard)
    one_file = tmp_path / "wan" / place / "diffusion_pytorch_model.safetensors"
    assert one_file.exists() == (shard == "5GB")
    assert weights("import-wan", tmp_path / "wan", tmp_path / "ours") == 0
    assert load_dit(tmp_path / "ours").config.audio_dim == 32
    assert weights("export-wan", tmp_path / "ours", tmp_path / "back") == 0
    again = WanTransformer3DModel.from_pretrained(tmp_path / "back")
    for key, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key


def test_an_import_keeps_the_stored_dtype(tmp_path: Path) -> None:
    model = WanTransformer3DModel(**WAN).bfloat16()
    model.save_pretrained(tmp_path / "wan")
    assert weights("import-wan", tmp_path / "wan", tmp_path / "ours") == 0
    assert read_state(tmp_path / "ours")["head.out.weight"].dtype == torch.bfloat16


def test_an_import_of_mixed_dtypes_keeps_each(tmp_path: Path) -> None:
    """As diffusers stores Wan: norms, tables and time embedding in fp32 beside bf16."""
    model = save_wan(tmp_path / "wan").bfloat16()
    model.blocks[0].scale_shift_table.data = torch.full((1, 6, 48), 1 + 2**-12)
    model.save_pretrained(tmp_path / "wan")
    assert weights("import-wan", tmp_path / "wan", tmp_path / "ours") == 0
    state = read_state(tmp_path / "ours")
    assert state["blocks.0.ffn.up.weight"].dtype == torch.bfloat16
    assert bool((state["blocks.0.modulation"] == 1 + 2**-12).all())
    assert state["motion_embed.weight"].dtype == torch.float32


def edit_config(folder: Path, drop: str = "", **more: object) -> None:
    values = json.loads((folder / "config.json").read_text())
    values.pop(drop, None)
    (folder / "config.json").write_text(json.dumps({**values, **more}))


def test_what_a_config_lacks_or_has_besides_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_wan(tmp_path / "wan")
    edit_config(tmp_path / "wan", drop="eps")
    assert weights("import-wan", tmp_path / "wan", tmp_path / "ours") == 0
    assert load_dit(tmp_path / "ours").config.eps == 1e-6
    edit_config(tmp_path / "wan", new_trick=True)
    with pytest.warns(UserWarning, match=r"not read: \['new_trick'\]"):
        assert weights("import-wan", tmp_path / "wan", tmp_path / "again") == 0
    edit_config(tmp_path / "wan", drop="ffn_dim")
    assert weights("import-wan", tmp_path / "wan", tmp_path / "third") == 2
    assert "lacks ffn_dim" in capsys.readouterr().err


def test_a_refiner_is_not_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its low_embed has no place in Wan, and without it the rest is nothing."""
    save_dit(tmp_path / "ours", as_refiner(make_dit(), sigma=0.6, temporal_window=2))
    assert weights("export-wan", tmp_path / "ours", tmp_path / "wan", "--drop-extras") == 2
    assert "is a refiner" in capsys.readouterr().err
    assert not (tmp_path / "wan").exists()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"causal_block": 2, "causal_window": 1}, "has causal_block 2, causal_window 1: in Wan"),
        ({"temporal_window": 2}, "has temporal_window 2: in Wan"),
    ],
)
def test_a_mask_is_not_dropped_in_silence(
    how: dict[str, int], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_dit(tmp_path / "ours", AvatarDiT(dataclasses.replace(make_dit().config, **how)))
    assert weights("export-wan", tmp_path / "ours", tmp_path / "wan") == 2
    assert said in capsys.readouterr().err
    assert weights("export-wan", tmp_path / "ours", tmp_path / "wan", "--drop-extras") == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"in_channels": 36}, "I2V layout with concatenated channels (36 in, 16 out)"),
        ({"image_dim": 20, "added_kv_proj_dim": 48}, "I2V layout with CLIP tokens"),
        ({"patch_size": (1, 1, 1)}, "unsupported Wan config"),
    ],
)
def test_layouts_that_do_not_map_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict, message: str
) -> None:
    save_wan(tmp_path / "wan", **changes)
    assert weights("import-wan", tmp_path / "wan", tmp_path / "ours") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "ours").exists()


def test_an_import_names_every_key_that_does_not_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_wan(tmp_path / "wan")
    path = tmp_path / "wan" / "diffusion_pytorch_model.safetensors"
    state = load_file(path)
    del state["proj_out.bias"]
    state["extra.weight"] = torch.zeros(2)
    state["blocks.1.attn2.norm_k.weight"] = torch.zeros(7)
    save_file(state, path)
    assert weights("import-wan", tmp_path / "wan", tmp_path / "ours") == 2
    error = capsys.readouterr().err
    assert "missing: proj_out.bias" in error
    assert "unexpected: extra.weight" in error
    assert "shape of blocks.1.attn2.norm_k.weight: (7,), expected (48,)" in error
    assert not (tmp_path / "ours").exists()


def test_a_missing_shard_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_wan(tmp_path / "wan", "100KB")
    shard = sorted((tmp_path / "wan").glob("*-00002-of-*.safetensors"))[0]
    shard.unlink()
    assert weights("import-wan", tmp_path / "wan", tmp_path / "ours") == 2
    assert shard.name in capsys.readouterr().err


def test_an_export_does_not_drop_trained_audio_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_dit(tmp_path / "ours", make_dit())
    assert weights("export-wan", tmp_path / "ours", tmp_path / "wan") == 2
    assert "blocks.0.audio_attention.out.weight" in capsys.readouterr().err
    assert weights("export-wan", tmp_path / "ours", tmp_path / "wan", "--drop-extras") == 0
    WanTransformer3DModel.from_pretrained(tmp_path / "wan")


def test_an_output_that_exists_is_refused(tmp_path: Path) -> None:
    save_wan(tmp_path / "wan")
    assert weights("import-wan", tmp_path / "wan", tmp_path / "wan") == 2


def test_an_imported_model_speaks_after_training(tmp_path: Path) -> None:
    save_wan(tmp_path / "wan")
    assert weights("import-wan", tmp_path / "wan", tmp_path / "ours") == 0
    dit: AvatarDiT = load_dit(tmp_path / "ours")
    cond = make_cond(dit.config, 1, 2)
    dit(torch.randn(1, 2, 16, 4, 4), torch.rand(1, 2), cond).square().sum().backward()
    block = dit.blocks[0]
    gradient = block.audio_attention.out.weight.grad  # zero at first, but reachable
    assert gradient.abs().max() > 0


@pytest.mark.parametrize(
    ("changes", "words", "message"),
    [
        ({"eps": float("nan")}, (), "eps is a finite number"),
        ({"eps": "small"}, (), "eps is a finite number"),
        ({"num_layers": 65_536}, (), "num_layers is a whole number from 1 to 1,000, got 65536"),
        ({"num_layers": 1000}, (), "has 2 blocks, its config says 1000"),
        ({"num_attention_heads": 60_000}, (), "got 1440000"),
        ({"freq_dim": 33}, (), "freq_dim is even"),
        ({}, ("--audio-dim", "0"), "--audio-dim is a whole number from 1"),
        ({}, ("--audio-every", "1000000"), "--audio-every is a whole number from 1 to 1,000"),
    ],
)
def test_what_could_not_be_loaded_again_is_not_written(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict,
    words: tuple[str, ...],
    message: str,
) -> None:
    save_wan(tmp_path / "wan")
    edit_config(tmp_path / "wan", **changes)
    arguments = ["weights", "import-wan", str(tmp_path / "wan"), str(tmp_path / "ours")]
    assert main([*arguments, "--audio-dim", "32", *words]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "wrote" not in captured.out
    assert not (tmp_path / "ours").exists()
