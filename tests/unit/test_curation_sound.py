"""What the data engine hears of a clip: voices, words, the language, and how clean it is."""

import importlib
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.critics import voice as network
from avatar_v.critics.voice import VoiceEncoder, levelled, mel_powers, voices
from avatar_v.media.reading import read_audio
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.world.speech import say
from avatar_v.world.splits import persons, sentences
from avatar_v.world.style import sample_style
from avatar_v.world.voice import sample_voice
from avatar_v_data.curation.language import LanguageStage, languages
from avatar_v_data.curation.passes import examine
from avatar_v_data.curation.sound_quality import SoundQualityStage
from avatar_v_data.curation.sounds import SoundStage, sound_scores
from avatar_v_data.curation.speech import spoken_in
from avatar_v_data.curation.stages import (
    Clip,
    FootageRecording,
    Result,
    Seen,
    SoundScorer,
    Stage,
)
from avatar_v_data.curation.voice import VoiceStage, _turns
from avatar_v_data.curation.words import WordStage
from avatar_v_eval.intervals import mean_interval
from avatar_v_eval.studies import sound as sound_study
from avatar_v_eval.studies.sound import FLITE, TEXTS, _judged
from classifiers import recogniser, sound_classifier, whisper
from curation_stubs import undeclared

FILE = FootageRecording("x.wav", "x.wav", "")
has_voices = pytest.mark.skipif(
    importlib.util.find_spec("resemblyzer") is None, reason=network.HOW_TO_INSTALL
)


def drawn(person: int, num_frames: int) -> Tensor:
    """A drawn person speaks."""
    who = persons("train", 1, person)[0]
    speech = say(sentences("train", 1, 7)[0], sample_voice(who), sample_style(who), num_frames)
    return speech.audio


def heard(stage: Stage, audio: Tensor, speech: list[list[float]], *spans: tuple[int, int]) -> list:
    """What a stage says of clips of a sound, in which somebody speaks where it is said."""
    seen = Seen(FILE)
    seen.audio = audio
    clips = [{"start": a, "stop": b} for a, b in spans or [(0, len(audio) // SAMPLES_PER_FRAME)]]
    seen.results = {"speech": {"speech": speech}, "clips": {"clips": clips}}
    rows = stage.begin(seen).finish()["clips"]
    assert not [name for row in rows for name in undeclared(stage, row)]
    return rows


def test_mel_powers_are_those_of_librosa() -> None:
    """Numbers of librosa.feature.melspectrogram 0.11 of a tone that rises."""
    t = torch.arange(8000) / SAMPLE_RATE_HZ
    mels = mel_powers(0.1 * torch.sin(2 * torch.pi * (200 + 3000 * t) * t))
    assert mels.shape == (51, 40)
    rows = mels[[0, 10, 25, 50]].max(1)
    assert rows.indices.tolist() == [2, 10, 20, 28]
    expected = [0.4821438, 1.3537805, 0.63917834, 0.22434266]
    assert rows.values.tolist() == pytest.approx(expected, rel=1e-4)  # float32 sums of 400
    assert float(mels.sum()) == pytest.approx(65.44154, rel=1e-4)


@has_voices
def test_the_network_is_that_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its code imports webrtcvad and librosa, of which it is given our mel powers."""
    feature = SimpleNamespace(
        melspectrogram=lambda y, **_: mel_powers(torch.from_numpy(y)).numpy().T
    )
    for name, parts in (("webrtcvad", {}), ("librosa", {"feature": feature})):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
        vars(sys.modules[name]).update(parts)
    theirs = importlib.import_module("resemblyzer.voice_encoder").VoiceEncoder("cpu", verbose=False)
    quiet = drawn(3, 80) / 20
    sound = importlib.import_module("resemblyzer.audio").normalize_volume(
        quiet.numpy(), -30, increase_only=True
    )
    assert levelled(quiet).numpy() == pytest.approx(sound, abs=1e-6)
    _, parts, spans = theirs.embed_utterance(sound, return_partials=True)
    whole = F.pad(levelled(quiet), (0, max(spans[-1].stop - len(sound), 0)))
    ours = mel_powers(whole).unfold(0, 160, 77)[: len(parts)].transpose(1, 2)
    found = VoiceEncoder.from_package()(ours).numpy()
    assert found == pytest.approx(parts, abs=1e-5)  # of a unit vector, in float32
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    network.weights_hash.cache_clear()  # another test may have asked
    with pytest.raises(ValueError, match="pip install --no-deps Resemblyzer"):
        VoiceStage().weights()


def test_windows_are_grouped_by_voice_and_the_first_speaks_most() -> None:
    draw = np.random.default_rng(0)
    means = np.eye(256)[:3]
    who = [2, 0, 0, 1, 0, 2, 0]
    vectors = means[who] + 0.02 * draw.standard_normal((7, 256))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert voices(vectors, 0.3).tolist() == [1, 0, 0, 2, 0, 1, 0]
    assert voices(vectors, 1.5).tolist() == [0] * 7
    assert voices(vectors[:1], 0.3).tolist() == [0]


def test_turns_meet_in_the_middle_of_windows_that_overlap() -> None:
    windows = [[(0, 160), (80, 240), (160, 320)], [(400, 500)]]
    found = _turns(windows, np.array([1, 0, 0, 0]))
    assert found == [(0.0, 1.2, 1), (1.2, 3.2, 0), (4.0, 5.0, 0)]


def test_precision_is_of_what_was_found_and_recall_of_what_is_true() -> None:
    rows = [(True, True)] * 3 + [(True, False), (False, True), (False, True), (False, False)]
    numbers = _judged("x", "a voice", rows)
    assert {key: (n.value, n.n) for key, n in numbers.items()} == {
        "x_recall": (3 / 4, 4), "x_precision": (3 / 5, 5)
    }  # fmt: skip
    assert list(_judged("x", "a voice", [(True, False)])) == ["x_recall"], "nothing was found"


def test_speech_of_a_clip_is_told_in_its_own_seconds() -> None:
    clip = Clip(0, 50, 100, ())
    assert spoken_in([[0.0, 1.0], [1.5, 2.5], [3.0, 9.0]], clip) == [(0.0, 0.5), (1.0, 2.0)]


@has_voices
def test_a_second_voice_is_found_where_it_speaks() -> None:
    """Of two drawn people whose voices lie far apart."""
    one, other = drawn(106, 150), drawn(100, 100)
    sound = torch.cat([one, other])
    found = heard(VoiceStage(), sound, [[0.0, 10.0]], (0, 250), (0, 150), (150, 250), (250, 275))
    both, first, second, silent = found
    assert [row["speakers"] for row in found] == [2, 1, 1, 0]
    assert both["second_voice_share"] == pytest.approx(0.4, abs=0.1)
    ends = [[a, b] for a, b, who in both["turns"] if who == 0]
    assert ends[0][0] == 0
    assert ends[-1][1] == pytest.approx(6, abs=0.9)  # windows are 1.6 s long
    assert first["second_voice_share"] == second["second_voice_share"] == 0
    assert both["voice_spread"] > 1.1 * max(first["voice_spread"], second["voice_spread"])
    assert second["turns"][0][0] == 6, "seconds of the recording"
    near, far = (np.array(both["voice"]) @ np.array(row["voice"]) for row in (first, second))
    assert near > 0.95 > 0.85 > far
    assert "voice" not in silent


class Lengths(SoundScorer):
    """How long the sound of each clip is."""

    name, version, needs = "lengths", 1, ("clips",)

    def score(self, clip: Clip, seen: Seen) -> Result:
        return {"length": len(clip.sound(torch.zeros(5 * SAMPLES_PER_FRAME)))}


def test_sounds_are_heard_without_a_frame() -> None:
    """The file does not exist."""
    known = {"clips": {"clips": [{"start": 0, "stop": 3}, {"start": 3, "stop": 9}]}}
    found = examine(FILE, [Lengths()], known)
    assert found.results["lengths"] == {"clips": [{"length": 1920}, {"length": 3840}]}


def tone(hz: float, seconds: float, loud: float = 0.1) -> Tensor:
    t = torch.arange(round(seconds * SAMPLE_RATE_HZ)) / SAMPLE_RATE_HZ
    return loud * torch.sin(2 * torch.pi * hz * t)


@pytest.mark.skipif(importlib.util.find_spec("pocketsphinx") is None, reason="needs pocketsphinx")
def test_english_words_have_times_that_are_those_of_the_recording(tmp_path: Path) -> None:
    """The same words before and after another clip: no clip changes the next one's."""
    if shutil.which("flite") is None:
        pytest.skip("needs flite, which speaks")
    text, path = "please tell me where the nearest station is", tmp_path / "said.wav"
    subprocess.run(["flite", "-voice", "slt", "-t", text, str(path)], check=True)
    said = read_audio(path)[: 66 * SAMPLES_PER_FRAME]
    noise = 0.2 * torch.randn(25 * SAMPLES_PER_FRAME, generator=torch.Generator().manual_seed(0))
    sound = torch.cat([said, noise, said])
    rows = heard(WordStage(), sound, [[0.0, 2.5]], (0, 66), (66, 91), (91, 157))
    first, _, last = rows
    assert first["transcript"] == last["transcript"] == text
    assert first["num_words"] == 8
    assert first["words_per_s"] == pytest.approx(8 / 2.5, abs=1e-3)
    assert first["word_confidence"] == last["word_confidence"] > 0.7
    times = np.array([word[1:3] for word in first["words"]])
    assert (np.diff(times.ravel()) >= -0.02).all(), "one after the other"
    assert times[-1, 1] < 2.7
    later = np.array([word[1:3] for word in last["words"]])
    assert later == pytest.approx(times + 91 / 25, abs=0.011)  # they are rounded to 10 ms


def test_a_folder_with_a_recogniser_says_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"words: .* lacks config.*whisper-small"):
        WordStage(str(tmp_path)).weights()
    letters, other = recogniser(tmp_path / "ctc", "a"), whisper(tmp_path / "whisper", "en", "de")
    assert WordStage(letters).weights() != WordStage(other).weights()
    sound = tone(300, 4)
    _, row = heard(WordStage(letters), sound, [[2.0, 3.0]], (0, 25), (50, 100))
    assert (row["transcript"], row["words_per_s"]) == ("a", 1.0)
    assert row["words"] == [["a", 2.0, 4.0]], "without a probability"
    (row,) = heard(WordStage(other), sound, [[0.0, 4.0]])
    assert row["num_words"] == len(row["words"]) == len(row["transcript"].split()) > 0
    assert "word_confidence" not in row
    assert all(0 <= a <= b <= 4 for _, a, b in row["words"])


def test_the_language_is_that_of_the_token_a_whisper_finds_most_probable(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"language: .* lacks config.*Whisper of several"):
        LanguageStage(str(tmp_path)).weights()
    folder, sound = whisper(tmp_path / "whisper", "en", "de", "fr"), tone(300, 2)
    sure = languages(sound, folder)
    assert set(sure) == {"en", "de", "fr"}
    assert sum(sure.values()) == pytest.approx(1, abs=1e-5)
    (row,) = heard(LanguageStage(folder), sound, [])
    assert row["language_confidence"] == pytest.approx(max(sure.values()), abs=1e-4)
    assert sure[row["language"]] == max(sure.values())
    with pytest.raises(ValueError, match="knows one language; expected a Whisper of several"):
        languages(sound, whisper(tmp_path / "english"))


def test_sounds_are_told_by_the_labels_of_all_classifiers(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sounds: .* lacks config.*classifier of sounds"):
        SoundStage((str(tmp_path),)).weights()
    one = sound_classifier(tmp_path / "one", "real", "made")
    other = sound_classifier(tmp_path / "other", "music", "noise", "speech")
    sound = torch.cat([tone(300, 10), tone(3000, 10)])
    stage = SoundStage((one, other))
    (row,) = heard(stage, sound, [])
    assert list(row) == [f"sound_{x}" for x in ("real", "made", "music", "noise", "speech")]
    parts = [sound_scores(part, one) for part in sound.split(160_000)]
    assert row["sound_made"] == pytest.approx(max(part["made"] for part in parts), abs=1e-4)
    assert parts[0]["made"] != parts[1]["made"]
    assert len(set(stage.weights().split())) == 2
    with pytest.raises(ValueError, match="have the label 'made'"):
        heard(SoundStage((one, one)), sound, [])


def test_how_clean_a_sound_is_is_as_it_was_planted() -> None:
    noise = 0.01 * torch.randn(20 * SAMPLE_RATE_HZ, generator=torch.Generator().manual_seed(0))
    planted = tone(500, 20) * (torch.arange(320_000) // 16_000 % 2 == 0)  # every other second
    speech = [[float(n), n + 1.0] for n in range(0, 20, 2)]
    sound = torch.cat([planted + noise, planted, tone(100, 20, loud=3).clamp(-1, 1)])
    spans = [(0, 500), (500, 1000), (1000, 1500), (25, 50)]
    noisy, clean, clipped, silent = heard(SoundQualityStage(), sound, speech, *spans)
    assert noisy["snr_db"] == pytest.approx(10 * np.log10(0.5 * 0.1**2 / 0.01**2), abs=0.1)
    assert silent["snr_db"] == -60
    assert clean["bandwidth_hz"] == pytest.approx(500, abs=10)
    assert noisy["bandwidth_hz"] > 600
    share = 1 - 2 / np.pi * np.arcsin(0.99 / 3)  # of a sine, above a third of its height
    assert clipped["clipped_share"] == pytest.approx(share, abs=2e-3)
    assert noisy["clipped_share"] == 0


def test_word_error_rates_are_of_independent_voices(monkeypatch: pytest.MonkeyPatch) -> None:
    said = iter([text for voice in FLITE for text in TEXTS] + ["nothing"] * 2)
    silent = torch.zeros(640)
    monkeypatch.setattr(sound_study, "flite_says", lambda voice, text: silent)
    monkeypatch.setattr(sound_study, "heard", lambda stage, sound: {"transcript": next(said)})
    rates = iter([voice / 10 for voice in range(4) for _ in TEXTS] + [1.0] * 2)
    monkeypatch.setattr(sound_study, "word_errors_of", lambda said, found: next(rates))
    found = sound_study.word_errors(2)["word_errors_synthetic"]
    of_voices = mean_interval(np.array([0.0, 0.1, 0.2, 0.3]))
    assert (found.n, found.value) == (4, pytest.approx(0.15))
    assert (found.low, found.high) == pytest.approx((of_voices.low, of_voices.high))
