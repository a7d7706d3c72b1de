"""A report in MLflow: its means as metrics, its sources as parameters, its files as artifacts."""

import os
import re
from pathlib import Path

from avatar_v.recipe.before import store_problem
from avatar_v_eval.records import Number
from avatar_v_eval.report.document import Report

EXPERIMENT = "avatar_v_eval"
KINDS = ("objective", "difference", "mos", "score", "win", "turing", "preference")
_LONGEST = 250  # of a name of MLflow
_LONGEST_VALUE = 500


def log_report(report: Report, folder: Path, uri: str) -> str:
    """Logs to a tracking URI (``sqlite:///runs.db``, ``http://…``); returns the id of its run.

    Metrics are named ``kind/row/column``, of one condition ``kind.condition/row/column``, with the
    interval as ``… low`` and ``… high``. ValueError where the URI takes nothing.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    if problem := store_problem(uri):
        raise ValueError(f"--mlflow {uri}: cannot be opened ({problem})")
    # MLflow asks a server that says nothing seven times, for two minutes each.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    try:
        mlflow.set_tracking_uri(uri)
        mlflow.set_experiment(EXPERIMENT)
        with mlflow.start_run(run_name=_name(report.title)) as run:
            mlflow.log_params({_name(k): v[:_LONGEST_VALUE] for k, v in report.facts})
            mlflow.log_metrics(report_metrics(report))
            mlflow.log_artifacts(str(folder), "report")
            return run.info.run_id
    except MlflowException as error:
        raise ValueError(f"--mlflow {uri}: {error}") from error


def report_metrics(report: Report) -> dict[str, float]:
    """Name → number, of all tables that hold results."""
    found: dict[str, float] = {}
    for table in report.tables:
        if table.kind not in KINDS:
            continue
        kind = f"{table.kind}.{table.condition}" if table.condition else table.kind
        for row in table.rows:
            for column, value in zip(table.columns, row.values, strict=True):
                key = "/".join(map(_name, (kind, row.label, column.title)))[:_LONGEST]
                if isinstance(value, Number):
                    found[key] = value.value
                    if value.low is not None and value.high is not None:
                        found |= {f"{key} low": value.low, f"{key} high": value.high}
                elif isinstance(value, (float, int)):
                    found[key] = float(value)
    return found


def _name(text: str) -> str:
    """With the characters that MLflow takes."""
    return re.sub(r"[^A-Za-z0-9_. -]+", "_", text).strip(" ._") or "_"
