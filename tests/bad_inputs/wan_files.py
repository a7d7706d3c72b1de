"""Wan and LoRA of other people with one thing wrong each, and the commands that import them."""

import json
import os
import pickle
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from bad_inputs.case import ACCEPTED, WARNED, Case
from wan_layouts import comfy, published, random_factors, save_peft, save_published, tiny_wan

CONFIGS: dict[str, dict[str, Any]] = {
    "eps_nan": {"eps": float("nan")},
    "eps_text": {"eps": "small"},
    "eps_zero": {"eps": 0},
    "eps_negative": {"eps": -1e-6},
    "eps_none": {"eps": None},
    "layers_bomb": {"num_layers": 65_536},
    "layers_many": {"num_layers": 1000},
    "layers_fraction": {"num_layers": 2.5},
    "layers_zero": {"num_layers": 0},
    "heads_60000": {"num_attention_heads": 60_000},
    "heads_text": {"num_attention_heads": "two"},
    "head_dim_one": {"attention_head_dim": 1},
    "head_dim_huge": {"attention_head_dim": 10**12},
    "ffn_huge": {"ffn_dim": 10**30},
    "freq_odd": {"freq_dim": 33},
    "text_list": {"text_dim": [32]},
    "channels_bool": {"in_channels": True},
    "patch_text": {"patch_size": "1x2x2"},
    "class_other": {"_class_name": "FluxTransformer2DModel"},
}
"""Fields of diffusers' config.json."""
PUBLISHED_CONFIGS: dict[str, dict[str, Any]] = {
    "publisher_dim": {"dim": 255},
    "publisher_heads_zero": {"num_heads": 0},
    "publisher_heads_text": {"num_heads": "two"},
    "publisher_layers": {"num_layers": 65_536},
    "publisher_i2v": {"in_dim": 36},
    "publisher_norm": {"qk_norm": False},
}
"""Fields of the publisher's config.json."""
FILES = ("pickle.pth", "text.safetensors", "empty.safetensors", "huge_header.safetensors",
         "other.safetensors", "flat.safetensors", "no_numbers.safetensors", "fp4.safetensors",
         "fifo.safetensors", "wan2.2_t2v_high_noise_14B_fp8.safetensors",
         "low_noise_model")  # fmt: skip
LORAS = ("text.safetensors", "empty.safetensors", "huge_header.safetensors", "other.safetensors",
         "pickle.pth", "fifo.safetensors", "lora_header.safetensors", "lora_prefixes.safetensors",
         "lora_more.safetensors", "lora_peft_dora", "lora_folder", "is_not_there")  # fmt: skip


def make_wans(folder: Path) -> None:
    """Fill ``folder``; ``good`` is a Wan in diffusers' layout, ``good.safetensors`` one file."""
    folder.mkdir()
    wan = tiny_wan()
    wan.save_pretrained(folder / "good")
    own = published(wan.state_dict())
    save_file(own, folder / "good.safetensors")
    save_published(folder / "publisher", own)
    for names, good in ((CONFIGS, "good"), (PUBLISHED_CONFIGS, "publisher")):
        for name, changes in names.items():
            shutil.copytree(folder / good, folder / name, copy_function=os.link)
            values = json.loads((folder / good / "config.json").read_text())
            (folder / name / "config.json").unlink()
            (folder / name / "config.json").write_text(json.dumps({**values, **changes}))
    _files(folder, own)
    factors = dict(list(random_factors(wan).items())[:3])
    state = comfy(factors)
    save_file(state, folder / "lora.safetensors")
    first = next(iter(state.values()))
    save_file(state | {"lora_te_q.lora_down.weight": first.clone()},
              folder / "lora_more.safetensors")  # fmt: skip
    save_file({"transformer." * 1000 + key: value for key, value in state.items()},
              folder / "lora_prefixes.safetensors")  # fmt: skip
    save_file(state, folder / "lora_header.safetensors", {"lora_adapter_metadata": "[" * 10_000})
    save_peft(folder / "lora_peft_dora", factors, 4)
    path = folder / "lora_peft_dora" / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "use_dora": True}))
    (folder / "lora_folder").mkdir()


def _files(folder: Path, own: dict[str, Tensor]) -> None:
    (folder / "pickle.pth").write_bytes(pickle.dumps(_Runs()))
    (folder / "text.safetensors").write_text("weights")
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "huge_header.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")
    save_file({"a": torch.zeros(2)}, folder / "other.safetensors")
    save_file({**own, "patch_embedding.weight": torch.zeros(3)}, folder / "flat.safetensors")
    save_file({**own, "patch_embedding.weight": torch.zeros(256, 0, 0, 0, 0)},
              folder / "no_numbers.safetensors")  # fmt: skip
    head = json.dumps({"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    (folder / "fp4.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + b"\0")
    save_file(own, folder / "wan2.2_t2v_high_noise_14B_fp8.safetensors")
    (folder / "low_noise_model").mkdir()
    os.mkfifo(folder / "fifo.safetensors")


def wans() -> Iterator[Case]:
    imported = "avatar-v weights import-wan FILES/wans"
    for name in (*CONFIGS, *PUBLISHED_CONFIGS):
        yield Case(f"import-wan: {name}", f"{imported}/{name} made --audio-dim 32")
    for name in FILES:
        yield Case(f"import-wan: {name}", f"{imported}/{name} made")
    wrong = {"--audio-dim": ("0", "-1", "65537", "nan", "1e9"),
             "--audio-every": ("0", "-1", "1000000", "many")}  # fmt: skip
    for option, values in wrong.items():
        for value in values:
            yield Case(
                f"import-wan {option} {value}",
                f"{imported}/good made {option}={value}",
                says=option,
            )
    for out in ("FILES/media/me.mkv", "/proc/x", "/dev/full/x", "FILES/media/circle_a.mp4"):
        yield Case(f"import-wan: OUT {out}", f"{imported}/good {out}")
    for name in ("good", "good.safetensors", "publisher"):
        yield Case(f"import-wan: {name}", f"{imported}/{name} made --audio-dim 32", ACCEPTED)
    lora = "avatar-v weights import-lora FILES/wans"
    base = "--base FILES/wan_dit"
    for name in LORAS:
        yield Case(f"import-lora: {name}", f"{lora}/{name} made {base}")
    for name in ("FILES/wans/good", "FILES/weights/tiny", "is_not_there", "FILES/media/me.mkv"):
        yield Case(f"import-lora: base {name}", f"{lora}/lora.safetensors made --base {name}")
    more = f"{lora}/lora_more.safetensors made {base} --drop-unmatched"
    yield Case("import-lora: more, dropped", more, WARNED, "lora_te_q")
    yield Case("import-lora: good", f"{lora}/lora.safetensors made {base}", ACCEPTED)
    yield Case("merge: a LoRA of another trainer", "avatar-v weights merge FILES/wan_dit "
               "FILES/wans/lora.safetensors --out made", says="import-lora")  # fmt: skip


class _Runs:
    """Unpickled, it makes the file ``pickle_ran`` in the working folder."""

    def __reduce__(self) -> tuple:
        return os.system, ("touch pickle_ran",)
