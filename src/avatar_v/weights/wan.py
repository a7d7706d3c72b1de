"""Open Wan weights in and out: any of Wan's layouts → AvatarDiT → diffusers' WanTransformer3DModel.

The text-to-video layouts (Wan 2.1 T2V, Wan 2.2 TI2V 5B) map one to one. The image-to-video layouts,
with CLIP tokens or concatenated channels, are refused: our image and prefix conditions are clean
frames at t = 0.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from avatar_v.base.device import without_memory
from avatar_v.base.paths import whole_folder
from avatar_v.base.states import check_state, common_dtype
from avatar_v.base.stored import Size, checked
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.weights.wan_files import WAN_CLASS, WAN_STEM, read_wan
from avatar_v.weights.wan_names import key_map, num_blocks
from avatar_v.weights.weights import load_dit, save_dit, write_json, write_state

WAN_EPS = 1e-6
"""Of every published Wan, and diffusers' default."""
_SIZES = (
    "num_attention_heads", "attention_head_dim", "num_layers", "ffn_dim", "in_channels",
    "out_channels", "text_dim", "freq_dim",
)  # fmt: skip
_READ = (
    *_SIZES, "eps", "patch_size", "cross_attn_norm", "qk_norm", "image_dim", "added_kv_proj_dim",
    "rope_max_seq_len", "pos_embed_seq_len",
)  # fmt: skip
"""The last two bound what positions a table holds; ours are computed."""


def import_wan(source: str | Path, out: str | Path, *, audio_dim: int, audio_every: int) -> None:
    """Turn a Wan, a folder or a file (wan_files.py), into a DiT folder, which appears whole or not
    at all.

    Audio and motion modules are added fresh, with outputs of zero. ValueError for an existing
    ``out``, an I2V layout, values out of range, or keys that do not fit, each named.
    """
    out = new_folder(Path(out))
    values, state, where = read_wan(Path(source))
    config = config_from_wan(values, audio_dim=audio_dim, audio_every=audio_every)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dit = dit_from_wan(config, state, where=where)
    with whole_folder(out) as partial:
        save_dit(partial, dit, dtype=None)


def export_wan(source: str | Path, out: str | Path, *, drop_extras: bool = False) -> None:
    """Turn a DiT folder into a diffusers folder.

    Wan has no audio, motion or faces, and all its frames see each other: ValueError when such
    modules have been trained, and for causal weights, unless ``drop_extras``; and always for a
    refiner, which is nothing without the low video.
    """
    dit, out = load_dit(source), new_folder(Path(out))
    check_no_refiner(dit.config, source)
    if not drop_extras:
        check_no_mask(dit.config, source)
    trained = [
        key for key, value in dit.state_dict().items() if _is_extra_output(key) and value.any()
    ]
    if trained and not drop_extras:
        raise ValueError(
            f"{source} has trained audio, motion or face modules that Wan cannot hold "
            f"({', '.join(trained)}); --drop-extras leaves them out"
        )
    with whole_folder(out) as partial:
        write_json(partial / "config.json", {"_class_name": WAN_CLASS, **config_to_wan(dit.config)})
        write_state(partial, state_to_wan(dit), WAN_STEM)


def dit_from_wan(config: DiTConfig, state: dict[str, Tensor], *, where: str) -> AvatarDiT:
    """An AvatarDiT with Wan's weights, each in its own dtype, and new modules for the rest."""
    clip = [key for key in state if "add_k_proj" in key or "image_embedder" in key]
    if clip:
        raise ValueError(f"{where} is an I2V layout with CLIP tokens (for example {clip[0]})")
    found = num_blocks(state)
    if found != config.num_layers:
        raise ValueError(f"{where} has {found} blocks, its config says {config.num_layers}")
    with without_memory():  # at full size a second copy would not fit beside ``state``
        dit = AvatarDiT(config)
    check_state(state_to_wan(dit), state, where=where)
    shapes = dit.state_dict()
    own = {
        ours: state[theirs].reshape(shapes[ours].shape) for ours, theirs in key_map(config).items()
    }
    dit.load_state_dict({**_new_modules(dit, common_dtype(state)), **own}, assign=True)
    return dit


def state_to_wan(dit: AvatarDiT) -> dict[str, Tensor]:
    """The tensors of ``dit`` that Wan knows, under Wan's names and shapes."""
    own, config = dit.state_dict(), dit.config
    state = {theirs: own[ours] for ours, theirs in key_map(config).items()}
    patch = (config.dim, config.latent_channels, 1, config.patch, config.patch)
    state["patch_embedding.weight"] = state["patch_embedding.weight"].reshape(patch)
    for key in state:
        if key.endswith("scale_shift_table"):
            state[key] = state[key][None]
    return state


def config_from_wan(values: dict[str, Any], *, audio_dim: int, audio_every: int) -> DiTConfig:
    """Our config for a diffusers config.json; ValueError for a layout that does not map, for sizes
    that are missing, and for values that no stored config may have. A warning names keys that are
    not read."""
    if values.get("_class_name") != WAN_CLASS:
        raise ValueError(f"config.json describes a {values.get('_class_name')}, not {WAN_CLASS}")
    if values.get("image_dim") is not None or values.get("added_kv_proj_dim") is not None:
        raise ValueError("an I2V layout with CLIP tokens (image_dim, added_kv_proj_dim): refused")
    missing = [key for key in _SIZES if key not in values]
    if missing:
        raise ValueError(f"config.json of {WAN_CLASS} lacks {', '.join(missing)}")
    hints = dict.fromkeys(_SIZES, Size) | {"eps": float}
    values |= checked(values, hints, where="config.json")
    if values["in_channels"] != values["out_channels"]:
        raise ValueError(
            f"an I2V layout with concatenated channels ({values['in_channels']} in, "
            f"{values['out_channels']} out): refused, our image condition is a clean frame"
        )
    fixed = {"patch_size": [1, 2, 2], "cross_attn_norm": True, "qk_norm": "rms_norm_across_heads"}
    wrong = {key: values.get(key) for key, value in fixed.items() if _plain(values, key) != value}
    if wrong:
        raise ValueError(f"unsupported Wan config {wrong}, expected {fixed}")
    unknown = [key for key in values if key not in _READ and not key.startswith("_")]
    if unknown:
        warnings.warn(f"config.json has keys that are not read: {unknown}", stacklevel=2)
    return DiTConfig(
        dim=values["num_attention_heads"] * values["attention_head_dim"],
        num_heads=values["num_attention_heads"],
        num_layers=values["num_layers"],
        ffn_dim=values["ffn_dim"],
        latent_channels=values["in_channels"],
        text_dim=values["text_dim"],
        audio_dim=audio_dim,
        audio_every=audio_every,
        freq_dim=values["freq_dim"],
        eps=values.get("eps", WAN_EPS),
    ).checked(where="config.json")


def config_to_wan(config: DiTConfig) -> dict[str, Any]:
    """The constructor arguments of diffusers' WanTransformer3DModel."""
    return {
        "patch_size": [1, config.patch, config.patch],
        "num_attention_heads": config.num_heads,
        "attention_head_dim": config.head_dim,
        "in_channels": config.latent_channels,
        "out_channels": config.latent_channels,
        "text_dim": config.text_dim,
        "freq_dim": config.freq_dim,
        "ffn_dim": config.ffn_dim,
        "num_layers": config.num_layers,
        "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads",
        "eps": config.eps,
        "image_dim": None,
        "added_kv_proj_dim": None,
        "rope_max_seq_len": 1024,
        "pos_embed_seq_len": None,
    }


def _new_modules(dit: AvatarDiT, dtype: torch.dtype) -> dict[str, Tensor]:
    """The modules that Wan lacks, freshly initialised, for a DiT on the meta device."""
    known = key_map(dit.config)
    for place, module in dit.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if f"{place}.{name}".lstrip(".") not in known:
                setattr(module, name, torch.nn.Parameter(torch.empty_like(parameter, device="cpu")))
    dit.reset_parameters()
    return {key: x.to(dtype) for key, x in dit.state_dict().items() if key not in known}


def _plain(values: dict[str, Any], key: str) -> Any:
    value = values.get(key)
    return list(value) if isinstance(value, tuple) else value


def _is_extra_output(key: str) -> bool:
    outputs = (
        ".audio_attention.out.",
        "guidance_embed.down.",
        ".motion_inject.",
        "style_embed",
        "face_embed",
        "anchor_embed",
    )
    return any(name in key for name in outputs)


def check_no_refiner(config: DiTConfig, source: str | Path) -> None:
    """ValueError for a refiner, which Wan cannot be."""
    if config.reads_low:
        raise ValueError(f"{source} is a refiner: it reads a low video, which Wan does not")


def check_no_mask(config: DiTConfig, source: str | Path) -> None:
    """ValueError for a network whose frames do not see all others: Wan's always do."""
    names = ("causal_block", "causal_window", "temporal_window")
    said = [
        f"{name} {getattr(config, name)}" for name in names if getattr(config, name) is not None
    ]
    if said:
        raise ValueError(
            f"{source} has {', '.join(said)}: in Wan all frames see each other, so the export "
            "would make other videos; --drop-extras exports it all the same"
        )


def new_folder(folder: Path) -> Path:
    """ValueError if there is something."""
    if folder.exists():
        raise ValueError(f"{folder} exists")
    return folder
