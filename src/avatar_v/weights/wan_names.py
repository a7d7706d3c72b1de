"""The names of Wan's tensors: ours, diffusers', the publisher's own, and those of trainers of LoRA.

Only names are listed here that a Wan has, so that any key of a file is either one of them or
reported; which of diffusers' names a publisher's name is, diffusers itself says.
"""

import functools
import re
from collections.abc import Iterable

from avatar_v.models.config import DiTConfig

_TOP = {
    "patch_embed": "patch_embedding",
    "time_embed.up": "condition_embedder.time_embedder.linear_1",
    "time_embed.down": "condition_embedder.time_embedder.linear_2",
    "time_embed.modulation": "condition_embedder.time_proj",
    "text_embed.up": "condition_embedder.text_embedder.linear_1",
    "text_embed.down": "condition_embedder.text_embedder.linear_2",
    "head.modulation": "scale_shift_table",
    "head.out": "proj_out",
}
_ATTENTION = {
    "query": "to_q", "key": "to_k", "value": "to_v", "out": "to_out.0",
    "query_norm": "norm_q", "key_norm": "norm_k",
}  # fmt: skip
_BLOCK = {
    "modulation": "scale_shift_table",
    "text_norm": "norm2",
    "ffn.up": "ffn.net.0.proj",
    "ffn.down": "ffn.net.2",
    **{f"self_attention.{ours}": f"attn1.{theirs}" for ours, theirs in _ATTENTION.items()},
    **{f"text_attention.{ours}": f"attn2.{theirs}" for ours, theirs in _ATTENTION.items()},
}
_PUBLISHED = (
    "patch_embedding", "time_embedding.0", "time_embedding.2", "time_projection.1",
    "text_embedding.0", "text_embedding.2", "head.modulation", "head.head",
)  # fmt: skip
_PUBLISHED_BLOCK = (
    "modulation", "norm3", "ffn.0", "ffn.2",
    *(f"{kind}_attn.{part}" for kind in ("self", "cross")
      for part in ("q", "k", "v", "o", "norm_q", "norm_k")),
)  # fmt: skip
_BLOCK_OF_KEY = re.compile(r"blocks\.(\d{1,9})\.")
PREFIXES = ("model.diffusion_model.", "diffusion_model.")
"""Before every key of a file for ComfyUI."""
LORA_PREFIXES = (
    "base_model.model.", "pipe.dit.", "dit.", "transformer.", *PREFIXES, "lora_unet__",
    "lora_unet_", "lora_transformer_",
)  # fmt: skip
"""Of peft, DiffSynth, diffusers, ComfyUI and kohya; peft's may stand before another."""


def modules(config: DiTConfig) -> dict[str, str]:
    """Our module → diffusers', and the tables of modulation."""
    found = dict(_TOP)
    for i in range(config.num_layers):
        found |= {f"blocks.{i}.{a}": f"blocks.{i}.{b}" for a, b in _BLOCK.items()}
    return found


def key_map(config: DiTConfig) -> dict[str, str]:
    """Our key → diffusers' key, for every tensor that both have."""
    keys = {}
    for ours, theirs in modules(config).items():
        if ours.endswith("modulation") and theirs.endswith("scale_shift_table"):
            keys[ours] = theirs
        elif ours.endswith(("query_norm", "key_norm")):
            keys[f"{ours}.weight"] = f"{theirs}.weight"
        else:
            keys |= {f"{ours}.{name}": f"{theirs}.{name}" for name in ("weight", "bias")}
    return keys


def num_blocks(keys: Iterable[str]) -> int:
    """How many blocks these keys are of."""
    return len({found[1] for key in keys if (found := _BLOCK_OF_KEY.match(key))})


@functools.cache
def published(num_layers: int) -> dict[str, str]:
    """The publisher's module → diffusers', as diffusers converts them."""
    from diffusers.loaders.single_file_utils import convert_wan_transformer_to_diffusers

    names = [*_PUBLISHED, *(f"blocks.{i}.{n}" for i in range(num_layers) for n in _PUBLISHED_BLOCK)]
    # the converter renames keys and does not look at values; a module's name ends before a dot
    return {
        name: theirs.removesuffix(".weight")
        for name in names
        for theirs in convert_wan_transformer_to_diffusers({f"{name}.weight": None})
    }


def to_diffusers(keys: Iterable[str]) -> dict[str, str]:
    """Each key, without the prefix that all have, → diffusers' key; such as no layout has stay
    themselves. ValueError where two are of the same tensor."""
    keys = list(keys)
    prefix = next((p for p in PREFIXES if any(key.startswith(p) for key in keys)), "")
    plain = {key: key.removeprefix(prefix) for key in keys}
    table = published(num_blocks(plain.values()))
    found: dict[str, str] = {}
    for key, short in plain.items():
        module, _, name = short.rpartition(".")
        is_part = module in table and name in ("weight", "bias")
        renamed = f"{table[module]}.{name}" if is_part else table.get(short, short)
        if renamed in found:
            raise ValueError(f"{found[renamed]} and {key} are the same tensor of Wan")
        found[renamed] = key
    return {key: renamed for renamed, key in found.items()}


def lora_modules(config: DiTConfig) -> dict[str, str]:
    """A module as trainers of LoRA name it, without their `LORA_PREFIXES` → ours."""
    ours_of = {theirs: ours for ours, theirs in modules(config).items()}
    names = ours_of | {a: ours_of[b] for a, b in published(config.num_layers).items()}
    return names | {name.replace(".", "_"): ours for name, ours in names.items()}


def without_lora_prefix(key: str) -> str:
    """The key of a LoRA, as its trainer names the matrix itself."""
    key = key.removeprefix(LORA_PREFIXES[0])
    for prefix in LORA_PREFIXES[1:]:
        if key.startswith(prefix):
            return key.removeprefix(prefix)
    return key
