"""A picture of the loss curves of the shipped weights, or of other logs; it trains nothing.

A log is a CSV file with a ``step`` column; every stage that ships keeps its log.
"""

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from avatar_v.weights.card import ASSETS
from avatar_v_eval.plots import panels
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import RESULTS_DIR

SMOOTHING = 0.02
"""Running mean over this share of the log."""
STAGES = {
    "stage 0: video VAE": ASSETS / "small" / "vae" / "log.csv",
    "stage 1: text to video": RESULTS_DIR / "loss_1_t2v.csv",
    "stage 2: audio to video": RESULTS_DIR / "loss_2_a2v.csv",
    "stage 3: personality": ASSETS / "small" / "loss.csv",
}
"""The logs of the shipped weights: beside them, or where a later stage replaced them."""


@dataclass(frozen=True)
class Curve:
    """One column of a log against the step; rows without a value are left out."""

    steps: np.ndarray
    values: np.ndarray


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(name="loss_curves")
    parser.add_argument(
        "logs", nargs="*", type=Path, help="CSV logs; default: those of the shipped weights"
    )


def measure(options: argparse.Namespace) -> Findings:
    logs = {title_of(path): path for path in options.logs} or STAGES
    return Findings("Loss curves", {}, figures={"": draw(logs)})


def read_curves(path: Path) -> dict[str, Curve]:
    """All numeric columns of a log. ValueError where there is no ``step`` column or no row."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    if not rows or "step" not in rows[0]:
        raise ValueError(f"{path}: expected a CSV with a step column and at least one row")
    curves = {}
    for name in rows[0]:
        pairs = [(float(r["step"]), float(r[name])) for r in rows if r[name] not in ("", None)]
        if name != "step" and pairs:
            steps, values = np.array(pairs).T
            curves[name] = Curve(steps, values)
    return curves


def title_of(path: Path) -> str:
    """The file's name, or its folder's where the file is only called loss.csv or log.csv."""
    return path.parent.name if path.stem in ("loss", "log") else path.stem


def draw(logs: dict[str, Path]) -> Figure:
    """One panel per log; training loss faint and smoothed, validation as dots."""
    columns = min(2, len(logs))
    rows = -(-len(logs) // columns)
    figure, axes = panels(len(logs), width=5 * columns, height=3 * rows, num_rows=rows)
    for ax, (title, path) in zip(axes, logs.items(), strict=True):
        for name, curve in read_curves(path).items():
            if "loss" not in name:
                continue
            if len(curve.steps) > 50:
                (line,) = ax.plot(curve.steps, smoothed(curve.values), lw=1.5, label=name)
                ax.plot(curve.steps, curve.values, lw=0.4, alpha=0.3, color=line.get_color())
            else:
                ax.plot(curve.steps, curve.values, "o-", ms=3, lw=1, label=name)
        ax.set_title(title)
        ax.set_xlabel("step")
        ax.grid(alpha=0.3)
        ax.legend(frameon=False)
    return figure


def smoothed(values: np.ndarray) -> np.ndarray:
    """Centred running mean; the window shrinks at both ends instead of inventing values."""
    half = max(1, int(len(values) * SMOOTHING / 2))
    total = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    low, high = np.maximum(index - half, 0), np.minimum(index + half + 1, len(values))
    return (total[high] - total[low]) / (high - low)
