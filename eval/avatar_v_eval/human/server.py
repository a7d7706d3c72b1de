"""The rating page over HTTP: FastAPI, one address per rater, nothing about systems anywhere.

``/r/TOKEN`` is a rater's whole session. Items and media go by random ids that are looked up
together with the token, so one rater's ids are of no use to another, and paths are never taken from
a request. Votes can be sent, not read. `avatar_v.web.guard` stands before all of it. Pages are in
`pages`, the course of a session in `session`, the process that listens in `cli`.
"""

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import (
    HTMLResponse,
    JSONResponse,
    RedirectResponse,
    Response,
)
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr

from avatar_v.web.guard import Guard
from avatar_v_eval.human import pages, session
from avatar_v_eval.human.blind import duration_s
from avatar_v_eval.human.items import Item, all_items
from avatar_v_eval.human.store import DuplicateVoteError, StudyStore
from avatar_v_eval.human.streaming import video_response
from avatar_v_eval.human.study import Study
from avatar_v_eval.human.votes import Rater

_HEADERS = {"X-Robots-Tag": "noindex", "Cache-Control": "no-store"}
_POLICY = (
    "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)


Times = Annotated[float, Field(strict=True, allow_inf_nan=False)]


class SentRange(BaseModel, extra="forbid"):
    """A range of a clip, in seconds."""

    fault: StrictStr
    start: Times
    stop: Times


class Sent(BaseModel, extra="forbid"):
    """The body of an answer: the item's id, and what was chosen (`answers.read_answer`)."""

    item: str
    answer: dict[str, StrictInt | StrictStr | Annotated[list[SentRange], Field(max_length=50)]]
    decision: StrictBool = False  # of a reviewer who was shown that others differ


def create_app(
    study: Study,
    store: StudyStore,
    copies: dict[Path, Path],
    *,
    hosts: Collection[str],
    origins: Collection[str] = (),
    clock_s: Callable[[], float] = time.time,
) -> Guard:
    """The application, guarded. ``copies`` maps the study's videos to what is served (`blind`).

    ``hosts`` are the names it is reached by, ``origins`` those of a proxy before it (`Guard`).
    """
    app = FastAPI(
        title="Rating", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False
    )
    items = all_items(study)
    _plain_headers_and_errors(app)
    _add_reading(app, study, store, items, copies, clock_s)
    _add_writing(app, study, store, items, copies, clock_s)
    return Guard(app, hosts=hosts, origins=origins, policy=_POLICY)


def _plain_headers_and_errors(app: FastAPI) -> None:
    """No copy of any response is kept anywhere; faults are a page or {"error": …}."""

    @app.middleware("http")
    async def plain_headers(request: Request, call_next: Callable) -> Response:
        response = await call_next(request)
        for name, value in _HEADERS.items():
            response.headers[name] = value
        return response

    @app.exception_handler(HTTPException)
    async def error_page(request: Request, error: HTTPException) -> Response:
        if request.method == "GET":
            return HTMLResponse(pages.error(str(error.detail)), error.status_code)
        return JSONResponse({"error": str(error.detail)}, error.status_code)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        return JSONResponse({"error": "The answer has a form that is not known."}, 422)


def _add_reading(
    app: FastAPI,
    study: Study,
    store: StudyStore,
    items: dict[str, Item],
    copies: dict[Path, Path],
    clock_s: Callable[[], float],
) -> None:
    """Everything that a browser reads: the page that is due, its media, style and script."""

    @app.get("/static/{name}")
    def static(name: str) -> Response:
        if name not in pages.STATIC:
            raise HTTPException(404, "There is nothing here.")
        return Response(pages.static_file(name), media_type=pages.STATIC[name])

    @app.get("/r/{token}")
    def page(token: str) -> Response:
        with store.transaction(is_durable=False):  # what is lost here is only shown again
            rater = _rater(store, token)
            now = session.next_page(study, store, items, rater, clock_s())
            if now.screen is not None and now.screen.shown_s is None:
                store.mark_shown(now.screen.public, clock_s())
        status = 410 if now.name == "withdrawn" else 200
        return HTMLResponse(pages.render(study, token, now), status)

    @app.get("/r/{token}/m/{public}")
    def media(token: str, public: str, request: Request) -> Response:
        found = store.media(_rater(store, token).name, public)
        if found is None:
            raise HTTPException(404, "There is nothing here.")
        item, place = found
        return video_response(copies[items[item].files[place]], request.headers.get("range"))


def _add_writing(
    app: FastAPI,
    study: Study,
    store: StudyStore,
    items: dict[str, Item],
    copies: dict[Path, Path],
    clock_s: Callable[[], float],
) -> None:
    """Everything that a rater writes. Each request is one transaction, stored as a whole."""

    def length_s(item: Item) -> float:
        return duration_s(copies[item.videos[0]])

    @app.post("/r/{token}/consent")
    def consent(token: str) -> Response:
        with store.transaction():
            session.consent(study, store, _rater(store, token), clock_s())
        return RedirectResponse(f"/r/{token}", 303)

    @app.post("/r/{token}/read/{name}")
    def read(token: str, name: str) -> Response:
        with store.transaction():
            rater = _rater(store, token)
            now = session.next_page(study, store, items, rater, clock_s())
            if name not in (now.kind, "ready"):
                raise HTTPException(404, "There is nothing here.")
            store.mark_read(rater.name, name)
        return RedirectResponse(f"/r/{token}", 303)

    @app.post("/r/{token}/answer")
    def answer(token: str, sent: Sent) -> JSONResponse:
        with store.transaction():
            rater = _rater(store, token)
            try:
                feedback = session.answer(
                    study, store, items, rater, sent.item, sent.model_dump()["answer"], clock_s(),
                    is_decision=sent.decision, length_s=length_s,
                )  # fmt: skip
            except LookupError as error:
                raise HTTPException(404, str(error)) from error
            except DuplicateVoteError as error:
                message = "You answered this question before; your first answer stands."
                raise HTTPException(409, message) from error
            except ValueError as error:
                raise HTTPException(422, str(error)) from error
        return JSONResponse({"right": feedback.right, "why": feedback.why})

    @app.post("/r/{token}/withdraw")
    def withdraw(token: str) -> Response:
        with store.transaction():
            store.withdraw(_rater(store, token).name)
        return RedirectResponse(f"/r/{token}", 303)

    @app.post("/r/{token}/more")
    def more(token: str) -> Response:
        with store.transaction():
            session.take_more(study, store, _rater(store, token), clock_s())
        return RedirectResponse(f"/r/{token}", 303)


def _rater(store: StudyStore, token: str) -> Rater:
    rater = store.rater(token)
    if rater is None:
        raise HTTPException(404, "This link is not known. Please check it for missing letters.")
    return rater
