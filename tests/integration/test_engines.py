"""A script in place of a sound, a scene in place of a picture, and a text model that writes either,
with tiny random weights."""

import json
import re
from pathlib import Path

import pytest
import torch

from avatar_v import cli
from avatar_v.base.video_format import VideoFormat
from avatar_v.engines.scene import drawn_likeness, ranked
from avatar_v.engines.voice import speak_script
from avatar_v.faces.face import FaceCritic
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.media import reading
from avatar_v.request.checks import check_request
from avatar_v.request.request import Request
from avatar_v.safety.moderation import RefusedError
from avatar_v.weights.card import DRAWN_PEOPLE, Capabilities, Card
from avatar_v.weights.weights import save_pipeline
from avatar_v.world.clip import make_clip
from avatar_v.world.prompt import prompt_pattern
from avatar_v.world.splits import persons
from generating import carry_out, left_behind
from random_models import randomise
from text_models import save_text_model


@pytest.fixture(scope="module")
def personal(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights that say they read a reference of drawn people."""
    pipe = AvatarPipeline.from_pretrained(weights, device="cpu", precision="fp32")
    randomise(pipe.dit)
    can = Capabilities(
        people=DRAWN_PEOPLE,
        video=VideoFormat(32, 32),
        window_latents=5,
        shift=1.0,
        reference=True,
        motion=True,
    )
    folder = tmp_path_factory.mktemp("personal") / "tiny"
    save_pipeline(folder, pipe.dit, pipe.conditioner, Card(preset="tiny", can=can))
    return folder


def test_a_script_becomes_the_sound_of_the_video(request_: Request, weights: Path) -> None:
    """The same video comes of the sound that is left beside it."""
    frames, again = [], []
    asked = request_.changed(audio=None, script="Hello!", voice="drawn:3", seed=4)
    record = carry_out(asked, weights=weights, on_frames=frames.append)
    assert sorted(left_behind(asked)) == ["out.json", "out.mp4", "out.wav"]
    assert record.said is not None
    assert (record.said.text, record.said.voice, record.said.seed) == ("Hello!", "drawn:3", 4)
    out = Path(asked.output.out or "")
    sound = reading.read_audio(out.with_suffix(".wav"))
    assert torch.equal(sound, speak_script("Hello!", "drawn:3", seed=4)[0])
    assert record.num_frames == len(sound) // 640
    heard = request_.changed(audio=str(out.with_suffix(".wav")), out=str(out.with_name("b.mp4")))
    carry_out(heard.changed(seed=4), weights=weights, on_frames=again.append)
    assert torch.equal(torch.cat(frames), torch.cat(again))


def test_a_scene_begins_the_video_with_its_best_picture(
    request_: Request, personal: Path, spoken, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """As if the picture that `avatar-v scene` makes had been given, with its prompt."""
    frames, again, picture = [], [], tmp_path / "scene.png"
    words = ["scene", "--reference", spoken[0], "--prompt", "a room", "--out", str(picture)]
    words += ["--candidates", "2", "--no-face-crop", "--weights", str(personal)]
    assert cli.main(words) == 0
    assert "the best of 2 (likeness " in capsys.readouterr().out
    assert cli.main(words) == 2, "the files exist"

    asked = request_.changed(reference=spoken[0], scene="a room", num_candidates=2, num_steps=None)
    record = carry_out(asked, weights=personal, on_frames=frames.append)
    assert sorted(left_behind(asked)) == ["out.json", "out.mp4", "out.png"]
    assert len({one.seed for one in record.scene}) == 2
    sheet = reading.read_video(Path(asked.output.out or "").with_suffix(".png"))[0]
    assert torch.equal(sheet, reading.read_video(picture.with_suffix(".candidates.png"))[0])
    assert torch.equal(sheet[:, :, :32], reading.read_video(picture)[0])

    given = request_.changed(
        reference=spoken[0], image=str(picture), prompt="a room", num_steps=None,
        out=str(tmp_path / "given.mp4"),
    )  # fmt: skip
    carry_out(given, weights=personal, on_frames=again.append)
    assert torch.equal(torch.cat(frames), torch.cat(again))


def test_pictures_are_ranked_by_the_face_and_blurred_ones_are_last() -> None:
    own, other = (
        make_clip(person, person, person, num_frames=9, size=64).video
        for person in persons("test", 2, 9600)
    )
    assert own is not None
    assert other is not None
    blurred = own[:1].float().mean((2, 3), keepdim=True).expand_as(own[:1]).to(torch.uint8)
    pictures = torch.cat([blurred, other[:1], own[:1]])
    order, values = ranked(pictures, drawn_likeness(own[4:], FaceCritic.from_pretrained()))
    assert order.tolist() == [2, 1, 0]
    assert float(values[2]) > 0.9 > float(values[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"audio": None}, "pass the speech as --audio, or what is to be said as --script"),
        ({"script": "hello"}, "--audio is a speech, and --script has one made: pass one"),
        ({"voice": "drawn:3"}, "--voice drawn:3 says a --script, and this request has none"),
        ({"audio": None, "script": "blorg 7"}, "English words, and not '7'"),
        ({"scene": " "}, "--scene says the scene in words, got none"),
        ({"scene": "a room", "from_prompt": True}, "leave --image and --from-prompt out"),
        ({"scene": "a room", "num_candidates": 0}, "--candidates is a whole number from 1 to 64"),
        ({"scene": "a room", "reference": "OUT.png"}, "out.png is an input of this request"),
    ],
)
def test_what_excludes_each_other_is_one_error(
    change: dict, message: str, request_: Request
) -> None:
    if change.get("reference"):
        change = {**change, "reference": str(Path(request_.output.out or "").with_suffix(".png"))}
    with pytest.raises(ValueError, match=message):
        check_request(request_.changed(**change))


def test_weights_without_a_reference_make_no_scene(request_: Request, weights: Path) -> None:
    with pytest.raises(ValueError, match="--scene: these weights know a person by their first"):
        carry_out(request_.changed(scene="a room"), weights=weights)
    assert left_behind(request_) == []


def test_a_text_model_rewrites_the_scene(
    request_: Request, personal: Path, spoken, tmp_path: Path
) -> None:
    """As if its words had been asked for, unless a policy refuses them; the record has both."""
    model = save_text_model(tmp_path / "lm")
    plain = request_.changed(reference=spoken[0], num_steps=None)
    asked = plain.changed(prompt="somebody in red " * 30, enhance=model)
    record = carry_out(asked, weights=personal)
    assert record.enhanced is not None
    prompt = record.enhanced.texts["prompt"]
    assert re.fullmatch(prompt_pattern(), prompt)
    assert record.request.person == plain.changed(prompt=prompt).person
    assert record.enhanced.asked == {"prompt": asked.person.prompt}
    assert len(record.enhanced.model_hash) == 16
    (tmp_path / "policy.yaml").write_text(f"words: [{prompt}]")
    refused = asked.changed(policy=str(tmp_path / "policy.yaml"), overwrite=True)
    with pytest.raises(RefusedError, match="--prompt, rewritten, is refused"):
        carry_out(refused, weights=personal)
    for wrong, error in (
        (plain.changed(enhance=model), "pass one of them"),
        (asked.changed(enhance=str(personal)), "lacks config.json"),
    ):
        with pytest.raises(ValueError, match=error):
            check_request(wrong.changed(overwrite=True))


def test_an_idea_becomes_a_script_and_a_scene(
    personal: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["write", "--idea", "a greeting", "--text-model", save_text_model(tmp_path / "lm")]
    words += ["--seconds", "3", "--weights", str(personal), "--seed", "2"]
    words += ["--out", str(tmp_path / "talk.txt")]
    assert cli.main(words) == 0
    assert f"--script {tmp_path / 'talk.txt'} --prompt" in capsys.readouterr().out
    script, scene = ((tmp_path / f"talk{end}").read_text() for end in (".txt", ".scene.txt"))
    assert re.fullmatch(prompt_pattern(), scene.strip())
    assert json.loads((tmp_path / "talk.json").read_text())["texts"]["script"] == script.strip()
    for refused, what in (("greeting", "--idea"), (scene.strip(), "the scene")):
        (tmp_path / "policy.yaml").write_text(f"words: ['{refused}']")
        assert cli.main([*words, "--overwrite", "--policy", str(tmp_path / "policy.yaml")]) == 2
        assert f"{what} is refused" in capsys.readouterr().err
    assert cli.main(words) == 2
    assert "talk.txt exists" in capsys.readouterr().err
