"""How the local web servers hold their connections and end: what uvicorn is told, a time for each
head, and time for conversations when the server is told to go.

uvicorn waits without end for the rest of a request's head, so a client that sends a byte now and
then would keep its connection for ever, and a few hundred of them all that the process may open.
The time for a body is guard.py's.
"""

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol, cast, runtime_checkable

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from avatar_v.web.guard import App

HEAD_S = 10.0
"""From the opening of the connection, or the first byte of a further head, to its end."""
MAX_HEAD = 2**15
"""Bytes of a request's first line and headers."""
LOOK_S = 0.2
MAX_MESSAGE = 2**16
"""Bytes of a message over a WebSocket: two seconds of sound."""


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


def server_config(app: App, *, last_words_s: int, sockets: bool = False) -> uvicorn.Config:
    """The settings of a server; open connections have ``last_words_s`` when it ends. With
    ``sockets`` it speaks WebSocket; what does not answer for 20 s is gone."""
    return uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType]
        log_level="warning",
        access_log=False,  # it would hold the tokens of jobs and raters
        server_header=False,
        http=TimedProtocol,  # h11 limits a request's head, httptools does not
        h11_max_incomplete_event_size=MAX_HEAD,
        ws="websockets-sansio" if sockets else "none",
        ws_max_size=MAX_MESSAGE,
        ws_per_message_deflate=False,  # video and sound are dense already
        timeout_graceful_shutdown=last_words_s,
    )


@runtime_checkable
class Held(Protocol):
    """Conversations of a server (serving/live.py)."""

    @property
    def num(self) -> int: ...

    def drain(self, most_s: float) -> None: ...


class DrainingServer(uvicorn.Server):
    """On SIGTERM conversations that are held have ``drain_s`` to end; a second signal, or Ctrl-C,
    ends them. ``on_signal`` and then ``on_end`` are called on the way."""

    def __init__(
        self,
        config: uvicorn.Config,
        held: Held | None,
        drain_s: float,
        *,
        on_signal: Callable[[], None] = lambda: None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(config)
        self._held, self._drain_s, self._is_draining = held, drain_s, False
        self._on_signal, self._on_end = on_signal, on_end

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._on_signal()
        if sig == signal.SIGTERM and self._held and self._held.num and not self._is_draining:
            self._is_draining = True
            self._held.drain(self._drain_s)
            threading.Thread(target=self._end_later, args=(sig,), daemon=True).start()
        else:
            self._end_now(sig, frame)

    def _end_now(self, sig: int, frame: FrameType | None = None) -> None:
        self._on_end()
        super().handle_exit(sig, frame)

    def _end_later(self, sig: int) -> None:
        end = time.monotonic() + self._drain_s
        while self._held and self._held.num and time.monotonic() < end:
            time.sleep(LOOK_S)
        self._end_now(sig)
