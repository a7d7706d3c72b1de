"""A report on disk: a page, Markdown, LaTeX and Parquet, each file whole or not there."""

from pathlib import Path

import polars as pl

from avatar_v_eval.records import Number
from avatar_v_eval.report.document import Report
from avatar_v_eval.report.page import page
from avatar_v_eval.table_view import latex, markdown, plain_markdown

HTML, MARKDOWN, LATEX, PARQUET = "index.html", "report.md", "report.tex", "report.parquet"
_PREAMBLE = "% To be included; needs \\usepackage{booktabs} and \\usepackage{adjustbox}.\n"


def write_report(report: Report, folder: Path) -> Path:
    """Writes all four; returns the page's path. Nothing else in the folder is touched."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = {HTML: page(report), MARKDOWN: as_markdown(report), LATEX: as_latex(report)}
    for name, text in texts.items():
        partial = folder / f"{name}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.replace(folder / name)
    partial = folder / f"{PARQUET}.partial"
    as_frame(report).write_parquet(partial)
    partial.replace(folder / PARQUET)
    return folder / HTML


def as_markdown(report: Report) -> str:
    """Every table under its section."""
    parts = [f"# {plain_markdown(report.title)}\n"]
    parts += [f"- {what}: {plain_markdown(value)}" for what, value in report.facts]
    for section, tables in report.numbered():
        parts.append(f"\n## {section.title}\n")
        parts += [markdown(table, number) for number, table in tables]
    return "\n".join(parts)


def as_latex(report: Report) -> str:
    """Every table as a floating one; LaTeX counts them itself."""
    return _PREAMBLE + "\n".join(latex(table) for table in report.tables)


def as_frame(report: Report) -> pl.DataFrame:
    """A row per cell: where it stands, its number with interval, and what was printed."""
    rows = []
    for section, tables in report.numbered():
        for number, table in tables:
            for row, cells in table.cells():
                for column, value, cell in zip(table.columns, row.values, cells, strict=True):
                    known = value if isinstance(value, Number) else None
                    plain = float(value) if isinstance(value, (float, int)) else None
                    rows.append(
                        {
                            "section": section.title,
                            "table": number,
                            "kind": table.kind,
                            "condition": table.condition,
                            "row": row.label,
                            "column": column.title,
                            "value": known.value if known else plain,
                            "low": known.low if known else None,
                            "high": known.high if known else None,
                            "n": known.n if known else None,
                            "printed": cell.text,
                            "place": cell.place,
                        }
                    )
    return pl.DataFrame(rows, schema=_SCHEMA)


_SCHEMA = {
    "section": pl.String,
    "table": pl.Int64,
    "kind": pl.String,
    "condition": pl.String,
    "row": pl.String,
    "column": pl.String,
    "value": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "n": pl.Int64,
    "printed": pl.String,
    "place": pl.Int64,
}
