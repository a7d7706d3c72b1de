"""Connections that are opened and not used end soon; those that are used stay."""

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from avatar_v.web import guard
from avatar_v.web.connections import HEAD_S, TimedProtocol, server_config
from avatar_v.web.guard import Guard

WAIT_S = 0.4
GOOD = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
SEND = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5000\r\n\r\n"


async def reads(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body of a POST, and of nothing else; answers with its length."""
    if scope["type"] != "http":
        return
    num, more = 0, scope["method"] == "POST"
    while more:
        message = await receive()
        num, more = num + len(message.get("body", b"")), message.get("more_body", False)
    text = str(num).encode()
    head = [(b"content-length", str(len(text)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    await send({"type": "http.response.body", "body": text})


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    config = server_config(Guard(reads, hosts=None, pause_s=WAIT_S), last_words_s=1)
    assert config.http is TimedProtocol
    assert TimedProtocol.head_s == HEAD_S
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimedProtocol, "head_s", WAIT_S)
        listener = socket.create_server(("127.0.0.1", 0))
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()[1]
        server.should_exit = True
        thread.join(10)


def opened(port: int) -> contextlib.closing[socket.socket]:
    return contextlib.closing(socket.create_connection(("127.0.0.1", port), timeout=10))


def answer(connection: socket.socket) -> bytes:
    """All of an answer whose body is one digit."""
    got = b""
    while not re.search(rb"\r\n\r\n\d$", got):
        part = connection.recv(2**16)
        assert part, got
        got += part
    return got


def dribbled(connection: socket.socket, data: bytes = b"x") -> float:
    """Seconds until the server closes a connection that gets one byte every 50 ms."""
    begin = time.monotonic()
    connection.settimeout(0.05)
    while time.monotonic() - begin < 10:
        with contextlib.suppress(TimeoutError):
            try:
                connection.sendall(data)
                if not connection.recv(2**16):
                    break
            except ConnectionError:
                break
    return time.monotonic() - begin


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nX-Slow: "])
def test_a_head_that_does_not_end_is_not_waited_for(port: int, begin: bytes) -> None:
    with opened(port) as silent:
        silent.sendall(begin)
        assert silent.recv(10) == b""
    with opened(port) as slow:
        slow.sendall(begin)
        assert WAIT_S * 0.9 < dribbled(slow) < 5


def test_a_second_head_has_no_more_time(port: int) -> None:
    with opened(port) as kept:
        kept.sendall(GOOD)
        assert answer(kept).startswith(b"HTTP/1.1 200")
        kept.sendall(GOOD[:10])
        assert dribbled(kept) < 5


def test_what_follows_an_answer_has_no_more_time(port: int) -> None:
    with opened(port) as late:
        late.sendall(SEND.replace(b"POST", b"PUT"))  # answered without its body
        assert answer(late).startswith(b"HTTP/1.1 200")
        assert dribbled(late) < 5


def test_a_body_that_dribbles_is_refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(port) as slow:
        slow.sendall(SEND)
        got = b""
        slow.settimeout(0.05)
        for _ in range(200):
            with contextlib.suppress(TimeoutError, ConnectionError):
                slow.sendall(b"x")
                got += slow.recv(2**16)
            if got:
                break
        assert got.startswith(b"HTTP/1.1 408")
    monkeypatch.setattr(guard, "MIN_BYTES_PER_S", 10)  # 20 a second are fast enough then
    with opened(port) as slow:
        slow.sendall(SEND.replace(b"5000", b"20"))
        for _ in range(20):
            slow.sendall(b"x")
            time.sleep(0.05)
        assert slow.recv(2**16).endswith(b"\r\n\r\n20")


def test_a_connection_that_is_used_stays(port: int) -> None:
    with opened(port) as kept:
        for _ in range(4):
            kept.sendall(GOOD)
            assert answer(kept).startswith(b"HTTP/1.1 200")
            time.sleep(WAIT_S / 2)
