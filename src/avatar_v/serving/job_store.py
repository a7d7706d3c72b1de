"""The queue of a server: jobs and workers in one database, for SQLite and PostgreSQL alike.

A job waits, runs, and is done, failed or cancelled. A worker that takes one has it for `LEASE_S`
seconds and asks for more time while it works; a worker that dies asks no more, and its job waits
again, at most `MOST_TRIES` times in all: what ends a worker thrice is the job's own fault.

A live conversation is no job that waits, but its owner's share: it is held, and then it is over.

What is taken in, and which job is next, admission.py says. Every call is one committed transaction.
Times are those of the machines that ask (seconds since 1970), whose clocks are to be within a few
seconds.
"""

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from avatar_v.base.traces import traceparent
from avatar_v.serving.admission import (
    Admission,
    check_queue,
    check_share,
    in_turn,
    speeds,
    sums,
    time_of,
)
from avatar_v.serving.job_tables import (
    DAY_S,
    HIDDEN,
    JOBS,
    LEASE_S,
    SCHEMA,
    WORKERS,
    Job,
    State,
    of_row,
)
from avatar_v.web.database import open_engine, writing

MOST_TRIES = 3
MOST_PRIORITY = 9
PREPARING_S = 120.0
"""Before a conversation begins: its files are read, its rate is measured, its socket comes."""
_LOCK = 20536
"""Of PostgreSQL: one server or worker at a time changes the queue."""
_FADE = 0.8
"""What a job leaves of those before it in a worker's speed."""


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
            check_share(db, owner, house, seconds, admission, now)
            check_queue(db, priority, admission, now)
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
            check_share(db, owner, owner, seconds, admission, now)
            values = {"id": id_, "owner": owner, "house": owner}
            values |= {"priority": 0, "state": "talking", "request": "{}"}
            lease_s = now + PREPARING_S + seconds + LEASE_S
            times = {"asked_s": now, "begun_s": now, "lease_s": lease_s}
            db.execute(JOBS.insert().values(**values, **times, seconds=seconds))
            return _job(db, id_)

    def find(self, id_: str, owner: str) -> Job | None:
        """A job of its owner."""
        with self._engine.connect() as db:
            job = _job_or_none(db, id_)
        is_own = job is not None and job.owner == owner and job.state not in HIDDEN
        return job if is_own else None

    def of_owner(self, owner: str, *, most: int = 100) -> list[Job]:
        """An owner's jobs, the newest first."""
        own = (JOBS.c.owner == owner, JOBS.c.state.not_in(HIDDEN))
        query = sa.select(JOBS).where(*own).order_by(JOBS.c.asked_s.desc())
        with self._engine.connect() as db:
            return [of_row(row) for row in db.execute(query.limit(most)).mappings()]

    def wait_of(self, job: Job) -> tuple[int, float | None]:
        """How many jobs are before a waiting one as things are, and the seconds until it begins:
        None where no worker's speed is known yet."""
        with self._engine.connect() as db:
            first = in_turn(db)
            ids = [id_ for id_, _ in first]
            waits = first[: ids.index(job.id) if job.id in ids else 0]
            # one that has begun since it was read does not wait for itself
            num, video_s = sums(db, JOBS.c.state == "running", JOBS.c.id != job.id)
            video_s += sum(seconds for _, seconds in waits)
            return num + len(waits), time_of(db, video_s, time.time())

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
            first = in_turn(db)
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
            return len(speeds(db, time.time()))

    def counts(self) -> dict[tuple[str, int], int]:
        """Jobs by state and priority."""
        query = sa.select(JOBS.c.state, JOBS.c.priority, sa.func.count())
        with self._engine.connect() as db:
            rows = db.execute(query.group_by(JOBS.c.state, JOBS.c.priority))
            return {(state, priority): num for state, priority, num in rows}

    def open_requests(self) -> list[str]:
        """The requests of jobs that wait or run, as JSON."""
        query = sa.select(JOBS.c.request).where(JOBS.c.state.in_(("waiting", "running")))
        with self._engine.connect() as db:
            return list(db.execute(query).scalars())

    def remove_old(self, keep_s: float) -> list[str]:
        """Forget what has been over for so long, and workers that died then; the ids of jobs. What
        was made counts in its owner's day to its end."""
        now = time.time()
        before = now - keep_s
        with self._changing() as db:
            old, is_known = JOBS.c.ended_s < before, JOBS.c.state != "forgotten"
            ids = list(db.execute(sa.select(JOBS.c.id).where(old, is_known)).scalars())
            counts = (JOBS.c.state.in_(("done", "talked")), JOBS.c.asked_s > now - DAY_S)
            # another id: a client may give its key once more
            id_ = JOBS.c.id + "/" + sa.cast(JOBS.c.ended_s, sa.Text)
            left = {"id": id_, "house": JOBS.c.owner, "request": "{}", "state": "forgotten"}
            db.execute(JOBS.update().where(old, *counts).values(**left))
            over = sa.or_(is_known, JOBS.c.asked_s <= now - DAY_S)
            db.execute(JOBS.delete().where(old, over))
            db.execute(WORKERS.delete().where(WORKERS.c.seen_s < before))
        return ids

    @contextmanager
    def _changing(self) -> Iterator[sa.Connection]:
        with self._alone, writing(self._engine).begin() as db:
            if db.dialect.name == "postgresql":
                db.execute(sa.text(f"SELECT pg_advisory_xact_lock({_LOCK})"))
            yield db


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
    return None if row is None else of_row(row)
