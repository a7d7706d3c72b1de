"""A policy: its file, and what it refuses, with tiny classifiers of random weights."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from avatar_v.engines.voice import speak_text
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.moderated import check_inputs
from avatar_v.media.delivered import Delivered, SoundFormat
from avatar_v.request.request import Request
from avatar_v.safety.moderation import Moderator, RefusedError, picture_scores, text_scores
from avatar_v.safety.policy import read_policy
from classifiers import picture_classifier, recogniser, text_classifier

PICTURES = torch.randint(
    0, 256, (60, 3, 20, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("policy")
    text_classifier(path / "texts", "xray", "yes")
    picture_classifier(path / "pictures", "good", "bad")
    return path


def policy(folder: Path, text: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(text)
    return path


def test_words_are_whole_and_folded(folder: Path) -> None:
    moderator = Moderator(policy(folder, "words: [fraud, Señor President]"))
    moderator.check_texts({"--prompt": "a defrauded man", "--script": "Senor, President?"[:6]})
    for text in (
        *("FRAUD!", "it is fra\u00adud", "dear ｓｅｎｏｒ,\npresident"),
        *("senor_president", "Senor-President", "senor.president", "a_fraud_b"),
        *(f"fra{unseen}ud" for unseen in "\u3164\uffa0\u115f\u034f\u200b\ufeff\U000e0041\x07\x00"),
        *(f"fra{unseen}ud" for unseen in "\x1c\x1f\x85"),  # controls that Python takes for spaces
        *("a\tfraud", "senor\x0bpresident"),
    ):
        with pytest.raises(RefusedError, match="--script is refused: it has '"):
            moderator.check_texts({"--prompt": "", "--script": text})


def test_a_classifier_refuses_texts_in_all_their_parts(folder: Path) -> None:
    """What is refused stands behind all that the model takes at once, 16 words."""
    model = str(folder / "texts")
    letters = sorted("xy", key=lambda x: float(text_scores(f"{x} " * 9, model)[0, 0]))
    low, high = (float(text_scores(f"{x} " * 9, model)[0, 0]) for x in letters)
    least = (low + 3 * high) / 4
    moderator = Moderator(policy(folder, f"texts: {{model: texts, refuse: {{xray: {least}}}}}"))
    moderator.check_texts({"--prompt": f"{letters[0]} " * 40, "--script": ""})
    with pytest.raises(RefusedError, match=r"--prompt is refused: xray 0\.\d\d, from 0\.\d+ on"):
        moderator.check_texts({"--prompt": f"{letters[0]} " * 40 + f"{letters[1]} " * 40})


def test_a_classifier_refuses_pictures_at_times(folder: Path) -> None:
    scores = picture_scores(PICTURES, str(folder / "pictures"))[:, 1]
    every_s = "pictures: {model: pictures, refuse: {bad: %s}, every_s: 1}"
    *_, second, worst = sorted(range(0, 60, 25), key=scores.__getitem__)
    least = float(scores[second] + scores[worst]) / 2
    moderator = Moderator(policy(folder, every_s % least))
    with pytest.raises(RefusedError, match=rf"the video at {worst / 25:.1f} s is refused: bad 0"):
        moderator.check_video("the video", PICTURES)
    others = PICTURES[[i for i in range(60) if scores[i] < least - 1e-3]]
    moderator.check_pictures("me.mp4", others)
    moderator.check_video("the video", PICTURES[worst : worst + 10], first=1)  # between two looks


def test_a_score_that_is_no_number_refuses(folder: Path, tmp_path: Path) -> None:
    picture_classifier(tmp_path / "broken", "good", "bad")
    weights = tmp_path / "broken" / "model.safetensors"
    state = load_file(weights)
    save_file({name: x * torch.nan for name, x in state.items()}, weights, {"format": "pt"})
    rule = policy(tmp_path, "pictures: {model: broken, refuse: {bad: 1}}")
    with pytest.raises(RefusedError, match="bad nan"):
        Moderator(rule).check_pictures("me.mp4", PICTURES[:1])
    del state["classifier.weight"]
    picture_classifier(tmp_path / "headless", "good", "bad")
    save_file(state, tmp_path / "headless" / "model.safetensors", {"format": "pt"})
    rule = policy(tmp_path, "pictures: {model: headless, refuse: {bad: 1}}")
    with pytest.raises(ValueError, match=r"lacks classifier\.weight; expected a picture classif"):
        Moderator(rule)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "is an object, got None"),
        ("words: []", "refuses nothing"),
        ("words: ['?!']", "'\\?!' has no letter"),
        ("word: [x]", r"unknown keys \['word'\]"),
        ("words: [x]\nwords: [y]", "the key .words. is there twice"),
        ("words: &a [x, *a]", "aliases .* make more than"),
        ("texts: {model: texts, refuse: {rude: 0.5}}", "no label 'rude'; it has 'xray', 'yes'"),
        ("texts: {model: texts, refuse: {xray: 2}}", "refuse: xray is a finite number from 0 to 1"),
        ("texts: {model: texts, refuse: {}}", "refuse names no label"),
        ("texts: {model: texts, refuse: {xray: 1}, every_s: 1}", "unknown keys .'every_s'."),
        ("texts: {model: pictures, refuse: {bad: 1}}", "lacks tokenizer_config.json; .*toxic-bert"),
        ("pictures: {model: gone, refuse: {bad: 1}}", "lacks config.json.*Falconsai/nsfw_image"),
        ("pictures: {refuse: {bad: 1}}", "missing keys"),
        ("words: [x]\nspeech: {model: gone}", "speech: .*gone lacks config.*whisper-small"),
        ("pictures: {model: pictures, refuse: {bad: 1}}\nspeech: {model: ear}", "neither"),
    ],
)
def test_what_a_policy_may_not_say(folder: Path, text: str, error: str) -> None:
    with pytest.raises(ValueError, match=f"policy.yaml.*{error}"):
        read_policy(policy(folder, text))


def test_speech_is_read_to_its_end_and_judged_as_a_text(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A phrase that lies where two parts meet is heard whole in one of them."""
    recogniser(folder / "ear", "a")
    moderator = Moderator(policy(folder, "words: [a]\nspeech: {model: ear}"))
    with pytest.raises(RefusedError, match=r"me\.wav from 0 s on is refused: it has 'a'"):
        moderator.check_speech("me.wav", torch.zeros(16_000), 16_000)
    Moderator(policy(folder, "words: [a]")).check_speech("me.wav", torch.zeros(16_000), 16_000)

    monkeypatch.setattr(
        "avatar_v.safety.moderation.heard_in", lambda x, _: "a" if x.sum() == 4 * 16_000 else ""
    )
    for at_s, first_s in ((0, 0), (28, 25), (61, 50)):
        sound = torch.zeros(65 * 16_000)
        sound[16_000 * at_s :][: 4 * 16_000] = 1
        with pytest.raises(RefusedError, match=rf"from {first_s} s on"):
            moderator.check_speech("me.wav", sound, 16_000)
    # in whichever channel: what the networks take of them need not be all that is delivered
    delivered = Delivered(torch.stack([-sound, sound], 1).flatten(), SoundFormat(layout="stereo"))
    image, silent = torch.zeros(3, 8, 8, dtype=torch.uint8), torch.zeros(len(sound))
    inputs = Inputs(image, silent, 65 * 25, None, (), delivered=delivered)
    with pytest.raises(RefusedError, match=r"me\.wav from 50 s on"):
        check_inputs(moderator, Request.of(reference="me.png", audio="me.wav"), inputs, 25)


@pytest.mark.skipif(find_spec("pocketsphinx") is None, reason="needs pocketsphinx")
def test_pocketsphinx_hears_what_the_drawn_voice_says(folder: Path) -> None:
    said, _ = speak_text("we opened the old window and my father made some bread", "drawn", seed=0)
    rule = "words: [%s made some bread]\nspeech: {model: pocketsphinx}"
    Moderator(policy(folder, rule % "mother")).check_speech("said.wav", said, 16_000)
    with pytest.raises(RefusedError, match="it has 'father made some bread'"):
        Moderator(policy(folder, rule % "father")).check_speech("said.wav", said, 16_000)
