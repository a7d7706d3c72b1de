"""The page over HTTP: a form, files that come in, jobs whose course is streamed, files that go out.

Nothing here decides what is allowed (form.py), knows the queue (desk.py) or makes anything, and no
path is taken from a request. Every ValueError and OSError of the library is a sentence on the page;
anything else is a fault of ours, so its traceback goes to the terminal and the page says where to
look. Reading and writing happen in threads; the guard in front judges hosts, origins and sizes.
"""

import contextlib
import json
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Collection

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
from avatar_v.app.desk import MOST_OWN, Desk
from avatar_v.app.example import draw_person
from avatar_v.app.form import MAX_TEXT, PageForm
from avatar_v.app.live_page import add_live
from avatar_v.app.turns import Turns
from avatar_v.serving.api import RETRY_S, job_answer, received
from avatar_v.serving.live import Rooms
from avatar_v.serving.place import LIVE, job_path
from avatar_v.serving.uploads import FullError, is_token
from avatar_v.web.guard import LOOPBACK, STRICT_POLICY, Guard, is_loopback
from avatar_v.web.visitors import BusyError, Visitor

POLICY = f"{STRICT_POLICY}; media-src 'self' blob:; img-src 'self' blob: data:"
"""Recordings and the growing video are blobs of the page itself; the icon is an empty data URL."""
SESSION = "avatar_v"  # the cookie that ties files to the browser that sent them
DRAWN_BYTES = 2**20  # more than a drawn person takes
NUM_DRAWN = 1000  # persons that "a drawn person" chooses from
MOST_DRAWN = 32  # drawn persons and texts that wait: each is a matter of seconds
MAX_FORM = 2**14  # bytes
_SHOWN = {".mp4": "video/mp4", ".wav": "audio/wav"}  # of a drawn person; nothing else is shown
_NOTHING = "There is nothing here (any more)."


class TextBody(BaseModel):
    """What is to be said."""

    model_config = ConfigDict(extra="forbid")
    text: StrictStr = Field(max_length=MAX_TEXT)


def create_app(
    desk: Desk, rooms: Rooms, *, host: str, names: Collection[str] = (), is_own: bool = True
) -> Guard:
    """The page behind its guard, which listens on ``host``; its queue is its own, or a server's.

    It is reached by that, by ``names``, and beyond loopback by this machine's name and any address
    in numbers: another name may be one that a foreign site has made to lead here.
    """
    hosts = [*LOOPBACK, host, *names]
    if not is_loopback(host):
        hosts.append(socket.gethostname())
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    _add_faults(app)
    _add_page(app, desk, is_own)
    _add_uploads(app, desk)
    _add_jobs(app, desk)
    add_live(app, desk, rooms, _session, SESSION)
    return Guard(
        app,
        hosts=hosts,
        any_address=not is_loopback(host),
        max_body=MAX_FORM,
        large={"/files": int(desk.limits.upload_mib * 2**20)},
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


def _add_page(app: FastAPI, desk: Desk, is_own: bool) -> None:
    page = html.page(desk.pipelines, desk.limits, desk.voice, is_own=is_own)

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


def _add_uploads(app: FastAPI, desk: Desk) -> None:
    turns, uploads = Turns(MOST_DRAWN, MOST_OWN, "drawn persons and texts"), desk.uploads

    async def made(request: Request, make: Callable[[], dict[str, str]]) -> dict[str, str]:
        """What ``make`` gives in its visitor's turn, ids of uploads by their places in the form; it
        is not begun, or removed again, where the browser has gone."""
        session, ids = _session(request), dict[str, str]()
        async with turns.turn(_visitor(request)):
            if not await request.is_disconnected():
                ids = await turns.done(make)
        if ids and not await request.is_disconnected():
            return ids
        for id_ in ids.values():
            uploads.remove(session, id_)
        raise HTTPException(503, "Nobody waits for this any more.")

    @app.post("/files")
    async def send(request: Request, name: str = "file") -> dict[str, str]:
        """The body is the file."""
        session = _session(request)
        return {"id": await received(request, session, name, uploads, desk.space, desk.limits)}

    @app.post("/drawn")
    async def draw(request: Request) -> dict[str, str]:
        session = _session(request)
        await request.body()  # of no use, but behind it is the end of the connection

        def drawn() -> dict[str, str]:
            desk.space.check(DRAWN_BYTES)
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
            desk.space.check()
            with uploads.new(session) as (id_, folder):
                desk.say(body.text, folder / "speech.wav")
            return {"speech": id_}

        try:
            return JSONResponse(await made(request, said))
        except (FullError, BusyError):
            raise
        except (ValueError, OSError) as error:
            return PlainTextResponse(desk.words(str(error)), 422)

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


def _add_jobs(app: FastAPI, desk: Desk) -> None:
    jobs = desk.place.jobs

    @app.post("/jobs")
    async def make(request: Request, body: PageForm) -> Response:
        """One JSON object a line for each change of what the page shows, until the job is over."""
        visitor = _visitor(request)

        async def lines() -> AsyncIterator[str]:
            async with contextlib.aclosing(desk.states(body, visitor)) as states:
                async for state in states:
                    yield json.dumps(state) + "\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    @app.get("/jobs/{token}/{name}")
    def job_file(request: Request, token: str, name: str) -> Response:
        """A job's files are given to its browser alone: ids of a server's jobs may be guessed from
        the keys that its clients give them."""
        browser = request.cookies.get(SESSION, "")
        is_own = is_token(token) and desk.find(token, browser) is not None
        path = job_path(jobs, token, name) if is_own else None
        if path is None and name == LIVE and is_own and (jobs / token).is_dir():
            return Response(status_code=204)  # its first piece is being made
        if path is None:
            raise HTTPException(404, _NOTHING)
        return job_answer(path)


def _session(request: Request) -> str:
    session = request.cookies.get(SESSION, "")
    if not is_token(session):
        raise HTTPException(403, "Open the page first, with cookies allowed.")
    return session


def _visitor(request: Request) -> Visitor:
    return Visitor.of(request.client, _session(request))
