"""Conversations of the page: a form takes a place, and a WebSocket the rest (serving/talk.py).

Videos and conversations do not share the machine: a place is refused while videos wait, and a video
waits while somebody talks.
"""

from collections.abc import Callable

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from avatar_v.app.desk import Desk
from avatar_v.app.form import PageForm
from avatar_v.serving.live import Rooms
from avatar_v.serving.talk import talk
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.web.visitors import BusyError, Visitor


def add_live(
    app: FastAPI, desk: Desk, rooms: Rooms, session_of: Callable[[Request], str], cookie: str
) -> None:
    """The routes. ``session_of`` gives the session of a browser, which is in this ``cookie``, or
    refuses it."""

    @app.post("/live")
    def take(request: Request, body: PageForm) -> Response:
        """The form of a video, whose speech is left out; the token of a place."""
        session = session_of(request)
        try:
            visitor = Visitor.of(request.client, session)
            token = rooms.take(visitor, session, lambda: desk.request(body, session))
        except BusyError:
            raise
        except (ValueError, OSError) as error:
            return PlainTextResponse(desk.words(str(error)), 422)
        return JSONResponse({"token": token, "sample_rate_hz": SAMPLE_RATE_HZ})

    @app.websocket("/live/{token}")
    async def converse(socket: WebSocket, token: str) -> None:
        held = rooms.begin(token, socket.cookies.get(cookie, ""))
        if held is None:
            words = "Nobody has taken this place, or it is begun already."
            return await socket.send_denial_response(PlainTextResponse(words, 404))
        await talk(socket, token, held, rooms)

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
