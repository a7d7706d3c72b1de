"""The pictures of the distillation study: every system frame by frame, and its numbers."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from avatar_v_eval.cases import Case
from avatar_v_eval.protocol import Condition
from avatar_v_eval.records import Number

COLUMNS = 8
"""Frames of each video on the sheet."""
PANELS = (
    "held_out_mouth",
    "held_out_identity",
    "held_out_sync",
    "sharpness",
    "energy",
    "saturation",
)


def draw(numbers: Mapping[str, Number], words: Mapping[str, str]) -> Figure:
    """A bar for every system and start, a panel for every measure."""
    figure = Figure(figsize=(14, 0.28 * len(words) + 1.6), layout="constrained")
    for ax, measure in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS, strict=True):
        rows = [numbers[f"{measure}_{key}"] for key in words]
        y = np.arange(len(rows))
        low, high = (np.array([getattr(row, side) for row in rows]) for side in ("low", "high"))
        value = np.array([row.value for row in rows])
        ax.errorbar(value, y, xerr=(value - low, high - value), fmt="o", ms=3, color="#333333")
        ax.axvline(numbers[f"{measure}_ceiling"].value, color="#bb3333", lw=0.8)
        ax.set_title(measure.replace("_", " "), fontsize=9)
        ax.set_yticks(y, list(words.values()), fontsize=7)
        ax.invert_yaxis()
        ax.grid(axis="x", alpha=0.3)
    return figure


def shown(
    cases: list[Case], conditions: Mapping[str, Condition], words: Mapping[str, str]
) -> Figure:
    """Evenly spaced frames of each system, person by person: the noise of all is the same."""
    rows = []
    for case in cases:
        for make in conditions.values():
            video = make(case).video
            places = np.linspace(0, len(video) - 1, COLUMNS).round().astype(int)
            frames = video[places].permute(0, 2, 3, 1).numpy()
            rows.append(np.concatenate(list(frames), axis=1))
    picture = np.concatenate(rows)
    figure = Figure(figsize=(10, 10 * picture.shape[0] / picture.shape[1]), layout="constrained")
    ax = figure.subplots()
    ax.imshow(picture, interpolation="nearest", aspect="auto")
    height = rows[0].shape[0]
    labels = [words[name] for _ in cases for name in conditions]
    ax.set_yticks([height * (i + 0.5) for i in range(len(rows))], labels, fontsize=6)
    ax.set_xticks([])
    return figure
