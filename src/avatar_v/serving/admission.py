"""What the queue (job_store.py) takes in, and whose turn it is.

The next job is one of the highest priority; among these of the house that has fewest running, then
of the one that was served longest ago; there of the owner by the same rule, and then the oldest. A
house is where owners ask from: the address of browsers; that of another owner is his own.
"""

from dataclasses import dataclass
from itertools import groupby

import sqlalchemy as sa

from avatar_v.serving.job_tables import DAY_S, HIDDEN, JOBS, LEASE_S, WORKERS
from avatar_v.web.visitors import by_turns


class QueueFullError(ValueError):
    """The queue takes no more of this owner (``is_own``), or of anybody for now."""

    def __init__(self, sentence: str, *, is_own: bool, retry_s: float) -> None:
        super().__init__(sentence)
        self.is_own, self.retry_s = is_own, retry_s


@dataclass(frozen=True)
class Admission:
    """What the queue takes: seconds of video of one owner in a day, jobs of one owner, of one house
    and of all that wait or run, and the longest wait (seconds) that a new job may expect."""

    seconds_a_day: float = float("inf")
    most_own: int = 16
    most_house: int = 10**9
    most: int = 1000
    wait_s: float = 3600.0


def check_share(
    db: sa.Connection, owner: str, house: str, seconds: float, admission: Admission, now: float
) -> None:
    """QueueFullError where an owner, or a house, would have more than its share."""
    open_ = JOBS.c.state.in_(("waiting", "running", "talking"))
    for whose, is_theirs, most in (
        ("of yours", JOBS.c.owner == owner, admission.most_own),
        ("from your address", JOBS.c.house == house, admission.most_house),
    ):
        num, _ = sums(db, open_, is_theirs)
        if num >= most:
            raise QueueFullError(
                f"{num} videos and conversations {whose} wait or are at hand; at most {most} may",
                is_own=True,
                retry_s=LEASE_S,
            )
    counts = (JOBS.c.owner == owner, JOBS.c.asked_s > now - DAY_S)
    kept = JOBS.c.state.in_(("waiting", "running", "done", *HIDDEN))
    total = sa.select(sa.func.coalesce(sa.func.sum(JOBS.c.seconds), 0.0))
    today = db.execute(total.where(kept, *counts)).scalar_one()
    if today + seconds > admission.seconds_a_day:
        raise QueueFullError(
            f"{today:.0f} s of video of yours in 24 hours, and this one would have {seconds:.0f} "
            f"s; at most {admission.seconds_a_day:g} s are made",
            is_own=True,
            retry_s=3600.0,
        )


def check_queue(db: sa.Connection, priority: int, admission: Admission, now: float) -> None:
    """QueueFullError where too many jobs wait, or a new one would wait for too long."""
    running, waits = JOBS.c.state == "running", JOBS.c.state == "waiting"
    num_all, _ = sums(db, sa.or_(running, waits))
    ahead, video_s = sums(db, sa.or_(running, sa.and_(waits, JOBS.c.priority >= priority)))
    wait_s = time_of(db, video_s, now)
    if num_all >= admission.most or (wait_s or 0.0) > admission.wait_s:
        told = "" if wait_s is None else f", about {wait_s:.0f} s"
        raise QueueFullError(
            f"{ahead} videos are made before this one{told}; ask again later",
            is_own=False,
            retry_s=max(LEASE_S, (wait_s or 0.0) - admission.wait_s),
        )


def sums(db: sa.Connection, *which: sa.ColumnElement[bool]) -> tuple[int, float]:
    """The number of jobs, and their seconds."""
    seconds = sa.func.coalesce(sa.func.sum(JOBS.c.seconds), 0.0)
    num, video_s = db.execute(sa.select(sa.func.count(), seconds).where(*which)).one()
    return num, video_s


def time_of(db: sa.Connection, video_s: float, now: float) -> float | None:
    """In which so many seconds of video are made; None where no speed is known."""
    known = [speed for speed in speeds(db, now) if speed is not None]
    return video_s / sum(known) if known else None


def speeds(db: sa.Connection, now: float) -> list[float | None]:
    """Seconds of video a second of each worker that lives; None of one that has made none yet."""
    rows = db.execute(sa.select(WORKERS).where(WORKERS.c.seen_s > now - LEASE_S)).mappings()
    return [row["video_s"] / row["work_s"] if row["work_s"] else None for row in rows]


def in_turn(db: sa.Connection) -> list[tuple[str, float]]:
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
