"""Charts as SVG: the radar of MOS (figure 10), win-rate bars (figure 11), means with intervals.

They draw the numbers of a `Table` and compute none. Text becomes outlines, so a page needs no font,
and names are never read as formulas.
"""

import io
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.projections.polar import PolarAxes

from avatar_v_eval.records import Number
from avatar_v_eval.table_view import Table, Value, printed

COLOURS = ("#0b7fab", "#c8553d", "#3d8b57", "#8a5fa8", "#c08a1e", "#4f5d75", "#b0578d", "#5a8f99")
WIN, NEITHER, LOSE, INK, PALE = "#3d8b57", "#c9ced6", "#c8553d", "#22262b", "#d9dde3"
TOP_SCORE = 5.0

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "path",
    "svg.hashsalt": "avatar_v",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "text.color": INK,
    "axes.edgecolor": PALE,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


@dataclass(frozen=True)
class Chart:
    """``alt`` says what is drawn to who cannot see it."""

    svg: bytes
    caption: str
    alt: str


def charts_for(table: Table) -> list[Chart]:
    """The chart that belongs to a table, where there is one and there is something to draw."""
    draw = {"mos": radar, "win": win_bars, "objective": means}.get(table.kind)
    if draw is None or not any(_numbers(row.values) for row in table.rows):
        return []
    if table.kind == "mos" and len(table.columns) < 3:
        return []  # two axes are no radar
    with matplotlib.rc_context(_STYLE):
        return [draw(table)]


def radar(table: Table) -> Chart:
    """One axis per dimension, one outline per system; what is missing is a gap."""
    rows = {row.label: [_value(value) for value in row.values] for row in table.rows}
    angles = np.linspace(0, 2 * math.pi, len(table.columns), endpoint=False)
    lowest = np.nanmin(np.array(list(rows.values())))
    floor = max(1.0, math.floor(2 * (lowest - 0.25)) / 2)
    figure = Figure(figsize=(6.2, 4.0))
    axes = figure.add_axes((0.04, 0.1, 0.56, 0.8), projection="polar")
    assert isinstance(axes, PolarAxes)
    axes.set_theta_offset(math.pi / 2)
    axes.set_theta_direction(-1)
    axes.set_ylim(floor, TOP_SCORE)
    rings = np.arange(floor, TOP_SCORE + 0.01, 0.5)
    axes.set_yticks(rings, [f"{ring:g}" for ring in rings], color="#777e87", fontsize=8)
    axes.set_rlabel_position(180 / len(angles))
    axes.set_xticks(angles, [_plain(column.title, 14) for column in table.columns])
    for label, angle in zip(axes.get_xticklabels(), angles, strict=True):
        side = round(math.sin(angle), 3)
        label.set_horizontalalignment("left" if side > 0 else "right" if side < 0 else "center")
    axes.grid(color=PALE, linewidth=0.7)
    lines = []
    for index, values in enumerate(rows.values()):
        closed, around = [*values, values[0]], [*angles, angles[0]]
        colour = COLOURS[index % len(COLOURS)]
        lines += axes.plot(around, closed, "o-", color=colour, lw=1.6, ms=3, clip_on=False)
        axes.fill(around, closed, color=colour, alpha=0.04)
    names = [_plain(name, 26) for name in rows]
    figure.legend(lines, names, loc="center left", bbox_to_anchor=(0.68, 0.5), frameon=False)
    caption = f"{table.title}. The centre is {floor:g}, the rim {TOP_SCORE:g}."
    return Chart(_svg(figure), caption, f"Radar chart of {', '.join(rows)}: {table.title}")


def win_bars(table: Table) -> Chart:
    """A bar per competitor: won, without majority, lost; the whisker is the interval of won."""
    column = {column.title: index for index, column in enumerate(table.columns)}
    win, lose, num = (column[name] for name in ("Win ↑", "Lose ↓", "#Cases"))
    figure = Figure(figsize=(6.4, 0.8 + 0.56 * len(table.rows)))
    axes = figure.subplots()
    for y, row in enumerate(table.rows):
        won, lost = (100 * _value(row.values[index]) for index in (win, lose))
        axes.barh(y, won, color=WIN, height=0.62)
        axes.barh(y, 100 - won - lost, left=won, color=NEITHER, height=0.62)
        axes.barh(y, lost, left=100 - lost, color=LOSE, height=0.62)
        left, right = (printed(row.values[i], table.columns[i]) + "%" for i in (win, lose))
        style: dict[str, Any] = {"va": "center", "color": "white", "fontweight": "bold"}
        axes.text(1.5, y - 0.04, left, ha="left", **style)
        axes.text(98.5, y - 0.04, right, ha="right", **style)
        cases = f"n = {printed(row.values[num], table.columns[num])}"
        axes.text(101.5, y, cases, va="center", color="#5b626b")
        if (share := row.values[win]) and isinstance(share, Number) and share.low is not None:
            assert share.high is not None
            reach = [[won - 100 * share.low], [100 * share.high - won]]
            axes.errorbar(won, y + 0.22, xerr=reach, color=INK, lw=1.2, capsize=2)  # below the text
    axes.axvline(50, color=INK, lw=0.8, ls=(0, (4, 3)))
    axes.set_yticks(range(len(table.rows)), [_plain(row.label, 30) for row in table.rows])
    axes.set_ylim(len(table.rows) - 0.5, -0.5)
    axes.set_xlim(0, 100)
    axes.set_xticks([0, 25, 50, 75, 100], ["0", "25", "50", "75", "100 %"])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    figure.tight_layout()
    caption = f"{table.title}: won (green), lost (red); 95 % interval of won; dashed: one half."
    words = "; ".join(f"{row.label} {printed(row.values[win], table.columns[win])}%" for row in
                      table.rows)  # fmt: skip
    return Chart(_svg(figure), caption, f"{table.title}: {words}")


def means(table: Table) -> Chart:
    """A panel per number, a dot per system with its interval; the line is the real footage."""
    drawn = [j for j in range(len(table.columns)) if any(_is_number(r.values[j]) for r in
             table.rows)]  # fmt: skip
    systems = [row for row in table.rows if row.ranked and _numbers(row.values)]
    real = [row for row in table.rows if not row.ranked]
    figure = Figure(figsize=(max(6.4, 2.1 * len(drawn) + 1.2), 1.0 + 0.32 * len(systems)))
    panels = figure.subplots(1, len(drawn), squeeze=False, sharey=True)[0]
    for axes, j in zip(panels, drawn, strict=True):
        for y, row in enumerate(systems):
            if isinstance(number := row.values[j], Number):
                low, high = number.low, number.high
                reach = None if low is None or high is None else (
                    [[number.value - low], [high - number.value]])  # fmt: skip
                colour = COLOURS[y % len(COLOURS)]
                axes.errorbar(number.value, y, xerr=reach, fmt="o", color=colour, ms=5, capsize=3)
        for row in real:
            if isinstance(number := row.values[j], Number):
                axes.axvline(number.value, color="#777e87", lw=1, ls=(0, (4, 3)))
        axes.set_title(_plain(table.columns[j].head, 24), fontsize=10, color=INK)
        axes.set_ylim(len(systems) - 0.5, -0.5)
        axes.set_yticks(range(len(systems)), [_plain(row.label, 24) for row in systems])
        axes.tick_params(length=0)
        axes.locator_params(axis="x", nbins=4)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.grid(axis="y", color=PALE, lw=0.7)
        axes.set_axisbelow(True)
        axes.margins(x=0.12)
    figure.tight_layout(w_pad=1.5)
    caption = "Means with 95 % intervals over persons; the dashed line is the ground truth."
    return Chart(_svg(figure), caption, f"{table.title}: {', '.join(r.label for r in systems)}")


def _svg(figure: Figure) -> bytes:
    file = io.BytesIO()
    look: dict[str, Any] = {"transparent": True, "bbox_inches": "tight", "pad_inches": 0.05}
    figure.savefig(file, format="svg", metadata={"Date": None}, **look)
    return file.getvalue()


def _plain(text: str, width: int) -> str:
    """A name as text: no formula between two $, no leading _ (hidden in legends), no long line."""
    lines = textwrap.wrap(" ".join(text.split()), width, max_lines=3, placeholder=" …")
    plain = "\n".join(lines).replace("$", r"\$")
    return f" {plain}" if plain.startswith("_") else plain


def _is_number(value: Value) -> bool:
    return isinstance(value, (Number, float, int))


def _numbers(values: Sequence[Value]) -> list[Value]:
    return [value for value in values if _is_number(value)]


def _value(value: Value) -> float:
    """NaN where there is none."""
    if isinstance(value, Number):
        return value.value
    return float(value) if isinstance(value, (float, int)) else math.nan
