"""An adapter of LoRA on the tiny weights, and copies of it with one thing wrong each."""

import json
import os
import pickle
import shutil
import struct
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from avatar_v.base.video_format import VideoFormat
from avatar_v.models.base import hash_folder
from avatar_v.models.lora import add_factors
from avatar_v.weights.adapter_files import STATE, save_adapter
from avatar_v.weights.card import ADAPTER_CARD, ADAPTER_CONFIG, AdapterCard, Capabilities, Card
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import load_pipeline

CARDS: dict[str, dict[str, Any]] = {
    "other_base": {"base_hash": "0" * 16},
    "other_vae": {"vae_hash": "0" * 16},
    "card_part": {"part": "vae"},
    "card_version": {"card": {"schema_version": 99}},
    "card_none": {"card": None},
    "card_unknown": {"surprise": 1},
    "card_number": {"base": 7},
}
"""Fields of adapter.json."""
CONFIGS: dict[str, dict[str, Any]] = {
    "rank_zero": {"r": 0},
    "rank_huge": {"r": 10**12},
    "rank_text": {"r": "many"},
    "rank_other": {"r": 3},
    "alpha_nan": {"lora_alpha": float("nan")},
    "alpha_inf": {"lora_alpha": float("inf")},
    "alpha_large": {"lora_alpha": 1e30},
    "alpha_top": {"lora_alpha": 1e6},
    "alpha_none": {"lora_alpha": None},
    "dora": {"use_dora": True},
}
"""Fields of adapter_config.json."""
SAID = Capabilities(video=VideoFormat(32, 32), window_latents=5, shift=1.0)
"""Of good weights of the tiny size: nothing is left to a warning."""
TEXTS = {
    "card_text": (ADAPTER_CARD, b"no json"),
    "card_list": (ADAPTER_CARD, b"[]"),
    "card_deep": (ADAPTER_CARD, b"[" * 100_000),
    "card_bytes": (ADAPTER_CARD, b"\xff\xfe\x00"),
    "config_text": (ADAPTER_CONFIG, b"no json"),
    "network_text": ("config.json", b"no json"),
    "stats_text": ("motion.json", b"no json"),
    "state_text": (STATE, b"weights"),
    "state_empty": (STATE, b""),
    "huge_header": (STATE, struct.pack("<Q", 2**60) + b"{}"),
}
"""A file, and what is in its place."""


def make_adapters(base: Path, folder: Path) -> None:
    """Fill ``folder``; ``good`` changes the DiT of ``base``."""
    good = folder / "good"
    dit, _ = load_pipeline(base)
    add_factors(dit, rank=2, alpha=4.0)
    with torch.no_grad():
        for name, parameter in dit.named_parameters():
            if "lora_B" in name:
                parameter += 0.05
    about = AdapterCard("dit", Card("tiny", "none", can=SAID), str(base), hash_folder(base / "dit"))
    save_adapter(good, dit, about, motion_stats())
    for names, file in ((CARDS, ADAPTER_CARD), (CONFIGS, ADAPTER_CONFIG)):
        for name, changes in names.items():
            values = json.loads((good / file).read_text())
            _copy(good, folder / name, file, json.dumps({**values, **changes}).encode())
    for name, (file, data) in TEXTS.items():
        _copy(good, folder / name, file, data)
    _copy(good, folder / "pickle", STATE, pickle.dumps(_Runs()))
    _networks(good, folder)
    _states(good, folder)
    _places(good, folder)


def _copy(good: Path, folder: Path, file: str, data: bytes) -> None:
    shutil.copytree(good, folder)
    (folder / file).write_bytes(data)


def _networks(good: Path, folder: Path) -> None:
    values = json.loads((good / "config.json").read_text())
    key = next(k for k, v in values.items() if type(v) is int)
    for name, wrong in {"network_other": 2 * values[key], "network_huge": 10**12}.items():
        _copy(good, folder / name, "config.json", json.dumps({**values, key: wrong}).encode())


def _states(good: Path, folder: Path) -> None:
    state = load_file(good / STATE)
    first = next(key for key in state if "self_attention" in key and "lora_A" in key)
    second = first.replace("lora_A", "lora_B")
    changed: dict[str, dict[str, Tensor]] = {
        "nan": {first: torch.full_like(state[first], torch.nan)},
        "inf": {first: torch.full_like(state[first], torch.inf)},
        "int32": {first: state[first].to(torch.int32)},
        "large": {key: torch.full_like(state[key], 1e30) for key in (first, second)},
        "shape": {first: torch.zeros(3, 5)},
        "scalar": {first: torch.zeros(())},
        "more": {"base_model.model.surprise.weight": torch.zeros(2)},
        "other_module": {first.replace("attention", "surprise"): state[first].clone()},
    }
    for name, values in changed.items():
        shutil.copytree(good, folder / name)
        save_file({**state, **values}, folder / name / STATE)
    for name, key in {"lacks_a": first, "lacks_b": second}.items():
        shutil.copytree(good, folder / name)
        save_file({k: v for k, v in state.items() if k != key}, folder / name / STATE)
    shutil.copytree(good, folder / "nothing_learned")
    save_file({"none": torch.zeros(1)}, folder / "nothing_learned" / STATE)


def _places(good: Path, folder: Path) -> None:
    """Things that are no folder of an adapter, and files of it that are none."""
    (folder / "empty").mkdir()
    (folder / "a_file").write_text("adapter")
    os.mkfifo(folder / "fifo")
    (folder / "circle").symlink_to(folder / "circle")
    for file in (ADAPTER_CARD, ADAPTER_CONFIG, STATE, "config.json"):
        lacks = folder / f"no_{file.partition('.')[0]}"
        shutil.copytree(good, lacks)
        (lacks / file).unlink()
        shutil.copytree(lacks, folder / f"fifo_{file.partition('.')[0]}")
        os.mkfifo(folder / f"fifo_{file.partition('.')[0]}" / file)
    shutil.copytree(good, folder / "fifo_beside")
    os.mkfifo(folder / "fifo_beside" / "more.safetensors")
    shutil.copytree(folder / "no_adapter_model", folder / "bin_alone")
    (folder / "bin_alone" / "adapter_model.bin").write_bytes(pickle.dumps(_Runs()))
    shutil.copytree(good, folder / "colon:2")


class _Runs:
    """Unpickled, it makes the file ``pickle_ran`` in the working folder."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch pickle_ran",)
