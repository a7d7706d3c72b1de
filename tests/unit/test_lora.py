"""models/lora, models/adapter: what LoRA learned, merged, stored, read and refused."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from torch import Tensor

from avatar_v.cli import main
from avatar_v.models.base import hash_folder
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.guided import with_guidance_inside
from avatar_v.models.lora import active, active_factors, add_factors, merged
from avatar_v.models.reference import reference_moments
from avatar_v.training.trainable import MOTION, Trainable, select
from avatar_v.weights.adapter import load_merged, merge_into
from avatar_v.weights.adapter_files import read_adapter, save_adapter
from avatar_v.weights.card import ASSETS, AdapterCard, AdapterSpec, Capabilities, Card, read_card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from avatar_v.weights.wan import config_to_wan, state_to_wan
from avatar_v.weights.weights import load_pipeline, save_pipeline
from random_models import make_cond, make_dit, make_motion_net, make_reference, randomise, run

STATE = "adapter_model.safetensors"
CARD = Card("tiny", "recipes/3_sft.yaml", can=Capabilities(motion=True, num_steps=2))


def trained(dit: AvatarDiT, new: tuple[str, ...] = MOTION, *, seed: int = 5) -> AvatarDiT:
    """``dit`` with factors; they and the ``new`` parts have moved."""
    select(dit, Trainable("lora", lora_rank=2, lora_alpha=3.0), new=new)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in dit.parameters():
            if parameter.requires_grad:
                parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return dit


@torch.no_grad()
def video(dit: torch.nn.Module) -> Tensor:
    """All that a DiT reads is in it: text, sound, motion, a person's style."""
    config = DiTConfig.tiny()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, config.latent_channels, 4, 4, generator=generator)
    reference = make_reference(config, torch.ones(2, 4, dtype=torch.bool), has_motion=True)
    cond = dataclasses.replace(
        make_cond(config, 2, 3),
        motion=torch.randn(2, 3, config.motion_dim, generator=generator),
        moments=reference_moments(reference, motion_stats()),
    )
    return dit(x, torch.full((2, 3), 0.5), cond)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("lora")
    dit, conditioner = build("tiny", seed=0, motion_stats=motion_stats())
    randomise(dit)
    conditioner.motion_net = make_motion_net(conditioner.audio_encoder.dim)
    save_pipeline(tmp_path / "base", dit, conditioner, Card("tiny", "recipes/2_a2v.yaml"))
    return tmp_path / "base"


@pytest.fixture(scope="module")
def adapter(base: Path) -> Path:
    """What a run leaves that trained with LoRA on ``base``."""
    return left(base.with_name("adapter"), trained(load_pipeline(base)[0]), base)


def left(folder: Path, dit: AvatarDiT, base: Path) -> Path:
    about = AdapterCard("dit", CARD, str(base), hash_folder(base / "dit"))
    save_adapter(folder, dit, about, motion_stats())
    return folder


def test_merged_is_what_peft_merges() -> None:
    dit = trained(make_dit())
    plain, expected = merged(dit), video(dit)
    torch.testing.assert_close(video(plain), expected)
    assert plain.state_dict().keys() == make_dit().state_dict().keys()
    assert plain.motion_stats is dit.motion_stats
    assert not torch.allclose(video(make_dit()), expected, atol=1e-2)
    for name, layer in dit.named_modules():
        if isinstance(layer, LoraLayer):
            layer.merge()
            found = plain.get_parameter(f"{name}.weight")
            torch.testing.assert_close(layer.get_base_layer().weight, found)
    assert merged(plain) is plain


def test_one_of_several_sets_of_factors_counts() -> None:
    dit = make_dit()
    before = video(dit)
    add_factors(dit, ("a", "b"), rank=2, alpha=2.0)
    with torch.no_grad():
        for name, parameter in dit.named_parameters():
            if "lora_B.b" in name:
                parameter += 0.1
    assert torch.equal(video(dit), before)
    assert torch.equal(video(merged(dit)), before)
    with active(dit, "b", "a"):
        changed = video(dit)
        torch.testing.assert_close(video(merged(dit)), changed)
    assert not torch.equal(changed, before)
    with active(dit, None, "b"):
        assert active_factors(dit) is None
        assert torch.equal(video(dit), before)
        assert torch.equal(video(merged(dit)), before)
    torch.testing.assert_close(video(dit), changed)
    assert {n.split(".")[-2] for n, p in dit.named_parameters() if p.requires_grad} == {"a", "b"}


def test_factors_begin_alike_whatever_was_drawn_before() -> None:
    found = []
    for _ in range(2):
        torch.rand(1)
        dit = make_dit()
        add_factors(dit, rank=2, alpha=2.0, seed=3)
        found.append(dit.get_parameter("blocks.0.ffn.up.lora_A.default.weight"))
    assert torch.equal(*found)


def test_peft_reads_what_a_run_leaves(base: Path, adapter: Path) -> None:
    dit = load_pipeline(base)[0]
    expected = video(load_merged(base, [AdapterSpec(adapter)])[0])
    assert not torch.allclose(video(dit), expected, atol=1e-2)
    model = PeftModel.from_pretrained(dit, str(adapter))
    torch.testing.assert_close(video(model), expected)
    layers = {n for n, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    found = read_adapter(adapter)
    assert {name.removeprefix("base_model.model.") for name in layers} == found.factors.keys()
    assert {"motion_embed.weight", "style_embed"} < found.whole.keys()
    config = json.loads((adapter / "adapter_config.json").read_text())
    assert "motion_embed" in config["modules_to_save"]


def test_merge_gives_the_weights_of_the_run(base: Path, adapter: Path, tmp_path: Path) -> None:
    run_weights = tmp_path / "run"
    _, conditioner = load_pipeline(base)
    save_pipeline(run_weights, trained(load_pipeline(base)[0]), conditioner, CARD)
    out = tmp_path / "out"
    assert main(["weights", "merge", str(base), str(adapter), "--out", str(out)]) == 0
    assert hash_folder(out) == hash_folder(run_weights)
    assert read_card(out) == CARD
    half = tmp_path / "half"
    words = [f"{adapter}:0", "--out", str(half), "--dtype", "float16"]
    assert main(["weights", "merge", str(base), *words]) == 0
    stored = load_file(half / "dit" / "model.safetensors")
    assert {value.dtype for value in stored.values()} == {torch.float16}
    start = load_pipeline(base)[0].state_dict()
    assert all(torch.equal(stored[key], value.half()) for key, value in start.items())
    assert read_card(half).recipe == f"{base} with {adapter}:0"


def test_adapters_add_up(base: Path, tmp_path: Path) -> None:
    """Each is a change of the base, its whole parts too, so the order does not matter."""
    folders = [
        left(tmp_path / str(seed), trained(load_pipeline(base)[0], seed=seed), base)
        for seed in (1, 2)
    ]
    chosen = [AdapterSpec(folders[0], 0.5), AdapterSpec(folders[1], -1.0)]
    both, other = load_merged(base, chosen)[0], load_merged(base, chosen[::-1])[0]
    start = load_pipeline(base)[0].state_dict()
    single = [load_merged(base, [AdapterSpec(folder)])[0].state_dict() for folder in folders]
    for key, value in both.state_dict().items():
        change = 0.5 * (single[0][key] - start[key]) - (single[1][key] - start[key])
        torch.testing.assert_close(value, start[key] + change, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other.state_dict()[key], value, rtol=1e-4, atol=1e-5)


def test_a_part_set_whole_keeps_what_factors_add_to_it(base: Path, tmp_path: Path) -> None:
    """One adapter has factors on a matrix that another trained whole."""
    name = "blocks.0.audio_attention.query"
    with_factors = trained(load_pipeline(base)[0], new=())
    set_whole = trained(load_pipeline(base)[0], new=("audio_attention",), seed=6)
    folders = [left(tmp_path / n, d, base) for n, d in (("f", with_factors), ("w", set_whole))]
    first, second = map(read_adapter, folders)
    assert name in first.factors
    assert f"{name}.weight" in second.whole
    orders = (folders, folders[::-1])
    found = [load_merged(base, [AdapterSpec(each) for each in order])[0] for order in orders]
    a, b = first.factors[name]
    expected = second.whole[f"{name}.weight"] + first.weight * b @ a
    for each in found:
        torch.testing.assert_close(each.get_parameter(f"{name}.weight"), expected)


def test_an_adapter_of_another_vae_needs_that_vae(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = left(tmp_path / "a", trained(load_pipeline(base)[0]), base)
    values = json.loads((folder / "adapter.json").read_text())
    (folder / "adapter.json").write_text(json.dumps({**values, "vae_hash": "0" * 16}))
    words = ["weights", "merge", str(base), str(folder), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "was trained with another VAE" in capsys.readouterr().err
    assert main([*words[:4], str(folder), *words[4:]]) == 2
    assert "is named twice" in capsys.readouterr().err
    assert main([*words, "--any-base"]) == 0


def test_parts_that_the_base_lacks_come_along(base: Path, tmp_path: Path) -> None:
    dit = with_guidance_inside(load_pipeline(base)[0], ((1.0, 2.0), (1.0, 3.0), (1.0, 2.0)))
    adapter = left(tmp_path / "told", trained(dit, ("guidance_embed",)), base)
    expected = merged(dit).state_dict()
    found = load_merged(base, [AdapterSpec(adapter)])[0]
    assert found.config == dit.config
    assert found.motion_stats is not None
    assert all(torch.equal(value, expected[key]) for key, value in found.state_dict().items())
    with pytest.raises(ValueError, match=r"parts that the weights lack \(guidance_embed"):
        load_merged(base, [AdapterSpec(adapter, 0.5)])
    again = left(tmp_path / "again", trained(dit, ("guidance_embed",)), base)
    with pytest.raises(ValueError, match=r"another adapter has brought guidance_embed"):
        load_merged(base, [AdapterSpec(adapter), AdapterSpec(again)])
    plain = left(tmp_path / "plain", trained(load_pipeline(base)[0], seed=3), base)
    orders = (
        [AdapterSpec(adapter), AdapterSpec(plain)],
        [AdapterSpec(plain), AdapterSpec(adapter)],
    )
    first, second = (load_merged(base, order)[0] for order in orders)
    assert first.config == second.config == dit.config
    for key, value in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[key], value, msg=key)


def test_an_adapter_of_the_motion_network(base: Path, tmp_path: Path) -> None:
    net = load_pipeline(base)[1].motion_net
    assert net is not None
    add_factors(net, rank=2, alpha=2.0)
    randomise(net)
    hashed = hash_folder(base / "motion")
    save_adapter(tmp_path / "a", net, AdapterCard("motion", CARD, str(base), hashed))
    found = load_merged(base, [AdapterSpec(tmp_path / "a")])[1].motion_net
    assert found is not None
    expected = load_pipeline(base)[1].motion_net
    assert expected is not None
    adapter = read_adapter(tmp_path / "a")
    assert adapter.factors.keys() >= {"blocks.0.self_attention.query", "blocks.1.ffn.down"}
    again = merge_into(expected, [(adapter, 1.0)]).state_dict()
    assert all(torch.equal(value, again[key]) for key, value in found.state_dict().items())
    key = "blocks.1.ffn.down.weight"
    before = load_file(base / "motion" / "model.safetensors")
    assert not torch.equal(before[key], found.state_dict()[key])


def damaged(adapter: Path, fault: str) -> None:
    state = load_file(adapter / STATE)
    key = next(key for key in state if "ffn.up.lora_B" in key)
    config = json.loads((adapter / "adapter_config.json").read_text())
    if fault == "nan":
        state[key][0, 0] = torch.nan
    elif fault == "shape":
        state[key] = state[key][:-1].contiguous()
    elif fault == "name":
        state[key.replace("ffn", "fnf")] = state.pop(key)
    elif fault == "unknown":
        state["base_model.model.foo"] = torch.zeros(2)
    elif fault == "dora":
        config["use_dora"] = True
    elif fault == "rank":
        config["r"] = 0
    elif fault == "pickle":
        (adapter / "adapter_model.bin").write_bytes(b"\x80\x04")
        (adapter / STATE).unlink()
    elif fault == "card":
        (adapter / "adapter.json").unlink()
    elif fault == "network":
        values = json.loads((adapter / "config.json").read_text())
        (adapter / "config.json").write_text(json.dumps({**values, "ffn_dim": 100}))
    elif fault == "version":
        values = json.loads((adapter / "adapter.json").read_text())
        values["card"]["schema_version"] = 1
        (adapter / "adapter.json").write_text(json.dumps(values))
    if (adapter / STATE).is_file():
        save_file(state, adapter / STATE)
    (adapter / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("nan", "not finite"),
        ("shape", "shape of blocks.0.ffn.up.lora_B.weight: (95, 2), expected (96, 2)"),
        ("name", "has lora_A and no lora_B"),
        ("unknown", "unexpected: foo"),
        ("dora", "expected a plain LoRA, got {'use_dora': True}"),
        ("rank", "r is a whole number from 1"),
        ("pickle", "could run code and is not read"),
        ("card", "expected a folder with adapter.json"),
        ("network", "ffn_dim 96, of the adapter 100"),
        ("version", "schema version 1"),
    ],
)
def test_what_cannot_be_merged_is_one_clear_error(
    adapter: Path,
    base: Path,
    fault: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    adapter = Path(shutil.copytree(adapter, tmp_path / "adapter"))
    damaged(adapter, fault)
    out = tmp_path / "out"
    assert main(["weights", "merge", str(base), str(adapter), "--out", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_an_adapter_of_other_weights_is_refused(
    adapter: Path, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(base, other)
    stored = load_file(other / "dit" / "model.safetensors")
    save_file({k: 2 * v for k, v in stored.items()}, other / "dit" / "model.safetensors")
    words = ["weights", "merge", str(other), str(adapter), "--out", str(tmp_path / "out")]
    assert main(words) == 2
    line, made_for = capsys.readouterr().err, f"{base} (preset tiny, {hash_folder(base / 'dit')})"
    assert f"adapter {adapter} does not fit {other / 'dit'}: shapes agree, but these are" in line
    assert f"by its card it was trained on {made_for}" in line
    assert main(["weights", "merge", str(ASSETS / "small"), *words[3:]]) == 2
    line = capsys.readouterr().err
    assert re.search(
        r"does not fit \S+/small/dit: blocks\S+ is \(48, 48\) in it and \(256, 256\) in", line
    )
    assert f"by its card it was trained on {made_for}" in line
    assert main([*words, "--any-base"]) == 0
    for word in (f"{adapter}:much", f"{adapter}:nan", f"{adapter}:11"):
        assert main(["weights", "merge", str(base), word, "--out", "x"]) == 2
        assert "expected DIR or DIR:SCALE" in capsys.readouterr().err


def test_the_folder_of_a_dit_alone_can_be_merged(adapter: Path, base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["weights", "merge", str(base / "dit"), str(adapter), "--out", str(out)]) == 0
    expected = load_merged(base, [AdapterSpec(adapter)])[0].state_dict()
    stored = load_file(out / "model.safetensors")
    assert all(torch.equal(stored[key], value) for key, value in expected.items())


def test_diffusers_reads_the_export(
    base: Path, adapter: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its transformer with our adapter says what ours says, for text alone."""
    dit = load_merged(base, [AdapterSpec(adapter)])[0]
    out = tmp_path / "wan_lora"
    words = ["weights", "export-lora", str(adapter), str(out)]
    assert main(words) == 2
    assert "modules that Wan cannot hold" in capsys.readouterr().err
    assert main([*words, "--drop-extras"]) == 0
    wan = WanTransformer3DModel(**config_to_wan(dit.config))
    wan.load_state_dict(state_to_wan(load_pipeline(base)[0]))
    wan.load_lora_adapter(str(out), use_safetensors=True)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 2, 16, 4, 4, generator=generator)
    cond = make_cond(dit.config, 1, 2, has_audio=False)
    with torch.no_grad():
        ours = run(dit, x, torch.full((1, 2), 0.5), cond)
        theirs = wan(x.transpose(1, 2), torch.tensor([500.0]), cond.text, return_dict=False)[0]
        wan.disable_lora()
        without = wan(x.transpose(1, 2), torch.tensor([500.0]), cond.text, return_dict=False)[0]
    torch.testing.assert_close(theirs.transpose(1, 2), ours, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(without, theirs, atol=1e-2)
