"""The desk of the page with a worker, without a server: forms, and what the page shows of them."""

import asyncio
import contextlib
import copy
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from avatar_v.app.desk import Desk
from avatar_v.app.form import PageForm
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.request.request import Request
from avatar_v.serving.job_store import JobStore
from avatar_v.serving.limits import Limits
from avatar_v.serving.place import Place
from avatar_v.web.visitors import Visitor

PATIENCE_S = 120
ME = Visitor("127.0.0.1", "me")


def desk_of(root: Path, pipeline: AvatarPipeline, **rules: str) -> Desk:
    root.mkdir(parents=True)
    place = Place(JobStore(root / "queue.db"), root)
    place.make()
    other = copy.copy(pipeline)  # to choose
    other.name = "other"
    return Desk(place, {"tiny": pipeline, "other": other}, Limits(), **rules)


def form_of(desk: Desk, request: Request, visitor: Visitor = ME, **changes: Any) -> PageForm:
    """For the files of a request, which are sent by a visitor."""
    assert request.person.audio is not None
    ids = []
    for path in (request.person.reference, request.person.audio):
        with desk.uploads.new(visitor.browser) as (id_, folder):
            shutil.copy(path, folder)
        ids.append(id_)
    form: dict[str, Any] = {"reference": ids[0], "speech": ids[1], "consent": True, "seed": 0}
    form |= {"new_scene": False, "num_steps": 2, "guidance_audio": 2.0, "reference_s": 16}
    return PageForm(**{**form, "prompt": "a room", **changes})


@contextlib.contextmanager
def working(desk: Desk, may_begin: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """With the worker of the desk."""
    desk.is_ending.clear()
    thread = threading.Thread(target=desk.worker(may_begin).work)
    thread.start()
    try:
        yield
    finally:
        desk.is_ending.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def made(desk: Desk, form: PageForm, visitor: Visitor = ME) -> list[Mapping[str, Any]]:
    """All that the page shows, until the video is over."""

    async def go() -> list[Mapping[str, Any]]:
        async with asyncio.timeout(PATIENCE_S):
            return [state async for state in desk.states(form, visitor)]

    with working(desk):
        return asyncio.run(go())
