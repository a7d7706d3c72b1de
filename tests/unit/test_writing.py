"""A text model of a folder, of random weights: what it writes keeps its form, or is an error."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from avatar_v.engines.text_model import TextModel, UnusableError
from avatar_v.engines.writing import draft_script, rewrite_scenes
from avatar_v.world.prompt import prompt_pattern, scene_prompt
from avatar_v.world.scene import sample_scene
from text_models import save_text_model

ASKED = {"prompt": "somebody in red"}
SHORT = {"a": {"minLength": 3, "maxLength": 9, "pattern": "^[a-c]*$"}}


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_text_model(tmp_path_factory.mktemp("text") / request.param, request.param)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_text_model(tmp_path_factory.mktemp("text") / "one")


def test_the_pattern_is_of_the_worlds_prompts_alone() -> None:
    pattern = prompt_pattern()
    for number in range(500):
        assert re.fullmatch(pattern, scene_prompt(sample_scene(number)))
    for text in ("a person", scene_prompt(sample_scene(0)) + ".", "a talking head, dark red shirt"):
        assert not re.fullmatch(pattern, text)


def test_scenes_of_drawn_people_are_prompts_of_the_world(folder: str) -> None:
    asked = {"prompt": "somebody in red", "scene": "a garden"}
    written = rewrite_scenes(asked, folder, drawn=True, seed=3)
    assert written.asked == asked
    assert written.texts.keys() == asked.keys()
    for text in written.texts.values():
        assert re.fullmatch(prompt_pattern(), text)


def test_the_seed_decides(qwen: str) -> None:
    first, again, other = (rewrite_scenes(ASKED, qwen, drawn=True, seed=n) for n in (1, 1, 2))
    assert first == again
    assert first.texts != other.texts


def test_scenes_of_other_people_fit_the_text_encoder(qwen: str) -> None:
    (text,) = rewrite_scenes(ASKED, qwen, drawn=False, seed=0).texts.values()
    assert 20 <= len(text.encode()) <= 240


def test_a_script_is_as_long_as_asked_and_can_be_said(qwen: str) -> None:
    written = draft_script("greetings", qwen, seconds=4.0, voice="drawn", drawn=True, seed=1)
    assert 24 <= len(written.texts["script"]) <= 60
    assert written.texts["script"][-1] in ".!?"
    assert re.fullmatch(prompt_pattern(), written.texts["scene"])


def test_answers_that_are_cut_or_refused_by_the_voice_are_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, qwen: str
) -> None:
    """As many are tried as there are tries, and the last fault is told."""
    monkeypatch.setattr("avatar_v.engines.text_model.MOST_S", 0.0)
    with pytest.raises(UnusableError, match="ended before its end"):
        TextModel(qwen).answer("?", SHORT, seed=0)
    with pytest.raises(ValueError, match=r"none of 3 answers could be used; .* before its end"):
        rewrite_scenes(ASKED, qwen, drawn=True, seed=0)
    monkeypatch.undo()
    full = save_text_model(tmp_path / "full", room=64)
    with pytest.raises(ValueError, match="leaves no room for an answer"):
        rewrite_scenes(ASKED, full, drawn=True, seed=0)


def test_the_form_is_checked_whoever_kept_to_it(monkeypatch: pytest.MonkeyPatch, qwen: str) -> None:
    for answer in ({}, {"prompt": 1}, {"prompt": "a red person in a room"}, ["prompt"]):
        monkeypatch.setattr(TextModel, "answer", lambda *_, given=answer, **__: given)
        with pytest.raises(ValueError, match=r"of the last: it(s prompt)? has"):
            rewrite_scenes(ASKED, qwen, drawn=True, seed=0)


def test_folders_that_are_none(tmp_path: Path, qwen: str) -> None:
    with pytest.raises(ValueError, match=r"lacks config\.json.* chat template as transformers"):
        TextModel(tmp_path)
    bare = tmp_path / "bare"
    save_text_model(bare)
    (bare / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="has no chat template"):
        TextModel(bare)
    (bare / "chat_template.jinja").write_text("{{ raise_exception('no') }}")
    with pytest.raises(ValueError, match="its chat template takes no question"):
        TextModel(bare).answer("?", SHORT, seed=0)
    save_text_model(bare)
    state = load_file(bare / "model.safetensors")
    save_file({name: x * torch.nan for name, x in state.items()}, bare / "model.safetensors",
              {"format": "pt"})  # fmt: skip
    with pytest.raises(ValueError, match="numbers that are not finite"):
        TextModel(bare).answer("?", SHORT, seed=0)


@pytest.mark.parametrize(
    ("idea", "seconds", "error"),
    [("?!", 20.0, "has no words"), ("a" * 2001, 20.0, "at most 2,000"), ("a", 1e9, "3.0 to 600"),
     ("a", float("nan"), "--seconds")],
)  # fmt: skip
def test_ideas_that_are_none(qwen: str, idea: str, seconds: float, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        draft_script(idea, qwen, seconds=seconds, voice="drawn", drawn=True, seed=0)
