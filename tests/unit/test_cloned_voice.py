"""A recorded voice: models that clone, from folders; the file of a voice; whose voice it is."""

import dataclasses
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from avatar_v import cli
from avatar_v.critics import voice as network
from avatar_v.engines.checks import CLONING, CODEC, check_engine
from avatar_v.engines.cloned_voice import MOST_LETTERS, ClonedVoice, split_pieces
from avatar_v.engines.cloning import VoicePrompt, engine_rate_hz, load_engine
from avatar_v.engines.drawn_voice import DrawnVoice
from avatar_v.engines.voice import speak_script
from avatar_v.engines.voice_file import read_voice
from avatar_v.inputs.consented import request_records
from avatar_v.inputs.voice_recording import record_voice
from avatar_v.media import reading
from avatar_v.media.writer import write_wav
from avatar_v.request.checks import check_request
from avatar_v.request.request import LIVE, Request
from avatar_v.safety import statement
from avatar_v.safety.consent import FILMED, SUFFIX, VERSION, Consent, save_consent
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.voices.shipped import DEFAULT_ENGINE
from cloning_models import save_csm, save_dia, save_pocket

VOICES = (263, 165)
"""A low one and a high one: the drawn voices of one sex are all alike to the network."""
WORDS = "We opened the old window this morning, and then my father made some warm bread for us."
TORCHAUDIO = """
from types import SimpleNamespace
from avatar_v.media.sound import resampled
def resample(sound, from_hz, to_hz):
    return resampled(sound.flatten(), from_hz, to_hz).reshape(1, 1, -1)
functional = SimpleNamespace(resample=resample)
"""
has_voices = pytest.mark.skipif(
    importlib.util.find_spec("resemblyzer") is None, reason=network.HOW_TO_INSTALL
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cloned")
    save_pocket(folder / "pocket")
    for number in VOICES:
        write_wav(folder / f"{number}.wav", DrawnVoice(number).speak(WORDS, seed=1))
    words = ["voice", str(folder / "263.wav"), "--transcript", WORDS]
    words += ["--engine", str(folder / "pocket"), "--out", str(folder / "me.voice")]
    assert cli.main(words) == 0
    assert cli.main(words) == 2, "the file exists"
    return folder


@pytest.mark.parametrize(
    ("save", "rate_hz"), [(save_csm, 24_000), (save_dia, 44_100), (save_pocket, 24_000)]
)
def test_each_family_continues_a_prompt(
    save: Callable[[Path], None], rate_hz: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("avatar_v.engines.cloning.MARGIN_S", 0.1)
    save(tmp_path)
    continues_a_prompt(tmp_path, rate_hz)


def continues_a_prompt(folder: Path, rate_hz: int) -> None:
    """By the seed alone, and by the prompt: another sound gives another continuation."""
    assert engine_rate_hz(folder) == rate_hz
    model = load_engine(folder)
    noise = 0.1 * torch.randn(3 * rate_hz, generator=torch.Generator().manual_seed(0))

    def said(seed: int, sound: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(seed)
        return model.say("No.", VoicePrompt(sound, rate_hz, "We said so."))

    one, again, other = said(1, noise), said(1, noise), said(2, noise)
    assert one.dtype == torch.float32
    assert 0.1 < len(one) / rate_hz < 1
    assert torch.equal(one, again)
    for changed in (other, said(1, 5 * noise.flip(0))):
        assert len(changed) != len(one) or not torch.equal(changed, one)
    if (folder / CODEC).exists():
        (folder / CODEC / "model.safetensors").unlink()
        with pytest.raises(ValueError, match=rf"lacks {CODEC}/model\.safetensors; expected "):
            check_engine(folder)


def test_higgs_audio_continues_a_prompt(tmp_path: Path) -> None:
    """In a process with a stand-in for torchaudio, whose wheels on the registry need CUDA. Of it,
    the codec takes a resampler."""
    (tmp_path / "torchaudio.py").write_text(TORCHAUDIO)
    program = f"""
from pathlib import Path
import cloning_models, test_cloned_voice
from avatar_v.engines import cloning
cloning.MARGIN_S = 0.1
cloning_models.save_higgs(Path({str(tmp_path)!r}))
test_cloned_voice.continues_a_prompt(Path({str(tmp_path)!r}), 24_000)
"""
    tests = Path(__file__).parent
    path = os.pathsep.join([str(tmp_path), str(tests), str(tests.parent), *sys.path])
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr


def test_a_package_that_a_family_needs_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = CLONING["higgs_audio_v2"]
    for name in (*kind.files, "model.safetensors", f"{CODEC}/model.safetensors"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"model_type": "higgs_audio_v2"}')
    monkeypatch.setattr("avatar_v.engines.checks.find_spec", lambda name: None)
    with pytest.raises(ValueError, match="higgs_audio_v2 needs torchaudio: pip install torchaudio"):
        check_engine(tmp_path)


def test_a_text_is_said_in_pieces_of_whole_sentences() -> None:
    text = "One. Two? " + "a" * (MOST_LETTERS - 5) + " b c d.\n\n…\n\nThree!"
    assert split_pieces(text) == ["One.", "Two?", "a" * (MOST_LETTERS - 5) + " b c", "d. … Three!"]


def test_a_voice_says_a_script(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line, at the project's rate; also where the model has moved."""
    out, voice = folder / "out.wav", str(folder / "me.voice")
    words = ["speak", "--voice", voice, "--script", "No. Bye!", "--no-watermark"]
    assert cli.main([*words, "--out", str(out)]) == 0
    sound, said = speak_script("No. Bye!", voice, seed=0, engine=str(folder / "pocket"))
    assert torch.equal(reading.read_audio(out), sound)
    assert (said.engine, said.voice) == ("ClonedVoice", voice)
    assert len(sound) > SAMPLE_RATE_HZ / 2
    monkeypatch.setattr("avatar_v.engines.cloned_voice.MOST_LETTERS", 6)
    cloned = ClonedVoice(voice)
    pieces = list(cloned.pieces("No. Bye!", seed=0))
    assert len(pieces) == 4, "each is there before the next is made, and pauses between"
    assert torch.equal(torch.cat(pieces), cloned.speak("No. Bye!", seed=0))
    with pytest.raises(ValueError, match=r"\[sad\], are followed by a \.voice of a model of"):
        cloned.pieces("[sad] No.", seed=0)  # before it is asked for the first piece


def test_a_voice_file_is_of_its_model_alone(folder: Path, tmp_path: Path) -> None:
    recorded = read_voice(folder / "me.voice")
    length_s = len(recorded.sound) / recorded.about.rate_hz
    heard = reading.read_audio(folder / "263.wav")
    assert length_s == pytest.approx(len(heard) / SAMPLE_RATE_HZ, abs=0.01)
    assert (folder / "me.voice").stat().st_mode & 0o77 == 0
    shutil.copytree(folder / "pocket", tmp_path / "other")
    weights = load_file(tmp_path / "other" / "model.safetensors")
    weights = {name: x + 1 if x.is_floating_point() else x for name, x in weights.items()}
    save_file(weights, tmp_path / "other" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"me\.voice is for another model"):
        ClonedVoice(str(folder / "me.voice"), str(tmp_path / "other"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, a: t.update(sound=t["sound"][:100]), "sound or vector is not as"),
        (lambda t, a: t.update(sound=t["sound"].float()), "sound or vector is not as"),
        (lambda t, a: t.update(vector=torch.full((256,), torch.nan)), "sound or vector is not as"),
        (lambda t, a: t.update(more=torch.zeros(1)), "no voice file of this version"),
        (lambda t, a: a.update(version=2), "version"),
        (lambda t, a: a.update(transcript=" "), "the script has no words"),
    ],
)
def test_a_damaged_voice_file_is_refused(
    change: Callable[[dict, dict], None], message: str, folder: Path, tmp_path: Path
) -> None:
    recorded = read_voice(folder / "me.voice")
    tensors, about = {"sound": recorded.sound}, dataclasses.asdict(recorded.about)
    if recorded.vector is not None:
        tensors["vector"] = recorded.vector
    change(tensors, about)
    save_file(tensors, tmp_path / "x.voice", {"about": json.dumps(about)})
    with pytest.raises(ValueError, match=message):
        read_voice(tmp_path / "x.voice")


def test_what_is_no_voice_is_one_error(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    speech, pocket = reading.read_audio(folder / "263.wav"), str(folder / "pocket")
    quiet = speech[: 4 * SAMPLE_RATE_HZ] / 1000
    pauses = torch.cat([speech[: 2 * SAMPLE_RATE_HZ], torch.zeros(6 * SAMPLE_RATE_HZ)])
    cases = {
        "short": (speech[:40_000], r"lasts 2\.5 s; a voice is 3 to 30 s"),
        "quiet": (quiet, r"is too quiet \(-8\d LUFS, at least -50\)"),
        "pauses": (pauses, "somebody speaks for "),
    }
    monkeypatch.setattr(network, "is_available", lambda: False)
    for name, (sound, message) in cases.items():
        if name != "pauses" or statement.has_silero():
            write_wav(tmp_path / f"{name}.wav", sound)
            with pytest.raises(ValueError, match=message):
                record_voice(tmp_path / f"{name}.wav", transcript=WORDS, engine=pocket)
    (tmp_path / "vits").mkdir()
    (tmp_path / "vits" / "config.json").write_text('{"model_type": "vits"}')
    words = ["speak", "--script", "yes", "--out", str(tmp_path / "out.wav")]
    for more, message in (
        (["--voice", "no.voice"], "no.voice: no such file; make one with avatar-v voice"),
        (["--engine", pocket], "--engine says a --voice of a file that ends in .voice, not drawn"),
        (["--voice", pocket], "holds a model of the kind 'pocket_tts', expected vits"),
        (["--voice", str(folder / "me.voice"), "--engine", str(tmp_path / "vits")],
         "holds a model of the kind 'vits', expected csm or dia or higgs_audio_v2 or pocket_tts"),
        (["--voice", str(folder / "me.voice"), "--engine", str(tmp_path)],
         "lacks config.json; expected CSM as transformers saves it"),
    ):  # fmt: skip
        assert cli.main([*words, *more]) == 2
        assert message in capsys.readouterr().err


def test_two_voices_are_no_voice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A window or two may sound unlike the rest; a fifth of them is a second speaker."""
    vectors = np.eye(256)[[0, 0, 1, 0, 0, 0, 0, 0, 0, 1]]
    monkeypatch.setattr(network, "is_available", lambda: True)
    monkeypatch.setattr(network, "weights_hash", lambda: "")
    monkeypatch.setattr(network, "vectors_of", lambda sound: vectors)
    how = {"transcript": WORDS, "engine": str(folder / "pocket")}
    with pytest.raises(ValueError, match=r"2 voices are heard \(the second for 20% of it\)"):
        record_voice(folder / "263.wav", **how)
    vectors[2] = vectors[0]
    voice, _ = record_voice(folder / "263.wav", **how)
    assert voice.vector is not None
    assert float(voice.vector[0]) == 1


@has_voices
def test_the_voice_that_ships_speaks_as_who_was_recorded(folder: Path, tmp_path: Path) -> None:
    """The file names the model, wherever the package lies."""
    me, said = tmp_path / "me.voice", tmp_path / "said.wav"
    recording = str(folder / f"{VOICES[0]}.wav")
    assert cli.main(["voice", recording, "--transcript", WORDS, "--out", str(me)]) == 0
    assert read_voice(me).about.engine == DEFAULT_ENGINE
    text = "Good morning, and thank you all for the warm bread."
    assert cli.main(["speak", "--script", text, "--voice", str(me), "--out", str(said)]) == 0
    sound = reading.read_audio(said)
    assert 1.5 < len(sound) / SAMPLE_RATE_HZ < 6
    own, other = (reading.read_audio(folder / f"{number}.wav") for number in VOICES)
    near, far = (
        np.dot(*(network.mean_vector(network.vectors_of(each)) for each in (sound, one)))
        for one in (own, other)
    )
    assert near > far


@has_voices
def test_a_voice_is_of_who_has_agreed(folder: Path, tmp_path: Path) -> None:
    """The request is refused before it speaks, whatever the file says of itself."""
    own, other = (
        tuple(network.mean_vector(network.vectors_of(reading.read_audio(folder / f"{number}.wav"))))
        for number in VOICES
    )
    assert 1 - np.dot(own, other) > network.SAME_VOICE

    def recorded(name: str, voice: tuple[float, ...] | None) -> str:
        path = tmp_path / f"{name}{SUFFIX}"
        record = Consent(
            VERSION, name, "2026-01-01", "2127-01-01", "", "", None, "", FILMED, "", (),
            None if voice is None else tuple(map(float, voice)),
            None if voice is None else network.weights_hash(),
        )  # fmt: skip
        save_consent(path, record)
        return str(path)

    ada, grace, nobody = recorded("Ada", own), recorded("Grace", other), recorded("Ida", None)
    how = {"transcript": WORDS, "engine": str(folder / "pocket")}
    voice, _ = record_voice(folder / "263.wav", **how, consent=[grace, ada])
    assert voice.about.person == "Ada"
    for records, message in (([grace], "is of nobody who has agreed"), ([nobody], "name no voice")):
        with pytest.raises(ValueError, match=message):
            record_voice(folder / "263.wav", **how, consent=records)

    def asked(*consent: str, audio: str | None = None) -> tuple[list[str], tuple[str, ...]]:
        request = Request.of(
            reference=str(folder / "263.wav"), voice=str(folder / "me.voice"), consent=consent,
            audio=audio, script=None if audio else "yes",
        )  # fmt: skip
        check_request(request)
        records, notes = request_records(request.person)
        return [record.consent.person for record in records], notes

    assert asked(grace, nobody, ada) == (["Ada"], ())
    assert asked(nobody)[0] == ["Ida"]
    assert "whether its speaker has agreed was not compared" in asked(nobody)[1][0]
    for audio in (None, LIVE):  # a script, and the texts of a conversation
        with pytest.raises(ValueError, match=r"in it is of nobody who has agreed \(1 record"):
            asked(grace, audio=audio)
