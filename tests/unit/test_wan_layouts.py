"""Every layout in which Wan and LoRA of it are stored gives the same network, that of diffusers;
what is not whole or not known is refused."""

import json
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from diffusers.loaders import lora_conversion_utils
from diffusers.loaders.lora_pipeline import WanLoraLoaderMixin
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from safetensors.torch import load_file, save_file
from torch import Tensor

from avatar_v.cli import main
from avatar_v.models.dit import AvatarDiT
from avatar_v.types import Cond
from avatar_v.weights.adapter import read_adapter
from avatar_v.weights.wan_names import published as published_names
from avatar_v.weights.weights import load_dit, read_state
from wan_layouts import (
    WAN,
    Factors,
    comfy,
    diffsynth,
    kohya,
    of_diffusers,
    prefixed,
    published,
    published_key,
    random_factors,
    save_peft,
    save_published,
    tiny_wan,
)  # fmt: skip

FP8 = torch.float8_e4m3fn


@pytest.fixture(scope="module")
def wan() -> WanTransformer3DModel:
    return tiny_wan()


@pytest.fixture(scope="module")
def base(wan: WanTransformer3DModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a DiT."""
    folder = tmp_path_factory.mktemp("layouts")
    wan.save_pretrained(folder / "wan")
    assert import_wan(folder / "wan", folder / "dit") == 0
    return folder / "dit"


def import_wan(source: Path, out: Path, *words: str) -> int:
    return main(["weights", "import-wan", str(source), str(out), "--audio-dim", "32", *words])


def import_lora(source: Path, base: Path, out: Path, *words: str) -> int:
    return main(["weights", "import-lora", str(source), str(out), "--base", str(base), *words])


@torch.no_grad()
def outputs(dit: AvatarDiT, wan: WanTransformer3DModel) -> tuple[Tensor, Tensor]:
    """Of both networks, for a text alone."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, 16, 4, 6, generator=generator)
    text = torch.randn(1, 5, 32, generator=generator)
    ours = dit.eval()(x, torch.full((1, 3), 0.5), Cond(text=text))
    theirs = wan(x.transpose(1, 2), torch.tensor([500.0]), text, return_dict=False)[0]
    return ours, theirs.transpose(1, 2)


def write_layout(name: str, place: Path, state: dict[str, Tensor]) -> Path:
    """``state`` in a layout; the place to import from."""
    own = published(state)
    if name in ("published", "published shards"):
        save_published(place / "wan", own, shards=3 if name.endswith("shards") else 1)
        return place / "wan"
    prefix = {"comfy": "model.diffusion_model.", "diffusion_model": "diffusion_model."}
    state = state if name == "diffusers file" else prefixed(own, prefix.get(name, ""))
    save_file({key: value.contiguous() for key, value in state.items()}, place / "wan.safetensors")
    return place / "wan.safetensors"


LAYOUTS = ("published", "published shards", "published file", "comfy", "diffusion_model",
           "diffusers file")  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_network_of_diffusers(
    layout: str, wan: WanTransformer3DModel, base: Path, tmp_path: Path
) -> None:
    source = write_layout(layout, tmp_path, wan.state_dict())
    assert import_wan(source, tmp_path / "ours") == 0
    dit, expected = load_dit(tmp_path / "ours"), load_dit(base)
    assert dit.config == expected.config
    for key, value in expected.state_dict().items():
        assert torch.equal(dit.state_dict()[key], value), key
    # fp32, sums in another order
    torch.testing.assert_close(*outputs(dit, wan), rtol=1e-4, atol=1e-4)


def test_the_names_of_the_publisher_are_those_that_diffusers_converts(
    wan: WanTransformer3DModel,
) -> None:
    """tests/wan_layouts.py writes them by a table of its own."""
    state = wan.state_dict()
    back = convert_wan_transformer_to_diffusers({published_key(key): key for key in state})
    assert back == {key: key for key in state}
    listed = published_names(WAN["num_layers"])
    modules = {key.removesuffix(".weight").removesuffix(".bias") for key in state}
    assert {published_key(module): module for module in modules} == listed


def test_fp8_is_read_exactly_and_scales_are_applied(
    wan: WanTransformer3DModel, tmp_path: Path
) -> None:
    """Of the tensor, of each row, and none; as ComfyUI marks them, and as quantisers do."""
    state = published(wan.state_dict())
    expected = dict(state)
    stored: dict[str, dict[str, Tensor]] = {"plain": {}, "comfy": {}, "rows": {}}
    rounded: dict[str, dict[str, Tensor]] = {name: dict(expected) for name in stored}
    for key, value in state.items():
        module, is_matrix = key.removesuffix(".weight"), value.dim() == 2 and "blocks" in key
        for name, scale in (("plain", None), ("comfy", value.abs().max() / 448),
                            ("rows", value.abs().amax(-1, keepdim=True) / 448)):  # fmt: skip
            if not is_matrix:
                stored[name][key] = value
                continue
            eight = (value if scale is None else value / scale).to(FP8)
            stored[name][key] = eight
            product = eight.float() * (1 if scale is None else scale)
            rounded[name][key] = product.bfloat16().float()
            if scale is not None:
                suffix = "scale_weight" if name == "comfy" else "weight_scale"
                stored[name][f"{module}.{suffix}"] = scale.reshape(scale.shape).clone()
    stored["comfy"]["scaled_fp8"] = torch.zeros(2, dtype=FP8)
    some = "blocks.0.self_attn.q"
    stored["comfy"][f"{some}.scale_input"] = torch.ones(1)
    stored["rows"][f"{some}.comfy_quant"] = torch.zeros(4, dtype=torch.uint8)
    for name in stored:
        file = tmp_path / f"{name}.safetensors"
        save_file(prefixed(stored[name], "model.diffusion_model."), file)
        assert import_wan(file, tmp_path / name) == 0
        raw = read_state(tmp_path / name)
        assert raw["blocks.0.self_attention.query.weight"].dtype == torch.bfloat16
        assert raw["blocks.0.modulation"].dtype == torch.float32
        found = load_dit(tmp_path / name).state_dict()
        for i in range(WAN["num_layers"]):
            key, own = f"blocks.{i}.ffn.up.weight", f"blocks.{i}.ffn.0.weight"
            assert torch.equal(found[key], rounded[name][own]), (name, key)
        model = WanTransformer3DModel(**WAN).eval()
        model.load_state_dict(convert_wan_transformer_to_diffusers(dict(rounded[name])))
        torch.testing.assert_close(*outputs(load_dit(tmp_path / name), model), rtol=1e-4, atol=1e-4)


def spoilt(state: dict[str, Tensor]) -> dict[str, tuple[dict[str, Tensor], str]]:
    """Scaled files with one fault each: what changes, and what is said of it."""
    module, other = "blocks.0.self_attn.q", "blocks.1.ffn.0.weight"
    key = f"{module}.weight"
    eight = {key: state[key].to(FP8)}
    scale, second = ({f"{module}.{s}": torch.ones(())} for s in ("scale_weight", "weight_scale"))
    rows = "expected one number, or one for each of its 256 rows"
    return {
        "no scale": (eight | {"scaled_fp8": torch.zeros(2, dtype=FP8)},
                     f"{key} has no scale, and others have one"),
        "one without": (eight | scale | {other: state[other].to(FP8)},
                        f"{other} has no scale, and others have one"),
        "scale of blocks": (eight | {f"{module}.weight_scale": torch.ones(2, 2)}, rows),
        "two scales": (eight | scale | second, rows),
        "scale nan": (eight | {f"{module}.scale_weight": torch.tensor(torch.nan)},
                      f"{key} holds numbers that are not finite"),
        "scale of bf16": (scale, f"unexpected: {module}.scale_weight"),
        "int8": ({key: state[key].to(torch.int8)}, "is stored as int8, expected floating point"),
        "nvfp4": ({key: state[key][:, :128].to(torch.uint8), **scale},
                  "is stored as uint8, expected floating point"),
        "other network": ({"text_model.weight": torch.zeros(2, 2)},
                          "unexpected: text_model.weight"),
        "twice": ({"model.diffusion_model.head.head.bias": state["head.head.bias"].clone()},
                  "are the same tensor of Wan"),
    }  # fmt: skip


def test_a_file_that_is_not_read_whole_is_refused(
    wan: WanTransformer3DModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, state = tmp_path / "wan.safetensors", published(wan.state_dict())
    for fault, (change, message) in spoilt(state).items():
        save_file(state | change, file)
        assert import_wan(file, tmp_path / "ours") == 2, fault
        assert message in capsys.readouterr().err, fault
        assert [path.name for path in tmp_path.iterdir()] == [file.name], fault


@pytest.mark.parametrize(
    "layout",
    ["pipeline", "its transformer", "its second", "index", "published", "half", "file", "named"],
)
def test_two_experts_are_refused(
    layout: str, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wan = tmp_path / "wan"
    for name in ("transformer", "transformer_2"):
        (wan / name).mkdir(parents=True)
    source = {"its transformer": wan / "transformer", "its second": wan / "transformer_2"}
    if layout == "index":
        (wan / "transformer_2").rmdir()
        values = {"boundary_ratio": 0.875, "transformer_2": ["diffusers", "WanTransformer3DModel"]}
        (wan / "model_index.json").write_text(json.dumps(values))
    place = source.get(layout, wan)
    if layout in ("published", "half"):
        place = tmp_path / "other"
        (place / "high_noise_model").mkdir(parents=True)
        place = place / "high_noise_model" if layout == "half" else place
    if layout in ("file", "named"):
        name = "wan2.2_t2v_low_noise_14B_fp8_scaled" if layout == "file" else "Wan2_2-T2V-A14B_HIGH"
        place = tmp_path / f"{name}.safetensors"
        save_file({"a": torch.zeros(1)}, place)
    assert import_wan(place, tmp_path / "ours") == 2
    error = capsys.readouterr().err
    for words in ("two networks", "transformer_2", "Wan 2.1 T2V 1.3B and 14B"):
        assert words in error


def test_a_pipeline_of_one_expert_is_read(wan: WanTransformer3DModel, tmp_path: Path) -> None:
    """Newer pipelines name the second network of others, as none."""
    wan.save_pretrained(tmp_path / "wan" / "transformer")
    values = {"boundary_ratio": None, "transformer_2": [None, None]}
    (tmp_path / "wan" / "model_index.json").write_text(json.dumps(values))
    assert import_wan(tmp_path / "wan" / "transformer", tmp_path / "ours") == 0


RANK, ALPHA = 4, 6


def write_lora(name: str, place: Path, factors: Factors) -> tuple[Path, float]:
    """A LoRA in a layout: where it lies, and what B A counts."""
    if name.startswith("peft"):
        save_peft(place / "peft", factors, ALPHA)
        file = "adapter_model.safetensors" if name == "peft's file" else ""
        return place / "peft" / file, ALPHA / RANK
    if name == "diffusers with alpha":
        layers = {f"{m}.lora_A.weight": a for m, (a, _) in factors.items()}
        layers |= {f"{m}.lora_B.weight": b for m, (_, b) in factors.items()}
        about = {"r": RANK, "lora_alpha": ALPHA, "target_modules": list(factors)}
        WanLoraLoaderMixin.save_lora_weights(
            place / "lora", transformer_lora_layers=layers, transformer_lora_adapter_metadata=about
        )
        return place / "lora", ALPHA / RANK
    state = {
        "kohya": kohya(factors, ALPHA),
        "comfy": comfy(factors),
        "comfy with alpha": comfy(factors, ALPHA),
        "comfy A B": comfy(factors, None, "lora_A", "lora_B"),
        "diffusers": of_diffusers(factors),
        "DiffSynth": diffsynth(factors),
        "DiffSynth pipe": diffsynth(factors, "pipe.dit."),
    }[name]
    file = place / "lora.safetensors"
    save_file({key: value.contiguous() for key, value in state.items()}, file)
    return file, ALPHA / RANK if name in ("kohya", "comfy with alpha") else 1.0


LORAS = ("kohya", "comfy", "comfy with alpha", "comfy A B", "diffusers", "diffusers with alpha",
         "DiffSynth", "DiffSynth pipe", "peft", "peft's file")  # fmt: skip


@pytest.mark.parametrize("layout", LORAS)
def test_lora_of_every_trainer_is_what_they_trained(
    layout: str, wan: WanTransformer3DModel, base: Path, tmp_path: Path
) -> None:
    """diffusers' network with W + alpha / rank B A says what ours says."""
    factors = random_factors(wan, rank=RANK)
    source, weight = write_lora(layout, tmp_path, factors)
    assert import_lora(source, base, tmp_path / "adapter") == 0
    words = ["weights", "merge", str(base), str(tmp_path / "adapter"), "--out", str(tmp_path / "m")]
    assert main(words) == 0
    changed = WanTransformer3DModel(**WAN).eval()
    state = {key: value.clone() for key, value in wan.state_dict().items()}
    for module, (a, b) in factors.items():
        state[f"{module}.weight"] += weight * b @ a
    changed.load_state_dict(state)
    found, expected = outputs(load_dit(tmp_path / "m"), changed)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(outputs(load_dit(base), wan)[0], expected, atol=1e-2)


@pytest.mark.parametrize("layout", ["kohya", "comfy with alpha", "comfy A B"])
def test_diffusers_converts_such_a_lora_to_the_same_products(
    layout: str, wan: WanTransformer3DModel, base: Path, tmp_path: Path
) -> None:
    source, _ = write_lora(layout, tmp_path, random_factors(wan, rank=RANK))
    assert import_lora(source, base, tmp_path / "adapter") == 0
    words = ["weights", "export-lora", str(tmp_path / "adapter"), str(tmp_path / "back")]
    assert main(words) == 0
    ours = load_file(tmp_path / "back" / "pytorch_lora_weights.safetensors")
    name = "musubi_wan" if layout == "kohya" else "non_diffusers_wan"
    convert = getattr(lora_conversion_utils, f"_convert_{name}_lora_to_diffusers")
    theirs = convert(load_file(source))
    assert ours.keys() == theirs.keys()
    for key in (key for key in ours if ".lora_A." in key):
        other = key.replace(".lora_A.", ".lora_B.")
        torch.testing.assert_close(ours[other] @ ours[key], theirs[other] @ theirs[key])


def test_ranks_that_differ_and_convolutions(
    wan: WanTransformer3DModel, base: Path, tmp_path: Path
) -> None:
    """Factors of rank 2 and 3, each with its alpha, and of the patches, stored as a convolution."""
    two = dict(list(random_factors(wan, rank=2).items())[:3])
    name, (a, b) = next(iter(random_factors(wan, rank=3).items()))
    state = kohya(two, 1.0) | kohya({name: (a, b)}, 6.0)
    down, up = torch.randn(2, 16, 1, 2, 2), torch.randn(256, 2, 1, 1, 1)
    state |= {"lora_unet_patch_embedding.lora_down.weight": down,
              "lora_unet_patch_embedding.lora_up.weight": up}  # fmt: skip
    state = {key: value.contiguous() for key, value in state.items()}
    save_file(state, tmp_path / "a.safetensors")
    assert import_lora(tmp_path / "a.safetensors", base, tmp_path / "adapter") == 0
    adapter = read_adapter(tmp_path / "adapter")
    products = {m: adapter.weight * b @ a for m, (a, b) in adapter.factors.items()}
    assert adapter.rank == 3
    torch.testing.assert_close(products["patch_embed"], up.flatten(1) @ down.flatten(1))
    torch.testing.assert_close(products["blocks.0.self_attention.query"], 2.0 * b @ a)
    a, b = two["blocks.0.attn1.to_k"]
    torch.testing.assert_close(products["blocks.0.self_attention.key"], 0.5 * b @ a)


def other_loras(factors: Factors) -> dict[str, tuple[dict[str, Tensor], str]]:
    """LoRA with one fault each, and what is said of it."""
    state, blocks = comfy(factors, 4.0), "diffusion_model.blocks"
    own = f"{blocks}.0.self_attn.q"
    down, up = f"{own}.lora_down.weight", f"{own}.lora_up.weight"
    a = state[down]

    def more(name: str) -> dict[str, Tensor]:
        return state | {name: a.clone()}

    return {
        "text encoder": (more("lora_te_layers_0_q.lora_down.weight"), "1 key of no matrix"),
        "another layer": (state | {f"{blocks}.7.self_attn.q.alpha": torch.ones(())},
                          "'diffusion_model.blocks.7.self_attn.q.alpha'"),
        "image keys": (more(f"{blocks}.0.cross_attn.k_img.lora_down.weight"),
                       "cross_attn.k_img.lora_down.weight"),
        "bias": (state | {f"{own}.diff_b": torch.ones(256)}, "blocks.0.self_attn.q.diff_b"),
        "second expert": (more("transformer_2.blocks.0.attn1.to_q.lora_A.weight"),
                          "transformer_2.blocks.0"),
        "half": ({key: value for key, value in state.items() if key != up},
                 "has no matrix up (lora_B)"),
        "twice": (more("transformer.blocks.0.attn1.to_q.lora_A.weight"), "are of the same matrix"),
        "alpha nan": (state | {f"{own}.alpha": torch.tensor(torch.nan)},
                      "blocks.0.self_attn.q.alpha is a finite number"),
        "alphas": (state | {f"{own}.alpha": torch.ones(3)}, "is one number, got torch.float32"),
        "nan": (state | {down: torch.full_like(a, torch.nan)}, "not finite"),
        "int": (state | {down: a.to(torch.int32)}, "is stored as int32"),
        "flat": (state | {down: torch.zeros(4)}, "A is (rank, in) and B (out, rank)"),
        "other width": (state | {down: torch.zeros(4, 100)},
                        "shape of blocks.0.self_attention.query.lora_A.weight"),
        "empty": ({}, "has no factors of LoRA"),
        "huge rank": (state | {down: torch.zeros(4000, 256), up: torch.zeros(256, 4000)},
                      "ranks from 4 to 4000"),
    }  # fmt: skip


def test_a_lora_that_does_not_fit_whole_is_refused(
    wan: WanTransformer3DModel, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "lora.safetensors"
    faults = other_loras(dict(list(random_factors(wan).items())[:6]))
    for fault, (state, message) in faults.items():
        save_file({key: value.contiguous() for key, value in state.items()}, file)
        assert import_lora(file, base, tmp_path / "adapter") == 2, fault
        assert message in capsys.readouterr().err, fault
        assert [path.name for path in tmp_path.iterdir()] == [file.name], fault


def test_what_matches_is_taken_where_that_is_asked_for(
    wan: WanTransformer3DModel, base: Path, tmp_path: Path
) -> None:
    """Changes that are zero are none, and say nothing."""
    state = comfy(dict(list(random_factors(wan).items())[:2]))
    nothing = {"diffusion_model.blocks.0.norm3.diff": torch.zeros(256)}
    save_file(state | nothing, tmp_path / "zero.safetensors")
    assert import_lora(tmp_path / "zero.safetensors", base, tmp_path / "zero") == 0
    other = {"diffusion_model.blocks.0.norm3.diff": torch.ones(256)}
    save_file(state | other, tmp_path / "lora.safetensors")
    file, out = tmp_path / "lora.safetensors", tmp_path / "adapter"
    with pytest.warns(UserWarning, match=r"1 key left out: '.*norm3.diff'"):
        assert import_lora(file, base, out, "--drop-unmatched") == 0
    found = [read_adapter(tmp_path / name).factors for name in ("zero", "adapter")]
    assert found[0].keys() == found[1].keys()


def test_an_alpha_that_is_no_plain_lora_is_refused(
    wan: WanTransformer3DModel, base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_peft(tmp_path / "peft", random_factors(wan), ALPHA)
    path = tmp_path / "peft" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "use_rslora": True}))
    for source in (path.parent, path.with_name("adapter_model.safetensors")):
        assert import_lora(source, base, tmp_path / "adapter") == 2
        assert "expected a plain LoRA, got {'use_rslora': True}" in capsys.readouterr().err
