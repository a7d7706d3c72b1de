"""Voices as a rating study (human/study.py): true recordings, the codec and models, blind.

A case is a speaker, beside whom the prompt is heard. The rating server shows videos: here a grey
picture, which is the same in all.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
import yaml
from jaxtyping import Float
from torch import Tensor

from avatar_v.media.outputs import build_output
from avatar_v.media.sound import normalise_loudness
from avatar_v.media.writer import Writer
from avatar_v.shards.writer import write_text_atomically
from avatar_v.types import SAMPLES_PER_FRAME

SIDE = 64
PAUSE_FRAMES = 12
LINES = (
    ("natural", "Sounds like a person", "Melody, rhythm and pauses. 5: as a recording of a person"),
    ("alike", "The voice of the reference", "5: surely the same person. 1: surely another one"),
    ("clear", "Every word is clear", "5: all words are understood at once"),
)

Sound = Float[Tensor, " s"]


class Heard(Protocol):
    """A sentence that was said."""

    @property
    def sound(self) -> Sound: ...


def write_listening_set(
    folder: Path, prompts: Sequence[Sound], said: Mapping[str, Sequence[Sequence[Heard]]]
) -> None:
    """A folder for `avatar-v-eval rate`: ``said`` are the sentences of each speaker, by system."""
    cases = [f"s{number:03d}" for number in range(len(prompts))]
    for case, prompt in zip(cases, prompts, strict=True):
        _write(folder / "references" / f"{case}.mp4", [prompt])
    for name, found in said.items():
        for case, own in zip(cases, found, strict=True):
            _write(folder / "videos" / name / f"{case}.mp4", [one.sound for one in own])
    study = {
        "name": "voices",
        "title": "Voices",
        "seed": 0,
        "systems": {name: f"videos/{name}" for name in said},
        "cases": [
            {"name": case, "condition": "voice", "reference": f"references/{case}.mp4"}
            for case in cases
        ],
        "dimensions": [{"key": k, "title": title, "hint": hint} for k, title, hint in LINES],
        "tasks": [
            {"kind": "mos", "systems": list(said), "raters_per_item": 3, "items_per_rater": 24}
        ],
        "rules": {
            "min_seconds": 4, "max_wrong_qualification": 0, "max_wrong_golds": 0,
            "max_wrong_traps": 0,
        },
    }  # fmt: skip
    write_text_atomically(folder / "study.yaml", yaml.safe_dump(study, sort_keys=False))


def _write(path: Path, sounds: Sequence[Sound]) -> None:
    pause = torch.zeros(PAUSE_FRAMES * SAMPLES_PER_FRAME)
    whole = torch.cat([part for sound in sounds for part in (normalise_loudness(sound), pause)])
    whole = F.pad(whole, (0, -len(whole) % SAMPLES_PER_FRAME))
    frames = torch.full((1, 3, SIDE, SIDE), 128, dtype=torch.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with Writer(build_output(str(path))) as writer:
        writer.write(frames.expand(len(whole) // SAMPLES_PER_FRAME, -1, -1, -1), whole)
