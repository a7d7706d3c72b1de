"""Records of consent: made of a statement, read again, and refused where anything is wrong."""

import dataclasses
import json
from datetime import date, timedelta
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from avatar_v import cli
from avatar_v.base.words import is_hidden
from avatar_v.critics import voice
from avatar_v.faces.same_person import first_person
from avatar_v.safety.consent import (
    DRAWN,
    FILMED,
    SUFFIX,
    VERSION,
    Consent,
    read_consent,
    read_consents,
)
from avatar_v.safety.faces import SAME, face_in, read_faces
from avatar_v.safety.key import KEY
from avatar_v.safety.statement import consent_from_video
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES
from classifiers import recogniser
from clip_files import clip_file

HOW = {"person": "Ada Example", "expires": "2027-12-31", "drawn": True}


def drawn(number: int, num_frames: int) -> tuple[Tensor, Tensor]:
    """Frames and sound of a validation person, one of ten, in a scene."""
    first = RANGES["validation"][0]
    person, scene = first + number % 10, first + number
    clip = make_clip(person, scene, scene, num_frames=num_frames, size=64)
    assert clip.video is not None
    return clip.video, clip.audio


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A statement of one person, and a record of it."""
    path = tmp_path_factory.mktemp("consent")
    clip_file(path / "statement.mkv", *drawn(0, 61))
    words = ["consent", "--video", str(path / "statement.mkv"), "--person", "Ada Example"]
    words += ["--expires", "2127-12-31", "--uses", "greetings", "--statement", "I agree"]
    assert cli.main([*words, "--drawn", "--out", str(path / f"ada{SUFFIX}")]) == 0
    return path


def test_a_record_is_read_as_it_was_made(folder: Path) -> None:
    (stored,) = read_consents([folder])
    consent = stored.consent
    assert (consent.person, consent.uses, consent.statement) == (
        "Ada Example", "greetings", "I agree",
    )  # fmt: skip
    assert consent.heard is None, "no words were checked"
    assert len(consent.video_sha256) == len(stored.sha256) == 64
    assert stored.path.stat().st_mode & 0o077 == 0, "others may not read a face"
    other_scene, other_person = (drawn(number, 1)[0][0] for number in (10, 1))
    own, other = (face_in(picture, DRAWN) for picture in (other_scene, other_person))
    assert own is not None
    assert other is not None
    assert consent.distance(own.tolist()) < SAME[DRAWN] < consent.distance(other.tolist())


def test_a_changed_record_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / f"ada{SUFFIX}"
    values = json.loads(path.read_text())
    bad = tmp_path / f"bad{SUFFIX}"
    for change, text in (
        ({"expires": "2999-01-01"}, "its seal does not fit"),
        ({"seal": None}, "its seal does not fit"),
        ({"face": [1e40]}, r"face\[0\] is a finite number"),
        ({"more": 1}, r"unknown keys \['more'\]"),
        ({"expires": "soon"}, "expires is a day"),
        ({"person": "x" * 70_000}, "more than 65,536 bytes"),
    ):
        bad.write_text(json.dumps({**values, **change}))
        with pytest.raises(ValueError, match=text):
            read_consent(bad)
    monkeypatch.setenv(KEY, "a secret of one's own")
    with pytest.raises(ValueError, match="made with another key"):
        read_consent(path)
    bad.unlink()
    with pytest.raises(ValueError, match=r"no \*\.consent\.json in the folder"):
        read_consents([tmp_path])


def test_a_statement_shows_one_person_all_along(folder: Path, tmp_path: Path) -> None:
    video = torch.cat([drawn(0, 49)[0], drawn(1, 49)[0]])
    two = clip_file(tmp_path / "two.mkv", video, drawn(0, 98)[1])
    with pytest.raises(ValueError, match=r"another person's face, or a covered one, from 2\.0 s"):
        consent_from_video(two, **HOW)
    short = clip_file(tmp_path / "short.mkv", video[:25])
    with pytest.raises(ValueError, match=r"lasts 1\.0 s; a statement has 2 to 30 s"):
        consent_from_video(short, **HOW)
    with pytest.raises(ValueError, match="--expires 2027-12-31 is over"):
        consent_from_video(two, **HOW, today=date(2028, 1, 1))
    faces = torch.tensor([[0.0], [1.0], [0.0], [1.0], [1.0]])
    assert first_person(faces, 0.5).other == 3, "a single odd look is nobody"
    assert first_person(faces, 0.5, in_a_row=3).other is None


def test_somebody_speaks_in_a_statement_and_moves(folder: Path, tmp_path: Path) -> None:
    video, sound = drawn(0, 61)
    time = torch.arange(len(sound)) / 16_000
    black = torch.zeros_like(video)
    for frames, heard, text in (
        (video, None, "no audio stream"),
        (video, torch.zeros_like(sound), "somebody speaks for 0.0 s of it"),
        (video, 0.3 * torch.sin(440 * time), "somebody speaks for 0.0 s of it"),
        (video[:1].expand_as(video), sound, r"the face does not move \(by [0-2]\.\d grey levels"),
        (black, sound, r"the face does not move \(by 0\.0"),
    ):
        with pytest.raises(ValueError, match=text):
            consent_from_video(clip_file(tmp_path / "odd.mkv", frames, heard), **HOW)
    picture = tmp_path / "person.gif"
    first, *rest = (Image.fromarray(frame.movedim(0, -1).numpy()) for frame in video)
    first.save(picture, save_all=True, append_images=rest, duration=40)
    with pytest.raises(ValueError, match="expected speech"):
        consent_from_video(picture, **HOW)
    assert [*tmp_path.glob(f"*{SUFFIX}")] == []


@pytest.mark.parametrize("name", ["A\x1b[2Jda", "Ada\u202e", "A\u200bda", "A\nda", "\ud800", " "])
def test_names_that_steer_a_terminal_or_show_nothing_are_refused(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["consent", "--video", str(tmp_path / "\x1b]0;x.mp4"), "--person", name]
    words += ["--expires", "2127-12-31", "--out", str(tmp_path / f"ada{SUFFIX}")]
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    assert "person is" in said
    assert cli.main([*words[:4], "Adá \u200dExample", *words[5:]]) == 2
    said += capsys.readouterr().err
    assert "\\x1b]0;x.mp4" in said
    assert not any(is_hidden(c) for c in said.replace("\n", ""))
    assert [*tmp_path.iterdir()] == []


def test_a_record_of_a_day_to_come_is_known(folder: Path) -> None:
    (stored,) = read_consents([folder])
    today = date.fromisoformat(stored.consent.recorded)
    days = [timedelta(n) for n in (-2, -1, 0)]  # of a clock that is behind
    assert [stored.consent.is_to_come(today + day) for day in days] == [True, False, False]
    with pytest.raises(ValueError, match="expires 2127-12-31 is before recorded 2999-01-01"):
        dataclasses.replace(stored.consent, recorded="2999-01-01")


def test_the_statement_is_said(folder: Path, tmp_path: Path) -> None:
    said = str(folder / "statement.mkv")
    model = recogniser(tmp_path / "has_audio", "a")
    consent = consent_from_video(said, **HOW, statement="A!", speech_model=model)
    assert consent.heard == "a"
    assert (consent.voice is not None) == voice.is_available()
    with pytest.raises(ValueError, match=r"other words .* 'a' was heard \(word error rate 1\.00"):
        consent_from_video(said, **HOW, statement="I agree", speech_model=model)
    with pytest.raises(ValueError, match=r"lacks config\.json.* openai/whisper-small"):
        consent_from_video(said, **HOW, statement="I agree", speech_model=tmp_path)


def test_names_of_records_are_known_before_work(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["consent", "--video", "x.mp4", "--person", "Ada", "--expires", "2027-12-31"]
    assert cli.main([*words, "--out", str(tmp_path / "ada.json")]) == 2
    assert "--out names a file that ends in .consent.json" in capsys.readouterr().err


@pytest.mark.media
def test_filmed_people_are_told_apart(media: Path) -> None:
    faces = []
    for name in ("talking_head", "presenter"):
        seen = read_faces(media / f"{name}.mp4", FILMED, 1.0)
        assert (seen.num, seen.num_looks, seen.num_faces) == (3, 3, 1)
        faces.append(seen.face)
    consent = Consent(
        version=VERSION, person="Ada", recorded="2026-01-01", expires="2027-01-01", uses="",
        statement="", heard=None, video_sha256="", critic=FILMED, critic_hash="",
        face=tuple(faces[0].tolist()),
    )  # fmt: skip
    assert consent.distance(faces[1].tolist()) > SAME[FILMED]
    with pytest.raises(ValueError, match=r"producer\.jpg: no face in 1 frame"):
        read_faces(media / "producer.jpg", FILMED, 1.0)
