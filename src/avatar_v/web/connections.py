"""How the local web servers hold their connections: what uvicorn is told, and a time for each head.

uvicorn waits without end for the rest of a request's head, so a client that sends a byte now and
then would keep its connection for ever, and a few hundred of them all that the process may open.
The time for a body is guard.py's.
"""

import asyncio
from typing import cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from avatar_v.web.guard import App

HEAD_S = 10.0
"""From the opening of the connection, or the first byte of a further head, to its end."""
MAX_HEAD = 2**15
"""Bytes of a request's first line and headers."""


class TimedProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose next request is not there within ``head_s``."""

    head_s = HEAD_S
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast("asyncio.Transport", transport))
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._unwatch()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the clock where a request is waited for, and stop it where one is answered. What
        follows an answer that did not wait for its request's body belongs to no request."""
        is_answered = self.cycle is not None and self.cycle.response_complete
        if self.conn.their_state is not h11.IDLE and not is_answered:
            self._unwatch()
        elif self._late is None:
            self._late = self.loop.call_later(self.head_s, self.transport.close)

    def _unwatch(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None


def server_config(app: App, *, last_words_s: int) -> uvicorn.Config:
    """The settings of a server; open connections have ``last_words_s`` when it ends."""
    return uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType]
        log_level="warning",
        access_log=False,  # it would hold the tokens of jobs and raters
        server_header=False,
        http=TimedProtocol,  # h11 limits a request's head, httptools does not
        h11_max_incomplete_event_size=MAX_HEAD,
        timeout_graceful_shutdown=last_words_s,
    )
