"""app/: what a page may ask for, in whose words faults are told, and which files are given out."""

import dataclasses
import os
import re
import socket
from contextlib import ExitStack
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from avatar_v.app import view
from avatar_v.app.ask import (
    CAMERA,
    CONSENT,
    FRAMED,
    Ask,
    Limits,
    checked_request,
    duration_s,
    page_words,
)
from avatar_v.app.drawn import SPEECH_FRAMES, draw_person
from avatar_v.app.line import Line
from avatar_v.app.server import is_job, is_loopback, job_path, serve
from avatar_v.app.studio import Progress, Waiting
from avatar_v.app.view import NBSP
from avatar_v.media import probe, read_audio

TOKEN = "0123456789abcdef" * 2


def write_sound(path: Path, seconds: float, *, codec: str, **options: str) -> Path:
    samples = np.zeros((1, round(16_000 * seconds)), np.int16)
    with av.open(str(path), "w", options=options) as container:
        stream = container.add_stream(codec, rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate = 16_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


@pytest.fixture
def ask(tmp_path: Path) -> Ask:
    Image.new("RGB", (40, 40)).save(tmp_path / "me.png")
    return Ask(
        reference=str(tmp_path / "me.png"),
        speech=str(write_sound(tmp_path / "talk.wav", 2.0, codec="pcm_s16le")),
        consent=True,
        prompt="  a room ",
        new_scene=False,
        picture=FRAMED,
        num_steps=8.0,  # sliders send floats
        guidance_audio=2.5,
        reference_s=16,
        seed=7,
    )


def test_a_form_becomes_a_request(ask: Ask) -> None:
    request = checked_request(ask, Limits(), "x/avatar.mp4")
    assert (request.reference, request.audio) == (ask.reference, ask.speech)
    assert (request.prompt, request.num_steps, request.seed) == ("a room", 8, 7)
    assert (request.guidance_audio, request.reference_s) == (2.5, 16.0)
    assert (request.out, request.face_crop) == ("x/avatar.mp4", False)
    filmed = dataclasses.replace(ask, picture=CAMERA)
    assert checked_request(filmed, Limits(), "x/avatar.mp4").face_crop
    assert not request.from_prompt
    moved = dataclasses.replace(ask, new_scene=True)
    assert checked_request(moved, Limits(), "x/avatar.mp4").from_prompt


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"reference": None}, "Add a clip of the person"),
        ({"speech": None}, "Add the speech"),
        ({"consent": False}, f"Tick “{CONSENT}”"),
        ({"prompt": "x" * 501}, "at most 500 characters, got 501"),
        ({"prompt": " ", "new_scene": True}, "Say which scene"),
        ({"picture": None}, "The picture is"),
        ({"num_steps": None}, "Steps is a whole number from 1 to 64, got nothing"),
        ({"num_steps": 2.5}, "got 2.5"),
        ({"num_steps": 65}, "got 65"),
        ({"seed": -1}, "Seed is a whole number"),
        ({"seed": float("nan")}, "Seed is a whole number"),
        ({"seed": float("inf")}, "Seed is a whole number"),
        ({"guidance_audio": float("nan")}, "Strength of the sound is from 0 to 6, got nan"),
        ({"reference_s": 61}, "Seconds of reference is from 0 to 60, got 61"),
        ({"speech": "/nowhere/talk.wav"}, "not here any more"),
    ],
)
def test_what_a_form_may_not_say(ask: Ask, change: dict, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        checked_request(dataclasses.replace(ask, **change), Limits(), "x.mp4")


def test_size_and_duration_are_limited(ask: Ask, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"The speech has 0\.0611 MiB; at most 0\.01 MiB"):
        checked_request(ask, Limits(upload_mib=0.01), "x.mp4")
    with pytest.raises(ValueError, match=r"The speech lasts 2 s; at most 1\.5 s"):
        checked_request(ask, Limits(speech_s=1.5), "x.mp4")
    long = str(write_sound(tmp_path / "long.wav", 3.0, codec="pcm_s16le"))
    with pytest.raises(ValueError, match=r"The clip lasts 3 s; at most 2\.5 s"):
        checked_request(dataclasses.replace(ask, reference=long), Limits(reference_s=2.5), "x.mp4")
    (tmp_path / "nothing.webm").touch()  # a recording that was stopped at once
    nothing = str(tmp_path / "nothing.webm")
    with pytest.raises(ValueError, match="The clip is empty; upload or record it again"):
        checked_request(dataclasses.replace(ask, reference=nothing), Limits(), "x.mp4")
    (tmp_path / "notes.txt").write_text("no sound")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        checked_request(
            dataclasses.replace(ask, speech=str(tmp_path / "notes.txt")), Limits(), "x.mp4"
        )


def test_a_recording_without_a_duration_is_measured(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "recorded.mkv", 2.0, codec="aac", live="1")
    assert probe(path).duration_s is None  # as a browser's MediaRecorder leaves it
    assert duration_s(path) == pytest.approx(2.0, abs=0.13)  # two AAC frames of 64 ms


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_is_a_number(value: float) -> None:
    with pytest.raises(ValueError, match="upload_mib"):
        Limits(upload_mib=value)


def test_faults_speak_of_the_page(ask: Ask) -> None:
    fault = f"{ask.reference}: no face in its\n first 1.0 s; pass --no-face-crop if …"
    words = page_words(fault, ask.reference, None)
    assert words == f"me.png: no face in its first 1.0 s; choose “{FRAMED}” if …"


def test_a_page_shows_text_as_text() -> None:
    assert "<script>" not in view.failed("<script>alert(1)</script>")
    odd = Progress(TOKEN, 25, 50, 2.0, ("<b>quiet</b>",))
    shown = view.working(odd)
    assert "&lt;b&gt;quiet" in shown
    assert "1.0 s of 2.0 s made, about 2 s to go" in shown.replace(NBSP, " ")
    assert f"jobs/{TOKEN}/live.m3u8" in view.player(odd)
    assert "5 minutes" in view.footer(Limits(), "here").replace(NBSP, " ")
    assert "1 video is made before yours" in view.waiting(Waiting(1))
    assert "2 videos are made before yours" in view.waiting(Waiting(2))


def test_only_files_of_jobs_are_given(tmp_path: Path) -> None:
    folder = tmp_path / TOKEN
    folder.mkdir()
    names = ["live.m3u8", "live_init.mp4", "live_00000.m4s", "avatar.mp4", "avatar.json"]
    for name in [*names, ".avatar.mp4.part", "notes.txt"]:
        (folder / name).touch()
    (tmp_path / "avatar.mp4").touch()
    for name in names:
        assert job_path(tmp_path, TOKEN, name) == folder / name
    for name in (".avatar.mp4.part", "notes.txt", "../avatar.mp4", "live_00001.m4s", ""):
        assert job_path(tmp_path, TOKEN, name) is None
    for token in ("..", ".", "0" * 31, TOKEN.upper(), f"{TOKEN}/"):
        assert job_path(tmp_path, token, "avatar.mp4") is None


def test_a_job_without_its_playlist_is_told_from_none(tmp_path: Path) -> None:
    (tmp_path / TOKEN).mkdir()
    assert is_job(tmp_path, TOKEN)
    assert not any(is_job(tmp_path, token) for token in ("0" * 32, "..", "", f"{TOKEN}/.."))


def test_a_line_serves_in_order_and_is_left_at_any_place() -> None:
    line = Line(most_waiting=2)
    with ExitStack() as stack:
        first, second = stack.enter_context(line.ticket()), ExitStack()
        middle = second.enter_context(line.ticket())
        last = stack.enter_context(line.ticket())
        assert [first.ahead(), middle.ahead(), last.ahead()] == [0, 1, 2]
        with pytest.raises(ValueError, match="2 videos are waiting already"), line.ticket():
            pass
        second.close()
        assert [first.ahead(), last.ahead()] == [0, 1]
    with line.ticket() as ticket:
        assert ticket.ahead() == 0


def test_loopback_addresses() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.0.0.2", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "192.168.1.2", "::", "example.org")))


def test_a_taken_or_impossible_port_is_told_before_weights_are_loaded(tmp_path: Path) -> None:
    pytest.importorskip("gradio", reason="the app's extra is not installed")
    how = {"weights": tmp_path, "device": "cpu", "precision": "fp32", "limits": Limits()}
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="cannot listen on 127"),
    ):
        serve(host="127.0.0.1", port=taken.getsockname()[1], **how)
    with pytest.raises(ValueError, match="--port"):
        serve(host="127.0.0.1", port=70_000, **how)
    with pytest.raises(ValueError, match="no weights"):
        serve(host="127.0.0.1", port=0, **how)


def test_a_drawn_person_is_a_clip_and_other_words(tmp_path: Path) -> None:
    clip, speech = draw_person(tmp_path / "a", 3)
    info = probe(clip)
    assert (info.width, info.height) == (128, 128)
    assert len(read_audio(speech)) == 640 * SPEECH_FRAMES
    again, _ = draw_person(tmp_path / "b", 3)
    assert os.path.getsize(again) == os.path.getsize(clip)
