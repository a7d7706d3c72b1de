"""The HTML of a report: one file that loads nothing, by Jinja with every text escaped.

A content security policy names the hashes of its own style and script and forbids all else, so
that a browser itself holds the page to that, whatever a case or a system is called.
"""

import base64
import hashlib
from functools import cache
from pathlib import Path

import jinja2
from markupsafe import Markup

from avatar_v_eval.report.charts import Chart
from avatar_v_eval.report.document import Report
from avatar_v_eval.table_view import Table, as_html

_TEMPLATES = Path(__file__).resolve().parent / "templates"


def page(report: Report) -> str:
    """The whole file."""
    style, script = _text("report.css"), _text("report.js")
    return (
        _environment()
        .get_template("report.html")
        .render(
            report=report,
            style=Markup(style),
            script=Markup(script),
            policy="; ".join(
                [
                    "default-src 'none'",
                    "img-src data:",
                    "media-src data:",
                    f"style-src '{_hash(style)}'",
                    f"script-src '{_hash(script)}'",
                ]
            ),
        )
    )


def _table(table: Table, number: int) -> Markup:
    return Markup(as_html(table, number))  # escaped there


def _image(chart: Chart) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(chart.svg).decode()


def _text(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"table_html": _table, "image": _image}
    return environment
