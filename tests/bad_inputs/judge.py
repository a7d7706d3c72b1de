"""A case carried out: its words filled in, its end judged, what it made looked at."""

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from safetensors.torch import load_file

from bad_inputs.case import Case
from bad_inputs.runner import End, run

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "src" / "avatar_v" / "assets" / "small"
PROOFS = ("pickle_ran", "tag_ran", "class_ran")
"""Files that exist only if code inside an input was run."""


@dataclass(frozen=True)
class Verdict:
    """How a case ended. ``fault`` is None where the end is the one that is asked for."""

    case: Case
    outcome: str
    fault: str | None
    error: str  # the line that the user reads
    cpu_s: float


def judged(case: Case, files: Path) -> Verdict:
    """Carry out ``case`` in a fresh folder that is removed behind it."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "work"
        folder.mkdir()
        words = case.words(str(files))
        words = [w.replace("RECIPES", str(ROOT / "recipes")) for w in words]
        words = [w.replace("SMALL", str(SMALL)) for w in words]
        end = run(words, folder)
        made = _fault_of_products(folder)
    fault = end.fault or made
    if fault is None and end.outcome != case.end:
        fault = f"is {end.outcome}, not {case.end}"
    if fault is None and case.says not in end.stderr:
        fault = f"does not say {case.says!r}"
    lines = [line for line in end.stderr.splitlines() if "error:" in line or "warning:" in line]
    return Verdict(case, end.outcome, fault, (lines or [_last(end)])[-1], end.cpu_s)


def _last(end: End) -> str:
    lines = (end.stderr or end.stdout).strip().splitlines()
    return lines[-1] if lines else ""


def _fault_of_products(folder: Path) -> str | None:
    """The first product that no command may leave: code that ran, numbers that are not finite."""
    for name in PROOFS:
        if (folder / name).exists():
            return f"runs code of the input: {name}"
    for path in folder.rglob("*.safetensors"):
        if not all(bool(value.isfinite().all()) for value in load_file(path).values()):
            return f"weights that are not finite: {path.name}"
    for path in folder.rglob("*.csv"):
        words = path.read_text().replace("\n", ",").lower().split(",")
        if any(word in ("nan", "inf", "-inf") for word in words):
            return f"numbers that are not finite: {path.name}"
    for path in folder.rglob("out.mp4"):
        with av.open(str(path)) as container:
            pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        if not pictures or not math.isfinite(spread := float(np.std(pictures))) or spread < 1:
            return f"a video without a picture: {path.name}"
    return None
