"""One table, three prints: Markdown, LaTeX (booktabs) and HTML, best in bold, second underlined.

All prints are made from the same `Cell`s, so they cannot differ in a digit. Best and second best
are taken of what is printed, so values that look equal are marked alike.
"""

import csv
import dataclasses
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Literal

import jinja2

from avatar_v_eval.records import Number

Value = Number | float | str | None
Better = Literal["high", "low", "zero"]
NOTHING = "—"
_ARROW = {"high": "↑", "low": "↓", "zero": "→0", None: ""}


@dataclass(frozen=True)
class Column:
    """``scale`` 100 prints shares as per cent; ``better`` None is not ranked.

    A ``difference`` is not ranked; it has its sign, and a star where its interval leaves zero out.
    ``text`` stands to the left and may take several lines.
    """

    title: str
    better: Better | None = None
    digits: int = 2
    scale: float = 1.0
    unit: str = ""
    difference: bool = False
    text: bool = False

    @property
    def arrow(self) -> str:
        return _ARROW[self.better]

    @property
    def head(self) -> str:
        return self.title + self.arrow


@dataclass(frozen=True)
class TableRow:
    """``ranked`` False keeps a row, such as the ground truth, out of best and second best."""

    label: str
    values: tuple[Value, ...]
    ranked: bool = True


@dataclass(frozen=True)
class Cell:
    """As printed. ``place``: 1 for best, 2 for second best, 0 for others."""

    text: str
    interval: str = ""
    place: int = 0


@dataclass(frozen=True)
class Table:
    """``corner`` is the head of the first column. Every row has one value per column.

    ``kind`` and ``condition`` tell what the table is to programs that read it.
    """

    title: str
    corner: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    intervals: bool = False
    kind: str = ""
    condition: str = ""

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
                if row.ranked and not isinstance(row.values[j], (str, type(None)))
            }
            if column.better == "zero":
                shown = {i: abs(value) for i, value in shown.items()}
            if len(shown) < 2 or column.better is None or column.difference:
                continue  # nothing to be better than
            order = sorted(set(shown.values()), reverse=column.better == "high")
            for i, value in shown.items():
                places[i][j] = order.index(value) + 1 if order.index(value) < 2 else 0
        return places

    def cells(self) -> list[tuple[TableRow, list[Cell]]]:
        """Every row with its cells."""
        return [
            (row, [self._cell(*one) for one in zip(row.values, self.columns, places, strict=True)])
            for row, places in zip(self.rows, self.places(), strict=True)
        ]

    def _cell(self, value: Value, column: Column, place: int) -> Cell:
        if value is None:
            return Cell(NOTHING)
        if isinstance(value, str):
            return Cell(value)
        text, interval = printed(value, column) + column.unit, ""
        if isinstance(value, Number) and value.low is not None and value.high is not None:
            if column.difference and not value.low <= 0 <= value.high:
                text += "*"
            if self.intervals:
                plain = dataclasses.replace(column, difference=False)
                low, high = (printed(bound, plain) for bound in (value.low, value.high))
                interval = f"[{low}, {high}]"
        return Cell(text, interval, place)


def printed(value: Value, column: Column) -> str:
    """A number with the column's digits, halves rounded up as people do; no unit."""
    number = value.value if isinstance(value, Number) else value
    assert isinstance(number, (float, int))
    exact = Decimal(repr(round(float(number) * column.scale, 10)))
    rounded = exact.quantize(Decimal(1).scaleb(-column.digits), ROUND_HALF_UP)
    if not rounded:
        return str(abs(rounded))  # never -0.00
    return f"{rounded:+}" if column.difference else str(rounded)


def markdown(table: Table, number: int | None = None) -> str:
    """A Markdown table under its title; ``number`` makes it "Table 1. …"."""
    heads = [table.corner, *(column.head for column in table.columns)]
    title = f"{_numbered(number)}{plain_markdown(table.title)}"
    lines = [f"**{title}**", "", _pipes(map(plain_markdown, heads)), _pipes(["---"] * len(heads))]
    marks = {0: "{}", 1: "**{}**", 2: "<u>{}</u>"}
    for row, cells in table.cells():
        texts = [
            " ".join([marks[cell.place].format(plain_markdown(cell.text)), cell.interval]).strip()
            for cell in cells
        ]
        lines.append(_pipes([plain_markdown(row.label), *texts]))
    return "\n".join([*lines, *("\n" + plain_markdown(note) for note in table.notes)]) + "\n"


def plain_markdown(text: str) -> str:
    """One line in which nothing is markup."""
    return re.sub(r"([\\`*\[<|]|(?<!\w)_|_(?!\w))", r"\\\1", " ".join(text.split()))


def latex(table: Table) -> str:
    """A table environment; needs booktabs and adjustbox, which keeps wide ones on the page."""
    marks = {0: "{}", 1: "\\textbf{{{}}}", 2: "\\underline{{{}}}"}
    heads = [_tex(text) for text in (table.corner, *(column.head for column in table.columns))]
    kinds = "".join("p{0.3\\linewidth}" if column.text else "c" for column in table.columns)
    lines = ["\\begin{table}", f"\\caption{{{_tex(table.title)}}}", "\\centering"]
    lines += ["\\begin{adjustbox}{max width=\\linewidth}", f"\\begin{{tabular}}{{l{kinds}}}"]
    lines += ["\\toprule", " & ".join(heads) + r" \\", "\\midrule"]
    ranked = None
    for row, cells in table.cells():
        if ranked is False and row.ranked:
            lines.append("\\midrule")
        ranked = row.ranked
        texts = [
            marks[cell.place].format(_tex(cell.text))
            + (f" {{\\scriptsize {cell.interval}}}" if cell.interval else "")
            for cell in cells
        ]
        lines.append(" & ".join([_tex_label(row.label), *texts]) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}", "\\end{adjustbox}"]
    lines += [f"\\par\\small {_tex(note)}" for note in table.notes]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def as_html(table: Table, number: int | None = None) -> str:
    """A table element with its caption and notes; no style. All text is escaped."""
    return _HTML.render(table=table, numbered=_numbered(number)) + "\n"


def as_csv(table: Table) -> str:
    """The plain numbers of a table; an interval has two columns of its own."""
    heads = [table.corner]
    rows: list[list[float | str | None]] = [[row.label] for row in table.rows]
    for j, column in enumerate(table.columns):
        values = [row.values[j] for row in table.rows]
        has_interval = any(isinstance(value, Number) for value in values)
        heads += [
            column.title,
            *(f"{column.title} {end}" for end in ("low", "high") if has_interval),
        ]
        for row, value in zip(rows, values, strict=True):
            whole = value if isinstance(value, Number) else Number(0, 0)
            row.append(value.value if isinstance(value, Number) else value)
            row += [whole.low, whole.high] if has_interval else []
    text = io.StringIO()
    csv.writer(text).writerows([heads, *rows])
    return text.getvalue()


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
th,td{padding:5px 14px 5px 0;border-bottom:1px solid #ddd;text-align:left}p,small{color:#555}
</style>
"""

_HTML = jinja2.Environment(
    autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
).from_string("""\
<table>
<caption>{% if numbered %}<b>{{ numbered }}</b>{% endif %}{{ table.title }}</caption>
<thead><tr><th>{{ table.corner }}</th>
{%- for column in table.columns %}
<th{% if column.text %} class="text"{% endif %}>{{ column.title }}
{%- if column.arrow %}<i>{{ column.arrow }}</i>{% endif %}</th>
{%- endfor %}
</tr></thead>
<tbody>
{% for row, cells in table.cells() %}
<tr{% if not row.ranked %} class="real"{% endif %}><th>{{ row.label }}</th>
{%- for cell in cells %}
<td{% if table.columns[loop.index0].text %} class="text"{% endif %}>
{%- if cell.place == 1 %}<b>{{ cell.text }}</b>
{%- elif cell.place == 2 %}<u>{{ cell.text }}</u>
{%- else %}{{ cell.text }}{% endif %}
{%- if cell.interval %} <small>{{ cell.interval }}</small>{% endif %}</td>
{%- endfor %}
</tr>
{% endfor %}
</tbody></table>
{% for note in table.notes %}
<p class="note">{{ note }}</p>
{% endfor %}""")


def _numbered(number: int | None) -> str:
    return "" if number is None else f"Table {number}. "


def _pipes(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _tex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--"}
    special |= {"≥": r"$\geq$", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {"—": "---", "→": r"$\rightarrow$", "²": r"\textsuperscript{2}", "±": r"$\pm$"}
    special |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "ν": r"$\nu$"}
    special |= {char: f"\\{char}" for char in "&%$#_{}"}
    return "".join(special.get(char, char) for char in " ".join(text.split()))


def _tex_label(text: str) -> str:
    r"""The start of a row: after ``\\`` a [ or * would be an option of the line break."""
    return f"{{}}{_tex(text)}" if text.lstrip().startswith(("[", "*")) else _tex(text)
