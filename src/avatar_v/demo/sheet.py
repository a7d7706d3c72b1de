"""The contact sheet: rows of pictures over time, and the mouth's opening under them.

A figure for people; the numbers in it come from the caller. Drawn without pyplot, so it needs no
display and keeps no global state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, UInt8
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

from avatar_v.types import FRAME_RATE_HZ, SAMPLES_PER_FRAME

PAPER, INK, FAINT = "#faf9f7", "#22262b", "#8b9097"
TRUE, MADE = "#9aa5b1", "#d1495b"


@dataclass(frozen=True)
class SheetRow:
    """One line of pictures; frame i stands above second i / 25."""

    label: str
    video: UInt8[Tensor, "f 3 h w"]
    is_made: bool = False  # generated: its label has the colour of what is generated


@dataclass(frozen=True)
class Curves:
    """Mouth opening per frame, 0 closed … 1 widest, and the sound it belongs to."""

    true: Float[Tensor, " f"]
    generated: Float[Tensor, " f"]
    audio: Float[Tensor, " s"]


def save_sheet(
    path: str | Path,
    rows: Sequence[SheetRow],
    curves: Curves,
    *,
    title: str,
    subtitle: str = "",
    num_columns: int = 14,
) -> None:
    """Draw ``rows`` at ``num_columns`` equally spaced moments, each above its own on the curves.
    The generated curve is of the last generated row.

    A row shorter than the curves (the reference clip) is sampled over its own length.
    """
    num_frames = len(curves.true)
    columns = ((np.arange(num_columns) + 0.5) * num_frames / num_columns).astype(int)
    cell = 12.4 / num_columns  # inches
    height = len(rows) * (cell + 0.06) + 3.3
    figure = Figure(figsize=(14, height), dpi=150, facecolor=PAPER)
    FigureCanvasAgg(figure)
    figure.text(0.075, 1 - 0.28 / height, title, fontsize=15, weight="bold", color=INK, va="center")
    figure.text(0.075, 1 - 0.56 / height, subtitle, fontsize=10, color=FAINT, va="center")
    grid = figure.add_gridspec(
        len(rows) + 2,
        1,
        left=0.075,
        right=0.985,
        top=1 - 0.82 / height,
        bottom=0.45 / height,
        hspace=0.07,
        height_ratios=[cell] * len(rows) + [1.5, 0.42],
    )
    for i, row in enumerate(rows):
        _draw_pictures(figure.add_subplot(grid[i]), row, columns, num_frames)
    whose = [row.label for row in rows if row.is_made][-1:] or ["generated"]
    _draw_curves(figure.add_subplot(grid[len(rows)]), curves, columns, whose[0])
    _draw_sound(figure.add_subplot(grid[len(rows) + 1]), curves)
    figure.savefig(path, facecolor=PAPER)


def _draw_pictures(axes: Axes, row: SheetRow, columns: np.ndarray, num_frames: int) -> None:
    own = row.video.shape[0] >= num_frames
    picks = columns if own else columns * (row.video.shape[0] - 1) // max(num_frames - 1, 1)
    pictures = row.video[torch.from_numpy(picks)].permute(0, 2, 3, 1).cpu().numpy()
    side = pictures.shape[1]
    gap = max(1, side // 22)
    strip = np.full((side, len(picks) * (side + gap) - gap, 3), 255, np.uint8)
    strip[:] = [int(PAPER[i : i + 2], 16) for i in (1, 3, 5)]
    for i, picture in enumerate(pictures):
        left = i * (side + gap)
        strip[:, left : left + side] = picture
    axes.imshow(strip, interpolation="lanczos", aspect="auto")
    axes.set_axis_off()
    axes.text(
        -0.008, 0.5, row.label, transform=axes.transAxes, ha="right", va="center",
        fontsize=11, color=MADE if row.is_made else INK, weight="bold",
    )  # fmt: skip


def _draw_curves(axes: Axes, curves: Curves, columns: np.ndarray, whose: str) -> None:
    seconds = np.arange(len(curves.true)) / FRAME_RATE_HZ
    true, made = curves.true.cpu().numpy(), curves.generated.cpu().numpy()
    axes.fill_between(seconds, 0, true, color=TRUE, alpha=0.45, lw=0, label="true")
    axes.plot(seconds, made, color=MADE, lw=1.6, label=f"{whose}, measured from its pixels")
    for column in columns:
        axes.axvline(column / FRAME_RATE_HZ, color=FAINT, lw=0.6, ls=(0, (1, 3)), zorder=0)
    axes.set_ylim(-0.05, max(1.0, float(true.max()), float(made.max())) * 1.22)
    axes.set_ylabel("mouth opening", fontsize=9, color=INK)
    axes.set_yticks([0, 0.5, 1])
    axes.tick_params(labelbottom=False, bottom=False)
    axes.legend(loc="upper right", ncols=2, fontsize=8.5, frameon=False, borderaxespad=0.1)
    _plain(axes, seconds)


def _draw_sound(axes: Axes, curves: Curves) -> None:
    """The envelope: lowest and highest sample of every quarter frame."""
    step = SAMPLES_PER_FRAME // 4
    audio = curves.audio.cpu().numpy()
    blocks = audio[: len(audio) // step * step].reshape(-1, step)
    seconds = np.arange(len(blocks)) / (4 * FRAME_RATE_HZ)
    axes.fill_between(seconds, blocks.min(1), blocks.max(1), color=INK, alpha=0.75, lw=0)
    axes.set_yticks([])
    axes.set_ylabel("speech", fontsize=9, color=INK, rotation=0, ha="right", va="center")
    axes.set_xlabel("seconds", fontsize=9, color=INK)
    _plain(axes, np.arange(len(curves.true)) / FRAME_RATE_HZ)


def _plain(axes: Axes, seconds: np.ndarray) -> None:
    axes.set_xlim(0, seconds[-1] + 1 / FRAME_RATE_HZ)
    axes.set_facecolor(PAPER)
    axes.tick_params(labelsize=8, colors=FAINT, length=3)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
