"""The life of the app's server: its folder, its address, a broom, and its end within seconds.

uvicorn runs the page (page.py) until Ctrl-C or SIGTERM. Then jobs end at their next state; a step
that lasts longer is cut with the process, and what it was writing goes with the folder.
"""

import logging
import os
import shutil
import socket
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from avatar_v.app.form import Limits
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
) -> None:
    """Run until interrupted. ValueError for missing weights or packages, OSError for a taken port.

    All files lie in one temporary folder, which is removed at the end.
    """
    _check_packages()
    import uvicorn

    from avatar_v.app.page import create_app
    from avatar_v.web.connections import server_config

    with _listening(host, port) as listener, private_folder() as root:
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
        app = create_app(runner, threads, host=host, names=names)
        config = server_config(app, last_words_s=LAST_WORDS_S)
        bound_port = listener.getsockname()[1]
        print(f"avatar-v app: http://{_shown(host)}:{bound_port}  (Ctrl-C ends it)", flush=True)
        if not is_loopback(host):
            print("note: whoever reaches this address can use it; no password", file=sys.stderr)

        class Server(uvicorn.Server):
            def handle_exit(self, sig: int, frame: FrameType | None) -> None:
                threads.end()
                _end_soon(root)
                super().handle_exit(sig, frame)

        try:
            with _swept(runner):
                Server(config).run(sockets=[listener])
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
def _swept(runner: JobRunner) -> Iterator[None]:
    """A broom that goes round while the context lasts."""
    over = threading.Event()

    def sweep() -> None:
        while not over.wait(SWEEP_EVERY_S):
            try:
                runner.sweep()
            except OSError:
                LOG.exception("old files could not be removed")

    threading.Thread(target=sweep, name="broom", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _listening(host: str, port: int) -> socket.socket:
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


def _check_packages() -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ValueError("the app needs FastAPI: pip install 'avatar_v[app]'") from error
