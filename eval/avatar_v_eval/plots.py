"""Figures without a display: lines with bands, and axes without a frame."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

GREY, RED, YELLOW, BLUE = "#5b6770", "#d1495b", "#e0a458", "#2e7d9a"
SMALL = 7  # points


def panels(
    num: int, *, width: float, height: float, num_rows: int = 1
) -> tuple[Figure, Sequence[Axes]]:
    """A figure (in inches) with ``num`` axes in rows of equal length, without top and right."""
    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(num_rows, -(-num // num_rows), squeeze=False).ravel()
    for ax in axes:
        ax.tick_params(labelsize=SMALL)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[num:]:
        ax.remove()
    return figure, list(axes[:num])


def band(
    ax: Axes,
    x: Sequence[float],
    y: Sequence[float],
    low: Sequence[float],
    high: Sequence[float],
    *,
    colour: str,
    label: str,
) -> None:
    """A line, and a pale area from ``low`` to ``high``."""
    ax.plot(x, y, color=colour, label=label, lw=1.7)
    ax.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
