"""The files of somebody else's Wan: where they lie, in which layout and in which numbers.

A folder in diffusers' or in the publisher's own layout, with its config.json, or one .safetensors
file, as ComfyUI takes it, whose sizes are those of its tensors. Matrices of 8 bits are read with
their scales. Wan 2.2 A14B, which is two networks, is refused.
"""

import re
from pathlib import Path
from typing import Any

from torch import Tensor

from avatar_v.base.states import EIGHT_BITS, WIDE, check_numbers, read_tensors
from avatar_v.base.stored import Size, checked, shown
from avatar_v.weights.wan_names import num_blocks, to_diffusers
from avatar_v.weights.weights import read_json, read_state

WAN_STEM = "diffusion_pytorch_model"
WAN_CLASS = "WanTransformer3DModel"
PUBLISHED_CLASS = "WanModel"
HEAD_DIM = 128
"""Of every published Wan; a file without a config does not tell."""
_TEXT_DIM = 4096
"""Of UMT5-XXL: the publisher's configs leave it out."""
_SCALES = ("scale_weight", "weight_scale")
"""Beside a matrix of 8 bits, of ComfyUI and of diffusers' quantisers: the matrix is their
product."""
_OF_SUMS = ("scale_input", "input_scale", "comfy_quant")
"""For products that are computed in 8 bits, which none is here."""
_MARK = "scaled_fp8"
_EXPERT = re.compile(r"a14b|(high|low)[ _-]?noise", re.IGNORECASE)
_EXPERTS = ("transformer_2", "high_noise_model", "low_noise_model")
_PICKLED = (".pt", ".pth", ".bin", ".ckpt", ".pkl")


def read_wan(source: Path) -> tuple[dict[str, Any], dict[str, Tensor], str]:
    """The values of a config in diffusers' schema, all tensors under diffusers' names, and where
    they lie. ValueError for what is missing, damaged or of two experts, and for numbers that no
    network can use."""
    _check_one_network(source)
    if source.is_dir():
        source = source / "transformer" if (source / "transformer").is_dir() else source
        values = _diffusers_config(read_json(source / "config.json"))
        state = read_state(source, WAN_STEM, check=False)
        return values, _named(state, source), str(source)
    if source.suffix in _PICKLED:
        raise ValueError(f"{source} could run code and is not read: expected .safetensors")
    if source.suffix != ".safetensors":
        raise ValueError(f"{source} is no folder of weights and no .safetensors file")
    state = _named(read_tensors(source), source)
    return _infer_config(state, source), state, str(source)


def _check_one_network(source: Path) -> None:
    """ValueError for Wan 2.2 A14B, or one half of it, as far as names and folders tell."""
    above = source if source.is_dir() else source.parent
    above = above.absolute().parent if above.name == "transformer" else source
    names = [*source.absolute().parts[-3:], *source.resolve().parts[-3:]]
    signs = [name for name in names if _EXPERT.search(name)]
    signs += [name for name in _EXPERTS if source.name == name or (above / name).is_dir()]
    index = above / "model_index.json"
    second = read_json(index).get("transformer_2") if index.is_file() else None
    if isinstance(second, list) and any(second):
        signs.append("transformer_2 in model_index.json")
    if signs:
        raise ValueError(
            f"{source} is of Wan 2.2 A14B by {shown(signs[0])}: two networks, one for much noise "
            "(transformer, high_noise_model; from t .875 up, of I2V .9) and one for the rest "
            "(transformer_2, low_noise_model). Either alone is half a model; Wan 2.1 T2V 1.3B and "
            "14B and Wan 2.2 TI2V 5B, which are one network each, are read"
        )


def _named(state: dict[str, Tensor], where: Path) -> dict[str, Tensor]:
    state = _unscaled(state, where)
    check_numbers(state, where=where)
    names = to_diffusers(state)
    return {names[key]: value for key, value in state.items()}


def _unscaled(state: dict[str, Tensor], where: Path) -> dict[str, Tensor]:
    """``state`` without numbers of 8 bits: bf16, which holds them exactly, and for a matrix with a
    scale their product, rounded to bf16. ValueError for scales that do not fit, and for a matrix
    that lacks one where others have one."""
    marks = [key for key in state if key.rpartition(".")[2] == _MARK]
    plain = {key: value for key, value in state.items() if key not in marks}
    without, is_scaled = [], bool(marks)
    for key in [key for key, value in plain.items() if value.dtype in EIGHT_BITS]:
        module = key.removesuffix(".weight")
        scales = [plain.pop(f"{module}.{name}", None) for name in _SCALES]
        scales = [scale for scale in scales if scale is not None]
        for name in _OF_SUMS:
            plain.pop(f"{module}.{name}", None)
        plain[key] = _product(plain[key], scales, where=f"{where}: {key}")
        is_scaled |= bool(scales)
        without += [] if scales or plain[key].dim() < 2 else [key]
    if is_scaled and without:
        raise ValueError(f"{where}: {without[0]} has no scale, and others have one")
    return plain


def _product(value: Tensor, scales: list[Tensor], *, where: str) -> Tensor:
    if not scales:
        return value.bfloat16()
    (scale, *more) = scales
    rows = value.shape[:1].numel()
    fits = scale.numel() == 1 or scale.shape in ((rows,), (rows, 1))
    if more or not fits or scale.dtype not in WIDE:
        raise ValueError(
            f"{where} has scales {[tuple(s.shape) for s in scales]}: expected one number, or one "
            f"for each of its {rows} rows"
        )
    scale = scale.float().reshape(-1, *[1] * (value.dim() - 1))
    return (value.float() * scale).bfloat16()


def _diffusers_config(values: dict[str, Any]) -> dict[str, Any]:
    """A config.json, that of the publisher in diffusers' schema."""
    if values.get("_class_name") != PUBLISHED_CLASS:
        return values
    sizes = ("dim", "num_heads")
    missing = [key for key in sizes if key not in values]
    if missing:
        raise ValueError(f"config.json of {PUBLISHED_CLASS} lacks {', '.join(missing)}")
    found = checked(values, dict.fromkeys(sizes, Size), where="config.json")
    if found["dim"] % found["num_heads"]:
        raise ValueError(f"config.json: dim is a multiple of num_heads, got {shown(found)}")
    names = {"in_dim": "in_channels", "out_dim": "out_channels", "num_heads": "num_attention_heads"}
    known = {names.get(key, key): value for key, value in values.items() if key not in _SAID}
    if values.get("qk_norm", True) is True:
        known["qk_norm"] = "rms_norm_across_heads"
    return {
        "patch_size": [1, 2, 2], "cross_attn_norm": True, "text_dim": _TEXT_DIM, **known,
        "_class_name": WAN_CLASS, "attention_head_dim": found["dim"] // found["num_heads"],
    }  # fmt: skip


_SAID = ("dim", "model_type", "text_len", "window_size")
"""In the publisher's config, and nothing of ours: what a layout is, its tensors say."""


def _infer_config(state: dict[str, Tensor], where: Path) -> dict[str, Any]:
    """The config of a file without one, by the shapes of its tensors."""
    first = {
        "patch_embedding.weight": 5, "proj_out.weight": 2, "blocks.0.ffn.net.0.proj.weight": 2,
        "condition_embedder.text_embedder.linear_1.weight": 2,
        "condition_embedder.time_embedder.linear_1.weight": 2,
    }  # fmt: skip
    wrong = [key for key, dim in first.items() if key not in state or state[key].dim() != dim]
    if wrong:
        raise ValueError(f"{where} holds no Wan: it lacks {wrong[0]}, or has it in another shape")
    patch, out, ffn, text, time = (state[key].shape for key in first)
    if patch[0] % HEAD_DIM:
        raise ValueError(
            f"{where} has {patch[0]} channels, no multiple of {HEAD_DIM}, which a head of every "
            "published Wan has: other weights need a folder with their config.json"
        )
    return {
        "_class_name": WAN_CLASS, "num_attention_heads": patch[0] // HEAD_DIM,
        "attention_head_dim": HEAD_DIM, "num_layers": num_blocks(state), "ffn_dim": ffn[0],
        "in_channels": patch[1], "out_channels": out[0] // max(patch[2:].numel(), 1),
        "text_dim": text[1], "freq_dim": time[1], "patch_size": list(patch[2:]),
        "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads",
    }  # fmt: skip
