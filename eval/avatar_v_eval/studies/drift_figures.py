"""Figures of long videos: what is read over time, and frames."""

import textwrap
from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.figure import Figure

from avatar_v_eval.picture_grid import picture_grid
from avatar_v_eval.protocol import Readings

WINDOW_S = 20
"""Everything is averaged over windows of so many seconds."""


def draw_courses(
    readings: Readings, variants: Mapping[str, str], tracks: Mapping[str, str]
) -> Figure:
    """Each of the ``tracks`` over time, its mean over persons, a line for each variant."""
    figure = Figure(figsize=(9, 1.3 * len(tracks)), layout="constrained")
    for axes, (name, word) in zip(
        figure.subplots(len(tracks), sharex=True), tracks.items(), strict=True
    ):
        for variant, label in variants.items():
            course = readings.values(variant, name).mean(0)
            axes.plot(WINDOW_S * np.arange(len(course)), course, label=label, linewidth=1)
        axes.set_title(word, fontsize=8, loc="left")
        axes.tick_params(labelsize=7)
    axes.set_xlabel("seconds", fontsize=8)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8
    )
    return figure


def draw_frames(readings: Readings, variants: Mapping[str, str], minutes: float) -> Figure:
    """The first person over time, a row for each variant."""
    rows = [list(np.asarray(readings.rows[name][0]["frames"])) for name in variants]
    seconds = np.linspace(0, 60 * minutes, len(rows[0]))
    return picture_grid(
        [[torch.from_numpy(frame) for frame in row] for row in rows],
        row_labels=[textwrap.fill(label, 16) for label in variants.values()],
        below=[f"{s:.0f} s" for s in seconds],
        side_inches=0.84,
    )
