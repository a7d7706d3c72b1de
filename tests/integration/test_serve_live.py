"""Conversations over the API of `avatar-v serve`: places, shares, attacks, and an end."""

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("websockets", reason="the app's extra is not installed")
pytest.importorskip("fastapi", reason="the app's extra is not installed")

from PIL import Image
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from avatar_v.cli import main
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.request.request import LIVE, Request
from avatar_v.serving import live
from avatar_v.serving.clients import new_client
from avatar_v.serving.job_store import JobStore
from avatar_v.web.visitors import BusyError, Visitor
from page_attacks import EVIL
from page_site import PATIENCE_S, wait_until
from serving_site import Answer, Service, serving
from talk_attacks import ATTACKS, PACKET, end_of, refusals


@pytest.fixture(scope="module")
def clients(
    weights: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, Service]]:
    """A server of two conversations, and two clients, of which the first may hold one."""
    folder, tokens, lines = tmp_path_factory.mktemp("live"), [], []
    for name, share in (("acme", "at_once: 1"), ("guest", "at_once: 9")):
        token, line = new_client(name)
        tokens.append(token)
        lines.append(line.replace("at_once: 16", share).replace("3600", "800"))
    (folder / "clients.yaml").write_text("\n".join(lines))
    Image.linear_gradient("L").resize((64, 64)).save(folder / "me.png")
    words = ["--only", "api", "--live", "2", "--clients", str(folder / "clients.yaml")]
    with serving(folder / "served", weights, *words) as site:
        how = (site.process, site.port, site.root)
        yield Service(*how, tokens[0]), Service(*how, tokens[1])


def form(site: Service, **changes: object) -> dict[str, object]:
    me = site.send(site.root.parent / "me.png")
    return {"reference": me, "consent": True, "face_crop": False, "voice": "drawn:3", **changes}


def take(site: Service) -> str:
    answer = site.ask("POST", "/v1/live", form(site))
    assert answer.status == 201, answer.body
    return answer.json["id"]


def talking(site: Service, id_: str, **headers: str) -> ClientConnection:
    token = {"Authorization": f"Bearer {site.token}"} | headers
    address = f"ws://127.0.0.1:{site.port}/v1/live/{id_}"
    return connect(address, additional_headers=token, compression=None, max_size=None)


def first_piece(socket: ClientConnection) -> bytes:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        for _ in range(20):
            socket.send(PACKET)
        try:
            piece = socket.recv(timeout=1)
        except TimeoutError:
            continue
        assert isinstance(piece, bytes), piece
        return piece
    raise AssertionError("no video comes")


def wait_for_none(site: Service) -> None:
    wait_until(lambda: health(site)["conversations"] == 0, "a place is not left")


def health(site: Service) -> dict:
    return site.ask("GET", "/health/ready").json


def test_places_are_shares_of_their_clients(clients: tuple[Service, Service]) -> None:
    acme, guest = clients
    with talking(acme, take(acme)) as socket:
        assert first_piece(socket)[4:8] == b"ftyp"
        own = acme.ask("POST", "/v1/live", form(acme))
        assert (own.status, own.headers["retry-after"]) == (429, "30")
        assert "1 conversations of yours are held already" in own.json["error"]
        video = acme.ask("POST", "/v1/videos", form(acme, script="Hello.", num_steps=1))
        assert (video.status, "1 videos and conversations" in video.json["error"]) == (429, True)
        with talking(guest, take(guest)) as second:
            full = guest.ask("POST", "/v1/live", form(guest))
            assert (full.status, "2 conversations are held" in full.json["error"]) == (503, True)
            assert first_piece(second)
            assert health(guest) == {"workers": 0, "conversations": 2, "most": 2, "rate": None}
    wait_for_none(acme)
    metrics = acme.ask("GET", "/metrics").body.decode()
    assert 'avatar_v_videos{priority="0",state="talked"} 2.0' in metrics
    assert "avatar_v_live_refused_total 2.0" in metrics
    assert acme.ask("GET", "/v1/videos").json == {"videos": []}  # no video, and none to fetch
    # seconds that were not talked are given back: the next 600 of a day's 800 fit
    id_ = take(acme)
    assert JobStore(acme.root / "queue.db").counts()[("talking", 0)] == 1
    with talking(acme, id_):
        pass
    wait_for_none(acme)


def test_attacks_on_conversations(clients: tuple[Service, Service]) -> None:
    acme, guest = clients
    through: list[str] = []
    nobody = Service(acme.process, acme.port, acme.root, "no-token")
    for name, answer, status in places(acme, guest, nobody):
        through += [name] * (answer.status != status or str(acme.root).encode() in answer.body)
    id_ = take(acme)
    wrong = ["0" * 32, id_.upper(), f"{id_}x", "..%2f..", "%00"]
    ways = [(acme, name, {}, 403 if "%2f" in name else 404) for name in wrong]
    ways += [(guest, id_, {}, 404), (nobody, id_, {}, 401)]
    for header in ("", "Basic abc", f"Bearer {acme.token}x", "Bearer ../clients.yaml"):
        ways += [(acme, id_, {"Authorization": header}, 401)]
    ways += [(acme, id_, {"Origin": EVIL}, 403), (acme, id_, {"Host": "evil.example"}, 400)]
    for who, name, headers, status in ways:
        with pytest.raises(InvalidStatus) as refused:
            talking(who, name, **headers)
        found = refused.value.response.status_code
        through += [f"{name} {headers}: {found}"] * (found != status)
    with talking(acme, id_) as socket:
        with pytest.raises(InvalidStatus):
            talking(acme, id_)  # a second connection to the same place
        socket.close()
    for name, (message, code, words) in ATTACKS.items():
        wait_for_none(acme)
        with talking(acme, take(acme)) as socket:
            told = end_of(socket, message)
        ends = (code, 0) if code == 1009 else (code,)
        through += [f"{name}: {told}"] * (told[0] not in ends or words not in told[1])
    wait_for_none(acme)
    with talking(acme, take(acme)) as socket:  # random bytes are only noise
        socket.send(bytes(range(256)) * 128)
        through += refusals(socket)
        assert first_piece(socket)
    wait_for_none(acme)
    assert through == []
    assert "avatar_v_live_failed_total 0.0" in acme.ask("GET", "/metrics").body.decode()


def places(acme: Service, guest: Service, nobody: Service) -> Iterator[tuple[str, Answer, int]]:
    """Attempts to take one."""
    mine = form(acme)
    yield "nobody", nobody.ask("POST", "/v1/live", mine), 401
    yield "another's file", guest.ask("POST", "/v1/live", mine), 422
    for name, change in {
        "a path": {"reference": "/etc/passwd"},
        "no consent": {"consent": False},
        "a speech": {"audio": mine["reference"]},
        "a script": {"script": "Hello."},
        "many steps": {"num_steps": 1000},
        "large pictures": {"size": "4096x4096"},
        "a policy": {"policy": "/dev/null"},
        "a rate": {"audio_rate_hz": 1000},
        "a voice of a folder": {"voice": "/etc"},
        "a voice of no number": {"voice": "drawn:x"},
        "NaN": {"gain_db": float("nan")},
    }.items():
        yield name, acme.ask("POST", "/v1/live", {**mine, **change}), 422
    for name, body in {"no JSON": b"\xff\x00", "deep": b"[" * 5000, "a list": b"[]"}.items():
        yield name, acme.ask("POST", "/v1/live", body), 422
    yield "much", acme.ask("POST", "/v1/live", b" " * 2**17), 413
    broken = acme.send(Path(__file__), "me.png")
    yield "no picture", acme.ask("POST", "/v1/live", {**mine, "reference": broken}), 422
    yield "by GET", acme.ask("GET", f"/v1/live/{'0' * 32}"), 404


def test_a_person_file_talks_and_a_server_that_ends_lets_it_end(
    weights: Path, clients: tuple[Service, Service], tmp_path: Path
) -> None:
    site = clients[1]
    person, me = tmp_path / "me.person", str(site.root.parent / "me.png")
    words = ["--reference", me, "--out", str(person), "--weights", str(weights), "--device", "cpu"]
    assert main(["person", *words, "--no-face-crop"]) == 0
    body = {"reference": site.send(person), "consent": True}
    id_ = site.ask("POST", "/v1/live", body).json["id"]
    with talking(site, id_) as socket:
        assert first_piece(socket)
        site.process.send_signal(signal.SIGTERM)
        wait_until(lambda: site.ask("GET", "/health/ready").status == 503, "it does not drain")
        refused = site.ask("POST", "/v1/live", form_without_file())
        assert (refused.status, "about to end" in refused.json["error"]) == (503, True)
        texts: list[str] = []
        while not texts:
            socket.send(PACKET)
            texts += [piece for piece in [socket.recv()] if isinstance(piece, str)]
        assert json.loads(texts[0]) == {"ending_s": 60}
        assert first_piece(socket)
    assert site.process.wait(PATIENCE_S) == 0


def form_without_file() -> dict[str, object]:
    return {"reference": "0" * 32, "consent": True}


def test_as_many_can_talk_as_are_measured(
    pipe: AvatarPipeline, request_: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates, ends = [0.5, 2.9], list[float]()
    monkeypatch.setattr(live, "measure_rate", lambda pipeline, request: rates.pop(0))
    rooms = live.Rooms(pipe, None, talk_s=60.0, words=str)
    talk = request_.changed(audio=LIVE, out=None)

    def take() -> str:
        who = Visitor("acme", "acme")
        return rooms.take(who, "acme", lambda: talk, most_own=9, on_end=ends.append)

    with pytest.raises(BusyError, match=r"this machine makes 0\.50 s of video a second"):
        take()
    tokens = [take(), take()]
    with pytest.raises(BusyError, match="2 conversations are held already"):
        take()
    assert (rooms.num, rooms.most, rooms.rate, ends) == (2, 2, 2.9, [0.0])
    monkeypatch.setattr(live, "PLACE_S", -1.0)  # their sockets have not come
    assert rooms.begin(tokens[0], "acme") is None
    assert rooms.num == 0
    assert ends == [0.0] * 3  # whose shares are given back


def test_conversations_need_a_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--live"]) == 2
    assert "--live needs the device for itself" in capsys.readouterr().err
