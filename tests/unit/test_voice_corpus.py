"""A corpus of voices: what is made once, goes on, and is refused."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from avatar_v.voices.corpus import Recording, corpus_files, read_recordings, write_recordings
from avatar_v.world.lexicon import sentence_split
from avatar_v_data import voice_corpus
from avatar_v_data.voice_corpus import (
    make_corpus,
    prose,
    recordings,
)
from avatar_v_eval.studies import voices

TEXTS = [text for text in prose() if sentence_split(text.lower()) == "train"]


@pytest.mark.skipif(shutil.which("flite") is None, reason="flite is not installed")
def test_recorded_voices_differ_and_a_stopped_corpus_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("pyworld")
    make_corpus(tmp_path, "train", 3, 1, texts=TEXTS)
    (path,) = corpus_files(tmp_path)
    before = path.stat().st_mtime_ns
    make_corpus(tmp_path, "train", 3, 1, texts=TEXTS)
    assert path.stat().st_mtime_ns == before
    own, flite, _ = read_recordings([path])
    assert own.voice == "drawn 0"
    assert flite.voice == "awb 1"
    assert flite.phonemes[0] == "SIL"
    assert abs(flite.stops_s[-1] - flite.seconds) < 0.2
    with pytest.raises(ValueError, match="no sentence"):
        make_corpus(tmp_path / "x", "test", 1, 1, texts=TEXTS[:1])


def test_a_corpus_has_each_voice_once_and_one_set_of_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def say(number: int, num: int, *_: object) -> Iterator[Recording]:
        made.append(number)
        for i in range(num):
            yield Recording(number, "", f"{number} {i}", np.zeros(9, np.float32), ("SIL",), (0.1,))

    monkeypatch.setattr(voice_corpus, "recordings", say)
    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(voice_corpus.importlib.util, "find_spec", lambda name: name)

    def make(num: int, **how: Any) -> None:
        how = {"first": 0, "texts": TEXTS, **how}
        make_corpus(tmp_path, "train", num, 1, **how)

    make(30)
    make(30)
    make(10, first=30, emotions=0.6)
    assert made == list(range(40))
    with pytest.raises(ValueError, match="holds voices of these numbers: voices-0000020-10x1"):
        make(31)
    with pytest.raises(ValueError, match="holds voices of these numbers"):
        make(10, first=29)
    with pytest.raises(ValueError, match="say other texts"):
        make(10, first=40, texts=[*TEXTS, *prose()])
    with pytest.raises(ValueError, match="say other texts"):
        make(30, texts=[*TEXTS, *prose()])
    rows = list(read_recordings(corpus_files(tmp_path)))
    assert [row.number for row in rows] == made == list(range(40))
    write_recordings(tmp_path / "zzz.parquet", rows[:1])
    with pytest.raises(ValueError, match="voice 0 is in two files"):
        voices.read_speakers(tmp_path, 1, 1)


def test_a_voice_that_can_say_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds = list[int]()

    def foreign(number: int, language: str, seed: int) -> Recording:
        seeds.append(seed)
        raise ValueError("espeak-ng says ʘ")

    monkeypatch.setattr(voice_corpus, "foreign", foreign)
    with pytest.raises(ValueError, match=r"voice 7 can say none of 100 sentences \(de\): .* ʘ"):
        list(recordings(7, 1, TEXTS, "de"))
    assert len(set(seeds)) == 100
