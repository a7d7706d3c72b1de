"""The door of a local web server: an ASGI middleware that judges a request before the server does.

It checks the Host (no site reaches the server under another name), the origin (no other site sends
or embeds anything) and the size of the body while it arrives, so that nothing larger is ever held.
It sets the headers that keep a browser from framing or guessing. It knows no framework:
``Guard(app, …)`` is itself an ASGI application. Files are not judged here.
"""

import asyncio
import contextlib
import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from typing import Any

from avatar_v.web.visitors import BusyError, Visitor, check_share

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

STRICT_POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
LOOPBACK = ("localhost", "127.0.0.1", "::1")
MIN_BYTES_PER_S = 2**14
"""Of a body, in each `RATE_PAUSES` times ``pause_s``: a telephone on a bad line sends five times as
fast."""
RATE_PAUSES = 2
MAX_LARGE_OWN = 2
"""Large bodies of one browser at the same time: the page sends a clip and a speech."""
DROP_BYTES, DROP_S = 2**23, 1.0
"""So much of a refused body is read at most, and for so long."""
_HEADERS = {
    b"x-frame-options": b"DENY",
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"same-origin",  # "no-referrer" would make a form's Origin "null"
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
}
_PLAIN = b"text/plain; charset=utf-8"
_PORT = re.compile(r"[0-9]{1,5}")
_LENGTH = re.compile(rb"[0-9]{1,18}")


class Guard:
    """Passes on what the server may see; everything else gets one sentence and a status.

    ``hosts`` are the names that the Host header may have (None: any), and with ``any_address``
    every address in numbers, since no site can make its own name one. A body has at most
    ``max_body`` bytes, or ``large[path]`` for the paths named there, of which ``max_large`` arrive
    at the same time, `MAX_LARGE_OWN` of one browser, none with a pause above ``pause_s`` or slower
    than `MIN_BYTES_PER_S`.
    ``origins`` are other origins ("https://study.example") that may send, for a server behind a
    proxy that changes the Host.
    With ``sockets`` the server speaks WebSocket. Sentences are ``worded`` as the server's own: the
    text, and its type.
    A response that brings its own Content-Security-Policy keeps it, others get ``policy``.
    """

    def __init__(
        self,
        app: App,
        *,
        hosts: Collection[str] | None,
        any_address: bool = False,
        max_body: int = 2**16,
        large: Mapping[str, int] | None = None,
        max_large: int = 8,
        pause_s: float = 30.0,
        policy: str = STRICT_POLICY,
        origins: Collection[str] = (),
        sockets: bool = False,
        worded: Callable[[str], tuple[bytes, bytes]] = lambda text: (text.encode(), _PLAIN),
    ) -> None:
        self.app, self.max_body, self.large = app, max_body, dict(large or {})
        self.hosts = None if hosts is None else {name.lower() for name in hosts}
        self.any_address, self.max_large, self.pause_s = any_address, max_large, pause_s
        self.origins = {origin.lower() for origin in origins}
        self.headers = _HEADERS | {b"content-security-policy": policy.encode("ascii")}
        self._sockets, self._worded = sockets, worded
        self._arriving: list[Visitor] = []  # with a large body

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self.app(scope, receive, send)
        if scope["type"] == "websocket":
            return await self._opened(scope, receive, send)
        send = self._with_headers(send)
        fault = self._fault(scope)
        if fault is not None:
            return await self._refuse(receive, send, *fault)
        if scope["path"] not in self.large:
            return await self._measured(scope, receive, send)
        visitor = _visitor(scope)
        try:
            check_share(
                visitor,
                self._arriving,
                most=self.max_large,
                most_own=MAX_LARGE_OWN,
                what="files",
                when="arrive already; try again when they are here",
            )
        except BusyError as error:
            status = 429 if error.is_own else 503
            return await self._refuse(receive, send, status, f"{error}.")
        self._arriving.append(visitor)
        try:
            await self._measured(scope, receive, send)
        finally:
            self._arriving.remove(visitor)

    async def _opened(self, scope: Message, receive: Receive, send: Send) -> None:
        """A WebSocket. A browser lets any site open one and says which, as of every request; the
        size of a message is the server's to limit."""
        if not self._sockets:
            return await send({"type": "websocket.close", "code": 1008})
        fault = self._fault({**scope, "method": "GET"})
        if fault is None:
            return await self.app(scope, receive, send)
        body, kind = self._worded(fault[1])
        start = {"status": fault[0], "headers": [(b"content-type", kind)]}
        await send({"type": "websocket.http.response.start", **start})
        await send({"type": "websocket.http.response.body", "body": body})

    def _fault(self, scope: Message) -> tuple[int, str] | None:
        """The status and the sentence for a request that must not pass, from its head alone."""
        headers = _headers(scope)
        if headers is None:
            return 400, "A header is there twice that may be there once."
        authority = headers.get("host", "")
        name = parse_host(authority)
        if name is None or not self._is_named(name):
            return 400, "This server is not reached by that name."
        if not self._is_same_site(scope["method"], headers, authority):
            return 403, "Another site may not ask this server for that."
        length = headers.get("content-length")
        if length is not None and "transfer-encoding" in headers:
            return 400, "The body has two lengths."
        if length is not None and not _LENGTH.fullmatch(length.encode("latin-1")):
            return 400, "The Content-Length is not a number."
        limit = self._limit(scope)
        if length is not None and int(length) > limit:
            return 413, _too_large(limit)
        return None

    def _is_named(self, name: str) -> bool:
        return self.hosts is None or name in self.hosts or (self.any_address and is_address(name))

    def _is_same_site(self, method: str, headers: dict[str, str], authority: str) -> bool:
        """Whether no other site is behind a request. Clients that are no browser send neither."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None:
            scheme, _, rest = origin.lower().partition("://")
            is_own = scheme in ("http", "https") and rest == authority.lower()
            if not is_own and origin.lower() not in self.origins:
                return False
        if site in (None, "same-origin", "none"):
            return True
        is_link = headers.get("sec-fetch-mode") == "navigate"
        is_link = is_link and headers.get("sec-fetch-dest", "document") == "document"
        return (method in ("GET", "HEAD") and is_link) or (
            origin is not None and origin.lower() in self.origins
        )

    def _limit(self, scope: Message) -> int:
        return self.large.get(scope["path"], self.max_body)

    async def _measured(self, scope: Message, receive: Receive, send: Send) -> None:
        """Run the server on a counted body; where the count ends it, the guard answers."""
        body = _Body(receive, self._limit(scope), self.pause_s)
        has_begun = False

        async def answered(message: Message) -> None:
            nonlocal has_begun
            if body.fault is None or has_begun:
                has_begun = True
                await send(message)

        with contextlib.suppress(BodyError):
            await self.app(scope, body.next, answered)
        if body.fault is not None and not has_begun:
            await self._refuse(receive, send, *body.fault)

    async def _refuse(self, receive: Receive, send: Send, status: int, sentence: str) -> None:
        """A complete answer, after which the connection is closed: its body may not have been read.

        A little of the body is read and dropped first. Else the connection would be reset under a
        client that is still sending, which then never sees the answer.
        """
        body, kind = self._worded(sentence)
        headers = [
            (b"content-type", kind),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(_dropped(receive), DROP_S)
        await send({"type": "http.response.body", "body": b""})

    def _with_headers(self, send: Send) -> Send:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                own = {name.lower() for name, _ in headers} & {b"content-security-policy"}
                wanted = {name: value for name, value in self.headers.items() if name not in own}
                headers = [pair for pair in headers if pair[0].lower() not in wanted]
                message = {**message, "headers": headers + list(wanted.items())}
            await send(message)

        return sent


class BodyError(Exception):
    """The body of a request is too large or too slow; the guard answers for the server."""


class _Body:
    """Hands on the parts of a body until there are too many bytes or too long a pause."""

    def __init__(self, receive: Receive, limit: int, pause_s: float) -> None:
        self.fault: tuple[int, str] | None = None
        self._receive, self._limit, self._pause_s = receive, limit, pause_s
        self._num_bytes, self._is_whole = 0, False
        self._enough, self._end_s = 0, 0.0  # bytes that are to be there, and when

    async def next(self) -> Message:
        """The next message. BodyError from the first that is at fault on."""
        if self._is_whole:
            return await self._receive()  # the end of the connection, whenever that is
        try:
            message = await asyncio.wait_for(self._receive(), self._left_s())
        except TimeoutError:
            self.fault = 408, "The body did not arrive in time."
            raise BodyError(self.fault[1]) from None
        self._is_whole = not message.get("more_body", False)
        self._num_bytes += len(message.get("body", b""))
        if self._num_bytes > self._limit:
            self.fault = 413, _too_large(self._limit)
            raise BodyError(self.fault[1])
        return message

    def _left_s(self) -> float:
        """The time that the next part may take: less where those before it came slowly. What came
        quickly buys no time for what follows."""
        now_s, span_s = asyncio.get_running_loop().time(), RATE_PAUSES * self._pause_s
        if self._num_bytes >= self._enough:
            self._end_s = now_s + span_s
            self._enough = self._num_bytes + max(1, round(MIN_BYTES_PER_S * span_s))
        return max(0.0, min(self._pause_s, self._end_s - now_s))


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address of this name."""
    if address == "localhost":
        return True
    return is_address(address) and ipaddress.ip_address(address).is_loopback


def is_address(name: str) -> bool:
    """Whether a host's name is an address in numbers."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def parse_host(authority: str) -> str | None:
    """The name in a Host header, lower case and without brackets; None if it is malformed."""
    bracketed, bracket, rest = authority.rpartition("]")
    if bracket:
        if not bracketed.startswith("["):
            return None
        name, port = bracketed[1:], rest
        if port and not (port.startswith(":") and _PORT.fullmatch(port[1:])):
            return None
        try:
            return ipaddress.IPv6Address(name).compressed
        except ValueError:
            return None
    name, colon, port = authority.partition(":")
    is_whole = re.fullmatch(r"[A-Za-z0-9._-]+", name) and (not colon or _PORT.fullmatch(port))
    return name.lower() if is_whole else None


def _headers(scope: Message) -> dict[str, str] | None:
    """The headers by name; None where one that decides is there twice."""
    single = (b"host", b"origin", b"content-length", b"sec-fetch-site", b"sec-fetch-mode")
    names = [name for name, _ in scope["headers"]]
    if any(names.count(name) > 1 for name in single):
        return None
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _visitor(scope: Message) -> Visitor:
    return Visitor.of(scope.get("client"), (_headers(scope) or {}).get("cookie", ""))


def _too_large(limit: int) -> str:
    size = f"{limit / 2**20:g} MiB" if limit >= 2**20 else f"{limit / 2**10:g} KiB"
    return f"The request is too large; at most {size} are taken."


async def _dropped(receive: Receive) -> None:
    num_bytes = 0
    while num_bytes < DROP_BYTES:
        message = await receive()
        num_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            return
