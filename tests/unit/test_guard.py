"""guard.py: which requests reach a server, and how much of a body it is handed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from avatar_v.web.guard import LOOPBACK, Guard, is_loopback, parse_host

OWN = {"host": "127.0.0.1:80"}
EVIL = "http://evil.example"
LINK = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


class Server:
    """Reads the whole body and answers with its length."""

    def __init__(self) -> None:
        self.bodies: list[int] = []

    async def __call__(self, scope, receive, send) -> None:
        num_bytes, more = 0, True
        while more:
            message = await receive()
            num_bytes, more = num_bytes + len(message["body"]), message["more_body"]
        self.bodies.append(num_bytes)
        headers = [(b"x-frame-options", b"ALLOWALL"), (b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"seen"})


def ask(guard: Guard, method: str = "GET", headers=OWN, body=(b"",), path: str = "/") -> dict:
    """The status, headers and text of an answer. A part of the body that is None never comes, one
    that is a number is a pause of so many seconds before the next."""
    return asyncio.run(_ask(guard, method, headers, iter(body), path))


async def _ask(
    guard: Guard, method: str, headers, parts: Iterator, path: str, client=("::1", 1)
) -> dict:
    pairs = headers.items() if isinstance(headers, dict) else headers
    answer: dict = {}

    async def receive() -> dict:
        part = next(parts, b"")
        if part is None:
            await asyncio.sleep(60)
        if isinstance(part, float):
            await asyncio.sleep(part)
            part = next(parts)
        return {"type": "http.request", "body": part, "more_body": bool(part)}

    async def send(message) -> None:
        if message["type"] == "http.response.start":
            answer.update(status=message["status"], headers=dict(message["headers"]))
        elif message["type"] == "http.response.body":
            answer["text"] = answer.get("text", "") + message["body"].decode()
        else:
            answer.update(message)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in pairs]
    scope = {"type": "http", "method": method, "path": path, "headers": raw, "client": client}
    await guard(scope, receive, send)
    return answer


@pytest.mark.parametrize(
    ("status", "method", "headers"),
    [
        (200, "GET", OWN),
        (200, "GET", {"host": "LOCALHOST:7860"}),
        (200, "GET", {"host": "[::1]:7860"}),
        (200, "GET", {"host": "[0:0::1]"}),
        (400, "GET", {}),
        (400, "GET", {"host": "evil.example"}),
        (400, "GET", {"host": "127.0.0.1.evil.example"}),
        (400, "GET", {"host": "evil.example@127.0.0.1"}),
        (400, "GET", {"host": "127.0.0.1:80:80"}),
        (400, "GET", {"host": "[::1]evil.example"}),
        (400, "GET", {"host": "[::1"}),
        (400, "GET", [("host", "127.0.0.1"), ("host", "evil.example")]),
        (200, "POST", OWN),  # a client that is no browser says nothing about sites
        (200, "POST", OWN | {"origin": "http://127.0.0.1:80"}),
        (200, "POST", OWN | {"origin": "http://127.0.0.1:80", "sec-fetch-site": "same-origin"}),
        (403, "POST", OWN | {"origin": EVIL}),
        (403, "POST", OWN | {"origin": "null"}),
        (403, "POST", OWN | {"origin": "http://127.0.0.1:8000"}),
        (403, "POST", OWN | {"origin": "file://127.0.0.1:80"}),
        (403, "POST", OWN | {"sec-fetch-site": "cross-site"}),
        (403, "POST", OWN | {"sec-fetch-site": "same-site"}),
        (403, "POST", OWN | {"sec-fetch-site": "cross-site"} | LINK),
        (403, "GET", OWN | {"origin": EVIL}),
        (403, "GET", OWN | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
        (403, "GET", OWN | {"sec-fetch-site": "cross-site"} | LINK | {"sec-fetch-dest": "iframe"}),
        (200, "GET", OWN | {"sec-fetch-site": "cross-site"} | LINK),  # a link in a mail
        (200, "GET", OWN | {"sec-fetch-site": "none"} | LINK),
        (400, "POST", OWN | {"content-length": "-1"}),
        (400, "POST", OWN | {"content-length": "1_0"}),
        (400, "POST", OWN | {"content-length": "1", "transfer-encoding": "chunked"}),
        (413, "POST", OWN | {"content-length": "11"}),
    ],
)
def test_which_requests_pass(status: int, method: str, headers) -> None:
    server = Server()
    guard = Guard(server, hosts=LOOPBACK, max_body=10)
    answer = ask(guard, method, headers)
    assert answer["status"] == status, answer["text"]
    assert len(server.bodies) == (status == 200)
    assert answer["headers"][b"x-frame-options"] == b"DENY"
    assert b"frame-ancestors 'none'" in answer["headers"][b"content-security-policy"]


def test_a_server_for_others_is_reached_by_addresses_and_its_names() -> None:
    guard = Guard(Server(), hosts=("box",), any_address=True)
    hosts = {
        "box:80": 200,
        "10.0.0.7:80": 200,
        "[fe80::1]": 200,
        "evil.example": 400,
        "0x7f.1": 400,
    }
    for host, status in hosts.items():
        assert ask(guard, headers={"host": host})["status"] == status, host


def test_an_origin_that_is_named_may_send() -> None:
    guard = Guard(Server(), hosts=None, origins=("https://study.example",))
    headers = OWN | {"origin": "https://study.example", "sec-fetch-site": "same-origin"}
    assert ask(guard, "POST", headers)["status"] == 200
    assert ask(guard, "POST", {"host": "any.example"})["status"] == 200
    assert ask(guard, "POST", headers | {"origin": "https://study.example.evil"})["status"] == 403


def test_a_body_is_counted_whatever_it_declares() -> None:
    server = Server()
    guard = Guard(server, hosts=None, max_body=10, large={"/files": 20})
    assert ask(guard, "POST", body=(b"x" * 5, b"x" * 5))["status"] == 200
    answer = ask(guard, "POST", body=(b"x" * 6, b"x" * 6))
    assert (answer["status"], answer["headers"][b"connection"]) == (413, b"close")
    assert "at most 0.00976562 KiB" in answer["text"]
    assert ask(guard, "POST", body=(b"x" * 15,), path="/files")["status"] == 200
    assert ask(guard, "POST", body=(b"x" * 15, b"x" * 15), path="/files")["status"] == 413
    assert server.bodies == [10, 15]


def test_a_body_that_pauses_is_given_up() -> None:
    guard = Guard(Server(), hosts=None, pause_s=0.01)
    assert ask(guard, "POST", body=(b"x", None))["status"] == 408


@pytest.mark.parametrize("first", [0, 2**20])
def test_a_large_body_is_not_slower_than_the_least_rate(first: int) -> None:
    """4.6 kB a second, from the start or behind a part that came quickly."""
    guard = Guard(Server(), hosts=None, large={"/files": 2**30}, pause_s=0.2)

    def slow(rate: int) -> Iterator[Any]:
        yield b"x" * (first + 1)
        for _ in range(20):
            yield 0.05
            yield b"x" * round(rate * 0.05)

    assert ask(guard, "POST", body=slow(4600), path="/files")["status"] == 408
    assert ask(guard, "POST", body=slow(40_000), path="/files")["status"] == 200


def test_only_some_large_bodies_arrive_at_once() -> None:
    guard = Guard(Server(), hosts=None, large={"/files": 20}, max_large=6, pause_s=0.1)

    def held(number: int, host: str, cookie: str = "a"):
        parts = iter((b"x", None)) if number else iter((b"x",))
        headers = OWN | {"cookie": cookie}
        return _ask(guard, "POST", headers, parts, "/files", (host, 1))

    async def all_of(*asked) -> list[int]:
        return [answer["status"] for answer in await asyncio.gather(*asked)]

    one, other = [held(1, "::1") for _ in range(2)], held(0, "::1", "b")
    assert asyncio.run(all_of(*one, held(0, "::1"), other)) == [408, 408, 429, 200]
    near = [held(1, f"fe80::{n}", str(n)) for n in range(3)]  # one network, so one address
    far = held(0, "10.0.0.1", "4")
    assert asyncio.run(all_of(*near, held(0, "fe80::3", "3"), far)) == [408] * 3 + [429, 200]
    full = [held(1, f"10.0.0.{n}") for n in range(6)]
    assert asyncio.run(all_of(*full, held(0, "10.0.0.7"))) == [408] * 6 + [503]
    assert ask(guard, "POST", body=(b"x",), path="/files")["status"] == 200


@pytest.mark.parametrize(
    ("sockets", "headers", "told"),
    [
        (False, OWN, "websocket.close"),
        (True, OWN | {"origin": "http://127.0.0.1:80", "sec-fetch-site": "same-origin"}, "opened"),
        (True, OWN | {"origin": EVIL}, 403),
        (True, OWN | {"sec-fetch-site": "cross-site", "sec-fetch-mode": "websocket"}, 403),
        (True, {"host": "evil.example"}, 400),
    ],
)
def test_a_web_socket_is_opened_where_a_request_may_come(sockets: bool, headers, told) -> None:
    sent: list = []

    async def server(scope, receive, send) -> None:
        sent.append("opened")

    async def send(message) -> None:
        sent.append(message.get("status", message["type"]))

    async def receive() -> dict:
        return {"type": "websocket.connect"}

    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    guard = Guard(server, hosts=LOOPBACK, sockets=sockets)
    scope = {"type": "websocket", "path": "/", "headers": pairs}
    asyncio.run(guard(scope, receive, send))
    assert sent[0] == told


def test_names_of_hosts() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.0.0.2", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "192.168.1.2", "::", "example.org")))
    assert parse_host("Study.Example:443") == "study.example"
    assert parse_host("[::1]") == "::1"
