"""The figures of the study `drift`: every track over time, and frames of the first person."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from avatar_v_eval.plots import BLUE, GREY, RED, YELLOW, panels
from avatar_v_eval.protocol import Readings

COLOURS = {"plain": GREY, "anchor": RED, "abrupt": YELLOW, "interpolate": BLUE}


def draw_tracks(
    readings: Readings, tracks: Mapping[str, str], variants: Mapping[str, str], window_s: int
) -> Figure:
    """Each track over time by variant: the mean over persons, and every person thinly."""
    figure, axes = panels(len(tracks), width=10, height=2.6)
    for ax, (name, title) in zip(axes, tracks.items(), strict=True):
        for variant, label in variants.items():
            values, colour = readings.values(variant, name), COLOURS[variant]
            minutes = (np.arange(values.shape[1]) + 0.5) * window_s / 60
            ax.plot(minutes, values.T, color=colour, lw=0.4, alpha=0.3)
            ax.plot(minutes, values.mean(0), color=colour, lw=1.8, label=label)
        ax.set_title(title, fontsize=8)
        ax.set_xlabel("minutes", fontsize=8)
    axes[0].legend(frameon=False, fontsize=6)
    return figure


def draw_frames(readings: Readings, variants: Mapping[str, str], minutes: float) -> Figure:
    """The first person over time, a row for each variant."""
    figure, axes = panels(
        len(variants), width=10, height=0.2 + 0.84 * len(variants), num_rows=len(variants)
    )
    for ax, (variant, label) in zip(axes, variants.items(), strict=True):
        frames = np.asarray(readings.rows[variant][0]["frames"])
        ax.imshow(np.concatenate(list(frames.transpose(0, 2, 3, 1)), axis=1), aspect="auto")
        side = frames.shape[-1]
        seconds = np.linspace(0, 60 * minutes, len(frames))
        ax.set_xticks((np.arange(len(frames)) + 0.5) * side, [f"{s:.0f} s" for s in seconds])
        ax.set_yticks([])
        words = label.replace(" and ", "\nand ").replace(", not", ",\nnot")
        ax.set_ylabel(words, fontsize=7, rotation=0, ha="right", va="center")
        ax.tick_params(length=0)
        ax.spines[:].set_visible(False)
    return figure
