"""Every layout in which Wan is stored gives the same network, that of diffusers; what is not
whole or not known is refused."""

import json
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers
from safetensors.torch import save_file
from torch import Tensor

from avatar_v.weights.wan_names import published as published_names
from avatar_v.weights.weights import load_dit, read_state
from wan_layouts import (
    WAN,
    import_wan,
    outputs,
    prefixed,
    published,
    published_key,
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
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
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
