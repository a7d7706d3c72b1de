"""The tables of the queue (job_store.py), and a row of it: a video, or a conversation."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import sqlalchemy as sa

State = Literal[
    "waiting", "running", "done", "failed", "cancelled", "talking", "talked", "forgotten"
]
HIDDEN = ("talking", "talked", "forgotten")
"""Of conversations, which no worker makes, and of what counts in its owner's day alone."""
DAY_S = 86_400.0
LEASE_S = 30.0
"""For which a worker has a job without a sign of life."""
SCHEMA = sa.MetaData()
JOBS = sa.Table(
    "jobs",
    SCHEMA,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("house", sa.Text, nullable=False),
    sa.Column("priority", sa.Integer, nullable=False),
    sa.Column("state", sa.Text, nullable=False, index=True),
    sa.Column("request", sa.Text, nullable=False),  # JSON: its options by name
    sa.Column("seconds", sa.Double, nullable=False),  # of the video that is asked for
    sa.Column("asked_s", sa.Double, nullable=False),
    sa.Column("begun_s", sa.Double),  # by its last worker
    sa.Column("ended_s", sa.Double),
    sa.Column("worker", sa.Text),
    sa.Column("lease_s", sa.Double),  # until when the worker has it
    sa.Column("num_tries", sa.Integer, nullable=False, default=0),
    sa.Column("num_frames", sa.Integer, nullable=False, default=0),  # made so far
    sa.Column("total", sa.Integer, nullable=False, default=0),  # frames to be made, when known
    sa.Column("warnings", sa.Text, nullable=False, default="[]"),  # JSON
    sa.Column("error", sa.Text),
    sa.Column("trace", sa.Text),  # the traceparent of who asked (base/traces.py)
    sa.Index("jobs_owner", "owner", "state"),
)
WORKERS = sa.Table(
    "workers",
    SCHEMA,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("seen_s", sa.Double, nullable=False),
    sa.Column("weights_hash", sa.Text, nullable=False),
    sa.Column("video_s", sa.Double, nullable=False, default=0.0),  # made, old ones fading
    sa.Column("work_s", sa.Double, nullable=False, default=0.0),  # that they took
)


@dataclass(frozen=True)
class Job:
    """A row of the queue."""

    id: str
    owner: str
    priority: int
    state: State
    request: Mapping[str, Any]
    seconds: float
    asked_s: float
    begun_s: float | None
    ended_s: float | None
    worker: str | None
    num_tries: int
    num_frames: int
    total: int
    warnings: tuple[str, ...]
    error: str | None
    trace: str | None

    @property
    def is_over(self) -> bool:
        """Whether it changes no more."""
        return self.state in ("done", "failed", "cancelled")


def of_row(row: Mapping[Any, Any]) -> Job:
    """The job in a row of `JOBS`."""
    texts = {"request": json.loads(row["request"]), "warnings": tuple(json.loads(row["warnings"]))}
    plain = {f.name: row[f.name] for f in fields(Job) if f.name not in texts}
    return Job(**plain, **texts)
