"""The server of videos in one process: its API, its workers and its files, without a network."""

import asyncio
import contextlib
import copy
import json
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from sqlalchemy.exc import OperationalError

pytest.importorskip("fastapi", reason="the app's extra is not installed")

from fastapi import FastAPI

from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.request.output_files import kept_folder
from avatar_v.request.request import Request
from avatar_v.serving import server
from avatar_v.serving.admission import Admission
from avatar_v.serving.api import Talks, create_api
from avatar_v.serving.job_store import JobStore
from avatar_v.serving.job_tables import Job
from avatar_v.serving.limits import Limits
from avatar_v.serving.live import Rooms
from avatar_v.serving.metrics import LiveMetrics
from avatar_v.serving.place import RECORD, VIDEO, Place
from avatar_v.serving.uploads import Uploads
from avatar_v.serving.worker import Worker
from avatar_v.weights.card import Card
from page_site import wait_until


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(JobStore(tmp_path / "queue.db"), tmp_path)
    found.make()
    return found


class AskedRooms(Rooms):
    """Keeps what is asked for, and holds no conversation."""

    def __init__(self) -> None:
        self.talk_s, self.words, self.metrics = 60.0, str, LiveMetrics()

    def take(self, visitor: Any, owner: str, checked: Callable[[], Request], **rest: Any) -> str:
        self.request = checked()
        return "0" * 32


def ask(app: Any, method: str, path: str, body: bytes = b"") -> tuple[int, Any]:
    """The status and the JSON of an answer."""
    status, parts = list[int](), list[bytes]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        status.extend([message["status"]] if "status" in message else [])
        parts.append(message.get("body", b""))

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    with contextlib.suppress(KeyError):  # a fault of ours is raised again, for the log
        asyncio.run(app(scope, receive, send))
    return status[0], json.loads(b"".join(parts))


def api_of(place: Place, talks: Talks | None = None, limits: Limits | None = None) -> FastAPI:
    how = {"admission": Admission(), "is_draining": asyncio.Event(), "talks": talks}
    return create_api(
        place, {"tiny": Card("tiny"), "other": Card("tiny")}, None, limits=limits or Limits(), **how
    )


def asked_for(place: Place, request_: Request) -> Job:
    person = request_.person
    options = {"reference": person.reference, "audio": person.audio, "face_crop": False}
    return place.store.ask("acme", options, seconds=1.0, priority=0, admission=Admission())


def test_a_conversation_carries_the_mark(place: Place, tmp_path: Path) -> None:
    rooms = AskedRooms()
    app = api_of(place, Talks(rooms, {"consent": (), "policy": None}))
    Image.new("RGB", (40, 40)).save(tmp_path / "me.png")
    status, sent = ask(app, "POST", "/v1/files", (tmp_path / "me.png").read_bytes())
    assert status == 201
    form = {"reference": sent["id"], "consent": True}
    assert ask(app, "POST", "/v1/live", json.dumps(form).encode())[0] == 201
    assert rooms.request.output.watermark is True


class LostStore(JobStore):
    """Of a database that is gone for a while."""

    def gone(self, worker: str) -> None:
        raise OperationalError("UPDATE", {}, Exception("no connection"))


@pytest.mark.parametrize("command", [["sh", "-c", "echo >> ends; exit 1"], ["no such program"]])
def test_a_worker_is_started_again_whatever_befell(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it dies while the queue is away, and where no process can be made."""
    over, told = threading.Event(), list[str]()
    monkeypatch.setattr(server, "AGAIN_S", (0.01, 0.01))
    monkeypatch.setattr("builtins.print", lambda text, **how: told.append(text))
    monkeypatch.chdir(tmp_path)
    how = (command, LostStore(tmp_path / "queue.db"), over, 1.0)
    keeper = threading.Thread(target=server._keep_running, args=how)
    keeper.start()
    try:
        wait_until(lambda: len(told) >= 2, "it is not started again")
    finally:
        over.set()
        keeper.join()


def test_a_folder_that_cannot_be_made_fails_a_job_and_not_its_worker(
    place: Place, pipe: AvatarPipeline
) -> None:
    job = place.store.ask("acme", {}, seconds=1.0, priority=0, admission=Admission())
    (place.jobs / job.id).write_bytes(b"")  # as on a disk that is full
    Worker(place.store, place.jobs, {"tiny": pipe}, stop=threading.Event())._take()
    found = place.store.find(job.id, "acme")
    assert found is not None
    assert (found.state, found.error) == ("failed", f"[Errno 17] File exists: '{job.id}'")


def test_a_speech_longer_than_was_checked_fails_its_job(
    place: Place, pipe: AvatarPipeline, request_: Request
) -> None:
    person = request_.person
    options = {"reference": person.reference, "audio": person.audio, "face_crop": False}
    admission = Admission()
    job = place.store.ask("acme", options, seconds=-1.0, priority=0, admission=admission)
    Worker(place.store, place.jobs, {"tiny": pipe}, stop=threading.Event())._take()
    found = place.store.find(job.id, "acme")
    assert found is not None
    assert found.state == "failed"
    assert re.search(r"\.wav has \d s of sound; its packets promise -1 s", found.error or "")


def test_what_a_video_waits_for_is_not_swept(place: Place) -> None:
    uploads = Uploads(place.uploads)
    with uploads.arriving("acme", "me.png") as (id_, file):
        file.write(b"a picture")
    path = uploads.find("acme", id_)
    assert path is not None
    options = {"reference": str(path)}
    job = place.store.ask("acme", options, seconds=1.0, priority=0, admission=Admission())
    os.utime(path.parent, (0, 0))
    place.sweep(100.0)
    assert path.exists()
    place.store.cancel(job.id, "acme")
    place.sweep(100.0)
    assert not path.exists()


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (OperationalError("SELECT", {}, Exception("gone")), 503, "the queue does not answer"),
        (KeyError("a fault of ours"), 500, "Something went wrong in the program"),
    ],
)
def test_every_fault_is_a_sentence(
    error: Exception, status: int, words: str, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_owner(self: JobStore, owner: str) -> None:
        raise error

    monkeypatch.setattr(JobStore, "of_owner", of_owner)
    found = ask(api_of(place), "GET", "/v1/videos")
    assert found[0] == status
    assert words in found[1]["error"]


def test_faults_name_no_folder_of_the_server(
    place: Place, pipe: AvatarPipeline, request_: Request
) -> None:
    job = asked_for(place, request_)
    (place.jobs / job.id).mkdir()
    (place.jobs / job.id / f".{VIDEO}.part").write_bytes(b"")  # where chunks are to lie
    Worker(place.store, place.jobs, {"tiny": pipe}, stop=threading.Event())._take()
    found = place.store.find(job.id, "acme")
    assert found is not None
    assert found.state == "failed"
    assert (found.error or "").startswith(f"{job.id}/{VIDEO}: {job.id}/.{VIDEO}.part is in the way")


def test_another_kind_of_worker_makes_a_video_anew(
    place: Place, pipe: AvatarPipeline, request_: Request
) -> None:
    """One that was left with its chunks, as where servers are brought to another version."""
    job = asked_for(place, request_)
    stop = threading.Event()
    stop.set()  # which leaves the video behind its first clip
    Worker(place.store, place.jobs, {"tiny": pipe}, stop=stop, grace_s=0.0)._take()
    kept = kept_folder(place.jobs / job.id / VIDEO) / "request.json"
    kept.write_text(json.dumps(json.loads(kept.read_text()) | {"torch": "1.0"}))
    Worker(place.store, place.jobs, {"tiny": pipe}, stop=threading.Event())._take()
    found = place.store.find(job.id, "acme")
    assert found is not None
    assert (found.state, found.error, found.num_frames) == ("done", None, 32)


def test_a_whole_video_that_could_not_be_told_of_is_made_again(
    place: Place, pipe: AvatarPipeline, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = asked_for(place, request_)
    worker = Worker(place.store, place.jobs, {"tiny": pipe}, stop=threading.Event())

    def end(self: JobStore, *args: Any, **found: Any) -> bool:
        raise OperationalError("UPDATE", {}, Exception("no connection"))

    with monkeypatch.context() as lost:
        lost.setattr(JobStore, "end", end)
        with pytest.raises(OperationalError):
            worker._take()
    assert (place.jobs / job.id / VIDEO).exists()
    place.store.gone(worker.name)
    worker._take()
    found = place.store.find(job.id, "acme")
    assert found is not None
    assert (found.state, found.error, found.num_tries) == ("done", None, 2)


def test_what_cannot_be_made_is_not_taken_in(place: Place, tmp_path: Path) -> None:
    """A script that the voice cannot say, and a video for which no room is left."""
    Image.new("RGB", (40, 40)).save(tmp_path / "me.png")
    id_ = ask(api_of(place), "POST", "/v1/files", (tmp_path / "me.png").read_bytes())[1]["id"]
    for script, mib, status, words in (
        ("Hello.", 64.0, 202, ""),
        ("It is 5.", 64.0, 422, "script: the drawn voice says English words, and not '5'"),
        ("Hello.", 0.01, 507, "The room for files on this server"),
    ):
        form = json.dumps({"reference": id_, "script": script, "consent": True})
        app = api_of(place, limits=Limits(total_mib=mib))
        found, told = ask(app, "POST", "/v1/videos", form.encode())
        assert (found, words in str(told["error"])) == (status, True)


def test_a_request_names_the_weights_that_make_it(
    place: Place, pipe: AvatarPipeline, request_: Request, tmp_path: Path
) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "me.png")
    app = api_of(place)
    id_ = ask(app, "POST", "/v1/files", (tmp_path / "me.png").read_bytes())[1]["id"]
    told = ask(app, "GET", "/v1/weights")[1]["weights"]
    assert [one["name"] for one in told] == ["tiny", "other"]
    form = {"reference": id_, "script": "Hello.", "consent": True, "face_crop": False}
    for name in ("third", ["tiny"], None):
        found = ask(app, "POST", "/v1/videos", json.dumps({**form, "weights": name}).encode())
        assert found == (422, {"error": "weights is one of tiny, other"})
    other = copy.copy(pipe)
    other.name = "another"
    both = {"tiny": pipe, "other": other}
    for named, sets in (
        ({"weights": "other"}, both),
        ({}, both),
        ({"weights": "other"}, {"tiny": pipe}),
    ):
        assert ask(app, "POST", "/v1/videos", json.dumps(form | named).encode())[0] == 202
        Worker(place.store, place.jobs, sets, stop=threading.Event())._take()
    third, second, first = ask(app, "GET", "/v1/videos")[1]["videos"]
    assert third["error"] == "the worker that took this has no weights other"
    for job, name in ((first, "another"), (second, pipe.name)):
        record = json.loads((place.jobs / job["id"] / RECORD).read_text())
        assert record["weights"] == name
