"""The page over HTTP: a form, files that come in, jobs whose course is streamed, files that go out.

Nothing here decides what is allowed (form.py) or makes anything (jobs.py), and no path is taken
from a request (uploads.py). Every ValueError and OSError of the library is a sentence on the page;
anything else is a fault of ours, so its traceback goes to the terminal and the page says where to
look. Reading and writing happen in threads; the guard in front judges hosts, origins and sizes.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Collection, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import (
    FileResponse,
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from pydantic import BaseModel, ConfigDict, Field, StrictStr
from starlette.exceptions import HTTPException as StarletteHTTPException

from avatar_v.app import html
from avatar_v.app.example import draw_person
from avatar_v.app.form import MAX_TEXT, PageForm, form_words
from avatar_v.app.job_queue import JobQueue, in_turn
from avatar_v.app.job_threads import JobThreads
from avatar_v.app.jobs import LIVE, RECORD, VIDEO, JobRunner
from avatar_v.app.live import Rooms
from avatar_v.app.live_page import add_live
from avatar_v.app.uploads import FullError, Uploads, is_plain_file, is_token
from avatar_v.web.guard import LOOPBACK, STRICT_POLICY, Guard, is_loopback
from avatar_v.web.visitors import BusyError, Visitor

POLICY = f"{STRICT_POLICY}; media-src 'self' blob:; img-src 'self' blob: data:"
"""Recordings and the growing video are blobs of the page itself; the icon is an empty data URL."""
SESSION = "avatar_v"  # the cookie that ties files to the browser that sent them
DRAWN_BYTES = 2**20  # more than a drawn person takes
NUM_DRAWN = 1000  # persons that "a drawn person" chooses from
MOST_DRAWN = 32  # drawn persons and texts that wait: each is a matter of seconds
MAX_FORM = 2**14  # bytes
RETRY_S = 30  # what is busy may be free again
_SHOWN = {".mp4": "video/mp4", ".wav": "audio/wav"}  # of a drawn person; nothing else is shown
JOB_TYPES = {
    ".m3u8": "application/vnd.apple.mpegurl",
    ".m4s": "video/iso.segment",
    ".mp4": "video/mp4",
    ".json": "application/json",
}
_LIVE = re.compile(r"live(\.m3u8|_init\.mp4|_\d{5,}\.m4s)")
LOG = logging.getLogger("avatar_v.app")
_NOTHING = "There is nothing here (any more)."


class TextBody(BaseModel):
    """What is to be said."""

    model_config = ConfigDict(extra="forbid")
    text: StrictStr = Field(max_length=MAX_TEXT)


def create_app(
    runner: JobRunner, threads: JobThreads, rooms: Rooms, *, host: str, names: Collection[str] = ()
) -> Guard:
    """The page behind its guard, which listens on ``host``.

    It is reached by that, by ``names``, and beyond loopback by this machine's name and any address
    in numbers: another name may be one that a foreign site has made to lead here.
    """
    hosts = [*LOOPBACK, host, *names]
    if not is_loopback(host):
        hosts.append(socket.gethostname())
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    uploads = Uploads(runner.uploads)
    _add_faults(app)
    _add_page(app, runner)
    _add_uploads(app, runner, threads, uploads)
    _add_jobs(app, runner, threads, uploads)
    add_live(app, runner, rooms, threads, uploads, _session, SESSION)
    return Guard(
        app,
        hosts=hosts,
        any_address=not is_loopback(host),
        max_body=MAX_FORM,
        large={"/files": int(runner.limits.upload_mib * 2**20)},
        policy=POLICY,
        sockets=True,
    )


def _add_faults(app: FastAPI) -> None:
    """Every fault is one plain sentence."""

    @app.exception_handler(StarletteHTTPException)
    async def error_page(request: Request, error: StarletteHTTPException) -> Response:
        return PlainTextResponse(str(error.detail), error.status_code)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return PlainTextResponse("The request has a form that is not known.", 422)

    @app.exception_handler(FullError)
    async def full(request: Request, error: FullError) -> Response:
        return PlainTextResponse(str(error), 507)

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> Response:
        headers = {"Retry-After": str(RETRY_S)}
        return PlainTextResponse(str(error), 429 if error.is_own else 503, headers)


def _add_page(app: FastAPI, runner: JobRunner) -> None:
    page = html.page(runner)

    @app.get("/")
    async def form(request: Request) -> Response:
        answer = HTMLResponse(page, headers={"Cache-Control": "no-store"})
        if not is_token(request.cookies.get(SESSION, "")):
            session = secrets.token_hex(16)
            answer.set_cookie(SESSION, session, httponly=True, samesite="strict")
        return answer

    @app.get("/static/{name}")
    async def static(name: str) -> Response:
        if name not in html.STATIC_TYPES:
            raise HTTPException(404, _NOTHING)
        return Response(html.static_file(name), media_type=html.STATIC_TYPES[name])


def _add_uploads(app: FastAPI, runner: JobRunner, threads: JobThreads, uploads: Uploads) -> None:
    queue = JobQueue(MOST_DRAWN, "drawn persons and texts")

    async def made(request: Request, make: Callable[[], dict[str, str]]) -> dict[str, str]:
        """What ``make`` gives in its visitor's turn, ids of uploads by their places in the form; it
        is not begun, or removed again, where the browser has gone."""
        session, visitor = _session(request), _visitor(request)
        async with contextlib.aclosing(
            threads.stream(lambda: in_turn(queue, visitor, make))
        ) as states:
            async for ids in states:
                if await request.is_disconnected():
                    for id_ in (ids or {}).values():
                        uploads.remove(session, id_)
                    break
                if ids is not None:
                    return ids
        raise HTTPException(503, "Nobody waits for this any more.")

    @app.post("/files")
    async def send(request: Request, name: str = "file") -> dict[str, str]:
        """The body is the file."""
        session = _session(request)
        length = int(request.headers.get("content-length") or runner.limits.upload_mib * 2**20)
        await asyncio.to_thread(runner.space.reserve, length)
        try:
            with uploads.arriving(session, name) as (id_, file):
                async for part in request.stream():
                    await asyncio.to_thread(file.write, part)
        finally:
            runner.space.release(length)
        return {"id": id_}

    @app.post("/drawn")
    async def draw(request: Request) -> dict[str, str]:
        session = _session(request)
        await request.body()  # of no use, but behind it is the end of the connection

        def drawn() -> dict[str, str]:
            runner.space.check(DRAWN_BYTES)
            with (
                uploads.new(session) as (clip_id, clip),
                uploads.new(session) as (speech_id, speech),
            ):
                _, sound = draw_person(clip, secrets.randbelow(NUM_DRAWN))
                sound.rename(speech / sound.name)
            return {"reference": clip_id, "speech": speech_id}

        return await made(request, drawn)

    @app.post("/speech")
    async def say(request: Request, body: TextBody) -> Response:
        """A text as speech: an upload like any other."""
        session = _session(request)

        def said() -> dict[str, str]:
            runner.space.check()
            with uploads.new(session) as (id_, folder):
                runner.say(body.text, folder / "speech.wav")
            return {"speech": id_}

        try:
            return JSONResponse(await made(request, said))
        except (FullError, BusyError):
            raise
        except (ValueError, OSError) as error:
            return PlainTextResponse(form_words(str(error), *runner.hidden), 422)

    @app.get("/files/{id_}")
    def sent(request: Request, id_: str) -> Response:
        path = uploads.find(_session(request), id_)
        if path is None:
            raise HTTPException(404, _NOTHING)
        kind = _SHOWN.get(path.suffix)
        return FileResponse(
            path,
            media_type=kind or "application/octet-stream",
            filename=path.name,
            content_disposition_type="inline" if kind else "attachment",
            headers={"Cache-Control": "no-store"},
        )


def _add_jobs(app: FastAPI, runner: JobRunner, threads: JobThreads, uploads: Uploads) -> None:
    @app.post("/jobs")
    async def make(request: Request, body: PageForm) -> Response:
        """One JSON object a line for each change of what the page shows, until the job is over."""
        session, visitor = _session(request), _visitor(request)

        def find_path(id_: str | None) -> str | None:
            path = uploads.find(session, id_) if id_ else None
            if id_ and path is None:
                raise ValueError("A file is not here any more; add it again")
            return None if path is None else str(path)

        def begin() -> Generator[dict[str, Any], None, None]:
            try:
                given = {name: find_path(vars(body)[name]) for name in ("reference", "speech")}
            except ValueError as error:
                yield html.page_state(failed=str(error))
                return
            form = dataclasses.replace(body, **given)
            yield from running(runner, form, visitor)

        async def lines() -> AsyncIterator[str]:
            before = None
            async with contextlib.aclosing(threads.stream(begin)) as states:
                async for state in states:
                    if state != before:
                        yield json.dumps(state) + "\n"
                    before = state

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    @app.get("/jobs/{token}/{name}")
    def job_file(token: str, name: str) -> Response:
        """A job's files are given to whoever knows its token."""
        path = job_path(runner.jobs, token, name)
        if path is None and name == LIVE and is_job(runner.jobs, token):
            return Response(status_code=204)  # its first piece is being made
        if path is None:
            raise HTTPException(404, _NOTHING)
        return job_answer(path)


def running(
    runner: JobRunner, form: PageForm, visitor: Visitor
) -> Generator[dict[str, Any], None, None]:
    """The page's words and screens, from the first check to the end."""
    try:
        with closing(runner.make(form, visitor)) as job:
            for state in job:
                yield html.page_state(state)
    except (ValueError, OSError) as error:
        text = str(error) or type(error).__name__
        text = form_words(text, form.reference, form.speech, *runner.hidden)
        yield html.page_state(failed=text)
    except Exception:
        LOG.exception("a job failed")
        yield html.page_state(failed="Something went wrong in the program; its terminal says what.")


def job_path(jobs: Path, token: str, name: str) -> Path | None:
    """The file of a job that a request may have; None for any other name, or if it is not there."""
    named = name in (VIDEO, RECORD) or _LIVE.fullmatch(name)
    if not named or not is_token(token):
        return None
    path = jobs / token / name
    return path if is_plain_file(path) else None


def job_answer(path: Path) -> Response:
    """A file of a job. The playlist is read at once: it may be replaced by a longer one between
    the header, which tells its length, and the body."""
    kind, headers = JOB_TYPES[path.suffix], {"Cache-Control": "no-store"}
    if path.name == LIVE:
        return Response(path.read_bytes(), media_type=kind, headers=headers)
    return FileResponse(path, media_type=kind, headers=headers)


def is_job(jobs: Path, token: str) -> bool:
    """Whether the job of a token is being made, or is made and not yet swept away."""
    return is_token(token) and (jobs / token).is_dir()


def _session(request: Request) -> str:
    session = request.cookies.get(SESSION, "")
    if not is_token(session):
        raise HTTPException(403, "Open the page first, with cookies allowed.")
    return session


def _visitor(request: Request) -> Visitor:
    return Visitor.of(request.client, _session(request))
