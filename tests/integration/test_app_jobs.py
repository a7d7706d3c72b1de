"""A job of the app without its page: what it leaves when it is whole, stopped or at fault."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from avatar_v.app.form import Limits, PageForm
from avatar_v.app.jobs import JobRunner, Progress, Waiting
from avatar_v.media.reading import read_video
from avatar_v.request.request import Request
from avatar_v.web.visitors import Visitor
from written import joined, num_decoded

ME = Visitor("127.0.0.1", "me")


@pytest.fixture
def runner(weights: Path, tmp_path: Path) -> JobRunner:
    return JobRunner(tmp_path / "app", weights=weights, device="cpu", precision="fp32")


@pytest.fixture
def form(request_: Request) -> PageForm:
    return PageForm(
        reference=request_.person.reference,
        speech=request_.person.audio,
        consent=True,
        prompt="a room",
        new_scene=False,
        num_steps=2,
        guidance_audio=2.0,
        reference_s=16,
        seed=0,
    )


def writers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "writer"]


def test_a_job_can_be_watched_and_downloaded(runner: JobRunner, form: PageForm) -> None:
    seen = list(runner.make(form, ME))
    folder = runner.jobs / seen[-1].token
    assert [seen[0].num_frames, seen[0].total] == [0, 32]
    assert seen[-1].num_frames == 32
    assert [progress.record is None for progress in seen] == [True] * (len(seen) - 1) + [False]
    assert len(read_video(folder / "avatar.mp4")) == 32
    assert num_decoded(joined(folder / "live.m3u8"))[0] == 32
    record = json.loads((folder / "avatar.json").read_text())
    assert record["request"]["person"]["reference"] == "me.png"
    assert record["request"]["output"]["out"] == "avatar.mp4"
    assert record["request"]["sampling"]["anchor"] is False  # the form had left this to the weights
    assert "permission" in record["consent"]
    assert len(record["watermark"]) == 8
    assert str(runner.jobs.parent) not in json.dumps(record)
    assert str(Path(form.speech or "").parent) not in json.dumps(record)
    assert not writers()


def test_the_same_seed_gives_the_same_video(runner: JobRunner, form: PageForm) -> None:
    videos = []
    for _ in range(2):
        token = list(runner.make(form, ME))[-1].token
        videos.append(read_video(runner.jobs / token / "avatar.mp4"))
    assert videos[0].equal(videos[1])


def test_closing_ends_a_job_and_leaves_nothing(runner: JobRunner, form: PageForm) -> None:
    job = runner.make(form, ME)
    while next(job).num_frames == 0:
        pass
    assert writers()
    job.close()
    assert not writers()
    assert list(runner.jobs.iterdir()) == []
    assert list(runner.make(form, ME))[-1].record is not None  # its turn is free again


def test_a_fault_leaves_nothing(runner: JobRunner, form: PageForm, tmp_path: Path) -> None:
    (tmp_path / "me.png").write_bytes((tmp_path / "me.png").read_bytes()[:60])
    with pytest.raises(ValueError, match=r"me\.png"):
        list(runner.make(form, ME))
    assert list(runner.jobs.iterdir()) == []


def test_jobs_take_turns(runner: JobRunner, form: PageForm) -> None:
    first, second, third = (runner.make(form, ME) for _ in range(3))
    next(first)
    assert [next(second), next(third)] == [Waiting(1), Waiting(2)]
    second.close()
    assert next(third) == Waiting(1)
    first.close()
    *_, last = third
    assert isinstance(last, Progress)
    assert last.record is not None
    assert [path.name for path in runner.jobs.iterdir()] == [last.token]


def test_the_broom_takes_what_is_old(weights: Path, form: PageForm, tmp_path: Path) -> None:
    runner = JobRunner(tmp_path / "app", weights=weights, limits=Limits(keep_s=100.0))
    old, new = runner.uploads / "old", runner.jobs / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "me.mp4").touch()
    os.utime(old, (time.time() - 200, time.time() - 200))
    runner.sweep()
    assert not old.exists()
    assert new.exists()
