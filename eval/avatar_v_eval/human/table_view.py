"""One table, three prints: Markdown, LaTeX (booktabs) and HTML, best in bold, second underlined.

Best and second best are taken of what is printed, so values that look equal are marked alike.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

from avatar_v_eval.records import Number

Value = Number | float | str | None
_ARROW = {"high": "↑", "low": "↓", None: ""}


@dataclass(frozen=True)
class Column:
    """``scale`` 100 prints shares as per cent; ``better`` None is not ranked."""

    title: str
    better: Literal["high", "low"] | None = None
    digits: int = 2
    scale: float = 1.0
    unit: str = ""

    @property
    def head(self) -> str:
        return self.title + _ARROW[self.better]


@dataclass(frozen=True)
class Row:
    """``ranked`` False keeps a row, such as the ground truth, out of best and second best."""

    label: str
    values: tuple[Value, ...]
    ranked: bool = True


@dataclass(frozen=True)
class Table:
    """``corner`` is the head of the first column. Every row has one value per column."""

    title: str
    corner: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()
    intervals: bool = False

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.values) != len(self.columns):
                got, expected = len(row.values), len(self.columns)
                raise ValueError(f"row {row.label!r} has {got} values for {expected} columns")

    def series(self) -> dict[str, tuple[float, ...]]:
        """Row → its numbers as printed: what a radar chart or bars draw."""
        return {
            row.label: tuple(
                float(printed(value, column))
                for value, column in zip(row.values, self.columns, strict=True)
                if isinstance(value, (Number, float, int))
            )
            for row in self.rows
        }

    def places(self) -> list[list[int]]:
        """1 for best, 2 for second best, 0 for others, per row and column."""
        places = [[0] * len(self.columns) for _ in self.rows]
        for j, column in enumerate(self.columns):
            shown = {
                i: float(printed(row.values[j], column))
                for i, row in enumerate(self.rows)
                if row.ranked and column.better and not isinstance(row.values[j], (str, type(None)))
            }
            if len(shown) < 2:
                continue  # nothing to be better than
            order = sorted(set(shown.values()), reverse=column.better == "high")
            for i, value in shown.items():
                places[i][j] = order.index(value) + 1 if order.index(value) < 2 else 0
        return places


def printed(value: Value, column: Column) -> str:
    """A number with the column's digits, halves rounded up as people do; no unit."""
    number = value.value if isinstance(value, Number) else value
    assert isinstance(number, (float, int))
    exact = Decimal(repr(round(float(number) * column.scale, 10)))
    return str(exact.quantize(Decimal(1).scaleb(-column.digits), ROUND_HALF_UP))


def markdown(table: Table) -> str:
    """A Markdown table under its title."""
    heads = [table.corner, *(column.head for column in table.columns)]
    lines = [f"**{table.title}**", "", _pipes(heads), _pipes(["---"] * len(heads))]
    marks = {0: "{}", 1: "**{}**", 2: "<u>{}</u>"}
    for row, places in zip(table.rows, table.places(), strict=True):
        cells = _texts(table, row)
        lines.append(
            _pipes([row.label, *(marks[p].format(t) for p, t in zip(places, cells, strict=True))])
        )
    return "\n".join([*lines, *("\n" + note for note in table.notes)]) + "\n"


def latex(table: Table) -> str:
    """A table environment; needs booktabs."""
    marks = {0: "{}", 1: "\\textbf{{{}}}", 2: "\\underline{{{}}}"}
    heads = [_tex(text) for text in (table.corner, *(column.head for column in table.columns))]
    lines = ["\\begin{table}", f"\\caption{{{_tex(table.title)}}}", "\\centering"]
    lines += [f"\\begin{{tabular}}{{l{'c' * len(table.columns)}}}", "\\toprule"]
    lines += [" & ".join(heads) + r" \\", "\\midrule"]
    for row, places in zip(table.rows, table.places(), strict=True):
        cells = [marks[p].format(_tex(t)) for p, t in zip(places, _texts(table, row), strict=True)]
        lines.append(" & ".join([_tex(row.label), *cells]) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    lines += [f"\\par\\small {_tex(note)}" for note in table.notes]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def as_html(table: Table) -> str:
    """A table element with its caption; no style."""
    marks = {0: "{}", 1: "<b>{}</b>", 2: "<u>{}</u>"}
    heads = "".join(f"<th>{html.escape(column.head)}</th>" for column in table.columns)
    lines = ["<table>", f"<caption>{html.escape(table.title)}</caption>"]
    lines.append(f"<thead><tr><th>{html.escape(table.corner)}</th>{heads}</tr></thead><tbody>")
    for row, places in zip(table.rows, table.places(), strict=True):
        cells = zip(places, _texts(table, row), strict=True)
        body = "".join(f"<td>{marks[p].format(html.escape(t))}</td>" for p, t in cells)
        lines.append(f"<tr><th>{html.escape(row.label)}</th>{body}</tr>")
    lines += ["</tbody></table>", *(f"<p>{html.escape(note)}</p>" for note in table.notes)]
    return "\n".join(lines) + "\n"


def render(tables: Sequence[Table], suffix: str) -> str:
    """All tables as one document: .md, .tex (to be included) or .html."""
    match suffix:
        case ".md":
            return "\n".join(markdown(table) for table in tables)
        case ".tex":
            return "\n".join(latex(table) for table in tables)
        case ".html":
            return _PAGE + "\n".join(as_html(table) for table in tables)
    raise ValueError(f"tables are written as .md, .tex or .html, got {suffix!r}")


_PAGE = """<!doctype html><meta charset="utf-8"><title>Human evaluation</title>
<style>body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:40px auto;padding:0 20px}
table{border-collapse:collapse;margin:32px 0 8px}caption{text-align:left;font-weight:600}
th,td{padding:5px 14px 5px 0;border-bottom:1px solid #ddd;text-align:left}p{color:#555}</style>
"""


def _texts(table: Table, row: Row) -> list[str]:
    return [
        _text(value, column, table.intervals)
        for value, column in zip(row.values, table.columns, strict=True)
    ]


def _text(value: Value, column: Column, interval: bool) -> str:
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    text = printed(value, column) + column.unit
    if interval and isinstance(value, Number) and value.low is not None and value.high is not None:
        low, high = (printed(bound, column) for bound in (value.low, value.high))
        return f"{text} [{low}, {high}]"
    return text


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _tex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--"}
    special |= {"≥": r"$\geq$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {char: f"\\{char}" for char in "&%$#_{}"}
    return "".join(special.get(char, char) for char in text)
