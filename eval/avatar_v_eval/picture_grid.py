"""Small pictures in rows and columns, with words beside the rows and above the columns.

The pictures of several measurements are made of it. Drawn without pyplot, so it needs no display.
"""

from collections.abc import Sequence

from jaxtyping import UInt8
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from torch import Tensor

Picture = UInt8[Tensor, "3 h w"]
FONT_SIZE = 8


def picture_grid(
    rows: Sequence[Sequence[Picture]],
    *,
    row_labels: Sequence[str] = (),
    column_labels: Sequence[str] = (),
    below: Sequence[str] = (),
    side_inches: float = 1.5,
) -> Figure:
    """A figure of one line per row, all of the same length.

    ``column_labels`` stand above the first row, ``below`` (in smaller letters) under the last.
    ValueError for rows of unequal length, or for labels that are not as many as what they name.
    """
    num_columns = _checked(rows, row_labels, [column_labels, below])
    size = (side_inches * num_columns + 0.6, side_inches * len(rows) + 0.6)
    tight = ConstrainedLayoutEngine(h_pad=0.02, w_pad=0.02)
    figure = Figure(figsize=size, layout=tight)
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(rows), num_columns, squeeze=False)
    for line, pictures in zip(axes, rows, strict=True):
        for ax, picture in zip(line, pictures, strict=True):
            ax.imshow(picture.movedim(0, -1).numpy(), interpolation="nearest")
            ax.set_xticks([])
            ax.set_yticks([])
            ax.spines[:].set_visible(False)
    for line, label in zip(axes, row_labels, strict=False):
        line[0].set_ylabel(label, fontsize=FONT_SIZE)
    for ax, label in zip(axes[0], column_labels, strict=False):
        ax.set_title(label, fontsize=FONT_SIZE)
    for ax, label in zip(axes[-1], below, strict=False):
        ax.set_xlabel(label, fontsize=FONT_SIZE - 3)
    return figure


def _checked(
    rows: Sequence[Sequence[Picture]], row_labels: Sequence[str], columns: Sequence[Sequence[str]]
) -> int:
    """The number of columns."""
    lengths = {len(row) for row in rows}
    if len(lengths) != 1 or lengths == {0}:
        raise ValueError(f"rows of pictures have one length of at least 1, got {sorted(lengths)}")
    (num_columns,) = lengths
    if row_labels and len(row_labels) != len(rows):
        raise ValueError(f"{len(rows)} rows have as many labels, got {len(row_labels)}")
    for labels in columns:
        if labels and len(labels) != num_columns:
            raise ValueError(f"{num_columns} columns have as many labels, got {len(labels)}")
    return num_columns
