"""Conversations of a page or a server: as many as the machine can make, each with its end.

A place is taken with a request, which is checked as that of a video, and begun by a WebSocket
(talk.py). How many people can talk is measured with the first one's request. The routes are those
of the API (api.py) and of the page (app/live_page.py).
"""

import asyncio
import contextlib
import functools
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from avatar_v.base.traces import span, traceparent
from avatar_v.engines.voice import find_voice
from avatar_v.generate.loaded import LoadedPipeline
from avatar_v.generate.session import LiveSession, measure_rate
from avatar_v.media.outputs import FragmentStream
from avatar_v.request.request import Request
from avatar_v.serving import memory
from avatar_v.serving.metrics import LiveMetrics
from avatar_v.web.visitors import BusyError, Visitor, check_share

PLACE_S = 20.0
"""A place is kept for so long until its socket opens."""
IDLE_S = 60.0  # without a packet
TAKEN_S = 10.0
"""A client that takes nothing for so long has stopped reading."""
MOST_WAIT_S = 1.0
"""Of a microphone's sound that waits."""
MOST_PIECES = 64
"""Of the video that wait to be sent: a second and a half."""


class Pieces:
    """A growing mp4 on its way from the writer's thread to a client, `MOST_PIECES` at most: whoever
    does not read holds the making up, and then ends it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[bytes | str] = asyncio.Queue(MOST_PIECES)
        self._is_over = False

    def give(self, data: bytes) -> None:
        """From any thread. OSError when nobody takes it."""
        if self._is_over:
            raise OSError("the client has gone")
        putting = self._queue.put(data)
        try:
            future = asyncio.run_coroutine_threadsafe(putting, self._loop)
        except RuntimeError as error:  # the server is over, its loop closed
            putting.close()
            raise OSError("the server has ended") from error
        try:
            future.result(TAKEN_S)
        except TimeoutError:
            future.cancel()
            raise TimeoutError(f"the client took nothing for {TAKEN_S:g} s") from None

    def say(self, text: str) -> None:
        """A message between the pieces, from any thread; dropped where there is no room."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._put, text)

    async def next(self) -> bytes | str:
        return await self._queue.get()

    def stop(self) -> None:
        """In the loop: nobody takes any more, and who waits to give is let go."""
        self._is_over = True
        while not self._queue.empty():
            self._queue.get_nowait()

    def _put(self, text: str) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._queue.put_nowait(text)


@dataclass
class Conversation:
    """A place, and what is held there."""

    visitor: Visitor
    owner: str  # whom it is for: the session of a browser, or a client
    on_end: Callable[[float], None]  # told the seconds of video that were made
    since: float = field(default_factory=time.monotonic)
    session: LiveSession | None = None  # None: its files are being read
    pieces: Pieces | None = None  # None: its socket is not open yet
    num_frames: int = 0  # made so far
    listens: bool = False  # to the sound that comes, which is not said then
    trace: str | None = field(default_factory=traceparent)  # of who asked

    @property
    def is_stale(self) -> bool:
        waits = self.session is not None and self.pieces is None
        return waits and time.monotonic() - self.since > PLACE_S


class Rooms:
    """All conversations of a server, ``most`` at the same time; None: as many as are measured.

    Each lasts ``talk_s`` at most. None begins while videos are made here (``is_busy``). ``words``
    puts a message of the library into words for clients.
    """

    def __init__(
        self,
        pipeline: LoadedPipeline,
        most: int | None,
        *,
        talk_s: float,
        words: Callable[[str], str],
    ) -> None:
        self.pipeline, self.most, self.metrics = pipeline, most, LiveMetrics()
        self.talk_s, self.words = talk_s, words
        self.is_busy: Callable[[], bool] = lambda: False
        self.metrics.capacity.set(most or 0)
        self._voice = functools.lru_cache(1)(find_voice)  # that of a page is of all its talks
        self.rate: float | None = None  # seconds of video a second, as measured
        self.is_draining = False
        self._taken: dict[str, Conversation] = {}
        self._lock = threading.RLock()  # a signal may come in the middle
        memory.keep_few_arenas()
        self._threads = ThreadPoolExecutor(10_000, "talk")  # made when they are needed

    @property
    def num(self) -> int:
        """Places that are taken."""
        with self._lock:
            stale = [token for token, held in self._taken.items() if held.is_stale]
        for token in stale:
            self._remove(token)
        self.metrics.held.set(len(self._taken))
        return len(self._taken)

    def take(
        self,
        visitor: Visitor,
        owner: str,
        checked: Callable[[], Request],
        *,
        most_own: int = 1,
        on_end: Callable[[float], None] = lambda seconds: None,
    ) -> str:
        """A place for the request that ``checked`` gives; its token. A visitor has ``most_own``.

        BusyError, which says what to do, where there is none: then nothing is checked, and no end
        is told. ValueError as ``checked``, and for a request that cannot be carried out."""
        held, token, _ = Conversation(visitor, owner, on_end), secrets.token_hex(16), self.num
        try:
            with self._lock:
                self._check(visitor, most_own)
                self._taken[token] = held
        except BusyError:
            self.metrics.refused.inc()
            raise
        try:
            request = checked()
            if self.most is None:
                self._measure(measure_rate(self.pipeline, request))

            def give(data: bytes) -> None:
                assert held.pieces is not None, "frames are made for an open socket"
                held.pieces.give(data)

            beside = (FragmentStream("the client", give),)
            voice = self._voice(request.person.voice, request.person.engine)
            how = {"most_wait_s": MOST_WAIT_S, "beside": beside, "voice": voice}
            held.session = LiveSession(self.pipeline, request, **how)
            held.since = time.monotonic()
        except BaseException:
            self.leave(token)
            raise
        return token

    def begin(self, token: str, owner: str) -> Conversation | None:
        """The conversation of a place that its own browser has taken and not begun; else None."""
        with self._lock:
            held = self._taken.get(token)
            if held is None or held.owner != owner or held.session is None or held.is_stale:
                return None
            if held.pieces is not None:
                return None
            held.pieces = Pieces()
        return held

    async def made(self, held: Conversation) -> None:
        """Make the frames of a conversation in a thread, which ends with its session."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._make, held)

    def leave(self, token: str) -> None:
        """The place is free."""
        self._remove(token)
        _ = self.num

    def end(self) -> None:
        """All conversations end now."""
        with self._lock:
            tokens = list(self._taken)
        for token in tokens:
            self._remove(token)

    def drain(self, most_s: float) -> None:
        """Take nobody in any more; those who talk are told that it ends."""
        self.is_draining = True
        with self._lock:
            for held in self._taken.values():
                if held.pieces is not None:
                    held.pieces.say(f'{{"ending_s": {most_s:g}}}')

    def _make(self, held: Conversation) -> None:
        assert held.session is not None
        begin = time.perf_counter()
        with span("conversation", held.trace), contextlib.closing(iter(held.session)) as parts:
            for part in parts:
                if held.num_frames == 0:
                    self.metrics.first.observe(time.perf_counter() - begin)
                held.num_frames += len(part.frames)
                self.metrics.frames.inc(len(part.frames))

    def _remove(self, token: str) -> None:
        with self._lock:
            held = self._taken.pop(token, None)
        if held is None:
            return
        if held.session is not None:
            held.session.close()
            self.metrics.count(held.session)
            memory.give_back()
        held.on_end(held.num_frames / self.pipeline.format.video.frame_rate_hz)

    def _check(self, visitor: Visitor, most_own: int) -> None:
        if self.is_draining:
            words = "This server is about to end; try another one, or this one in a minute"
            raise BusyError(words, is_own=False)
        if self.most == 0:
            raise BusyError("This server holds no conversations (--live 0)", is_own=False)
        if self.is_busy():
            words = "A video is being made; try again when it is done, in a few minutes"
            raise BusyError(words, is_own=False)
        check_share(
            visitor,
            (held.visitor for held in self._taken.values()),
            most=self.most or 1,
            most_own=most_own,
            what="conversations",
            when="are held already; try again when one has ended, or on another server",
        )

    def _measure(self, rate: float) -> None:
        self.rate = rate
        if rate < 1:  # the next one asks again: another program may have had the cores
            raise BusyError(
                f"With these weights this machine makes {rate:.2f} s of video a second, and a "
                "conversation needs 1 s: start it with --weights small_causal or on a GPU, or "
                "with --live 1 to talk nevertheless",
                is_own=False,
            )
        self.most = int(rate)
        self.metrics.capacity.set(self.most)
