"""Every layout in which LoRA of Wan is stored gives the adapter that its trainer made; what does
not fit whole is refused."""

import json
from pathlib import Path

import pytest
import torch
from diffusers import WanTransformer3DModel
from diffusers.loaders import lora_conversion_utils
from diffusers.loaders.lora_pipeline import WanLoraLoaderMixin
from safetensors.torch import load_file, save_file
from torch import Tensor

from avatar_v.cli import main
from avatar_v.weights.adapter_files import read_adapter
from avatar_v.weights.weights import load_dit
from wan_layouts import (
    WAN,
    Factors,
    comfy,
    diffsynth,
    import_wan,
    kohya,
    of_diffusers,
    outputs,
    random_factors,
    save_peft,
    tiny_wan,
)  # fmt: skip

RANK, ALPHA = 4, 6


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


def import_lora(source: Path, base: Path, out: Path, *words: str) -> int:
    return main(["weights", "import-lora", str(source), str(out), "--base", str(base), *words])


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
