"""`avatar-v-eval report`: runs and votes to one page, Markdown, LaTeX and Parquet."""

import argparse
import importlib.util
from pathlib import Path

from avatar_v.base.words import notice


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `report`."""
    parser = subparsers.add_parser(
        "report",
        help="tables, charts and worst cases of runs and studies on one page",
        description="Writes index.html, which needs nothing beside it, report.md, report.tex and "
        "report.parquet.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("runs", metavar="RUN", type=Path, nargs="*", help="folders that `run` or `merge` wrote")
    add("--votes", metavar="STUDY", type=Path, action="append", default=[],
        help="folder of a study, votes as .csv, or a folder of counts")  # fmt: skip
    add("--out", metavar="DIR", type=Path, required=True)
    add("--baseline", metavar="NAME", default="", help="system that the others are compared to")
    add("--worst", metavar="K", type=int, default=3, help="worst cases per system (%(default)s)")
    add("--worst-by", metavar="NUMBER", default="",
        help="as `metrics` lists them (the first of sync, face, quality)")  # fmt: skip
    add("--title", default="", help="of the page")
    add("--mlflow", metavar="URI", default="", help="log it, e.g. sqlite:///mlflow.db")


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command; ValueError where the extra [eval] is not installed."""
    if missing := [name for name in ("polars", "jinja2") if importlib.util.find_spec(name) is None]:
        raise ValueError(f"a report needs pip install 'avatar_v[eval]': {missing[0]} is missing")
    from avatar_v_eval.report.document import ReportOptions, make_report
    from avatar_v_eval.report.files import HTML, write_report

    sources = ReportOptions(
        runs=tuple(dict.fromkeys(args.runs)),
        votes=tuple(args.votes),
        baseline=args.baseline,
        num_worst=args.worst,
        worst_by=args.worst_by,
        title=args.title,
    )
    report = make_report(sources)
    if (args.out / HTML).exists():
        notice(f"the report that was in {args.out} is replaced")
    path = write_report(report, args.out)
    if args.mlflow:
        from avatar_v_eval.report.mlflow_log import log_report

        print(f"MLflow run {log_report(report, args.out, args.mlflow)}")
    print(path)
    return 0
