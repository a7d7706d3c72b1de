"""Our own generator as a system: ``name=pipeline:WEIGHTS``."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from avatar_v.base.device import PRECISIONS
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.media.reading import read_audio
from avatar_v.media.writer import Mp4Writer
from avatar_v.models.base import hash_folder
from avatar_v.types import FRAME_RATE_HZ, num_frames
from avatar_v.weights.card import weights_folder
from avatar_v_eval.bench.delivery import Delivery, place
from avatar_v_eval.bench.manifest import BenchManifest, CaseFiles
from avatar_v_eval.scoring.timing import SystemTiming, machine, reported, write_timing

COUNTED = "files read and frames made, weights loaded; TTFF: also the first chunk's sound"


def _precision(name: str) -> str:
    if name not in PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, got {name!r}")
    return name


def _switch(value: str) -> bool:
    if value not in ("true", "false"):
        raise ValueError(f"a switch is true or false, got {value!r}")
    return value == "true"


OPTIONS: dict[str, Callable[[str], Any]] = {
    "seed": int,
    "num_steps": int,
    "guidance_text": float,
    "guidance_audio": float,
    "guidance_reference": float,
    "guidance_motion": float,
    "reference_s": float,
    "motion": str,
    "overshoot": float,
    "chunk_latents": int,
    "look_ahead": int,
    "anchor": _switch,
    "rolling": _switch,
    "sink": str,
    "history": str,
    "precision": _precision,
}
"""The fields of a request (request/request.py) that a system may set, with their types, and the
precision of its networks."""


@dataclass(frozen=True)
class Pipeline:
    """Our generator with the weights of a name or folder, at its own defaults but ``options``, in
    the form of a URL's query: ``num_steps=12&reference_s=0``."""

    name: str
    weights: str
    videos: Path
    options: str = ""

    @property
    def source(self) -> str:
        asked = f"?{self.options}" if self.options else ""
        return f"pipeline:{self.weights}{asked}:{hash_folder(weights_folder(self.weights))}"

    def deliver(self, manifest: BenchManifest, case: CaseFiles) -> Delivery:
        """Input that the generator does not take is a reason."""
        out = place(self.videos, self.source, manifest, case)
        if out.is_file():
            return Delivery(out, timing=reported(out))
        asked = parse_options(self.options)
        audio = manifest.path(case, "audio")
        pipeline = _loaded(self.weights, asked.pop("precision", "auto"))
        begin, first_s, num_made = time.perf_counter(), 0.0, 0
        try:
            frames = pipeline(
                reference=manifest.path(case, "reference"),
                audio=audio,
                prompt=case.prompt,
                image=manifest.path(case, "image"),
                **asked,
            )
            with Mp4Writer(out, read_audio(audio)) as writer:
                for frame in frames:
                    first_s = first_s or time.perf_counter() - begin
                    writer.write(frame[None])
                    num_made += 1
        except ValueError as error:
            return Delivery(reason=f"refused: {error}")
        total_s = time.perf_counter() - begin
        chunk = asked.get("chunk_latents", pipeline.format.chunk_latents)
        chunk += asked.get("look_ahead", 0)
        waited = min(num_made, num_frames(chunk)) / FRAME_RATE_HZ  # for the first chunk's sound
        here = machine("bf16" if pipeline.bf16 else "fp32")
        timing = SystemTiming(round(total_s, 4), here, round(waited + first_s, 4), COUNTED)
        return Delivery(out, timing=write_timing(out, timing))


def parse_options(text: str) -> dict[str, Any]:
    """Name → value of a query; ValueError for an unknown name, one given twice, or no number."""
    pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=bool(text))
    names = [name for name, _ in pairs]
    wrong = sorted({name for name in names if name not in OPTIONS or names.count(name) > 1})
    if wrong:
        raise ValueError(f"pipeline options {wrong}: expected each at most once of {list(OPTIONS)}")
    try:
        return {name: OPTIONS[name](value) for name, value in pairs}
    except ValueError as error:
        raise ValueError(f"pipeline options {text!r}: {error}") from error


@cache
def _loaded(weights: str, precision: str) -> AvatarPipeline:
    return AvatarPipeline.from_pretrained(weights, precision=precision)
