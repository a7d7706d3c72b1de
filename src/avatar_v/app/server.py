"""The app's server: the page, the files of jobs, and a broom. uvicorn runs it until Ctrl-C.

A job's files are given to whoever knows its token. On a loopback address only requests to that
address are answered, so no site opened in the same browser can reach the page by another name.
"""

import asyncio
import ipaddress
import os
import re
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from avatar_v.app.ask import Limits
from avatar_v.app.studio import LIVE, RECORD, VIDEO, Studio

SWEEP_EVERY_S = 60.0
LAST_WORDS_S = 2  # for open connections, when the app ends
_TOKEN = re.compile(r"[0-9a-f]{32}")
_LIVE = re.compile(r"live(\.m3u8|_init\.mp4|_\d{5,}\.m4s)")
_TYPES = {
    ".m3u8": "application/vnd.apple.mpegurl",
    ".m4s": "video/iso.segment",
    ".mp4": "video/mp4",
    ".json": "application/json",
}


def serve(
    *,
    host: str,
    port: int,
    weights: str | Path,
    refiner: str | Path | None = None,
    device: str,
    precision: str,
    limits: Limits,
) -> None:
    """Run until interrupted. ValueError for missing weights or packages, OSError for a taken port.

    All files lie in one temporary folder, which is removed at the end.
    """
    _check_gradio()
    import uvicorn

    with (
        _listening(host, port) as listener,
        tempfile.TemporaryDirectory(prefix="avatar_v_app_", ignore_cleanup_errors=True) as root,
    ):
        print("loading the weights …", file=sys.stderr)
        studio = Studio(
            Path(root),
            weights=weights,
            refiner=refiner,
            device=device,
            precision=precision,
            limits=limits,
        )
        config = uvicorn.Config(
            create_app(studio, host=host),
            log_level="warning",
            timeout_graceful_shutdown=LAST_WORDS_S,
        )
        bound_port = listener.getsockname()[1]
        print(f"avatar-v app: http://{_shown(host)}:{bound_port}  (Ctrl-C ends it)", flush=True)
        if not is_loopback(host):
            print("note: whoever reaches this address can use it; no password", file=sys.stderr)
        uvicorn.Server(config).run(sockets=[listener])


def create_app(studio: Studio, *, host: str):
    """The FastAPI application. It keeps Gradio's uploads in the studio's folder."""
    os.environ["GRADIO_TEMP_DIR"] = str(studio.uploads)  # read when components are made
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    import gradio as gr
    from fastapi import FastAPI
    from fastapi.responses import FileResponse, PlainTextResponse, Response
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    from avatar_v.app import page

    @asynccontextmanager
    async def sweeping(_: FastAPI) -> AsyncIterator[None]:
        broom = asyncio.create_task(_sweep(studio))
        yield
        broom.cancel()

    app = FastAPI(lifespan=sweeping, docs_url=None, redoc_url=None, openapi_url=None)
    if is_loopback(host) and ":" not in host:  # the middleware cannot read IPv6 names
        names = ["localhost", "127.0.0.1", host]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=names)

    @app.get("/jobs/{token}/{name}")
    def job_file(token: str, name: str):
        path = job_path(studio.jobs, token, name)
        if path is None and name == LIVE and is_job(studio.jobs, token):
            return Response(status_code=204)  # its first piece is being made
        if path is None:
            return PlainTextResponse("not here (any more)", status_code=404)
        headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
        return FileResponse(path, media_type=_TYPES[path.suffix], headers=headers)

    return gr.mount_gradio_app(
        app,
        page.build_page(studio),
        path="/",
        max_file_size=int(studio.limits.upload_mib * 2**20),
        footer_links=[],
        run_history=False,
        show_error=False,
        ssr_mode=False,
        theme=page.theme(),
        css=page.CSS,
        head=page.HEAD,
    )


def job_path(jobs: Path, token: str, name: str) -> Path | None:
    """The file of a job that a request may have; None for any other name, or if it is not there."""
    named = name in (VIDEO, RECORD) or _LIVE.fullmatch(name)
    if not named or not _TOKEN.fullmatch(token):
        return None
    path = jobs / token / name
    return path if path.is_file() else None


def is_job(jobs: Path, token: str) -> bool:
    """Whether the job of a token is being made, or is made and not yet swept away."""
    return _TOKEN.fullmatch(token) is not None and (jobs / token).is_dir()


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address of this name."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


async def _sweep(studio: Studio) -> None:
    while True:
        await asyncio.to_thread(studio.sweep)
        await asyncio.sleep(SWEEP_EVERY_S)


def _listening(host: str, port: int) -> socket.socket:
    if not 0 <= port < 65536:
        raise ValueError(f"--port is from 0 to 65535, got {port}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port} ({error.strerror or error})") from error


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _check_gradio() -> None:
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise ValueError("the app needs Gradio: pip install 'avatar_v[app]'") from error
