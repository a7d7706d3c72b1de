"""Voices that are trained here: their corpus, rewards, recipes and study."""

import argparse
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from avatar_v import cli
from avatar_v.critics import voice as network
from avatar_v.engines.checks import check_engine
from avatar_v.engines.cloning import phonemes_of
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.voices import espeak
from avatar_v.voices.codec import VoiceCodec
from avatar_v.voices.corpus import corpus_files, read_recordings, write_recordings
from avatar_v.voices.model import VoiceModel, vector_of
from avatar_v.voices.rewards import REWARDS
from avatar_v.voices.sequences import encode_voices
from avatar_v.voices.shipped import TRAINED
from avatar_v.world.lexicon import sentence_split
from avatar_v_data.voice_corpus import FLITE, drawn, is_drawn, language_of, prose, recordings
from avatar_v_eval.human.study_file import load_study
from avatar_v_eval.studies import voices
from voice_models import tiny_codec, tiny_voice

TEXTS = [text for text in prose() if sentence_split(text.lower()) == "train"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sentences of each of three drawn voices."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = [row for number in (0, 2, 4) for row in recordings(number, 2, TEXTS)]
    write_recordings(folder / "a.parquet", rows)
    return folder


def test_recordings_come_back_with_phonemes_in_time(corpus: Path, tmp_path: Path) -> None:
    found = list(read_recordings(corpus_files(corpus)))
    assert [one.number for one in found] == [0, 0, 2, 2, 4, 4]
    again = list(recordings(2, 2, TEXTS))
    for one, other in zip(found[2:4], again, strict=True):
        assert (one.text, one.phonemes) == (other.text, other.phonemes)
        assert np.abs(one.sound - other.sound).max() <= 1 / 65536
        assert 0 < one.stops_s[-1] <= one.seconds + 0.2
    write_recordings(tmp_path / "a.parquet", found[1:])
    with pytest.raises(ValueError, match=r"a\.parquet: voice 0 has one sentence"):
        next(encode_voices(tmp_path, tiny_codec()))
    (tmp_path / "b.parquet").write_bytes(b"no table")
    with pytest.raises(ValueError, match="no file of a corpus"):
        list(read_recordings([tmp_path / "b.parquet"]))
    with pytest.raises(ValueError, match="avatar-v-data voices"):
        corpus_files(tmp_path / "none")


def test_each_language_has_numbers_of_all_kinds() -> None:
    languages = ("en", "de")
    of_english = [n for n in range(400) if language_of(n, languages) == "en"]
    assert {is_drawn(n) for n in of_english} == {True, False}
    assert {n // 2 % len(FLITE) for n in of_english if not is_drawn(n)} == set(range(len(FLITE)))
    assert 150 < len(of_english) < 250


@pytest.mark.skipif(not espeak.is_available(), reason=espeak.HOW_TO_INSTALL)
def test_other_languages_and_emotions_are_spoken_in_time() -> None:
    pytest.importorskip("pyworld")
    pytest.importorskip("faker")
    found = phonemes_of("Gute Nacht, Bücher.", "de")
    assert found[:4] == ["G", "UW", "T", "AH"]
    assert found[-1] == "SIL"
    (plain,), (again,) = (list(recordings(3, 1, TEXTS, "de", felt)) for felt in (0.0, 1.0))
    assert plain.language == again.language == "de"
    assert abs(plain.stops_s[-1] - plain.seconds) < 0.05
    assert (plain.emotion, again.text) == ("neutral", plain.text)
    longer = {"glad": (0.9, 1), "angry": (0.8, 0.95), "sad": (1.1, 1.4)}[again.emotion]
    assert longer[0] < again.seconds / plain.seconds < longer[1]
    assert abs(again.stops_s[-1] - again.seconds) < 0.05


def test_the_study_of_voices_compares_models_with_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not network.is_available():
        pytest.skip(network.HOW_TO_INSTALL)
    pytest.importorskip("pocketsphinx")
    pytest.importorskip("pyworld")
    monkeypatch.setattr("avatar_v.voices.model.MOST_FRAMES", 2)
    rows = [drawn(number, "My day is long.", seed) for number in (0, 2) for seed in range(4)]
    (tmp_path / "corpus").mkdir()
    write_recordings(tmp_path / "corpus" / "a.parquet", rows)
    tiny_voice(tiny_codec()).save(tmp_path / "model")
    words = ["--corpus", str(tmp_path / "corpus"), "--models", f"ours={tmp_path / 'model'}"]
    words += ["--speakers", "2", "--said", "1", "--timed", "2"]
    parser = argparse.ArgumentParser()
    voices.add_options(parser)
    words += ["--listening", str(tmp_path / "heard")]
    found = voices.measure(parser.parse_args(words)).numbers
    assert found["own_true"].value > found["own_ours"].value
    assert found["phonemes_true"].value < found["phonemes_ours"].value
    assert found["length_true"].value < 0.02
    assert found["first_sound"].value < found["real_time"].value * 100
    study = load_study(tmp_path / "heard")
    assert [system.name for system in study.systems] == ["true", "rebuilt", "ours"]
    with pytest.raises(ValueError, match="has 2 voices, and 3 are asked for"):
        voices.read_speakers(tmp_path / "corpus", 3, 1)


def test_rewards_tell_speech_from_what_is_not(corpus: Path) -> None:
    if not network.is_available():
        pytest.skip(network.HOW_TO_INSTALL)
    pytest.importorskip("pocketsphinx")
    one, other = list(read_recordings(corpus_files(corpus)))[:2]
    sound = torch.from_numpy(one.sound.copy())
    noise = 0.1 * torch.randn(len(sound), generator=torch.Generator().manual_seed(0))
    vector = vector_of(torch.from_numpy(other.sound.copy()))
    stops = [round(stop * 25) for stop in one.stops_s]
    rows = [
        {"sound": x, "phonemes": one.phonemes, "spans": list(itertools.pairwise([0, *stops])),
         "num_frames": len(x) // SAMPLES_PER_FRAME, "expected": num, "vector": vector}
        for x, num in ((sound, len(sound) / SAMPLES_PER_FRAME), (noise, 10.0))
    ]  # fmt: skip
    for name, reward in REWARDS.items():
        good, bad = map(reward, rows)
        assert good > bad + 0.1, name
    assert REWARDS["rate"](rows[0]) == pytest.approx(0, abs=0.02)


def test_the_recipes_train_at_their_smallest(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl")
    pytest.importorskip("pyworld")
    if not network.is_available():
        pytest.skip(network.HOW_TO_INSTALL)
    recipes = Path(__file__).parents[2] / "recipes" / "voices"
    monkeypatch.chdir(tmp_path)
    both = [f"--data.init_args.{name}={corpus}" for name in ("train", "validation")]
    words = [*both, "--trainer.max_steps", "3"]
    words += ["--data.init_args.batches_per_epoch", "3", "--data.init_args.batch_size", "2"]
    words += ["--model.init_args.optim.num_warmup_steps", "1", "--trainer.accelerator", "cpu"]
    sizes = {"num_codebooks": 3, "codebook_size": 16, "encoder_width": 16, "decoder_width": 16}
    words += [f"--model.init_args.codec.{name}={value}" for name, value in sizes.items()]
    assert cli.main(["run", str(recipes / "codec.yaml"), *words]) == 0
    losses = Path("runs/voice_codec/loss.csv").read_text().splitlines()
    assert len(losses) == 4
    words += ["--model.init_args.adversarial.weight", "{0: 0.0, 1: 0.2}"]
    assert cli.main(["run", str(recipes / "codec_decoder.yaml"), *words]) == 0
    before, found = (VoiceCodec.load(f"runs/voice_codec{n}/codec") for n in ("", "_decoder"))
    assert found.config.codebook_size == 16
    assert found.codes_hash() == before.codes_hash()
    assert not torch.equal(found.head.weight, before.head.weight)

    words = ["run", str(recipes / "sft.yaml"), "--corpus", str(corpus), "--validation", str(corpus)]
    words += ["--model", "{width: 32, num_layers: 1, num_heads: 2}", "--passes", "1"]
    sizes = {"max_steps": 2, "per_device_train_batch_size": 2, "eval_steps": 2, "save_steps": 1}
    words += [f"--trainer.{name}={value}" for name, value in {**sizes, "warmup_steps": 1}.items()]
    assert cli.main(words) == 0
    assert check_engine("runs/voice_sft/voice") == "llama"
    assert cli.main(words) == 2, "the folder holds a run"
    assert cli.main([*words, "--ckpt_path", "last"]) == 0
    assert cli.main([*words, "--ckpt_path", "last", "--trainer.max_stepz=3"]) == 2
    assert cli.main([*words, "--model.width=33"]) == 2

    slim = ["weights", "slim", "runs/voice_sft/voice", "--out", "slim", "--error", "llama=2e-2"]
    assert cli.main(slim) == 0
    assert cli.main([*slim, "codec=1e-3"]) == 2, "slim is there"
    assert cli.main([*slim[:4], "other", "--error", "vae=1e-3"]) == 2
    whole, packed = (VoiceModel.load(f, TRAINED) for f in ("runs/voice_sft/voice", "slim"))
    packed_state = packed.llama.state_dict()
    for name, value in whole.llama.state_dict().items():
        assert (packed_state[name] - value).norm() <= 2.01e-2 * value.norm(), name
    assert packed.codec.codes_hash() == whole.codec.codes_hash(), "without an error it is exact"
    on = [*words, "--init_from", "slim", "--out", "on", "--trainer.learning_rate=0"]
    assert cli.main(on) == 2, "whose codec?"
    assert cli.main([*on, "--codec", "null"]) == 0
    same = VoiceModel.load("on/voice", TRAINED)
    assert torch.equal(same.speaker.centres, whole.speaker.centres)
    assert all(torch.equal(packed_state[k], v) for k, v in same.llama.state_dict().items())

    pytest.importorskip("pocketsphinx")
    monkeypatch.setattr("avatar_v.voices.model.MOST_FRAMES", 2)
    words = ["run", str(recipes / "grpo.yaml"), "--corpus", str(corpus)]
    sizes = {"max_steps": 2, "per_device_train_batch_size": 2, "num_generations": 2}
    words += [f"--trainer.{name}={value}" for name, value in {**sizes, "warmup_steps": 0}.items()]
    assert cli.main(words) == 0
    before, after = (load_file(f"runs/voice_{n}/voice/model.safetensors") for n in ("sft", "grpo"))
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert cli.main([*words, "--out", "again", "--rewards", "{loudness: 1.0}"]) == 2
