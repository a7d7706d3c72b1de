"""The queue of a server: jobs and workers in one database, for SQLite and PostgreSQL alike.

A job waits, runs, and is done, failed or cancelled. A worker that takes one has it for `LEASE_S`
seconds and asks for more time while it works; a worker that dies asks no more, and its job waits
again, at most `MOST_TRIES` times in all: what ends a worker thrice is the job's own fault.

A live conversation is no job that waits, but its owner's share: it is held, and then it is over.

The next job is one of the highest priority; among these of the house that has fewest running, then
of the one that was served longest ago; there of the owner by the same rule, and then the oldest. A
house is where owners ask from: the address of browsers; that of another owner is his own. Every
call is one committed transaction. Times are those of the machines that ask (seconds since 1970),
whose clocks are to be within a few seconds.
"""

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import sqlalchemy as sa

from avatar_v.base.traces import traceparent
from avatar_v.web.database import open_engine, writing
from avatar_v.web.visitors import by_turns

State = Literal["waiting", "running", "done", "failed", "cancelled", "talking", "talked"]
TALKS = ("talking", "talked")
"""Of conversations, which no worker makes."""
LEASE_S = 30.0
MOST_TRIES = 3
MOST_PRIORITY = 9
_LOCK = 20536
"""Of PostgreSQL: one server or worker at a time changes the queue."""
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
_FADE = 0.8
"""What a job leaves of those before it in a worker's speed."""


class QueueFullError(ValueError):
    """The queue takes no more of this owner (``is_own``), or of anybody for now."""

    def __init__(self, sentence: str, *, is_own: bool, retry_s: float) -> None:
        super().__init__(sentence)
        self.is_own, self.retry_s = is_own, retry_s


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


@dataclass(frozen=True)
class Admission:
    """What the queue takes: seconds of video of one owner in a day, jobs of one owner, of one house
    and of all that wait or run, and the longest wait (seconds) that a new job may expect."""

    seconds_a_day: float = float("inf")
    most_own: int = 16
    most_house: int = 10**9
    most: int = 1000
    wait_s: float = 3600.0


class JobStore:
    """The queue at ``place``, a file or ``postgresql://…``. ValueError for another database. Safe
    for threads, and for many servers and workers."""

    def __init__(self, place: Path | str) -> None:
        self._engine = open_engine(place, SCHEMA, what="a queue of videos")
        is_file = self._engine.dialect.name == "sqlite"
        self._alone = threading.RLock() if is_file else nullcontext()  # threads wait in a row

    def close(self) -> None:
        """Close all connections; the store is of no use afterwards."""
        self._engine.dispose()

    def ask(
        self,
        owner: str,
        request: Mapping[str, Any],
        *,
        seconds: float,
        priority: int,
        admission: Admission,
        key: str | None = None,
        house: str | None = None,
    ) -> Job:
        """A new job, which waits; with a ``key`` that the owner has used before, the job of then.
        QueueFullError where ``admission`` does not take it."""
        now, house = time.time(), owner if house is None else house
        named = hashlib.sha256(f"{owner}/{key}".encode()).hexdigest()[:32]
        id_ = secrets.token_hex(16) if key is None else named
        with self._changing() as db:
            if key is not None and (known := _job_or_none(db, id_)) is not None:
                return known
            _free_dead(db, now)
            _check_share(db, owner, house, seconds, admission, now)
            _check_queue(db, priority, admission, now)
            values = {"id": id_, "owner": owner, "house": house}
            values |= {"priority": priority, "state": "waiting"}
            values |= {"request": json.dumps(request), "seconds": seconds, "trace": traceparent()}
            db.execute(JOBS.insert().values(**values, asked_s=now))
            return _job(db, id_)

    def hold(self, owner: str, *, seconds: float, admission: Admission) -> Job:
        """A conversation of ``seconds`` at most, until it is ended as "talked"; that of a server
        which died is over when it would have been. QueueFullError for too large a share."""
        now, id_ = time.time(), secrets.token_hex(16)
        with self._changing() as db:
            _free_dead(db, now)
            _check_share(db, owner, owner, seconds, admission, now)
            values = {"id": id_, "owner": owner, "house": owner}
            values |= {"priority": 0, "state": "talking", "request": "{}"}
            times = {"asked_s": now, "begun_s": now, "lease_s": now + seconds + LEASE_S}
            db.execute(JOBS.insert().values(**values, **times, seconds=seconds))
            return _job(db, id_)

    def find(self, id_: str, owner: str) -> Job | None:
        """A job of its owner."""
        with self._engine.connect() as db:
            job = _job_or_none(db, id_)
        is_own = job is not None and job.owner == owner and job.state not in TALKS
        return job if is_own else None

    def of_owner(self, owner: str, *, most: int = 100) -> list[Job]:
        """An owner's jobs, the newest first."""
        own = (JOBS.c.owner == owner, JOBS.c.state.not_in(TALKS))
        query = sa.select(JOBS).where(*own).order_by(JOBS.c.asked_s.desc())
        with self._engine.connect() as db:
            return [_of_row(row) for row in db.execute(query.limit(most)).mappings()]

    def wait_of(self, job: Job) -> tuple[int, float | None]:
        """How many jobs are before a waiting one as things are, and the seconds until it begins:
        None where no worker's speed is known yet."""
        with self._engine.connect() as db:
            first = _in_turn(db)
            ids = [id_ for id_, _ in first]
            waits = first[: ids.index(job.id) if job.id in ids else 0]
            num, video_s = _sums(db, JOBS.c.state == "running")
            video_s += sum(seconds for _, seconds in waits)
            return num + len(waits), _time(db, video_s, time.time())

    def cancel(self, id_: str, owner: str) -> Job | None:
        """A job that waits or runs is cancelled; its worker learns of it within a few seconds."""
        with self._changing() as db:
            open_ = JOBS.c.state.in_(("waiting", "running"))
            where = (JOBS.c.id == id_, JOBS.c.owner == owner, open_)
            db.execute(JOBS.update().where(*where).values(state="cancelled", ended_s=time.time()))
        return self.find(id_, owner)

    def take(self, worker: str) -> Job | None:
        """The next job, which is this worker's from now on; None where none waits."""
        now = time.time()
        with self._changing() as db:
            _free_dead(db, now)
            first = _in_turn(db)
            if not first:
                return None
            id_ = first[0][0]
            values = {"state": "running", "worker": worker, "begun_s": now, "num_frames": 0}
            later = {"lease_s": now + LEASE_S, "num_tries": JOBS.c.num_tries + 1}
            db.execute(JOBS.update().where(JOBS.c.id == id_).values(**values, **later))
            return _job(db, id_)

    def keep(self, job: Job, **found: Any) -> bool:
        """More time for a job, with what is known of it by now; False where it is its worker's no
        more: cancelled, or given to another."""
        with self._changing() as db:
            values = {"lease_s": time.time() + LEASE_S, **found}
            return db.execute(_own(job).values(**values)).rowcount == 1

    def end(self, job: Job, state: State, *, error: str | None = None, **found: Any) -> bool:
        """A job is over; False where it was its worker's no more."""
        values = {"state": state, "error": error, "ended_s": time.time(), "lease_s": None, **found}
        with self._changing() as db:
            return db.execute(_own(job).values(**values)).rowcount == 1

    def give_back(self, job: Job) -> None:
        """A worker that ends leaves its job to the next: no fault of the job."""
        values = {"state": "waiting", "worker": None, "lease_s": None}
        with self._changing() as db:
            db.execute(_own(job).values(**values, num_tries=JOBS.c.num_tries - 1))

    def seen(
        self, worker: str, weights_hash: str, *, video_s: float = 0, work_s: float = 0
    ) -> None:
        """A worker lives, and has made so many seconds of video in so many."""
        with self._changing() as db:
            fade = _FADE if work_s else 1.0
            speed = {
                "video_s": fade * WORKERS.c.video_s + video_s,
                "work_s": fade * WORKERS.c.work_s + work_s,
            }
            known = WORKERS.update().where(WORKERS.c.name == worker)
            if not db.execute(known.values(seen_s=time.time(), **speed)).rowcount:
                new = {"name": worker, "seen_s": time.time(), "weights_hash": weights_hash}
                db.execute(WORKERS.insert().values(**new, video_s=video_s, work_s=work_s))

    def gone(self, worker: str) -> None:
        """A worker has ended; the job that it had, if it was killed, waits for no lease."""
        with self._changing() as db:
            had = (JOBS.c.worker == worker, JOBS.c.state == "running")
            db.execute(JOBS.update().where(*had).values(lease_s=0.0))
            db.execute(WORKERS.delete().where(WORKERS.c.name == worker))

    def num_workers(self) -> int:
        """Workers that live."""
        with self._engine.connect() as db:
            return len(_speeds(db, time.time()))

    def counts(self) -> dict[tuple[str, int], int]:
        """Jobs by state and priority."""
        query = sa.select(JOBS.c.state, JOBS.c.priority, sa.func.count())
        with self._engine.connect() as db:
            rows = db.execute(query.group_by(JOBS.c.state, JOBS.c.priority))
            return {(state, priority): num for state, priority, num in rows}

    def remove_old(self, keep_s: float) -> list[str]:
        """Forget what has been over for so long, and workers that died then; the ids of jobs."""
        before = time.time() - keep_s
        with self._changing() as db:
            old = JOBS.c.ended_s < before
            ids = list(db.execute(sa.select(JOBS.c.id).where(old)).scalars())
            db.execute(JOBS.delete().where(old))
            db.execute(WORKERS.delete().where(WORKERS.c.seen_s < before))
        return ids

    @contextmanager
    def _changing(self) -> Iterator[sa.Connection]:
        with self._alone, writing(self._engine).begin() as db:
            if db.dialect.name == "postgresql":
                db.execute(sa.text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            yield db


def _check_share(
    db: sa.Connection, owner: str, house: str, seconds: float, admission: Admission, now: float
) -> None:
    open_ = JOBS.c.state.in_(("waiting", "running", "talking"))
    for whose, is_theirs, most in (
        ("of yours", JOBS.c.owner == owner, admission.most_own),
        ("from your address", JOBS.c.house == house, admission.most_house),
    ):
        num, _ = _sums(db, open_, is_theirs)
        if num >= most:
            raise QueueFullError(
                f"{num} videos and conversations {whose} wait or are at hand; at most {most} may",
                is_own=True,
                retry_s=LEASE_S,
            )
    counts = (JOBS.c.owner == owner, JOBS.c.asked_s > now - 86_400)
    kept = JOBS.c.state.in_(("waiting", "running", "done", *TALKS))
    total = sa.select(sa.func.coalesce(sa.func.sum(JOBS.c.seconds), 0.0))
    today = db.execute(total.where(kept, *counts)).scalar_one()
    if today + seconds > admission.seconds_a_day:
        raise QueueFullError(
            f"{today:.0f} s of video of yours in 24 hours, and this one would have {seconds:.0f} "
            f"s; at most {admission.seconds_a_day:g} s are made",
            is_own=True,
            retry_s=3600.0,
        )


def _check_queue(db: sa.Connection, priority: int, admission: Admission, now: float) -> None:
    running, waits = JOBS.c.state == "running", JOBS.c.state == "waiting"
    num_all, _ = _sums(db, sa.or_(running, waits))
    ahead, video_s = _sums(db, sa.or_(running, sa.and_(waits, JOBS.c.priority >= priority)))
    wait_s = _time(db, video_s, now)
    if num_all >= admission.most or (wait_s or 0.0) > admission.wait_s:
        told = "" if wait_s is None else f", about {wait_s:.0f} s"
        raise QueueFullError(
            f"{ahead} videos are made before this one{told}; ask again later",
            is_own=False,
            retry_s=max(LEASE_S, (wait_s or 0.0) - admission.wait_s),
        )


def _sums(db: sa.Connection, *which: sa.ColumnElement[bool]) -> tuple[int, float]:
    """The number of jobs, and their seconds."""
    seconds = sa.func.coalesce(sa.func.sum(JOBS.c.seconds), 0.0)
    num, video_s = db.execute(sa.select(sa.func.count(), seconds).where(*which)).one()
    return num, video_s


def _time(db: sa.Connection, video_s: float, now: float) -> float | None:
    """In which so many seconds of video are made; None where no speed is known."""
    known = [speed for speed in _speeds(db, now) if speed is not None]
    return video_s / sum(known) if known else None


def _speeds(db: sa.Connection, now: float) -> list[float | None]:
    """Seconds of video a second of each worker that lives; None of one that has made none yet."""
    rows = db.execute(sa.select(WORKERS).where(WORKERS.c.seen_s > now - LEASE_S)).mappings()
    return [row["video_s"] / row["work_s"] if row["work_s"] else None for row in rows]


def _free_dead(db: sa.Connection, now: float) -> None:
    """Jobs of dead workers wait again, or have failed where they were tried often enough;
    conversations of dead servers have failed."""
    talks = (JOBS.c.state == "talking", JOBS.c.lease_s < now)
    lost = {"state": "failed", "error": "its server ended", "ended_s": now, "lease_s": None}
    db.execute(JOBS.update().where(*talks).values(**lost))
    dead = (JOBS.c.state == "running", JOBS.c.lease_s < now)
    often = JOBS.c.num_tries >= MOST_TRIES
    error = f"it ended its worker {MOST_TRIES} times"
    failed = {"state": "failed", "error": error, "ended_s": now, "lease_s": None}
    db.execute(JOBS.update().where(*dead, often).values(**failed))
    db.execute(JOBS.update().where(*dead).values(state="waiting", worker=None, lease_s=None))


def _in_turn(db: sa.Connection) -> list[tuple[str, float]]:
    """Jobs that wait, and their seconds, in the order in which one worker would take them."""
    columns = (JOBS.c.id, JOBS.c.seconds, JOBS.c.priority, JOBS.c.house, JOBS.c.owner)
    order = (JOBS.c.priority.desc(), JOBS.c.asked_s, JOBS.c.id)
    query = sa.select(*columns).where(JOBS.c.state == "waiting").order_by(*order)
    waiting = db.execute(query).all()
    if not waiting:
        return []
    running = sa.func.sum(sa.case((JOBS.c.state == "running", 1), else_=0))
    served = sa.func.coalesce(sa.func.max(JOBS.c.begun_s), 0.0)
    whose = (JOBS.c.house, JOBS.c.owner)
    owners, houses = dict[tuple[str, str], tuple[int, float]](), dict[str, tuple[int, float]]()
    for house, owner, num, last in db.execute(sa.select(*whose, running, served).group_by(*whose)):
        owners[house, owner] = (num, last)
        num_there, last_there = houses.get(house, (0, 0.0))
        houses[house] = (num_there + num, max(last_there, last))
    turns: list[tuple[str, float]] = []
    for _, jobs in groupby(waiting, lambda job: job.priority):
        of_owners = sorted(jobs, key=lambda job: owners[job.house, job.owner])
        of_owners = by_turns(of_owners, lambda job: (job.house, job.owner))
        of_houses = sorted(of_owners, key=lambda job: houses[job.house])
        turns += [(job.id, job.seconds) for job in by_turns(of_houses, lambda job: job.house)]
    return turns


def _own(job: Job) -> sa.Update:
    """A change of a job that holds while it is still its worker's, in this try."""
    is_own = (JOBS.c.id == job.id, JOBS.c.state == job.state, JOBS.c.num_tries == job.num_tries)
    return JOBS.update().where(*is_own, JOBS.c.worker.is_not_distinct_from(job.worker))


def _job(db: sa.Connection, id_: str) -> Job:
    job = _job_or_none(db, id_)
    assert job is not None
    return job


def _job_or_none(db: sa.Connection, id_: str) -> Job | None:
    row = db.execute(sa.select(JOBS).where(JOBS.c.id == id_)).mappings().one_or_none()
    return None if row is None else _of_row(row)


def _of_row(row: Mapping[Any, Any]) -> Job:
    texts = {"request": json.loads(row["request"]), "warnings": tuple(json.loads(row["warnings"]))}
    plain = {f.name: row[f.name] for f in fields(Job) if f.name not in texts}
    return Job(**plain, **texts)
