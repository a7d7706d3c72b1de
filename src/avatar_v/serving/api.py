"""The API over HTTP: files come in, videos are asked for, watched and fetched. JSON, version 1.

    POST   /v1/files?name=me.mp4       the body is the file       -> {"id": …}
    POST   /v1/videos                  a request, with ids of files -> the video
    GET    /v1/videos                  the client's last 100
    GET    /v1/weights                 sets of weights; where none is named, the first makes it
    GET    /v1/videos/ID?wait=30       its state; with wait as soon as it is over
    GET    /v1/videos/ID/avatar.mp4    also avatar.json, and live.m3u8 while it grows
    DELETE /v1/videos/ID               cancelled, or removed where it is over
    POST   /v1/live                    a place for a conversation -> {"id": …}
    (WebSocket) /v1/live/ID            sound in, video out (talk.py)
    GET    /health/live /health/ready /metrics

A client is who its token says (clients.py); it sees its own files and videos alone. Nothing is
decoded here, and no path is taken from a request. Every fault is {"error": a sentence}.
"""

import asyncio
import dataclasses
import logging
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import HTTPConnection

from avatar_v.base.outside import parse_json
from avatar_v.request.request import Request as RequestOfVideo
from avatar_v.request.resolve import num_steps_of
from avatar_v.serving.admission import Admission, QueueFullError
from avatar_v.serving.asked import (
    FIELDS,
    LIVE_FIELDS,
    check_permission,
    checked_options,
    field_words,
    files_of,
)
from avatar_v.serving.clients import Client, digest
from avatar_v.serving.job_tables import Job
from avatar_v.serving.limits import BROKEN, Limits
from avatar_v.serving.live import Rooms
from avatar_v.serving.metrics import QueueMetrics
from avatar_v.serving.place import LIVE, Place, job_path
from avatar_v.serving.talk import talk
from avatar_v.serving.traced import Traced
from avatar_v.serving.uploads import FullError, Space, Uploads, is_token
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.web.visitors import BusyError, Visitor
from avatar_v.weights.card import Card

LOG = logging.getLogger("avatar_v.serving")
MAX_BODY = 2**16
LONGEST_WAIT_S = 60.0
LOOK_S = 0.5
RETRY_S = 30  # what is busy may be free again
JOB_TYPES = {
    ".m3u8": "application/vnd.apple.mpegurl",
    ".m4s": "video/iso.segment",
    ".mp4": "video/mp4",
    ".json": "application/json",
}
_NOTHING = "there is nothing here (any more)"


def create_api(
    place: Place,
    cards: Mapping[str, Card],
    clients: Mapping[str, Client] | None,
    *,
    limits: Limits,
    admission: Admission,
    is_draining: asyncio.Event,
    talks: "Talks | None" = None,
) -> FastAPI:
    """The API, for sets of weights with ``cards``. ``clients`` by the hashes of their tokens (None:
    whoever reaches it is one client); a server that ``is_draining`` takes nothing new. It holds
    conversations with ``talks``."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    server = _Server(place, cards, clients, limits, admission, is_draining)
    app.add_middleware(Traced)
    _add_faults(app)
    _add_files(app, server)
    _add_videos(app, server)
    _add_live(app, server, talks)
    _add_health(app, server, talks)
    return app


@dataclasses.dataclass(frozen=True)
class Talks:
    """What holds conversations in this process. ``rules`` are the options of every request that the
    server sets."""

    rooms: Rooms
    rules: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class _Server:
    place: Place
    cards: Mapping[str, Card]
    clients: Mapping[str, Client] | None
    limits: Limits
    admission: Admission
    is_draining: asyncio.Event

    def client(self, request: HTTPConnection) -> Client:
        """Who asks; 401 for nobody."""
        if self.clients is None:
            return Client("local", "0" * 64, priority=9, seconds_a_day=1e9, at_once=10_000)
        kind, _, token = request.headers.get("authorization", "").partition(" ")
        client = self.clients.get(digest(token.strip())) if kind.lower() == "bearer" else None
        if client is None:
            raise HTTPException(401, "pass the token of a client: Authorization: Bearer …")
        return client

    def check_open(self) -> None:
        """503 where the server takes nothing new."""
        if self.is_draining.is_set():
            headers = {"Retry-After": "30"}
            raise HTTPException(503, "this server is about to end; ask another", headers)

    def share(self, client: Client) -> Admission:
        """What the queue takes of a client."""
        share = {"seconds_a_day": client.seconds_a_day, "most_own": client.at_once}
        return dataclasses.replace(self.admission, **share)

    def options(
        self, client: Client, values: Mapping[str, Any], *, is_live: bool = False
    ) -> tuple[dict[str, Any], float]:
        """As `checked_options`, for files of this client."""
        find = partial(Uploads(self.place.uploads).find, client.name)
        how = {"is_live": is_live, "known": LIVE_FIELDS if is_live else FIELDS}
        return checked_options(values, find, limits=self.limits, cards=self.cards, **how)

    def shown(self, job: Job) -> dict[str, Any]:
        """A video as clients see it."""
        names = ("id", "state", "priority", "seconds", "asked_s", "begun_s", "ended_s")
        found = {name: getattr(job, name) for name in names}
        found |= {"num_frames": job.num_frames, "total": job.total or None}
        found |= {"warnings": list(job.warnings), "error": job.error}
        if job.state == "waiting":
            found["ahead"], found["wait_s"] = self.place.store.wait_of(job)
        if job.state in ("running", "done"):
            folder = f"/v1/videos/{job.id}"
            found["files"] = {"live": f"{folder}/live.m3u8"}
            if job.state == "done":
                found["files"] |= {"video": f"{folder}/avatar.mp4"}
                found["files"] |= {"record": f"{folder}/avatar.json"}
        return found


def _add_faults(app: FastAPI) -> None:
    def told(error: object, status: int, headers: Mapping[str, str] | None = None) -> Response:
        return JSONResponse({"error": str(error)}, status, headers=dict(headers or {}))

    @app.exception_handler(StarletteHTTPException)
    async def http(request: Request, error: StarletteHTTPException) -> Response:
        return told(error.detail, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return told("the request has a form that is not known", 422)

    @app.exception_handler(QueueFullError)
    async def queue_full(request: Request, error: QueueFullError) -> Response:
        headers = {"Retry-After": str(round(error.retry_s))}
        return told(error, 429 if error.is_own else 503, headers)

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> Response:
        return told(error, 429 if error.is_own else 503, {"Retry-After": str(RETRY_S)})

    @app.exception_handler(FullError)
    async def full(request: Request, error: FullError) -> Response:
        return told(error, 507)

    @app.exception_handler(SQLAlchemyError)
    async def away(request: Request, error: SQLAlchemyError) -> Response:
        LOG.error("the queue does not answer", exc_info=error)
        words = "the queue does not answer; ask again later"
        return told(words, 503, {"Retry-After": str(RETRY_S)})

    @app.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return told(BROKEN, 500)

    @app.exception_handler(ValueError)
    async def wrong(request: Request, error: ValueError) -> Response:
        return told(error, 422)


def _add_files(app: FastAPI, server: _Server) -> None:
    uploads = Uploads(server.place.uploads)
    space = server.place.space(server.limits.total_mib)

    @app.post("/v1/files", status_code=201)
    async def send(request: Request, name: str = "file") -> dict[str, str]:
        client = server.client(request)
        server.check_open()
        return {"id": await received(request, client.name, name, uploads, space, server.limits)}


async def received(
    request: Request, owner: str, name: str, uploads: Uploads, space: Space, limits: Limits
) -> str:
    """The id of the file that is the body of a request. FullError where there is no room."""
    length = int(request.headers.get("content-length") or limits.upload_mib * 2**20)
    await asyncio.to_thread(space.reserve, length)
    try:
        with uploads.arriving(owner, name) as (id_, file):
            async for part in request.stream():
                await asyncio.to_thread(file.write, part)
    finally:
        space.release(length)
    return id_


def _add_videos(app: FastAPI, server: _Server) -> None:
    store, space = server.place.store, server.place.space(server.limits.total_mib)

    @app.post("/v1/videos", status_code=202)
    async def ask(request: Request) -> dict[str, Any]:
        client = server.client(request)
        server.check_open()
        body, key = await request.body(), request.headers.get("idempotency-key")
        return await asyncio.to_thread(asked, client, body, key)

    def asked(client: Client, body: bytes, key: str | None) -> dict[str, Any]:
        values = _fields(body)
        priority = values.pop("priority", 0)
        whole = isinstance(priority, int) and not isinstance(priority, bool)
        if not whole or not 0 <= priority <= client.priority:
            raise ValueError(f"priority is a whole number from 0 to {client.priority} for you")
        options, seconds = server.options(client, values)
        space.check()
        job = store.ask(
            client.name,
            options,
            seconds=seconds,
            priority=priority,
            admission=server.share(client),
            key=key,
        )
        return server.shown(job)

    @app.get("/v1/weights")
    def weights(request: Request) -> dict[str, Any]:
        server.client(request)
        cards = server.cards.items()
        sets = [{"name": name, "num_steps": num_steps_of(None, card)} for name, card in cards]
        return {"weights": sets}

    @app.get("/v1/videos")
    def own(request: Request) -> dict[str, Any]:
        jobs = store.of_owner(server.client(request).name)
        return {"videos": [server.shown(job) for job in jobs]}

    @app.get("/v1/videos/{id_}")
    async def state(request: Request, id_: str, wait: float = 0.0) -> dict[str, Any]:
        client = server.client(request)
        if not 0 <= wait <= LONGEST_WAIT_S:
            raise HTTPException(422, f"wait is from 0 to {LONGEST_WAIT_S:g} seconds")
        end_s = time.monotonic() + wait
        job = await asyncio.to_thread(found, id_, client)
        while not job.is_over and time.monotonic() < end_s:
            if await request.is_disconnected() or server.is_draining.is_set():
                break
            await asyncio.sleep(LOOK_S)
            job = await asyncio.to_thread(found, id_, client)
        return await asyncio.to_thread(server.shown, job)

    @app.delete("/v1/videos/{id_}")
    def remove(request: Request, id_: str) -> dict[str, Any]:
        client = server.client(request)
        job = found(id_, client)
        if not job.is_over:
            job = store.cancel(id_, client.name) or job
        elif job.state == "done":
            shutil.rmtree(server.place.jobs / id_, ignore_errors=True)
        return {"id": id_, "state": job.state}

    @app.get("/v1/videos/{id_}/{name}")
    def file(request: Request, id_: str, name: str) -> Response:
        found(id_, server.client(request))
        path = job_path(server.place.jobs, id_, name)
        if path is None:
            raise HTTPException(404, _NOTHING)
        return job_answer(path)

    def found(id_: str, client: Client) -> Job:
        job = store.find(id_, client.name) if is_token(id_) else None
        if job is None:
            raise HTTPException(404, _NOTHING)
        return job


def job_answer(path: Path) -> Response:
    """A file of a job. The playlist is read at once: it may be replaced by a longer one between
    the header, which tells its length, and the body."""
    kind, headers = JOB_TYPES[path.suffix], {"Cache-Control": "no-store"}
    if path.name == LIVE:
        return Response(path.read_bytes(), media_type=kind, headers=headers)
    return FileResponse(path, media_type=kind, headers=headers)


def _add_live(app: FastAPI, server: _Server, talks: Talks | None) -> None:
    store = server.place.store

    @app.post("/v1/live", status_code=201)
    async def take(request: Request) -> dict[str, Any]:
        client = server.client(request)
        server.check_open()
        if talks is None:
            raise BusyError("this server holds no conversations: it has no --live", is_own=False)
        return await asyncio.to_thread(taken, talks, client, await request.body())

    def taken(talks: Talks, client: Client, body: bytes) -> dict[str, Any]:
        shares: list[Job] = []
        options: dict[str, Any] = {}

        def checked() -> RequestOfVideo:
            given, seconds = server.options(client, _fields(body), is_live=True)
            options.update(given)
            shares.append(store.hold(client.name, seconds=seconds, admission=server.share(client)))
            return RequestOfVideo.of(**given).changed(watermark=True, **talks.rules)

        def on_end(seconds: float) -> None:
            for share in shares:
                store.end(share, "talked", seconds=seconds)

        who, own = Visitor(client.name, client.name), {"most_own": client.at_once}
        try:
            id_ = talks.rooms.take(who, client.name, checked, on_end=on_end, **own)
        except (QueueFullError, BusyError):
            raise
        except (ValueError, OSError) as error:
            files = files_of(RequestOfVideo.of(**options)) if options else ()
            raise ValueError(talks.rooms.words(field_words(str(error), *files))) from error
        told = {"sample_rate_hz": SAMPLE_RATE_HZ, "most_s": talks.rooms.talk_s}
        return {"id": id_, "socket": f"/v1/live/{id_}", **told}

    @app.websocket("/v1/live/{id_}")
    async def converse(socket: WebSocket, id_: str) -> None:
        try:
            client = server.client(socket)
            held = talks and talks.rooms.begin(id_, client.name)
            if talks is None or held is None:
                raise HTTPException(404, "this place is not taken by you, or is begun already")
        except HTTPException as error:
            refusal = JSONResponse({"error": error.detail}, error.status_code)
            return await socket.send_denial_response(refusal)
        await talk(socket, id_, held, talks.rooms)


def _fields(body: bytes) -> dict[str, Any]:
    """Of a request, by whom it is permitted."""
    values = parse_json(body, where="the request")
    if not isinstance(values, dict):
        raise ValueError("the request is an object of JSON")
    check_permission(values.pop("consent", None))
    return values


def _add_health(app: FastAPI, server: _Server, talks: Talks | None) -> None:
    @app.get("/health/live")
    async def live() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/health/ready")
    def ready() -> Response:
        """Whether a proxy may send something here: the queue answers, and a worker lives, or
        conversations are held here."""
        told: dict[str, Any] = {"workers": server.place.store.num_workers()}
        if talks is not None:
            rooms = talks.rooms
            told |= {"conversations": rooms.num, "most": rooms.most, "rate": rooms.rate}
        is_ready = (told["workers"] or talks is not None) and not server.is_draining.is_set()
        return JSONResponse(told, 200 if is_ready else 503)

    registry = CollectorRegistry() if talks is None else talks.rooms.metrics.registry
    registry.register(QueueMetrics(server.place.store))

    @app.get("/metrics")
    def metrics() -> Response:
        _ = talks and talks.rooms.num
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)
