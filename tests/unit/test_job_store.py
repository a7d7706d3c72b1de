"""The queue of a server, in SQLite and PostgreSQL: whose turn it is, and what survives a death."""

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from avatar_v.serving import job_store
from avatar_v.serving.admission import Admission, QueueFullError
from avatar_v.serving.job_store import MOST_TRIES, JobStore
from avatar_v.serving.job_tables import LEASE_S, SCHEMA
from postgres import BINARIES, postgresql

ANY = Admission()


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a PostgreSQL."""
    pytest.importorskip("psycopg", reason="the extra postgres is not installed")
    if not BINARIES:
        pytest.skip("PostgreSQL is not installed")
    with postgresql() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JobStore]:
    is_file = request.param == "sqlite"
    opened = JobStore(tmp_path / "queue.db" if is_file else request.getfixturevalue("address"))
    with opened._engine.begin() as db:
        for table in SCHEMA.sorted_tables:
            db.execute(table.delete())
    yield opened
    opened.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Its time, which grows by a second at each look."""
    now = [1e9]

    class Time:
        @staticmethod
        def time() -> float:
            now[0] += 1
            return now[0]

    monkeypatch.setattr(job_store, "time", Time)
    return now


def ask(store: JobStore, owner: str, priority: int = 0, admission: Admission = ANY, seconds=10.0):
    return store.ask(owner, {"seed": 1}, seconds=seconds, priority=priority, admission=admission)


def test_turns_are_by_priority_then_by_owner_then_by_age(
    store: JobStore, clock: list[float]
) -> None:
    mine = [ask(store, "me").id for _ in range(3)]
    yours = [ask(store, "you").id for _ in range(2)]
    urgent = ask(store, "me", priority=5).id
    taken = [job for _ in range(6) if (job := store.take("w")) is not None]
    # behind the urgent one I have one running, so you are served first, and so on by turns
    assert [job.id for job in taken] == [urgent, yours[0], mine[0], yours[1], mine[1], mine[2]]
    assert store.take("w") is None
    assert taken[0].request == {"seed": 1}
    assert store.counts() == {("running", 0): 5, ("running", 5): 1}


def test_turns_are_by_house_and_there_by_owner(store: JobStore, clock: list[float]) -> None:
    """As of the page: an address is a house, a browser an owner."""
    shares = Admission(most_own=3, most_house=5, most=9)
    for house, owner in ("a1", "a1", "a1", "b1", "a2", "a2", "b1", "c1"):
        store.ask(owner + house, {"at": house + owner}, seconds=1.0, priority=0, admission=shares,
                  house=house)  # fmt: skip
    for owner, house, told in (("1a", "a", "3 .* of yours"), ("3a", "a", "5 .* from your address")):
        with pytest.raises(QueueFullError, match=told) as full:
            store.ask(owner, {}, seconds=1.0, priority=0, admission=shares, house=house)
        assert full.value.is_own
    last = store.of_owner("1a")[0]
    assert [store.wait_of(last)[0], store.wait_of(store.of_owner("1c")[0])[0]] == [7, 2]
    served = []
    while (job := store.take("w")) is not None:
        served.append(job.request["at"])
        assert store.end(job, "done")
    assert served == ["a1", "b1", "c1", "a2", "b1", "a1", "a2", "a1"]


def test_a_job_of_a_dead_worker_is_tried_again_and_then_has_failed(
    store: JobStore, clock: list[float]
) -> None:
    first = ask(store, "me")
    for num in range(1, MOST_TRIES + 1):
        job = store.take(f"w{num}")
        assert job is not None
        assert (job.id, job.num_tries) == (first.id, num)
        assert store.take("other") is None
        clock[0] += LEASE_S / 2
        assert store.keep(job, num_frames=num)
        assert store.take("other") is None  # it was kept
        clock[0] += LEASE_S
    assert store.take("other") is None
    over = store.find(first.id, "me")
    assert over is not None
    assert over.state == "failed"
    assert over.error == "it ended its worker 3 times"
    assert over.num_frames == MOST_TRIES


def test_who_has_lost_a_job_can_neither_keep_nor_end_it(
    store: JobStore, clock: list[float]
) -> None:
    ask(store, "me")
    old = store.take("old")
    assert old is not None
    clock[0] += 2 * LEASE_S
    new = store.take("new")
    assert new is not None
    assert not store.keep(old)
    assert not store.end(old, "done")
    store.give_back(old)
    assert store.keep(new)
    store.give_back(new)  # no fault of the job: the try does not count
    store.take("dead")
    store.gone("dead")  # told by who had started it: the job waits at once
    again = store.take("new")
    assert again is not None
    assert again.num_tries == new.num_tries + 1
    assert store.end(again, "done")
    assert not store.end(again, "failed")


def test_cancelling_is_the_owner_s_and_stops_the_worker(store: JobStore) -> None:
    waiting, running = ask(store, "me"), ask(store, "you")
    assert store.cancel(waiting.id, "you") is None
    assert store.find(waiting.id, "you") is None
    job = store.take("w")
    assert job is not None
    assert job.id == waiting.id
    cancelled = store.cancel(job.id, "me")
    assert cancelled is not None
    assert cancelled.state == "cancelled"
    assert not store.keep(job)
    assert [j.id for j in store.of_owner("you")] == [running.id]


def test_what_is_too_much_is_refused_with_a_reason(store: JobStore, clock: list[float]) -> None:
    little = Admission(seconds_a_day=25.0, most_own=2, most=3, wait_s=100.0)
    ask(store, "me", admission=little)
    with pytest.raises(QueueFullError, match=r"10 s of video of yours .* would have 16 s; .* 25 s"):
        ask(store, "me", admission=little, seconds=16.0)
    ask(store, "me", admission=little)
    with pytest.raises(QueueFullError, match="2 videos and conversations of yours wait"):
        ask(store, "me", admission=little, seconds=1.0)
    ask(store, "you", admission=little)
    with pytest.raises(QueueFullError, match="3 videos are made before this one; ask") as full:
        ask(store, "they", admission=little)
    assert not full.value.is_own
    # a speed that is measured makes a wait of the queue
    many = dataclasses.replace(little, most=100)
    store.seen("w", "hash", video_s=5.0, work_s=20.0)
    with pytest.raises(QueueFullError, match="about 120 s; ask again later") as full:
        ask(store, "they", admission=many)
    assert full.value.retry_s == LEASE_S
    assert store.num_workers() == 1
    clock[0] += LEASE_S  # the worker died: nothing is known
    assert store.num_workers() == 0
    last = ask(store, "they", admission=many)
    assert store.wait_of(last) == (2, None)  # behind my first and yours, and before my second
    waited = store.of_owner("me")[-1]
    assert store.take("w") is not None
    assert store.wait_of(waited) == (0, None)  # it has begun since


def test_old_jobs_go(store: JobStore, clock: list[float]) -> None:
    old, kept = ask(store, "me"), ask(store, "me")
    job = store.take("w")
    assert job is not None
    store.end(job, "done")
    clock[0] += 100
    assert store.remove_old(1000.0) == []
    assert store.remove_old(50.0) == [old.id]
    assert store.find(old.id, "me") is None
    assert store.find(kept.id, "me") is not None
    # but its seconds count to the end of the day, whatever is kept
    day = Admission(seconds_a_day=25.0)
    assert store.of_owner("me") == [store.find(kept.id, "me")]
    with pytest.raises(QueueFullError, match=r"20 s of video of yours"):
        ask(store, "me", admission=day)
    assert store.remove_old(50.0) == []
    clock[0] += 86_400
    assert store.remove_old(50.0) == []
    assert store.counts() == {("waiting", 0): 1}
    ask(store, "me", admission=day)


def test_a_conversation_is_held_until_it_would_have_ended(
    store: JobStore, clock: list[float]
) -> None:
    """From its first file on, which may take a minute to be read."""
    held, lost = (store.hold(name, seconds=600.0, admission=ANY) for name in ("me", "you"))
    clock[0] += 660
    ask(store, "they")
    assert store.end(held, "talked", seconds=600.0)
    clock[0] += 200
    ask(store, "they")
    assert not store.end(lost, "talked", seconds=600.0)
    assert store.counts()[("failed", 0)] == 1


def test_many_workers_take_each_job_once(store: JobStore) -> None:
    asked = {ask(store, f"client{i % 3}", admission=ANY).id for i in range(24)}
    taken: list[str] = []

    def work(name: str) -> None:
        while (job := store.take(name)) is not None:
            assert store.end(job, "done")
            taken.append(job.id)

    threads = [threading.Thread(target=work, args=(f"w{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(asked)
    assert set(taken) == asked


def test_another_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.db").write_text("no database at all, but long enough to be read as one" * 9)
    with pytest.raises(ValueError, match="cannot be used as a queue of videos"):
        JobStore(tmp_path / "other.db")
    with pytest.raises(ValueError, match="a queue of videos is a file, or lies at postgresql"):
        JobStore("redis://localhost/0")
