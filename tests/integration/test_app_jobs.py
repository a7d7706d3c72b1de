"""A video of the page without its server: asked for at the desk, made by the worker of its queue,
and what it leaves when it is whole, stopped or at fault."""

import asyncio
import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from avatar_v.app.desk import Desk
from avatar_v.app.form import PageForm
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.media.reading import read_video
from avatar_v.request.request import Request
from avatar_v.serving.uploads import FullError
from avatar_v.web.visitors import Visitor
from page_desk import ME, PATIENCE_S, desk_of, form_of, made, working
from written import joined, num_decoded

YOU = Visitor("127.0.0.1", "you")
States = AsyncGenerator[Mapping[str, Any]]


@pytest.fixture
def desk(pipe: AvatarPipeline, tmp_path: Path) -> Desk:
    return desk_of(tmp_path / "app", pipe)


@pytest.fixture
def form(desk: Desk, request_: Request) -> PageForm:
    return form_of(desk, request_, ME)


def writers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "writer"]


def job_of(state: Mapping[str, Any]) -> str:
    return state["status"].partition('href="jobs/')[2][:32]


async def until(states: States, text: str) -> Mapping[str, Any]:
    async with asyncio.timeout(PATIENCE_S):
        async for state in states:
            if text in state["status"]:
                return state
    raise AssertionError(f"never told: {text}")


async def gone(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while holds():
            await asyncio.sleep(0.02)


def test_a_job_can_be_watched_and_downloaded(desk: Desk, form: PageForm) -> None:
    states = made(desk, form, ME)
    assert [state["over"] for state in states] == [False] * (len(states) - 1) + [True]
    assert 'data-live="jobs/' in states[0]["screen"]
    assert [state["screen"] for state in states[1:]] == [None] * (len(states) - 1)
    assert "made in" in states[-1]["status"]
    folder = desk.place.jobs / job_of(states[-1])
    assert len(read_video(folder / "avatar.mp4")) == 32
    assert num_decoded(joined(folder / "live.m3u8"))[0] == 32
    record = json.loads((folder / "avatar.json").read_text())
    assert record["request"]["person"]["reference"] == "me.png"
    assert record["request"]["output"]["out"] == "avatar.mp4"
    assert record["request"]["sampling"]["anchor"] is False  # the form had left this to the weights
    assert "permission" in record["consent"]
    assert len(record["watermark"]) == 8
    assert str(desk.place.root) not in json.dumps(record)
    assert not writers()
    assert record["weights"] == desk.pipeline.name
    again = desk.place.jobs / job_of(made(desk, dataclasses.replace(form, weights="other"), ME)[-1])
    assert json.loads((again / "avatar.json").read_text())["weights"] == "other"
    assert read_video(again / "avatar.mp4").equal(read_video(folder / "avatar.mp4"))  # one seed


def test_closing_ends_a_job_leaves_nothing_and_lets_the_next_one_go(
    desk: Desk, form: PageForm, request_: Request
) -> None:
    async def go() -> None:
        long = dataclasses.replace(form, num_steps=64)
        first, second = desk.states(long, ME), desk.states(long, ME)
        third = desk.states(form_of(desk, request_, YOU), YOU)
        async with contextlib.aclosing(first), contextlib.aclosing(second):
            with working(desk):
                await until(first, " made, about ")
                assert writers()
                (folder,) = desk.place.jobs.iterdir()
                assert "1 video is made before yours" in (await anext(second))["status"]
                # you have had nothing yet, so you are served before my second one
                assert "1 video is made before yours" in (await anext(third))["status"]
                await until(second, "2 videos are made before yours")
                await first.aclose()
                await second.aclose()
                await gone(folder.exists)
                last = await until(third, "made in")
                assert not writers()
                assert [path.name for path in desk.place.jobs.iterdir()] == [job_of(last)]

    asyncio.run(go())
    assert desk.place.store.counts() == {("cancelled", 0): 2, ("done", 0): 1}


def test_a_browser_that_goes_while_its_files_are_read_leaves_no_job(
    desk: Desk, form: PageForm, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_end = threading.Event(), threading.Event()

    def slow(*args: object, **kwargs: object) -> None:
        begun.set()
        may_end.wait(PATIENCE_S)

    monkeypatch.setattr(desk.space, "check", slow)

    async def go() -> None:
        states = desk.states(form, ME)
        task = asyncio.ensure_future(anext(states))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        may_end.set()
        await states.aclose()

    asyncio.run(go())
    assert not desk.is_busy
    assert desk.place.store.counts() == {}


def test_a_fault_leaves_nothing(desk: Desk, form: PageForm, request_: Request) -> None:
    assert form.reference is not None
    path = desk.uploads.find(ME.browser, form.reference)
    assert path is not None
    path.write_bytes(path.read_bytes()[:60])
    (state,) = made(desk, form, ME)
    assert "me.png" in state["status"]
    assert str(desk.place.root) not in state["status"]
    assert not desk.is_busy
    theirs = made(desk, form, YOU)  # files of another browser
    assert "The clip is not here any more; add it again" in theirs[-1]["status"]

    def full(more: int = 0) -> None:
        if list(desk.place.jobs.iterdir()):
            raise FullError("The room for files on this server is taken")

    desk.space.check = full
    last = made(desk, form_of(desk, request_, ME), ME)[-1]  # it is while the video is made
    assert "The room for files" in last["status"]
    assert list(desk.place.jobs.iterdir()) == []


def test_a_video_waits_while_somebody_talks(desk: Desk, form: PageForm) -> None:
    talks = [True]
    desk.is_talking = lambda: bool(talks)

    async def go() -> None:
        async with contextlib.aclosing(desk.states(form, ME)) as states:
            with working(desk, lambda: not talks):
                assert "until nobody talks" in (await anext(states))["status"]
                await asyncio.sleep(1.2)  # two looks of the worker
                assert desk.place.store.counts() == {("waiting", 0): 1}
                talks.clear()
                await until(states, "made in")

    asyncio.run(go())


def test_a_video_whose_worker_dies_is_watched_from_its_beginning_again(
    desk: Desk, form: PageForm
) -> None:
    store = desk.place.store

    async def go() -> None:
        async with contextlib.aclosing(desk.states(form, ME)) as states:
            telling = asyncio.ensure_future(anext(states))
            await gone(lambda: not desk.is_busy)
            for num, words in ((8, "0.3\N{NO-BREAK SPACE}s of 1.3"), (0, "Making 1.3")):
                job = store.take("w")
                assert job is not None
                assert store.keep(job, total=32, num_frames=num)
                told = await asyncio.wait_for(telling, PATIENCE_S)
                assert job.id in told["screen"]
                assert words in told["status"]
                store.give_back(job)
                await asyncio.sleep(0.6)  # two looks
                telling = asyncio.ensure_future(anext(states))
                await asyncio.sleep(0.6)
                assert not telling.done()
            job = store.take("w")
            assert job is not None
            assert store.end(job, "failed", error="it is <over>")
            told = await asyncio.wait_for(telling, PATIENCE_S)
            assert (told["over"], "it is &lt;over&gt;" in told["status"]) == (True, True)

    asyncio.run(go())


def test_the_broom_takes_what_is_old(desk: Desk, form: PageForm) -> None:
    assert form.reference is not None
    assert form.speech is not None
    job = job_of(made(desk, form, ME)[-1])
    old = desk.uploads.find(ME.browser, form.reference)
    assert old is not None
    os.utime(old.parent, (time.time() - 200, time.time() - 200))
    desk.place.sweep(100.0)
    assert desk.uploads.find(ME.browser, form.reference) is None
    assert desk.uploads.find(ME.browser, form.speech) is not None
    assert (desk.place.jobs / job).exists()
    desk.place.sweep(0.0)
    assert not (desk.place.jobs / job).exists()
