"""app/: what a page may form for, in whose words faults are told, and which files are given out."""

import asyncio
import dataclasses
import math
import os
import re
import socket
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from avatar_v.app import html
from avatar_v.app.example import SPEECH_FRAMES, draw_person
from avatar_v.app.form import CALLED, PageForm, form_values, form_words
from avatar_v.app.html import NBSP
from avatar_v.app.place import PREFIX, private_folder, remove_dead
from avatar_v.app.server import serve
from avatar_v.app.turns import Turns
from avatar_v.cli import main
from avatar_v.faces.face_track import HOW_TO_INSTALL, TAKE_CENTRE
from avatar_v.media.containers import extent
from avatar_v.media.reading import probe, read_audio
from avatar_v.request.request import PersonOptions, Request, SamplingOptions
from avatar_v.serving.asked import FIELDS, FILES, WEIGHTS, checked_options
from avatar_v.serving.job_tables import Job
from avatar_v.serving.limits import CONSENT, Limits
from avatar_v.serving.place import job_path
from avatar_v.serving.uploads import FullError, Space, Uploads, plain_name
from avatar_v.web.visitors import BusyError, Visitor
from avatar_v.weights.card import Card

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
def form(tmp_path: Path) -> PageForm:
    Image.new("RGB", (40, 40)).save(tmp_path / "me.png")
    return PageForm(
        reference=str(tmp_path / "me.png"),
        speech=str(write_sound(tmp_path / "talk.wav", 2.0, codec="pcm_s16le")),
        consent=True,
        prompt="  a room ",
        new_scene=False,
        num_steps=8.0,  # sliders send floats
        guidance_audio=2.5,
        reference_s=16,
        seed=7,
    )


def checked(form: PageForm, limits: Limits | None = None, *, is_live: bool = False) -> Request:
    """The request of a form whose ids are paths."""
    values = form_values(form, is_live=is_live)
    cards = {"tiny": Card("tiny"), "other": Card("tiny")}
    how = {"limits": limits or Limits(), "cards": cards, "called": CALLED, "words": form_words}
    options, _ = checked_options(values, Path, is_live=is_live, **how)
    assert options.pop("weights", None) == (None if is_live else form.weights)
    return Request.of(**options)


def test_a_form_becomes_a_request(form: PageForm) -> None:
    request = checked(form)
    assert (request.person.reference, request.person.audio) == (form.reference, form.speech)
    assert (request.person.prompt, request.sampling.num_steps, request.sampling.seed) == (
        "a room",
        8,
        7,
    )
    assert (request.sampling.guidance_audio, request.person.reference_s) == (2.5, 16.0)
    assert request.person.face_crop
    assert not request.person.from_prompt
    assert checked(dataclasses.replace(form, new_scene=True)).person.from_prompt
    form = dataclasses.replace(form, weights="other")
    assert checked(form) == request
    live = checked(dataclasses.replace(form, speech=None), is_live=True)
    assert (live.person.audio, live.sampling.num_steps) == ("-", 8)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"reference": None}, "Add a clip of the person"),
        ({"speech": None}, "Add the speech"),
        ({"consent": False}, f"Tick “{CONSENT}”"),
        ({"prompt": "x" * 501}, "at most 500 characters, got 501"),
        ({"prompt": " ", "new_scene": True}, "Say which scene"),
        ({"num_steps": None}, "Steps is a whole number from 1 to 64, got nothing"),
        ({"num_steps": 2.5}, "got 2.5"),
        ({"num_steps": 65}, "got 65"),
        ({"seed": -1}, "Seed is a whole number"),
        ({"weights": "third"}, "weights is one of tiny, other"),
        ({"seed": float("nan")}, "Seed is a whole number"),
        ({"seed": float("inf")}, "Seed is a whole number"),
        ({"guidance_audio": float("nan")}, "Strength of the sound is from 0 to 6, got nan"),
        ({"reference_s": 61}, "Seconds of reference is from 0 to 60, got 61"),
        ({"speech": "/nowhere/talk.wav"}, "not here any more"),
    ],
)
def test_what_a_form_may_not_say(form: PageForm, change: dict, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        checked(dataclasses.replace(form, **change))


def test_no_field_of_a_client_is_a_path() -> None:
    """What is a file on the command line is the id of an upload, or is not taken at all; the others
    are words, which are never read from a file."""
    fields = [*dataclasses.fields(PersonOptions), *dataclasses.fields(SamplingOptions)]
    kinds = {field.name: field.metadata["option"].metavar or "" for field in fields}
    named = {name for name in {*FIELDS} - {WEIGHTS} if re.search("FILE|DIR", kinds[name])}
    assert named - set(FILES) == {"script", "voice", "prompt", "scene"}


def test_size_and_duration_are_limited(form: PageForm, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"The speech has 0\.0611 MiB; at most 0\.01 MiB"):
        checked(form, Limits(upload_mib=0.01))
    with pytest.raises(ValueError, match=r"The speech lasts 2 s; at most 1\.5 s"):
        checked(form, Limits(speech_s=1.5))
    long = str(write_sound(tmp_path / "long.wav", 3.0, codec="pcm_s16le"))
    with pytest.raises(ValueError, match=r"The clip lasts 3 s; at most 2\.5 s"):
        checked(dataclasses.replace(form, reference=long), Limits(reference_s=2.5))
    (tmp_path / "nothing.webm").touch()  # a recording that was stopped at once
    nothing = str(tmp_path / "nothing.webm")
    with pytest.raises(ValueError, match="The clip is empty; upload or record it again"):
        checked(dataclasses.replace(form, reference=nothing))
    with pytest.raises(ValueError, match="The clip has pictures of 40 × 40 pixels"):
        checked(form, Limits(frame_mp=0.001))
    with pytest.raises(ValueError, match="The clip has 1 pictures of 40 × 40 pixels"):
        checked(form, Limits(video_mp=0.001))
    (tmp_path / "notes.txt").write_text("no sound")
    with pytest.raises(ValueError, match=r"notes\.txt"):
        checked(dataclasses.replace(form, speech=str(tmp_path / "notes.txt")))


def test_the_name_of_a_file_lifts_no_limit(form: PageForm, tmp_path: Path) -> None:
    sound = tmp_path / "talk.wav"
    named = str(sound.rename(tmp_path / "talk.person"))
    with pytest.raises(ValueError, match=r"The speech lasts 2 s; at most 1\.5 s"):
        checked(dataclasses.replace(form, speech=named), Limits(speech_s=1.5))
    picture = Path(form.reference or "").rename(tmp_path / "me.person")
    with pytest.raises(ValueError, match=r"The clip: me\.person is no person file"):
        checked(dataclasses.replace(form, reference=str(picture), speech=named))
    save_file({"image": torch.zeros(1)}, picture)
    assert checked(dataclasses.replace(form, reference=str(picture), speech=named))


def test_a_recording_without_a_duration_is_measured(tmp_path: Path) -> None:
    path = write_sound(tmp_path / "recorded.mkv", 2.0, codec="aac", live="1")
    assert probe(path).duration_s is None  # as a browser's MediaRecorder leaves it
    assert extent(path)[0] == pytest.approx(2.0, abs=0.13)  # two AAC frames of 64 ms


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_is_a_number(value: float) -> None:
    with pytest.raises(ValueError, match="upload_mib"):
        Limits(upload_mib=value)


def test_faults_speak_of_the_page(form: PageForm) -> None:
    fault = f"{form.reference}: no face in its\n first 1.0 s; {TAKE_CENTRE}"
    words = form_words(fault, form.reference, None)
    assert words == "me.png: no face in its first 1.0 s; send one that shows the face"
    assert form_words(HOW_TO_INSTALL).endswith(": pip install 'avatar_v[faces]'")


def test_a_page_shows_text_as_text() -> None:
    assert "<script>" not in html.failed("<script>alert(1)</script>")["status"]
    job = Job(
        TOKEN, "me", 0, "running", {}, 2.0, 0.0, 0.0, None, "w", 1, 25, 50, ("<b>quiet</b>",),
        None, None,
    )  # fmt: skip
    shown = html.working(job, 2.0, 25)["status"]
    assert "&lt;b&gt;quiet" in shown
    assert "1.0 s of 2.0 s made, about 2 s to go" in shown.replace(NBSP, " ")
    assert f"jobs/{TOKEN}/live.m3u8" in html.player(TOKEN)
    assert "5 minutes" in html.footer(Limits(), "here").replace(NBSP, " ")
    assert "1 video is made before yours" in html.waiting(1)["status"]
    assert "2 videos are made before yours" in html.waiting(2)["status"]


def test_a_page_offers_the_weights_that_there_are() -> None:
    shown = html.choice({"<fast>": Card("tiny"), "b": Card("tiny")})
    assert '<option value="&lt;fast&gt;" data-steps="4" data-guidance="2">&lt;fast&gt;</o' in shown


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


def test_a_playlist_may_grow_while_it_is_sent(tmp_path: Path) -> None:
    job_answer = pytest.importorskip("avatar_v.serving.api").job_answer
    (tmp_path / "live.m3u8").write_text("#EXTM3U\n")
    answer = job_answer(tmp_path / "live.m3u8")
    (tmp_path / "live.m3u8").write_text("#EXTM3U\nlive_00000.m4s\n")
    assert answer.body == b"#EXTM3U\n"
    assert answer.headers["content-length"] == "8"


def test_an_upload_is_found_by_its_browser_alone(tmp_path: Path) -> None:
    uploads, mine, other = Uploads(tmp_path), "a" * 32, "b" * 32
    with uploads.arriving(mine, "../../my clip.mp4") as (id_, file):
        assert uploads.find(mine, id_) is None  # not whole yet
        file.write(b"x")
    path = uploads.find(mine, id_)
    assert path is not None
    assert (path.name, path.parent.parent) == ("my clip.mp4", tmp_path)
    assert not (path.parent.stat().st_mode & 0o077)
    for session, wrong in ((other, id_), (mine, id_.upper()), (mine, f"{id_}/"), (mine, "..")):
        assert uploads.find(session, wrong) is None
    path.rename(tmp_path / "elsewhere")
    for make in (lambda: path.symlink_to(tmp_path / "elsewhere"), lambda: os.mkfifo(path)):
        make()
        assert uploads.find(mine, id_) is None
        path.unlink()
    with pytest.raises(OSError, match="full"), uploads.arriving(mine, "x.wav"):
        raise OSError("full")
    assert [entry.name for entry in tmp_path.iterdir() if entry.is_dir()] == [path.parent.name]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("talk.wav", "talk.wav"),
        ("Meine Stimme (1).wav", "Meine Stimme (1).wav"),
        ("../../etc/passwd", "passwd"),
        ("C:\\me\\a.mp4", "a.mp4"),
        ("a\r\nSet-Cookie: b=1.wav", "a__Set-Cookie_ b_1.wav"),
        ('"><b>.mp4', "___b_.mp4"),
        (".part", "part"),
        ("..", "file"),
        ("", "file"),
        ("x" * 300 + ".webm", "x" * 56 + ".webm"),
    ],
)
def test_names_of_uploads_are_plain(name: str, plain: str) -> None:
    assert plain_name(name) == plain


def test_all_files_share_one_room(tmp_path: Path) -> None:
    space = Space((tmp_path,), max_mib=1.0)
    space.reserve(600_000)
    with pytest.raises(FullError, match=r"\(1 MiB\) is taken"):
        space.reserve(600_000)
    space.release(600_000)
    for number in range(17):  # of one byte each, yet a file is never free
        (tmp_path / str(number)).write_bytes(b"x")
    with pytest.raises(FullError):
        space.check()


def test_folders_of_dead_servers_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    foreign = tmp_path / f"{PREFIX}foreign"
    foreign.mkdir()  # without a lock: of no server of this kind
    dead = tmp_path / f"{PREFIX}dead"
    (dead / "uploads").mkdir(parents=True)
    (dead / "lock").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(dead)
    with private_folder() as folder:
        assert not dead.exists()
        assert folder.stat().st_mode & 0o777 == 0o700
        assert remove_dead(tmp_path) == []
        assert folder.exists()
    assert not folder.exists()
    assert foreign.exists()


def test_small_things_are_made_by_turns() -> None:
    """One of each address, and there one of each browser; none has more than its share."""
    come = ["a1", "a1", "a1", "b1", "a2", "a2", "b1", "c1"]
    served: list[str] = []

    async def go() -> None:
        turns, may_go = Turns(10, 3, "texts"), asyncio.Event()

        async def visit(number: int, who: str) -> None:
            async with turns.turn(Visitor(who[0], who[1])):
                await may_go.wait()
                served.append(await turns.done(lambda: f"{who}-{number}"))

        visits = [asyncio.create_task(visit(*entry)) for entry in enumerate([*come, "d1"])]
        await asyncio.sleep(0)
        for who, told in (("a1", "3 texts of yours"), ("a3", "5 texts from your address")):
            with pytest.raises(BusyError, match=told):
                await visit(-1, who)
        visits[-1].cancel()  # it leaves the queue
        may_go.set()
        await asyncio.gather(*visits[:-1])
        assert await asyncio.wait_for(visit(8, "d1"), 60) is None

    asyncio.run(go())
    assert served == ["a1-0", "b1-3", "c1-7", "a2-4", "b1-6", "a1-1", "a2-5", "a1-2", "d1-8"]


def test_a_taken_or_impossible_port_is_told_before_weights_are_loaded(tmp_path: Path) -> None:
    pytest.importorskip("fastapi", reason="the app's extra is not installed")
    how = {"weights": {"own": tmp_path}, "device": "cpu", "precision": "fp32", "limits": Limits()}
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(OSError, match="cannot listen on 127"),
    ):
        serve(host="127.0.0.1", port=taken.getsockname()[1], **how)
    with pytest.raises(ValueError, match="--port"):
        serve(host="127.0.0.1", port=70_000, **how)
    with pytest.raises(ValueError, match="--live"):
        serve(host="127.0.0.1", port=0, live=-1, **how)
    with pytest.raises(ValueError, match="--drain"):
        serve(host="127.0.0.1", port=0, drain_s=math.nan, **how)
    with pytest.raises(ValueError, match="no weights"):
        serve(host="127.0.0.1", port=0, **how)


def test_a_server_s_queue_is_asked_for_with_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (["--queue", "queue.db"], "--queue wants --files"),
        (["--files", "/nowhere"], "--files /nowhere is no folder: start `avatar-v serve` first"),
    ):
        assert main(["app", *words]) == 2
        assert told in capsys.readouterr().err


def test_a_drawn_person_is_a_clip_and_other_words(tmp_path: Path) -> None:
    clip, speech = draw_person(tmp_path, 3)
    info = probe(clip)
    assert (info.width, info.height) == (128, 128)
    assert len(read_audio(speech)) == 640 * SPEECH_FRAMES
