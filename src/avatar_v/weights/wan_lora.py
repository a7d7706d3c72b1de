"""LoRA of Wan in and out: the files of other trainers → an adapter folder → diffusers.

kohya, ComfyUI, diffusers, DiffSynth and peft name the same matrices differently. A key that is of
no matrix of the network is an error: what is loaded in part does something else than its maker saw.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor

from avatar_v.base.outside import parse_json, read_json
from avatar_v.base.paths import whole_folder
from avatar_v.base.states import WIDE, check_numbers, read_tensors
from avatar_v.base.stored import converted, shown
from avatar_v.base.words import counted
from avatar_v.models.base import part_folder
from avatar_v.models.config import DiTConfig
from avatar_v.weights.adapter import check_network
from avatar_v.weights.adapter_files import (
    PREFIX,
    STATE,
    Adapter,
    Alpha,
    plain_alpha,
    read_adapter,
    write_adapter,
)
from avatar_v.weights.card import ADAPTER_CONFIG, AdapterCard, Card, read_card
from avatar_v.weights.presets import PRESETS
from avatar_v.weights.wan import check_no_mask, check_no_refiner, new_folder
from avatar_v.weights.wan_names import lora_modules, modules, without_lora_prefix

FILES = ("pytorch_lora_weights.safetensors", STATE)
"""In the folder of a LoRA: diffusers', peft's."""
HEADER = "lora_adapter_metadata"
"""In the header of diffusers' file: peft's settings as JSON, for each network."""
MAX_PADDING = 4
"""Times its own numbers, of a LoRA whose ranks differ: they are padded with zeros to the
largest."""
NUM_SHOWN = 3
_PART = re.compile(
    r"(?P<module>.+)\.(?:(?P<a>lora_A|lora_down|lora\.down)|(?P<b>lora_B|lora_up|lora\.up))"
    r"(?:\.[^.]+)?\.weight|(?P<scaled>.+)\.alpha"
)


@dataclass
class _Factors:
    """What a file holds of one matrix, with the keys of the parts."""

    keys: list[str]
    a: Tensor | None = None
    b: Tensor | None = None
    alpha: float | None = None


def import_lora(
    source: str | Path, base: str | Path, out: str | Path, *, drop_unmatched: bool = False
) -> list[str]:
    """Turn a LoRA of Wan, a file or a folder, into an adapter of the DiT of ``base``, a pipeline or
    the folder of a DiT alone. Returns the keys that are of no matrix of it and were left out.

    alpha / rank is in the factors: the adapter has alpha = rank. ValueError for an ``out`` that
    exists, for such keys unless ``drop_unmatched``, for halves, shapes that do not fit, numbers
    that are not finite, and what is no plain LoRA.
    """
    base, out = Path(base), new_folder(Path(out))
    is_pipeline = (base / "card.json").is_file()
    where = (part_folder(base / "dit") if is_pipeline else base) / "config.json"
    values = read_json(where)
    if "_class_name" in values:
        raise ValueError(f"{base} is no DiT of ours: `avatar-v weights import-wan` makes one of it")
    config = DiTConfig.from_dict(values, where=str(where))
    file = _find_file(Path(source))
    found, unmatched = _sorted(read_tensors(file), lora_modules(config), where=file)
    if unmatched and not drop_unmatched:
        raise ValueError(
            f"{file}: {counted(len(unmatched), 'key')} of no matrix of {base}: "
            f"{few(unmatched)}; --drop-unmatched leaves them out"
        )
    factors = _scaled(found, _stored_alpha(Path(source), file), where=file)
    name = next((name for name, size in PRESETS.items() if size.dit == config), "")
    card = read_card(base) if is_pipeline else Card(name)
    about = AdapterCard("dit", dataclasses.replace(card, recipe=f"{base} with {file.name}"))
    rank = max(len(a) for a, _ in factors.values())
    check_network(Adapter(file, about, config, 1.0, rank, factors, {}, None))
    from peft import LoraConfig

    lora = LoraConfig(r=rank, lora_alpha=rank, target_modules=sorted(factors))
    lora.inference_mode = True
    state = {}
    for module, (a, b) in factors.items():
        state[f"{PREFIX}{module}.lora_A.weight"] = a
        state[f"{PREFIX}{module}.lora_B.weight"] = b
    write_adapter(out, lora, state, about, config)
    return unmatched


def few(keys: Sequence[str]) -> str:
    """Keys for a message: the first `NUM_SHOWN`, and how many more there are."""
    more = len(keys) - NUM_SHOWN
    return ", ".join(map(shown, keys[:NUM_SHOWN])) + (f" and {more} more" if more > 0 else "")


def _find_file(source: Path) -> Path:
    """ValueError for what is neither a file of safetensors nor a folder with one of `FILES`."""
    if source.is_dir():
        there = [source / name for name in FILES if (source / name).is_file()]
        if len(there) != 1:
            raise ValueError(f"{source}: expected a folder with one of {', '.join(FILES)}")
        return there[0]
    if source.suffix != ".safetensors":
        raise ValueError(f"{source}: expected a LoRA as a .safetensors file, or its folder")
    return source


def _sorted(
    state: Mapping[str, Tensor], names: Mapping[str, str], *, where: Path
) -> tuple[dict[str, _Factors], list[str]]:
    """Our module → its factors; and the keys of no module that ``names`` has. Changes of other
    kinds (``.diff``) that are all zero are no changes. ValueError for a part that is there
    twice."""
    found: dict[str, _Factors] = {}
    unmatched = []
    for key, value in state.items():
        match = _PART.fullmatch(without_lora_prefix(key))
        module = None if match is None else names.get(match["module"] or match["scaled"])
        if match is None or module is None:
            is_change = key.endswith((".diff", ".diff_b"))
            is_nothing = is_change and value.dtype in WIDE and not value.any()
            unmatched += [] if is_nothing else [key]
            continue
        one = found.setdefault(module, _Factors([]))
        part = "a" if match["a"] else "b" if match["b"] else "alpha"
        if getattr(one, part) is not None:
            raise ValueError(f"{where}: {key} and {one.keys[0]} are of the same matrix")
        one.keys.append(key)
        setattr(one, part, _alpha(value, f"{where}: {key}") if part == "alpha" else value)
    return found, unmatched


def _alpha(value: Tensor, where: str) -> float:
    if value.numel() != 1 or value.dtype not in (*WIDE, torch.int32, torch.int64):
        raise ValueError(f"{where} is one number, got {value.dtype} {tuple(value.shape)}")
    return converted(float(value), Alpha, where=where)


def _stored_alpha(source: Path, file: Path) -> float | None:
    """The alpha that peft's settings beside the file, or diffusers' in its header, say of all
    matrices. Ranks are those of the factors."""
    where = file.parent / ADAPTER_CONFIG
    if (source.is_dir() or file.name == STATE) and where.is_file():
        return plain_alpha(read_json(where), where, but=("rank_pattern",))
    with safe_open(file, framework="pt") as opened:
        header = (opened.metadata() or {}).get(HEADER)
    if header is None:
        return None
    values: Any = parse_json(header, where=f"{file}: {HEADER}")
    own = "transformer."
    if not isinstance(values, dict):
        raise ValueError(f"{file}: {HEADER} is an object, got a {type(values).__name__}")
    values = {k.removeprefix(own): value for k, value in values.items() if k.startswith(own)}
    return plain_alpha(values, file, but=("rank_pattern",)) if values else None


def _scaled(
    found: Mapping[str, _Factors], alpha: float | None, *, where: Path
) -> dict[str, tuple[Tensor, Tensor]]:
    """Module → A and B in fp32, of one rank, with alpha / rank in B. A matrix without an alpha of
    its own has that of all; without one either, alpha is the rank."""
    if not found:
        raise ValueError(f"{where} has no factors of LoRA")
    factors = {}
    for module, one in found.items():
        key, a, b = f"{where}: {one.keys[0]}", one.a, one.b
        if a is None or b is None:
            half = "up (lora_B)" if b is None else "down (lora_A)"
            raise ValueError(f"{key} has no matrix {half} beside it")
        check_numbers({f"{module}: A": a, f"{module}: B": b}, where=where)
        shapes = tuple(a.shape), tuple(b.shape)
        if a.dim() < 2 or b.dim() < 2 or a.shape[0] != b.shape[1] or 0 in (*a.shape, *b.shape):
            raise ValueError(f"{key}: A is (rank, in) and B (out, rank), got {shapes}")
        own = alpha if one.alpha is None else one.alpha
        weight = 1.0 if own is None else own / len(a)
        factors[module] = (a.float().flatten(1), weight * b.float().flatten(1))
    return _padded(factors, where)


def _padded(
    factors: dict[str, tuple[Tensor, Tensor]], where: Path
) -> dict[str, tuple[Tensor, Tensor]]:
    """All of the largest rank, with zeros, which change no product."""
    ranks = [len(a) for a, _ in factors.values()]
    stored = sum(a.numel() + b.numel() for a, b in factors.values())
    padded = sum(max(ranks) * (a.shape[1] + b.shape[0]) for a, b in factors.values())
    if padded > MAX_PADDING * stored:
        raise ValueError(f"{where} has ranks from {min(ranks)} to {max(ranks)}: too unlike")
    return {
        module: (
            F.pad(a, (0, 0, 0, max(ranks) - len(a))),
            F.pad(b, (0, max(ranks) - b.shape[1])),
        )
        for module, (a, b) in factors.items()
    }


def export_lora(source: str | Path, out: str | Path, *, drop_extras: bool = False) -> None:
    """Turn an adapter into diffusers' ``pytorch_lora_weights.safetensors`` for Wan's transformer.

    B holds the scale of the factors, so that every reader, also one that knows no alpha, gives them
    the right one. ValueError for factors and parts that Wan cannot hold and for an adapter of
    causal weights, unless ``drop_extras``, for such as do not fit the adapter's own network, and
    for factors that are not finite.
    """
    adapter, out = read_adapter(source), new_folder(Path(out))
    if not isinstance(adapter.config, DiTConfig):
        raise ValueError(f"{source} is of a motion network, which Wan does not have")
    check_no_refiner(adapter.config, source)
    if not drop_extras:
        check_no_mask(adapter.config, source)
    check_network(adapter)
    names = modules(adapter.config)
    state, extras = {}, sorted(adapter.whole)
    for module, (a, b) in adapter.factors.items():
        if module in names:
            state[f"{names[module]}.lora_A.weight"] = a
            state[f"{names[module]}.lora_B.weight"] = adapter.weight * b
        else:
            extras.append(module)
    if extras and not drop_extras:
        raise ValueError(
            f"{source} changes {len(extras)} modules that Wan cannot hold (for example "
            f"{extras[0]}); --drop-extras leaves them out"
        )
    if not state:
        raise ValueError(f"{source} has no factors of matrices that Wan has")
    check_numbers(state, where=f"{source} with alpha / r = {adapter.weight:g}")
    from diffusers.loaders.lora_pipeline import WanLoraLoaderMixin

    targets = sorted({key.rpartition(".lora_")[0] for key in state})
    about = {"r": adapter.rank, "lora_alpha": adapter.rank, "target_modules": targets}
    with whole_folder(out) as partial:
        WanLoraLoaderMixin.save_lora_weights(
            partial,
            transformer_lora_layers={key: value.contiguous() for key, value in state.items()},
            transformer_lora_adapter_metadata=about,
        )
