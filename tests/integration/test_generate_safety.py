"""Generation and the page with records of consent and with a policy; nothing is left of what they
refuse."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

from avatar_v import cli
from avatar_v.app.desk import Desk
from avatar_v.app.form import PageForm
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.media.reading import read_video
from avatar_v.request.request import LIVE, Request
from avatar_v.safety.consent import DRAWN, SUFFIX, VERSION, Consent, save_consent
from avatar_v.safety.faces import hash_critic, read_faces
from avatar_v.safety.moderation import RefusedError, picture_scores
from classifiers import picture_classifier, recogniser
from generating import carry_out, left_behind
from page_desk import desk_of, form_of, made

CONSENT = Consent(
    version=VERSION, person="Ada Example", recorded="2026-01-01", expires="2127-12-31", uses="",
    statement="", heard=None, video_sha256="", critic=DRAWN, critic_hash=hash_critic(DRAWN),
    face=(),
)  # fmt: skip


@pytest.fixture
def asked(request_: Request, spoken) -> Request:
    return request_.changed(reference=spoken[0])


@pytest.fixture
def places(tmp_path: Path, spoken) -> dict[str, str]:
    """Folders with a record each: of the person in ``spoken``, of another, and one that is over."""
    own = tuple(read_faces(spoken[0], DRAWN, 2.0).face.tolist())
    records = {
        "own": dataclasses.replace(CONSENT, face=own),
        "other": dataclasses.replace(CONSENT, face=tuple(-x for x in own)),
        "over": dataclasses.replace(CONSENT, face=own, expires="2026-02-01"),
        "to come": dataclasses.replace(CONSENT, face=own, recorded="2126-01-01"),
    }
    for name, record in records.items():
        (tmp_path / name).mkdir()
        save_consent(tmp_path / name / f"record{SUFFIX}", record)
    return {name: str(tmp_path / name) for name in records}


def test_a_person_who_has_agreed_is_shown(
    asked: Request, weights: Path, places: dict[str, str]
) -> None:
    agreed = asked.changed(consent=(places["other"], places["own"]))
    record = carry_out(agreed, weights=weights)
    assert record.consented is not None
    assert record.consented.person == "Ada Example"
    stored = json.loads(Path(str(asked.output.out)).with_suffix(".json").read_text())
    assert len(stored["consented"]["sha256"]) == 64


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ("other", r"me\.mkv: the face in it is of nobody who has agreed \(1 record compared\)"),
        ("over", r"me\.mkv: the consent of this person ended on 2026-02-01"),
        ("to come", r"me\.mkv: the consent of this person is dated 2126-01-01, and today is"),
    ],
)
def test_others_are_refused(
    asked: Request, weights: Path, places: dict[str, str], place: str, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        carry_out(asked.changed(consent=(places[place],)), weights=weights)
    assert left_behind(asked) == []


def test_a_first_picture_of_somebody_else_is_refused(
    asked: Request, request_: Request, weights: Path, places: dict[str, str]
) -> None:
    with_picture = asked.changed(image=request_.person.reference, consent=(places["own"],))
    with pytest.raises(ValueError, match=r"me\.png: the face in it is of nobody"):
        carry_out(with_picture, weights=weights)


def test_records_of_drawn_people_do_not_count_for_filmed_ones(
    asked: Request, weights: Path, places: dict[str, str], tmp_path: Path
) -> None:
    filmed = shutil.copytree(weights, tmp_path / "filmed")
    card = json.loads((filmed / "card.json").read_text())
    card["can"]["people"] = "filmed people"
    (filmed / "card.json").write_text(json.dumps(card))
    with pytest.raises(ValueError, match="records are of drawn people"):
        carry_out(asked.changed(consent=(places["own"],)), weights=filmed)


def test_the_page_refuses(
    asked: Request, weights: Path, places: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text("words: [fraud]")
    rules = {"consent": places["own"], "policy": str(tmp_path / "policy.yaml")}
    pipeline = AvatarPipeline.from_pretrained(weights, device="cpu", precision="fp32")
    desk = desk_of(tmp_path / "app", pipeline, **rules)
    form = form_of(desk, asked, prompt="a defrauded man", guidance_audio=1.0)
    assert "The scene is refused: it has &#x27;fraud&#x27;" in told(
        desk, dataclasses.replace(form, prompt="fraud")
    )
    assert "Download the video" in told(desk, form)
    (folder,) = desk.place.jobs.iterdir()
    text = (folder / "avatar.json").read_text()
    assert str(tmp_path) not in text
    assert "Ada" not in text
    Path(places["own"], f"record{SUFFIX}").unlink()  # who takes a consent back is not shown again
    assert "The records of consent: no *.consent.json in the folder own" in told(desk, form)
    shutil.copy(Path(places["other"], f"record{SUFFIX}"), places["own"])
    assert "is of nobody who has agreed" in told(desk, form)
    assert list(desk.place.jobs.iterdir()) == [folder]


def told(desk: Desk, form: PageForm) -> str:
    return made(desk, form)[-1]["status"]


def test_nothing_is_left_of_a_video_that_is_refused(
    asked: Request, weights: Path, tmp_path: Path
) -> None:
    """A threshold between what the classifier says of the reference and of the video."""
    frames = []
    carry_out(asked.changed(watermark=False), weights=weights, on_frames=frames.append)
    for path in Path(str(asked.output.out)).parent.iterdir():
        path.unlink()
    model = picture_classifier(tmp_path / "model", "good", "bad")
    given = picture_scores(read_video(asked.person.reference), model)
    made = picture_scores(torch.cat(frames), model)
    label = int(made.amax(0).sub(given.amax(0)).argmax())
    between = float(made[:, label].max() + given[:, label].max()) / 2
    assert float(given[:, label].max()) < between < float(made[:, label].max())
    refuse = f"{{{['good', 'bad'][label]}: {between}}}"
    rule = f"pictures: {{model: model, refuse: {refuse}, every_s: 0.04}}"
    (tmp_path / "policy.yaml").write_text(rule)
    with pytest.raises(RefusedError, match=r"the video at \d\.\d s is refused"):
        carry_out(asked.changed(policy=str(tmp_path / "policy.yaml")), weights=weights)
    assert left_behind(asked) == []


def test_the_command_names_what_is_missing(
    asked: Request, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["generate", "--reference", asked.person.reference, "--audio", str(asked.person.audio)]
    words += ["--out", str(asked.output.out), "--consent", str(tmp_path / f"gone{SUFFIX}")]
    assert cli.main(words) == 2
    assert "--consent: cannot read" in capsys.readouterr().err


def test_speech_that_a_policy_refuses_is_not_spoken(
    asked: Request, weights: Path, tmp_path: Path
) -> None:
    recogniser(tmp_path / "ear", "a")
    (tmp_path / "policy.yaml").write_text("words: [a]\nspeech: {model: ear}")
    judged = asked.changed(policy=str(tmp_path / "policy.yaml"))
    before = left_behind(asked)
    with pytest.raises(RefusedError, match=rf"{asked.person.audio} from 0 s on is refused"):
        carry_out(judged, weights=weights)
    with pytest.raises(ValueError, match="a live one cannot be"):
        carry_out(judged.changed(audio=LIVE), weights=weights)
    assert left_behind(asked) == before
