"""The life of a server: its API and its workers, each a process, and their end.

One process serves the API and keeps workers alive: one that dies is started again. On SIGTERM or
Ctrl-C nothing new is taken, videos at hand have ``grace_s`` to be whole, others wait in the queue
for the next start. Further copies on other machines share the queue (PostgreSQL) and the folder.
"""

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from avatar_v.serving.admission import Admission
from avatar_v.serving.asked import field_words
from avatar_v.serving.clients import Client
from avatar_v.serving.job_store import JobStore
from avatar_v.serving.limits import Limits
from avatar_v.serving.place import Place, worker_name
from avatar_v.web.guard import LOOPBACK, Guard, is_loopback
from avatar_v.weights.card import Card

if TYPE_CHECKING:
    from avatar_v.generate.pipeline import AvatarPipeline

LOG = logging.getLogger("avatar_v.serving")
LOOK_S = 0.5
SWEEP_EVERY_S = 60.0
AGAIN_S = (1.0, 60.0)
"""Before a worker that died is started again: doubled each time it dies young, at most the last."""
YOUNG_S = 60.0
PARENT = "AVATAR_V_SERVER"
"""In the environment of a worker: the process that has started it."""


def serve_api(
    listener: socket.socket,
    store: JobStore,
    root: Path,
    cards: Mapping[str, Card],
    clients: Mapping[str, Client] | None,
    *,
    names: Collection[str],
    host: str,
    limits: Limits,
    admission: Admission,
    workers: Sequence[Sequence[str]],
    grace_s: float,
    pipeline: "AvatarPipeline | None" = None,
    most_live: int | None = None,
    consent: str | None = None,
    policy: str | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C. A request names one of ``cards``, or means the first.
    ``workers`` are commands, each kept running. ``pipeline``
    holds conversations, ``most_live`` or as many as are measured, under ``consent`` and
    ``policy``; at the end they have ``grace_s``."""
    from avatar_v.serving.api import MAX_BODY, Talks, create_api
    from avatar_v.serving.live import Rooms
    from avatar_v.web.connections import DrainingServer, server_config

    place, drain = Place(store, root), asyncio.Event()
    place.make()
    talks = None
    if pipeline is not None:
        hidden = [path for path in (consent, policy) if path is not None]
        rooms = Rooms(
            pipeline,
            most_live,
            talk_s=limits.talk_s,
            words=lambda text: field_words(text, *hidden),
        )
        rules = {"consent": () if consent is None else (consent,), "policy": policy}
        talks = Talks(rooms, rules)
    app = create_api(
        place,
        cards,
        clients,
        limits=limits,
        admission=admission,
        is_draining=drain,
        talks=talks,
    )
    hosts = [*LOOPBACK, host, *names] + ([] if is_loopback(host) else [socket.gethostname()])
    large = {"/v1/files": int(limits.upload_mib * 2**20)}
    guard = Guard(
        app,
        hosts=hosts,
        any_address=not is_loopback(host),
        max_body=MAX_BODY,
        large=large,
        sockets=talks is not None,
        worded=_worded,
    )
    config = server_config(guard, last_words_s=5, sockets=talks is not None)
    held = None if talks is None else talks.rooms
    server = DrainingServer(config, held, grace_s, on_signal=drain.set)

    with (
        swept(partial(place.sweep, limits.keep_s)),
        _workers(workers, store, grace_s),
        contextlib.suppress(KeyboardInterrupt),  # uvicorn's, which hands the signal on at its end
    ):
        server.run(sockets=[listener])
    if talks is not None:
        talks.rooms.end()


def _worded(sentence: str) -> tuple[bytes, bytes]:
    """What the guard refuses, as every fault is told (api.py), and the type of that."""
    return json.dumps({"error": sentence}).encode(), b"application/json"


def work_until_stopped(
    store: JobStore,
    root: Path,
    load: "Callable[[], Mapping[str, AvatarPipeline]]",
    *,
    consent: str | None,
    policy: str | None,
    grace_s: float,
) -> None:
    """One worker with the sets of weights that ``load`` gives, until SIGTERM or Ctrl-C; a second
    one ends it at once. One that a server has started ends with it."""
    stop, place = threading.Event(), Place(store, root)
    place.make()

    def end(sig: int, frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(128 + sig)
        stop.set()

    for sig in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sig, end)
    if PARENT in os.environ:
        _end_with(int(os.environ[PARENT]))
    from avatar_v.serving.worker import Worker

    Worker(
        store, place.jobs, load(), stop=stop, consent=consent, policy=policy, grace_s=grace_s
    ).work()


@contextlib.contextmanager
def swept(sweep_once: Callable[[], None]) -> Iterator[None]:
    """A broom, which goes round every minute while the context lasts."""
    over = threading.Event()

    def sweep() -> None:
        while not over.wait(SWEEP_EVERY_S):
            try:
                sweep_once()
            except (OSError, SQLAlchemyError):  # the next round may do better
                LOG.exception("old files could not be removed")

    threading.Thread(target=sweep, name="broom", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens there. ValueError for no address, OSError for a taken one."""
    if not 0 <= port < 65536:
        raise ValueError(f"--port is from 0 to 65535, got {port}")
    if not host:
        raise ValueError("--host is an address or name, got ''")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port} ({error.strerror or error})") from error


def check_packages() -> None:
    """ValueError where what serves is not installed."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
        import websockets  # noqa: F401
    except ImportError as error:
        raise ValueError(f"this needs {error.name}: pip install 'avatar_v[app]'") from error


@contextlib.contextmanager
def _workers(commands: Sequence[Sequence[str]], store: JobStore, grace_s: float) -> Iterator[None]:
    """Processes that run while the context lasts, and have ``grace_s`` behind it."""
    over = threading.Event()
    threads = [
        threading.Thread(target=_keep_running, args=(command, store, over, grace_s), name="worker")
        for command in commands
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _keep_running(
    command: Sequence[str], store: JobStore, over: threading.Event, grace_s: float
) -> None:
    pause_s = AGAIN_S[0]
    while not over.is_set():
        begin = time.monotonic()
        try:
            status = _run_once(command, store, over, grace_s)
        except OSError as error:  # no memory for a process, as where one was killed for it
            status = error
        if over.is_set():
            return
        is_young = time.monotonic() - begin < YOUNG_S
        pause_s = min(2 * pause_s, AGAIN_S[1]) if is_young else AGAIN_S[0]
        print(f"a worker ended ({status}); another begins in {pause_s:g} s", file=sys.stderr)
        over.wait(pause_s)


def _run_once(
    command: Sequence[str], store: JobStore, over: threading.Event, grace_s: float
) -> int:
    """The status of a worker that has ended."""
    own = {**os.environ, PARENT: str(os.getpid())}
    process = subprocess.Popen(command, env=own, start_new_session=True)  # Ctrl-C is for us
    while process.poll() is None and not over.wait(LOOK_S):
        pass
    if over.is_set():
        process.terminate()
        try:
            process.wait(grace_s + 10.0)
        except subprocess.TimeoutExpired:
            process.kill()
        return process.wait()
    try:
        store.gone(worker_name(process.pid))
    except SQLAlchemyError:  # then its job waits for its lease
        LOG.exception("the queue does not answer")
    return process.returncode


def _end_with(parent: int) -> None:
    """Linux sends this process SIGTERM when its parent is gone, killed or not (prctl 1)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        if os.getppid() != parent:  # it had gone already
            os.kill(os.getpid(), signal.SIGTERM)
