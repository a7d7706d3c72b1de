"""The life of the app's server: its folder, its address, a broom, and its end within seconds.

uvicorn runs the page (page.py) until Ctrl-C or SIGTERM, which lets conversations end first. Then
jobs end at their next state; a step that lasts longer is cut with the process, and what it was
writing goes with the folder.
"""

import logging
import math
import os
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from avatar_v.app.form import Limits, form_words
from avatar_v.app.job_threads import JobThreads
from avatar_v.app.jobs import JobRunner
from avatar_v.app.place import private_folder
from avatar_v.engines.voices import DRAWN
from avatar_v.web.guard import is_loopback

LOG = logging.getLogger("avatar_v.app")
SWEEP_EVERY_S = 60.0
LAST_WORDS_S = 1  # for open connections, when the app ends
END_S = 4.0  # after which the process is over


def serve(
    *,
    host: str,
    port: int,
    names: Collection[str] = (),
    weights: str | Path,
    refiner: str | Path | None = None,
    device: str,
    precision: str,
    limits: Limits,
    consent: str | None = None,
    policy: str | None = None,
    voice: str = DRAWN,
    live: int | None = None,
    drain_s: float = 30.0,
) -> None:
    """Run until interrupted. ValueError for missing weights or packages, OSError for a taken port.

    ``live`` conversations at the same time, or as many as are measured. On SIGTERM those that are
    held have ``drain_s`` to end, while nobody else is taken in.

    All files lie in one temporary folder, which is removed at the end.
    """
    check_packages()
    if live is not None and live < 0:
        raise ValueError(f"--live is a number of conversations from 0 on, got {live}")
    if not 0 <= drain_s < math.inf:
        raise ValueError(f"--drain is a number of seconds from 0 on, got {drain_s:g}")
    from avatar_v.app.live import Rooms
    from avatar_v.app.page import create_app
    from avatar_v.web.connections import DrainingServer, server_config

    with listening(host, port) as listener, private_folder() as root:
        print("loading the weights …", file=sys.stderr)
        runner = JobRunner(
            root,
            weights=weights,
            refiner=refiner,
            device=device,
            precision=precision,
            limits=limits,
            consent=consent,
            policy=policy,
            voice=voice,
        )
        threads = JobThreads()
        rooms = Rooms(
            runner.pipeline,
            live,
            talk_s=runner.limits.talk_s,
            words=lambda text: form_words(text, *runner.hidden),
            is_busy=lambda: runner.is_busy,
        )
        runner.is_talking = lambda: rooms.num > 0
        app = create_app(runner, threads, rooms, host=host, names=names)
        config = server_config(app, last_words_s=LAST_WORDS_S, sockets=True)
        bound_port = listener.getsockname()[1]
        print(f"avatar-v app: http://{_shown(host)}:{bound_port}  (Ctrl-C ends it)", flush=True)
        if not is_loopback(host):
            print("note: whoever reaches this address can use it; no password", file=sys.stderr)

        def end() -> None:
            threads.end()
            _end_soon(root)

        server = DrainingServer(config, rooms, drain_s, on_end=end)
        try:
            with swept(runner.sweep):
                server.run(sockets=[listener])
        finally:
            threads.wait(LAST_WORDS_S)


def _end_soon(root: Path) -> None:
    """End the process in a few seconds, whatever a thread of it is still busy with."""

    def end() -> None:
        shutil.rmtree(root, ignore_errors=True)
        os._exit(130)  # as after any interrupt

    last = threading.Timer(END_S, end)
    last.daemon = True
    last.start()


@contextmanager
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


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def check_packages() -> None:
    """ValueError where what serves is not installed."""
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
        import websockets  # noqa: F401
    except ImportError as error:
        raise ValueError(f"this needs {error.name}: pip install 'avatar_v[app]'") from error
