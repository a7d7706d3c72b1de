"""Pipeline folders and Wan conversion: round trips, and errors that name what is wrong."""

import json
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from safetensors.torch import load_file, save_file

from avatar_v.cli import main
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.presets import build
from avatar_v.models.weights import (
    Card,
    check_state,
    load_dit,
    load_pipeline,
    read_card,
    read_state,
    save_dit,
    save_pipeline,
)
from avatar_v.testing import make_cond, make_dit, randomise


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dit, conditioner = build("tiny", seed=1)
    randomise(dit)
    save_pipeline(tmp_path / "weights", dit, conditioner, Card("tiny", recipe="recipes/x.yaml"))
    return tmp_path / "weights"


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_build_is_repeatable_and_leaves_the_global_generator_alone() -> None:
    state = torch.random.get_rng_state()
    first, second, other = build("tiny", seed=1), build("tiny", seed=1), build("tiny", seed=2)
    assert torch.equal(torch.random.get_rng_state(), state)
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(first[0].patch_embed.weight, other[0].patch_embed.weight)


def test_a_full_size_preset_needs_its_encoders() -> None:
    from avatar_v.models.presets import build_conditioner

    with pytest.raises(ValueError, match="preset wan_14b needs folders for vae, text, audio"):
        build_conditioner("wan_14b")


def test_a_pipeline_comes_back_as_it_was(tmp_path: Path) -> None:
    dit, conditioner = build("tiny", seed=1)
    randomise(dit)
    save_pipeline(tmp_path / "weights", dit, conditioner, Card("tiny", commit="abc"))
    again, encoders = load_pipeline(tmp_path / "weights", preset="tiny")
    assert again.config == dit.config
    for saved, loaded in ((dit, again), (conditioner, encoders)):
        states = saved.state_dict(), loaded.state_dict()
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert read_card(tmp_path / "weights") == Card("tiny", commit="abc")
    assert not again.training
    assert all(p.requires_grad for p in again.parameters())


def test_stored_half_precision_loads_as_fp32(tmp_path: Path) -> None:
    dit, conditioner = build("tiny")
    save_pipeline(tmp_path / "weights", dit, conditioner, Card("tiny"), dtype=torch.float16)
    again, _ = load_pipeline(tmp_path / "weights")
    assert again.patch_embed.weight.dtype == torch.float32
    assert torch.equal(again.patch_embed.weight, dit.patch_embed.weight.half().float())


def test_an_existing_folder_is_replaced_only_when_asked(folder: Path) -> None:
    dit, conditioner = build("tiny", seed=2)
    with pytest.raises(ValueError, match="exists"):
        save_pipeline(folder, dit, conditioner, Card("tiny"))
    save_pipeline(folder, dit, conditioner, Card("tiny", recipe="new"), overwrite=True)
    assert read_card(folder).recipe == "new"
    assert not folder.with_name("weights.partial").exists()


def test_weights_of_another_preset_or_version_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="weights of preset 'tiny', expected 'small'"):
        load_pipeline(folder, preset="small")
    edit(folder / "card.json", schema_version=99)
    with pytest.raises(ValueError, match="schema version 99, this code reads 2"):
        load_pipeline(folder)


@pytest.mark.parametrize("name", ["card.json", "dit/config.json", "text/model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        load_pipeline(folder)


def test_a_damaged_file_is_named(folder: Path) -> None:
    path = folder / "dit" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"dit/model\.safetensors is damaged"):
        load_pipeline(folder)


def test_every_key_that_does_not_fit_is_named_at_once(folder: Path) -> None:
    path = folder / "dit" / "model.safetensors"
    state = load_file(path)
    del state["blocks.1.ffn.up.weight"]
    state["blocks.0.text_norm.bias"] = torch.zeros(3)
    state["blocks.9.modulation"] = torch.zeros(6, 48)
    save_file(state, path)
    with pytest.raises(ValueError, match="do not fit") as error:
        load_pipeline(folder)
    lines = str(error.value).splitlines()
    assert lines[1:] == [
        "  missing: blocks.1.ffn.up.weight",
        "  unexpected: blocks.9.modulation",
        "  shape of blocks.0.text_norm.bias: (3,), expected (48,)",
    ]


def test_encoders_that_do_not_fit_the_dit_are_refused(folder: Path) -> None:
    other = make_dit()
    config = {**json.loads((folder / "dit/config.json").read_text()), "text_dim": 40}
    (folder / "dit/config.json").write_text(json.dumps(config))
    state = other.state_dict()
    state["text_embed.up.weight"] = torch.zeros(48, 40)
    save_file(state, folder / "dit/model.safetensors")
    with pytest.raises(ValueError, match="text width: 32 here, 40 in the DiT"):
        load_pipeline(folder)


def test_check_state_accepts_what_fits() -> None:
    state = make_dit().state_dict()
    check_state(state, dict(state), where="here")


# ---- Wan ------------------------------------------------------------------------------------


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
    ("name", "value"),
    [
        ("guidance_audio", float("nan")),
        ("guidance_motion", float("inf")),
        ("stills", -1),
        ("stills_from_prompt", -1),
    ],
)
def test_a_card_with_an_impossible_number_is_refused(folder: Path, name: str, value: float) -> None:
    edit(folder / "card.json", **{name: value})
    with pytest.raises(ValueError, match=f"{name} of a card"):
        read_card(folder)


def test_a_card_without_a_field_is_refused(folder: Path) -> None:
    card = json.loads((folder / "card.json").read_text())
    del card["motion"]
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(ValueError, match="expected"):
        read_card(folder)
