"""Conversations of the page: a form takes a place, and a WebSocket carries the rest (talk.py).

Videos and conversations do not share the machine: a place is refused while videos wait, and a video
waits while somebody talks.
"""

import dataclasses
from collections.abc import Callable

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from avatar_v.app.form import PageForm, form_words
from avatar_v.app.job_threads import JobThreads
from avatar_v.app.jobs import JobRunner
from avatar_v.app.live import Rooms
from avatar_v.app.talk import talk
from avatar_v.app.uploads import Uploads
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.web.visitors import BusyError, Visitor


def add_live(
    app: FastAPI,
    runner: JobRunner,
    rooms: Rooms,
    threads: JobThreads,
    uploads: Uploads,
    session_of: Callable[[Request], str],
    cookie: str,
) -> None:
    """The routes. ``session_of`` gives the session of a browser, which is in this ``cookie``, or
    refuses it."""

    @app.post("/live")
    def take(request: Request, body: PageForm) -> Response:
        """The form of a video, whose speech is left out; the token of a place."""
        session = session_of(request)
        path = uploads.find(session, body.reference) if body.reference else None
        if body.reference and path is None:
            return PlainTextResponse("The clip is not here any more; add it again", 422)
        form = dataclasses.replace(body, reference=path and str(path), speech=None)
        try:
            visitor = Visitor.of(request.client, session)
            token = rooms.take(visitor, session, lambda: runner.checked(form, None))
        except BusyError:
            raise
        except (ValueError, OSError) as error:
            words = form_words(str(error), form.reference, *runner.hidden)
            return PlainTextResponse(words, 422)
        return JSONResponse({"token": token, "sample_rate_hz": SAMPLE_RATE_HZ})

    @app.websocket("/live/{token}")
    async def converse(socket: WebSocket, token: str) -> None:
        held = rooms.begin(token, socket.cookies.get(cookie, ""))
        if held is None:
            words = "Nobody has taken this place, or it is begun already."
            return await socket.send_denial_response(PlainTextResponse(words, 404))
        await talk(socket, token, held, rooms, threads)

    @app.get("/health")
    def health() -> Response:
        """503 where nobody is taken in any more."""
        status = {"status": "draining" if rooms.is_draining else "ok"}
        told = status | {"conversations": rooms.num, "most": rooms.most, "rate": rooms.rate}
        return JSONResponse(told, 503 if rooms.is_draining else 200)

    @app.get("/metrics")
    def metrics() -> Response:
        _ = rooms.num
        return Response(generate_latest(rooms.metrics.registry), media_type=CONTENT_TYPE_LATEST)
