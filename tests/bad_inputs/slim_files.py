"""Weights stored as what they change in a base, with one thing wrong each, and their cases."""

import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from avatar_v.base.packed import CODES, STEP
from avatar_v.models.base import CARD, COMPRESSED
from avatar_v.weights.card import read_card
from avatar_v.weights.slim import make_slim
from avatar_v.weights.weights import load_pipeline, save_pipeline
from bad_inputs.case import ACCEPTED, Case

KEY = "blocks.0.ffn.up.weight"
OPTIONS = (
    "--reference FILES/media/me.mkv --audio FILES/media/talk.wav --out out.mp4 --no-face-crop "
    "--steps 1 --motion none --device cpu"
)
BASES: dict[str, Any] = {
    "climbs": {"folder": "../../weights/tiny"},
    "absolute": {"folder": "/etc"},
    "nul": {"folder": "a\0b"},
    "itself": {"folder": "child"},
    "not_there": {"folder": "other"},
    "number": {"folder": 7},
    "other_hash": {"hash": "0" * 16},
    "parts_climb": {"parts": ["../base/vae"]},
    "parts_less": {"parts": []},
    "unknown": {"surprise": 1},
}
"""Fields of the base in card.json."""
STATES: dict[str, Callable[[dict[str, Tensor]], object]] = {
    "step_nan": lambda s: s.update({KEY + STEP: torch.tensor(float("nan")).bfloat16()}),
    "step_huge": lambda s: s.update({KEY + STEP: torch.tensor(3e38).bfloat16()}),
    "step_long": lambda s: s.update({KEY + STEP: torch.ones(9).bfloat16()}),
    "no_step": lambda s: s.pop(KEY + STEP),
    "codes_cut": lambda s: s.update({KEY + CODES: s[KEY + CODES][:-5].clone()}),
    "codes_bomb": lambda s: s.update({KEY + CODES: zipped(bytes(10**9))}),
    "codes_float": lambda s: s.update({KEY + CODES: torch.ones(8)}),
    "shape": lambda s: s.update({"blocks.0.ffn.up.bias": torch.ones(3)}),
}
"""What is wrong with compressed.safetensors."""
OTHERS = ("circle", "fifo", "text", "no_card_of_base")


def zipped(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(zlib.compress(data)), dtype=torch.uint8)


def make_slims(weights: Path, folder: Path) -> None:
    """Fill ``folder``: each name has ``base``, a copy of ``weights``, and ``child``."""
    good = folder / "good"
    shutil.copytree(weights, good / "base")
    dit, conditioner = load_pipeline(weights)
    with torch.no_grad():
        for parameter in dit.parameters():
            parameter *= 1.01
    save_pipeline(folder / "whole", dit, conditioner, read_card(weights))
    make_slim(folder / "whole", good / "child", {"dit": 0.001}, good / "base")
    for name in (*BASES, *STATES, *OTHERS):
        shutil.copytree(good, folder / name)
        child = folder / name / "child"
        if name in BASES:
            card = json.loads((child / CARD).read_text())
            card["base"] |= BASES[name]
            (child / CARD).write_text(json.dumps(card))
        elif name in STATES:
            state = load_file(child / "dit" / COMPRESSED)
            STATES[name](state)
            save_file(state, child / "dit" / COMPRESSED)
    (folder / "text" / "child" / "dit" / COMPRESSED).write_text("weights")
    (folder / "fifo" / "child" / "dit" / COMPRESSED).unlink()
    os.mkfifo(folder / "fifo" / "child" / "dit" / COMPRESSED)
    (folder / "no_card_of_base" / "base" / CARD).unlink()
    base = json.loads((good / "child" / CARD).read_text())["base"] | {"folder": "child"}
    card = json.loads((good / "base" / CARD).read_text()) | {"base": base}
    (folder / "circle" / "base" / CARD).write_text(json.dumps(card))


def slims() -> Iterator[Case]:
    for name in (*BASES, *STATES, *OTHERS):
        child = f"FILES/slims/{name}/child"
        yield Case(f"slim weights: {name}", f"avatar-v generate {OPTIONS} --weights {child}")
        yield Case(f"whole: {name}", f"avatar-v weights whole {child} --out made")
    good = "FILES/slims/good"
    yield Case(
        "slim weights: good", f"avatar-v generate {OPTIONS} --weights {good}/child", ACCEPTED
    )
    yield Case("whole: good", f"avatar-v weights whole {good}/child --out made", ACCEPTED)
    slim = "avatar-v weights slim FILES/weights/tiny --out made --error"
    for words in ("dit=nan", "dit=-1", "dit=2", "dit", "=0", "x=0", "dit=1e999", "''"):
        yield Case(f"slim: {words}", f"{slim} {words}", says="PART=ERROR")
    yield Case("slim: good", f"{slim} dit=0 vae=0", ACCEPTED)
    yield Case("slim: base elsewhere", f"{slim} dit=0 --base {good}/base", says="beside")
    for base in ("is_not_there", "/dev/null", "''", "<LONG>"):
        yield Case(f"slim: base {base}", f"{slim} dit=0 --base {base}")
    yield Case("slim: again", f"avatar-v weights slim {good}/child --error dit=0 --out made")
