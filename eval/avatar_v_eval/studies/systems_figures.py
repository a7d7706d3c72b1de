"""The pictures of the study `systems`: every way frame by frame, and its numbers."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from avatar_v_eval.cases import Case
from avatar_v_eval.picture_grid import picture_grid
from avatar_v_eval.protocol import Condition
from avatar_v_eval.records import Number
from avatar_v_eval.studies.systems_readings import CEILING, SWAPPED

COLUMNS = 8
"""Frames of each video on the sheet."""
PANELS = ("held_out_mouth", "held_out_identity", "held_out_sync", "sharpness", "flicker", "energy")


def draw(numbers: Mapping[str, Number], words: Mapping[str, str]) -> Figure:
    """A bar for every way, a panel for every measure; a line where the true video is."""
    ways = {key: word for key, word in words.items() if key not in (CEILING, SWAPPED)}
    figure = Figure(figsize=(14, 0.28 * len(ways) + 1.6), layout="constrained")
    for ax, measure in zip(figure.subplots(1, len(PANELS), sharey=True), PANELS, strict=True):
        rows = [numbers[f"{measure}_{key}"] for key in ways]
        y = np.arange(len(rows))
        low, high = (np.array([getattr(row, side) for row in rows]) for side in ("low", "high"))
        value = np.array([row.value for row in rows])
        ax.errorbar(value, y, xerr=(value - low, high - value), fmt="o", ms=3, color="#333333")
        ax.axvline(numbers[f"{measure}_{CEILING}"].value, color="#bb3333", lw=0.8)
        ax.set_title(measure.replace("_", " "), fontsize=9)
        ax.set_yticks(y, list(ways.values()), fontsize=7)
        ax.invert_yaxis()
        ax.grid(axis="x", alpha=0.3)
    return figure


def shown(
    cases: list[Case], conditions: Mapping[str, Condition], words: Mapping[str, str]
) -> Figure:
    """Evenly spaced frames of each way, person by person: the noise of all is the same."""
    rows = []
    for case in cases:
        for make in conditions.values():
            video = make(case).video
            places = np.linspace(0, len(video) - 1, COLUMNS).round().astype(int)
            rows.append(list(video[places]))
    labels = [words[name] for _ in cases for name in conditions]
    return picture_grid(rows, row_labels=labels, side_inches=1.2)
