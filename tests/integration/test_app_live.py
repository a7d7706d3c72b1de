"""Conversations of `avatar-v app` over HTTP, as a program holds them: sound in, video out.

Also whoever may not have one, and what a client may not send: one clear error each. Tiny random
weights, loopback. The browser is in test_app_talk.py.
"""

import asyncio
import contextlib
import io
import json
import os
import signal
import socket as sockets
import time
from collections.abc import Iterator
from pathlib import Path

import av
import pytest

pytest.importorskip("websockets", reason="the app's extra is not installed")
pytest.importorskip("prometheus_client", reason="the app's extra is not installed")

import numpy as np
from PIL import Image
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from avatar_v.serving import live as live_module
from avatar_v.serving.live import MOST_PIECES, Pieces
from page_attacks import EVIL
from page_site import COMMAND, FORM, PATIENCE_S, Answer, Site, running, wait_until
from talk_attacks import ATTACKS, PACKET, end_of, refusals, wav


@pytest.fixture(scope="module")
def site(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    place = tmp_path_factory.mktemp("page")
    Image.linear_gradient("L").resize((64, 64)).save(place / "me.png")
    with running(place, weights, COMMAND[-1], "--live", "1", "--drain", "60") as site:
        yield site


@pytest.fixture(scope="module")
def me(site: Site) -> tuple[str, str]:
    """A browser's session and its picture."""
    session = site.session()
    return session, site.send(session, site.secret.with_name("me.png"))


def ask_place(site: Site, me: tuple[str, str], **changes) -> Answer:
    form = json.dumps(FORM | {"reference": me[1]} | changes).encode()
    return site.ask("POST", "/live", form, me[0], Content_Type="application/json")


def take(site: Site, me: tuple[str, str], **changes) -> str:
    wait_until(lambda: ask(site, "/health")["conversations"] == 0, "a place is not left")
    answer = ask_place(site, me, **changes)
    assert answer.status == 200, answer.text
    return json.loads(answer.body)["token"]


def ask(site: Site, path: str) -> dict:
    return json.loads(site.ask("GET", path).body)


def talking(site: Site, me: tuple[str, str], token: str, **headers: str) -> ClientConnection:
    cookie = {"Cookie": f"avatar_v={me[0]}"} if me[0] else {}
    address = f"ws://127.0.0.1:{site.port}/live/{token}"
    return connect(address, additional_headers=cookie | headers, compression=None, max_size=None)


def number_of(site: Site, name: str) -> float:
    lines = site.ask("GET", "/metrics").text.splitlines()
    (line,) = (line for line in lines if line.startswith(f"avatar_v_live_{name} "))
    return float(line.split()[1])


def watch(site: Site, socket: ClientConnection, num_frames: int) -> bytes:
    """The pieces that come, while silence is sent in its time, until so many more are made."""
    pieces: list[bytes] = []
    before = number_of(site, "frames_total")

    def more() -> bool:
        for _ in range(8):
            socket.send(PACKET)
            with contextlib.suppress(TimeoutError):
                for _ in range(MOST_PIECES):  # all that is there
                    pieces.append(socket.recv(timeout=0.04))
        return bool(pieces) and number_of(site, "frames_total") >= before + num_frames

    wait_until(more, "no frames are made and sent")
    return b"".join(pieces)


def test_a_conversation_is_a_growing_mp4_and_has_the_machine_for_itself(
    site: Site, me: tuple[str, str]
) -> None:
    token = take(site, me)
    other = site.session()
    theirs = other, site.send(other, site.secret.with_name("me.png"))
    with talking(site, me, token) as socket:
        data = watch(site, socket, 17)
        again, full = ask_place(site, me), ask_place(site, theirs)
        assert (again.status, full.status) == (429, 503)
        assert "1 conversations are held already; try again when one has ended" in full.text
        assert full.headers["retry-after"] == "30"
        assert ask(site, "/health") == {"status": "ok", "conversations": 1, "most": 1, "rate": None}
        with waiting_video(site, theirs) as line:
            assert b"Waiting until nobody talks" in line.recv(2**14)
            socket.send(json.dumps({"interrupt": True}))
            socket.send(json.dumps({"prompt": "a green room"}))
            socket.send(json.dumps({"say": "Hello."}))
            data += watch(site, socket, 36)
            socket.close()
            wait_until(lambda: list((site.root / "jobs").iterdir()), "the video waits on")
            assert "A video is being made" in ask_place(site, me).text
    with av.open(io.BytesIO(data)) as video:
        streams = {stream.type: stream for stream in video.streams}
        assert (streams["video"].width, streams["video"].codec_context.name) == (32, "h264")
        packets = [p for p in video.demux() if p.pts is not None and p.pts >= 0]
    ends = {
        kind: max(float((p.pts + p.duration) * p.time_base) for p in packets if p.stream == stream)
        for kind, stream in streams.items()
    }
    assert ends["video"] > 1
    assert abs(ends["video"] - ends["audio"]) < 0.3  # an AAC frame is on its way
    with av.open(io.BytesIO(data)) as video:
        loud = [float(abs(f.to_ndarray()).max()) for f in video.decode(audio=0)]
    assert max(loud) > 0.1, "silence was sent, and the text is heard"
    assert number_of(site, "refused_total") >= 2
    wait_until(lambda: number_of(site, "conversations") == 0, "the place is not left")


@contextlib.contextmanager
def waiting_video(site: Site, me: tuple[str, str]) -> Iterator[sockets.socket]:
    speech = site.secret.with_name("talk.wav")
    speech.write_bytes(wav(16_000))
    form = FORM | {"reference": me[1], "speech": site.send(me[0], speech)}
    body = json.dumps(form).encode()
    head = f"POST /jobs HTTP/1.1\r\nHost: localhost\r\nCookie: avatar_v={me[0]}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    with sockets.create_connection(("127.0.0.1", site.port), PATIENCE_S) as line:
        line.sendall(head.encode() + body)
        line.recv(2**14)  # the head of the answer
        yield line


def test_what_a_client_may_not_send_is_one_clear_error(site: Site, me: tuple[str, str]) -> None:
    wait_until(lambda: ask_place(site, me, consent=False).status == 422, "the video does not end")
    for name, (message, code, words) in ATTACKS.items():
        with talking(site, me, take(site, me)) as socket:
            told = end_of(socket, message)
        assert told[0] in (code, 0 if code == 1009 else code), (name, told)
        assert words in told[1], (name, told)
        assert "Traceback" not in told[1]
    with talking(site, me, take(site, me)) as socket:
        assert refusals(socket) == []
        assert watch(site, socket, 17), "they end nothing"
    assert number_of(site, "failed_total") == 0


def test_nobody_comes_in_by_another_way(site: Site, me: tuple[str, str]) -> None:
    for changes, words in (
        ({"reference": None}, "Add a clip"),
        ({"reference": "../../etc/passwd"}, "The clip is not here any more"),
        ({"consent": False}, "This is my own face"),
        ({"num_steps": 10**9}, "Steps is a whole number"),
        ({"path": "/etc/passwd"}, "a form that is not known"),
    ):
        answer = ask_place(site, me, **changes)
        assert (answer.status, words in answer.text) == (422, True), answer.text
    assert ask_place(site, ("", me[1])).status == 403
    token = take(site, me)
    stranger = site.session(), ""
    wrong = ["0" * 32, token.upper(), f"{token}x", "..", "%2e%2e%2fpage", f"../files/{me[1]}", ""]
    ways = [(me, name, {}) for name in wrong]
    ways += [(stranger, token, {}), (("", ""), token, {}), (me, token, {"Origin": EVIL})]
    ways += [(me, token, {"Sec-Fetch-Site": "cross-site"})]
    for who, name, headers in ways:
        with pytest.raises(InvalidStatus) as refused:
            talking(site, who, name, **headers)
        assert refused.value.response.status_code in (403, 404), name
        assert b"Traceback" not in refused.value.response.body
    with talking(site, me, token) as socket:
        with pytest.raises(InvalidStatus) as refused:
            talking(site, me, token)  # the same place once more
        assert b"begun already" in refused.value.response.body
        assert watch(site, socket, 17)


def test_on_sigterm_nobody_is_taken_in_and_who_talks_may_end(
    site: Site, me: tuple[str, str]
) -> None:
    with talking(site, me, take(site, me)) as socket:
        site.process.send_signal(signal.SIGTERM)
        wait_until(lambda: site.ask("GET", "/health").status == 503, "it does not drain")
        answer = ask_place(site, me)
        texts = []
        while not texts:
            socket.send(PACKET)
            texts += [piece for piece in [socket.recv()] if isinstance(piece, str)]
        assert json.loads(texts[0]) == {"ending_s": 60}
        assert watch(site, socket, 12)
        assert (answer.status, "about to end" in answer.text) == (503, True)
    site.process.wait(PATIENCE_S)


def test_who_does_not_read_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing piles up for them, and the thread that gives is let go of."""
    monkeypatch.setattr(live_module, "TAKEN_S", 0.1)
    faults: list[OSError] = []

    async def hold() -> None:
        pieces = Pieces()

        def give() -> None:
            try:
                for _ in range(10 * MOST_PIECES):
                    pieces.give(bytes(1000))
            except OSError as error:
                faults.append(error)

        await asyncio.to_thread(give)
        assert pieces._queue.qsize() == MOST_PIECES
        pieces.stop()
        await asyncio.to_thread(give)

    asyncio.run(hold())
    assert [str(fault) for fault in faults] == [
        "the client took nothing for 0.1 s",
        "the client has gone",
    ]


@pytest.mark.slow
def test_memory_is_flat_over_fifty_conversations(weights: Path, tmp_path: Path) -> None:
    """Each leaves in another way: closed, torn off, or without having read anything."""
    Image.linear_gradient("L").resize((64, 64)).save(tmp_path / "me.png")
    with running(tmp_path, weights, COMMAND[-1], "--live", "1") as site:
        session = site.session()
        me, sizes = (session, site.send(session, tmp_path / "me.png")), []
        for i in range(100):
            socket = talking(site, me, take(site, me))
            if i % 3:
                assert watch(site, socket, 17)
            if i % 3 == 2:
                os.close(socket.socket.detach())
            else:
                socket.close()
            if i % 10 == 9:
                wait_until(lambda: ask(site, "/health")["conversations"] == 0, "a place is kept")
                time.sleep(1)  # the last block of frames
                sizes.append(resident_mib(site.process.pid))
        print("MiB after 10, 20 … 100:", [round(size) for size in sizes])
        assert np.mean(sizes[5:]) < 1.05 * np.mean(sizes[2:5])  # threads have grown by then


def resident_mib(pid: int) -> float:
    (line,) = (x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in x)
    return int(line.split()[1]) / 1024
