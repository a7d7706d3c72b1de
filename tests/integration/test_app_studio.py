"""A job of the app without its page: what it leaves when it is whole, stopped or at fault."""

import json
import os
import threading
import time
from pathlib import Path

import pytest

from avatar_v.app.ask import FRAMED, Ask, Limits
from avatar_v.app.studio import Progress, Studio, Waiting
from avatar_v.media import read_video
from avatar_v.types import Request


@pytest.fixture
def studio(weights: Path, tmp_path: Path) -> Studio:
    return Studio(tmp_path / "app", weights=weights, device="cpu", precision="fp32")


@pytest.fixture
def ask(request_: Request) -> Ask:
    return Ask(
        reference=request_.reference,
        speech=request_.audio,
        consent=True,
        prompt="a room",
        new_scene=False,
        picture=FRAMED,
        num_steps=2,
        guidance_audio=2.0,
        reference_s=16,
        seed=0,
    )


def writers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "writer"]


def test_a_job_can_be_watched_and_downloaded(studio: Studio, ask: Ask) -> None:
    seen = list(studio.make(ask))
    folder = studio.jobs / seen[-1].token
    assert [seen[0].num_frames, seen[0].total] == [0, 32]
    assert seen[-1].num_frames == 32
    assert [progress.record is None for progress in seen] == [True] * (len(seen) - 1) + [False]
    assert len(read_video(folder / "avatar.mp4")) == 32
    assert len(read_video(folder / "live.m3u8")) == 32
    record = json.loads((folder / "avatar.json").read_text())
    assert record["request"]["reference"] == "me.png"
    assert record["request"]["out"] == "avatar.mp4"
    assert record["request"]["anchor"] is False  # what the form had left to the weights
    assert "permission" in record["consent"]
    assert str(studio.jobs.parent) not in json.dumps(record)
    assert str(Path(ask.speech or "").parent) not in json.dumps(record)
    assert not writers()


def test_the_same_seed_gives_the_same_video(studio: Studio, ask: Ask) -> None:
    videos = []
    for _ in range(2):
        token = list(studio.make(ask))[-1].token
        videos.append(read_video(studio.jobs / token / "avatar.mp4"))
    assert videos[0].equal(videos[1])


def test_closing_ends_a_job_and_leaves_nothing(studio: Studio, ask: Ask) -> None:
    job = studio.make(ask)
    while next(job).num_frames == 0:
        pass
    assert writers()
    job.close()
    assert not writers()
    assert list(studio.jobs.iterdir()) == []
    assert list(studio.make(ask))[-1].record is not None  # its turn is free again


def test_a_fault_leaves_nothing(studio: Studio, ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "me.png").write_bytes((tmp_path / "me.png").read_bytes()[:60])
    with pytest.raises(ValueError, match=r"me\.png"):
        list(studio.make(ask))
    assert list(studio.jobs.iterdir()) == []


def test_jobs_take_turns(studio: Studio, ask: Ask) -> None:
    first, second, third = (studio.make(ask) for _ in range(3))
    next(first)
    assert [next(second), next(third)] == [Waiting(1), Waiting(2)]
    second.close()
    assert next(third) == Waiting(1)
    first.close()
    *_, last = third
    assert isinstance(last, Progress)
    assert last.record is not None
    assert [path.name for path in studio.jobs.iterdir()] == [last.token]


def test_the_broom_takes_what_is_old(weights: Path, ask: Ask, tmp_path: Path) -> None:
    studio = Studio(tmp_path / "app", weights=weights, limits=Limits(keep_s=100.0))
    old, new = studio.uploads / "old", studio.jobs / "new"
    for folder in (old, new):
        folder.mkdir()
        (folder / "me.mp4").touch()
    os.utime(old, (time.time() - 200, time.time() - 200))
    studio.sweep()
    assert not old.exists()
    assert new.exists()
