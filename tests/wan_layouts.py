"""One Wan, and one LoRA of it, as everybody stores them: diffusers, the publisher, ComfyUI, kohya,
DiffSynth and peft; and what it says after our import."""

import json
from pathlib import Path

import torch
from diffusers import WanTransformer3DModel
from peft import LoraConfig
from safetensors.torch import save_file
from torch import Tensor

from avatar_v.cli import main
from avatar_v.models.dit import AvatarDiT
from avatar_v.types import Cond
from random_models import randomise

WAN = {
    "num_attention_heads": 2, "attention_head_dim": 128, "in_channels": 16, "out_channels": 16,
    "text_dim": 32, "freq_dim": 32, "ffn_dim": 96, "num_layers": 2,
}  # fmt: skip
"""Heads of 128 channels, as a file without a config is taken to have."""
PUBLISHED = {
    "_class_name": "WanModel", "_diffusers_version": "0.30.0", "dim": 256, "eps": 1e-6,
    "ffn_dim": 96, "freq_dim": 32, "in_dim": 16, "model_type": "t2v", "num_heads": 2,
    "num_layers": 2, "out_dim": 16, "text_len": 512, "text_dim": 32,
}  # fmt: skip
"""config.json in the publisher's schema."""
_NAMES = (
    ("scale_shift_table", "modulation"),
    ("condition_embedder.time_embedder.linear_1", "time_embedding.0"),
    ("condition_embedder.time_embedder.linear_2", "time_embedding.2"),
    ("condition_embedder.text_embedder.linear_1", "text_embedding.0"),
    ("condition_embedder.text_embedder.linear_2", "text_embedding.2"),
    ("condition_embedder.time_proj", "time_projection.1"),
    ("proj_out", "head.head"), ("attn1", "self_attn"), ("attn2", "cross_attn"),
    ("to_out.0", "o"), ("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("norm2", "norm3"),
    ("ffn.net.0.proj", "ffn.0"), ("ffn.net.2", "ffn.2"),
)  # fmt: skip


def tiny_wan() -> WanTransformer3DModel:
    model = WanTransformer3DModel(**WAN)
    randomise(model)
    return model.eval()


def published_key(key: str) -> str:
    """A key of diffusers, or the name of a module, as the publisher has it."""
    if key == "scale_shift_table":
        return "head.modulation"
    for theirs, own in _NAMES:
        key = key.replace(theirs, own)
    return key


def published(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {published_key(key): value.clone() for key, value in state.items()}


def save_published(folder: Path, state: dict[str, Tensor], *, shards: int = 1) -> None:
    """The publisher's folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(PUBLISHED))
    stem, keys = "diffusion_pytorch_model", list(state)
    if shards == 1:
        save_file(state, folder / f"{stem}.safetensors")
        return
    weight_map = {}
    for i in range(shards):
        name = f"{stem}-{i + 1:05d}-of-{shards:05d}.safetensors"
        save_file({key: state[key] for key in keys[i::shards]}, folder / name)
        weight_map |= dict.fromkeys(keys[i::shards], name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / f"{stem}.safetensors.index.json").write_text(json.dumps(index))


def prefixed(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {f"{prefix}{key}": value for key, value in state.items()}


Factors = dict[str, tuple[Tensor, Tensor]]


def random_factors(wan: WanTransformer3DModel, *, rank: int = 4) -> Factors:
    """diffusers' module → A and B, of every matrix of the blocks."""
    generator = torch.Generator().manual_seed(3)
    found = {}
    for name, module in wan.named_modules():
        if isinstance(module, torch.nn.Linear) and name.startswith("blocks."):
            a = torch.randn(rank, module.in_features, generator=generator)
            found[name] = (
                0.1 * a,
                0.1 * torch.randn(module.out_features, rank, generator=generator),
            )
    return found


def kohya(factors: Factors, alpha: float) -> dict[str, Tensor]:
    state = {}
    for name, (a, b) in factors.items():
        own = "lora_unet_" + published_key(name).replace(".", "_")
        state |= {f"{own}.lora_down.weight": a, f"{own}.lora_up.weight": b}
        state[f"{own}.alpha"] = torch.tensor(alpha)
    return state


def comfy(factors: Factors, alpha: float | None = None, down: str = "lora_down",
          up: str = "lora_up") -> dict[str, Tensor]:  # fmt: skip
    state = {}
    for name, (a, b) in factors.items():
        own = "diffusion_model." + published_key(name)
        state |= {f"{own}.{down}.weight": a, f"{own}.{up}.weight": b}
        state |= {} if alpha is None else {f"{own}.alpha": torch.tensor(alpha)}
    return state


def of_diffusers(factors: Factors) -> dict[str, Tensor]:
    state = {}
    for name, (a, b) in factors.items():
        state |= {f"transformer.{name}.lora_A.weight": a, f"transformer.{name}.lora_B.weight": b}
    return state


def diffsynth(factors: Factors, prefix: str = "") -> dict[str, Tensor]:
    state = {}
    for name, (a, b) in factors.items():
        own = prefix + published_key(name)
        state |= {f"{own}.lora_A.default.weight": a, f"{own}.lora_B.default.weight": b}
    return state


def save_peft(folder: Path, factors: Factors, alpha: int) -> None:
    """What peft's save_pretrained leaves of diffusers' network."""
    rank = len(next(iter(factors.values()))[0])
    config = LoraConfig(r=rank, lora_alpha=alpha, target_modules=list(factors))
    config.save_pretrained(str(folder))
    state = {}
    for name, (a, b) in factors.items():
        own = f"base_model.model.{name}"
        state |= {f"{own}.lora_A.weight": a, f"{own}.lora_B.weight": b}
    save_file(state, folder / "adapter_model.safetensors")


def import_wan(source: Path, out: Path, *words: str) -> int:
    return main(["weights", "import-wan", str(source), str(out), "--audio-dim", "32", *words])


@torch.no_grad()
def outputs(dit: AvatarDiT, wan: WanTransformer3DModel) -> tuple[Tensor, Tensor]:
    """Of both networks, for a text alone."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 3, 16, 4, 6, generator=generator)
    text = torch.randn(1, 5, 32, generator=generator)
    ours = dit.eval()(x, torch.full((1, 3), 0.5), Cond(text=text))
    theirs = wan(x.transpose(1, 2), torch.tensor([500.0]), text, return_dict=False)[0]
    return ours, theirs.transpose(1, 2)
