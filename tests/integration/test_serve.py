"""`avatar-v serve`: a video from the first file to the last byte, strangers, and deaths."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from avatar_v.media.reading import read_video
from avatar_v.request.request import Request
from avatar_v.serving.clients import new_client
from page_site import COMMAND, running, wait_until
from postgres import BINARIES, mortal
from serving_site import Service, serving

pytest.importorskip("fastapi", reason="the app's extra is not installed")
pytest.importorskip("uvicorn", reason="the app's extra is not installed")

GUEST = "another client"


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A file of two clients, and their tokens."""
    file, found = tmp_path_factory.mktemp("clients") / "clients.yaml", {}
    lines = []
    for name in ("acme", "guest"):
        found[name], line = new_client(name)
        lines.append(line.replace("priority: 0", "priority: 5") if name == "acme" else line)
    file.write_text("\n".join(lines))
    return file, found


@pytest.fixture(scope="module")
def service(
    weights: Path, tokens: tuple[Path, dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    file, found = tokens
    root = tmp_path_factory.mktemp("served")
    options = ("--clients", str(file), "--max-upload", "2", "--max-total", "64")
    with serving(root, weights, *options, token=found["acme"]) as site:
        yield site


def body_of(site: Service, request: Request, **changes: object) -> dict[str, object]:
    assert request.person.audio is not None
    ids = {
        "reference": site.send(Path(request.person.reference)),
        "audio": site.send(Path(request.person.audio)),
    }
    return {**ids, "consent": True, "num_steps": 1, "prompt": "a room", **changes}


def test_a_video_from_file_to_file(service: Service, request_: Request) -> None:
    body = body_of(service, request_, priority=3)
    asked = service.ask("POST", "/v1/videos", body, Idempotency_Key="first")
    assert asked.status == 202, asked.body
    again = service.ask("POST", "/v1/videos", body, Idempotency_Key="first")
    assert again.json["id"] == asked.json["id"]
    assert asked.json["state"] == "waiting"
    found = service.whole(asked.json["id"])
    assert (found["state"], found["error"]) == ("done", None)
    assert (found["num_frames"], found["total"], found["priority"]) == (32, 32, 3)
    video = service.root / "fetched.mp4"
    video.write_bytes(service.ask("GET", found["files"]["video"]).body)
    assert len(read_video(video)) == 32
    record = service.ask("GET", found["files"]["record"])
    assert record.json["request"]["person"]["reference"] == "me.png"
    assert len(record.json["watermark"]) == 8
    assert str(service.root) not in record.body.decode()
    assert service.ask("GET", found["files"]["live"]).body.startswith(b"#EXTM3U")
    assert service.ask("GET", "/v1/videos").json["videos"][0]["id"] == found["id"]
    assert service.ask("GET", "/health/ready").status == 200
    assert (
        'avatar_v_videos{priority="3",state="done"} 1.0'
        in service.ask("GET", "/metrics").body.decode()
    )
    # the same by a script, which is made into speech
    spoken = body_of(service, request_, script="Hello.", audio=None)
    said = service.whole(service.ask("POST", "/v1/videos", spoken).json["id"])
    assert said["state"] == "done", said
    # a file that is no video fails with a sentence, and without a path
    broken = body_of(service, request_, reference=service.send(Path(__file__), "me.png"))
    answer = service.ask("POST", "/v1/videos", broken)
    assert answer.status == 422
    assert "me.png" in answer.json["error"]
    assert str(service.root) not in answer.json["error"]
    # it is removed by its client
    assert service.ask("DELETE", f"/v1/videos/{found['id']}").json["state"] == "done"
    assert service.ask("GET", found["files"]["video"]).status == 404


def test_strangers_and_wrong_requests_are_refused(
    service: Service, request_: Request, tokens: tuple[Path, dict[str, str]]
) -> None:
    body = body_of(service, request_)
    mine = service.ask("POST", "/v1/videos", body).json["id"]
    service.whole(mine)
    guest = Service(service.process, service.port, service.root, tokens[1]["guest"])
    nobody = Service(service.process, service.port, service.root, "no-token")
    paths = [f"/v1/videos/{mine}{end}" for end in ("", "/avatar.mp4", "/avatar.json", "/live.m3u8")]
    through = [path for path in [*paths, "/v1/videos"] if nobody.ask("GET", path).status != 401]
    through += [path for path in paths if guest.ask("GET", path).status != 404]
    through += ["guest deletes"] * (guest.ask("DELETE", f"/v1/videos/{mine}").status != 404)
    through += ["guest's list"] * bool(guest.ask("GET", "/v1/videos").json["videos"])
    through += ["my file"] * (guest.ask("POST", "/v1/videos", body).status != 422)
    through += ["nobody sends"] * (nobody.ask("POST", "/v1/files?name=a", b"x").status != 401)
    for token in ("", "Basic abc", "Bearer", f"Bearer {service.token}x", "Bearer ../clients.yaml"):
        answer = nobody.ask("GET", "/v1/videos", Authorization=token)
        through += [token] * (answer.status != 401)
    secret = service.root.parent / "secret.wav"
    secret.write_bytes(b"the words of the server")
    changes = {
        "a path": {"reference": str(secret)},
        "a path upwards": {"audio": f"../../{secret.name}"},
        "a device": {"audio": "/dev/zero"},
        "a path to be heard": {"listen": str(secret)},
        "a model in a folder": {"audio": None, "script": "a", "engine": "/etc"},
        "an address": {"audio": "http://127.0.0.1/a.wav"},
        "a list": {"reference": [body["reference"]]},
        "many clips": {"also": [body["reference"]] * 9},
        "code": {"motion": "os:system"},
        "a place for the video": {"out": "/tmp/x.mp4"},
        "overwriting": {"overwrite": True},
        "no watermark": {"watermark": False},
        "a policy": {"policy": "/dev/null"},
        "consent of another": {"consent": "yes"},
        "a key": {"sign_key": str(secret)},
        "a voice in a folder": {"audio": None, "script": "a", "voice": "/etc"},
        "a script in a file": {"audio": None, "script": f"{secret}.txt"},
        "too many steps": {"num_steps": 10**9},
        "more steps than are taken": {"num_steps": 65},
        "steps that are no number": {"num_steps": "4"},
        "more pixels than are taken": {"size": "2048x1536"},
        "a long chunk": {"chunk_latents": 4096},
        "seed NaN": {"seed": float("nan")},
        "a huge picture": {"size": "99999x99999"},
        "a priority": {"priority": 9},
        "a priority that is true": {"priority": True},
        "a prompt without end": {"prompt": "a" * 20_000},
        "an unknown field": {"device": "meta"},
    }
    for name, change in changes.items():
        answer = service.ask("POST", "/v1/videos", {**body, **change})
        through += [name] * (answer.status != 422)
        through += [f"{name}: a path"] * (str(service.root).encode() in answer.body)
    for name, raw in {
        "no JSON": b"{",
        "a number": b"7",
        "deep": b"[" * 5000,
        "a key twice": b'{"consent": true, "consent": true}',
    }.items():
        through += [name] * (service.ask("POST", "/v1/videos", raw).status != 422)
    big = service.ask("POST", "/v1/videos", b" " * 2**17)
    through += ["a large body"] * (big.status != 413 or "too large" not in big.json["error"])
    large = service.ask("POST", "/v1/files?name=a.wav", b"0" * (3 * 2**20))
    through += ["a large file"] * (large.status != 413)
    other = service.ask("GET", "/v1/videos", Host="evil.example")
    through += ["another name"] * (other.status != 400)
    site = service.ask("POST", "/v1/videos", body, Origin="http://evil.example")
    through += ["another site"] * (site.status != 403)
    for name in ("queue.db", "../queue.db", "..%2fqueue.db", "avatar.wav", ".avatar.mp4.part"):
        through += [name] * (
            service.ask("GET", f"/v1/videos/{mine}/{name}").status not in (400, 404)
        )
    assert through == []
    assert service.ask("GET", "/health/ready").status == 200


def test_the_page_is_a_client_of_the_server(
    service: Service, weights: Path, request_: Request, tmp_path: Path
) -> None:
    """Its visitor is served by the server's worker, and seen by no other client."""
    assert request_.person.audio is not None
    place = ("--files", str(service.root), "--live", "0")
    with running(tmp_path, weights, COMMAND[-1], *place) as page:
        me = page.session()
        ids = [page.send(me, Path(p)) for p in (request_.person.reference, request_.person.audio)]
        last = page.make(me, reference=ids[0], speech=ids[1]).text.splitlines()[-1]
        id_ = json.loads(last)["status"].partition('href="jobs/')[2][:32]
        path = f"/jobs/{id_}/avatar.mp4"
        assert page.ask("GET", path, session=me).body[4:8] == b"ftyp", last
        assert page.ask("GET", path, session=page.session()).status == 404
        # nor is a client's video given out, whose id is known from its key
        body = body_of(service, request_)
        own = service.ask("POST", "/v1/videos", body, Idempotency_Key="mine").json["id"]
        assert own == hashlib.sha256(b"acme/mine").hexdigest()[:32]
        assert service.whole(own)["state"] == "done"
        assert page.ask("GET", f"/jobs/{own}/avatar.mp4", session=me).status == 404
        assert (service.root / "jobs" / id_ / "avatar.json").exists()
        assert service.ask("GET", f"/v1/videos/{id_}").status == 404


@pytest.mark.slow
def test_nothing_is_lost_when_workers_and_server_are_killed(
    weights: Path, request_: Request, tmp_path: Path
) -> None:
    ids: list[str] = []
    with serving(tmp_path / "served", weights, "--workers", "2") as site:
        body = body_of(site, request_, num_steps=8)
        ids += [site.ask("POST", "/v1/videos", body).json["id"] for _ in range(12)]
        wait_until(lambda: site.ask("GET", "/health/ready").json["workers"] == 2, "no workers")
        for _ in range(2):
            time.sleep(2)
            for pid in workers_of(site.process.pid)[:1]:
                os.kill(pid, signal.SIGKILL)
        site.process.kill()
        site.process.wait()
    with serving(tmp_path / "served", weights, "--workers", "2") as site:
        ends = [site.whole(id_) for id_ in ids]
        assert [(end["state"], end["error"]) for end in ends] == [("done", None)] * len(ids)
        cancelled = site.ask("POST", "/v1/videos", {**body, "num_steps": 64}).json["id"]
        site.ask("DELETE", f"/v1/videos/{cancelled}")
        assert site.whole(cancelled)["state"] == "cancelled"
        last = site.ask("POST", "/v1/videos", {**body, "num_steps": 16}).json["id"]
        wait_until(
            lambda: site.ask("GET", f"/v1/videos/{last}").json["state"] == "running", "not begun"
        )
        site.process.send_signal(signal.SIGTERM)  # what is at hand is finished
        assert site.process.wait(90) == 0
    record = json.loads((tmp_path / "served" / "jobs" / last / "avatar.json").read_text())
    assert record["num_frames"] == 32


@pytest.mark.slow
@pytest.mark.skipif(not BINARIES, reason="needs PostgreSQL (Debian's postgresql)")
def test_nothing_is_lost_when_the_queue_is_killed(
    weights: Path, request_: Request, tmp_path: Path
) -> None:
    with (
        mortal() as (queue, die_for),
        serving(tmp_path / "served", weights, "--workers", "2", "--queue", queue) as site,
    ):
        body = body_of(site, request_, num_steps=8)
        ids = [site.ask("POST", "/v1/videos", body).json["id"] for _ in range(12)]
        for least in (2, 6):
            wait_until(partial(has_done, site, least), "nothing is made")
            die_for(3)
        ends = [site.whole(id_) for id_ in ids]
        assert [(end["state"], end["error"]) for end in ends] == [("done", None)] * len(ids)


def has_done(site: Service, least: int) -> bool:
    answer = site.ask("GET", "/v1/videos")
    videos = answer.json["videos"] if answer.status == 200 else []
    return sum(one["state"] == "done" for one in videos) >= least


def workers_of(pid: int) -> list[int]:
    """The processes that a server has started."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in children for child in file.read_text().split()]
