"""Speech of the world: timing, sound, visemes and style."""

import dataclasses
import inspect

import numpy as np
import pytest
import torch

from avatar_v.types import MOTION_NAMES, SAMPLE_RATE_HZ
from avatar_v.world import style as style_module
from avatar_v.world import viseme
from avatar_v.world.lexicon import (
    LEXICON,
    LIP_CLOSURES,
    PHONEME_ID,
    PHONEMES,
    TEMPLATES,
    VOWELS,
    sentence,
    sentence_split,
)
from avatar_v.world.motion import motion_track
from avatar_v.world.person import sample_person
from avatar_v.world.speech import Speech, frame_times_s, say
from avatar_v.world.splits import RANGES, persons, scenes, sentences, split_of
from avatar_v.world.style import HABIT_RANGES, STYLE_NAMES, Habits, sample_style
from avatar_v.world.timing import Phases
from avatar_v.world.viseme import CHANNELS, mouth_shape
from avatar_v.world.voice import sample_voice

OPEN = MOTION_NAMES.index("mouth_open")


def style_vector(style: Habits) -> np.ndarray:
    """Habits in the order of STYLE_NAMES, each scaled from its range to [-1, 1]."""
    values = []
    for name, value in zip(STYLE_NAMES, dataclasses.astuple(style)[1:], strict=True):
        low, high = HABIT_RANGES[name]
        values.append(2 * (value - low) / (high - low) - 1)
    return np.array(values, dtype=np.float32)


def speech_of(person: int, speech: int, num_frames: int = 101) -> Speech:
    return say(speech, sample_voice(person), sample_style(person), num_frames)


def test_lexicon_is_sound() -> None:
    words = [word for kind in LEXICON.values() for word in kind]
    assert len({word.text for word in words}) > 250
    assert {p for word in words for p in word.phonemes} == set(PHONEMES) - {"SIL", "BR"}
    assert all(word.stressed < 0 or word.phonemes[word.stressed] in VOWELS for word in words)
    assert {slot for t in TEMPLATES for slot in t.split()} - {"|", "?"} == set(LEXICON)


def test_no_sentence_belongs_to_two_splits() -> None:
    for name, ids in RANGES.items():
        texts = [sentence(ids[i], k).text for i in (0, 7, -1) for k in range(5)]
        assert {sentence_split(text) for text in texts} == {name}


def test_splits_are_disjoint() -> None:
    everyone = [i for ids in RANGES.values() for i in (ids[0], ids[-1])]
    assert len(set(everyone)) == 8
    assert [split_of(i) for i in everyone[::2]] == list(RANGES)
    assert [split_of(i) for i in everyone[1::2]] == list(RANGES)
    taken = [set(persons(name, 50)) for name in RANGES]
    assert len(set.union(*taken)) == 200
    assert scenes("test", 2, start=3) == sentences("test", 2, start=3) == [2_000_003, 2_000_004]


@pytest.mark.parametrize("bad", [-1, 3_000_000, 8_999_999, 10_000_000])
def test_ids_of_no_split_are_refused(bad: int) -> None:
    with pytest.raises(ValueError, match=str(bad)):
        split_of(bad)
    for make in (sample_voice, sample_style, lambda i: sentence(i, 0)):
        with pytest.raises(ValueError, match=str(bad)):
            make(bad)


def test_wrong_takes_are_refused() -> None:
    with pytest.raises(ValueError, match="split is one of"):
        persons("training", 1)
    with pytest.raises(ValueError, match="1000001"):
        persons("test", 1_000_001)


@pytest.mark.parametrize("num_frames", [1, 2, 101])
def test_lengths_are_exact(num_frames: int) -> None:
    speech = speech_of(3, 5, num_frames)
    assert speech.audio.shape == (640 * num_frames,)
    assert speech.audio.dtype == torch.float32
    assert speech.phonemes.shape == speech.stress.shape == (num_frames,)
    assert motion_track(speech, sample_style(3), seed=0).shape == (num_frames, len(MOTION_NAMES))


def test_no_frames_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 frame, got 0"):
        speech_of(3, 5, 0)


def test_audio_lies_on_the_16_bit_grid() -> None:
    audio = speech_of(1, 2).audio.double() * 32768
    assert torch.equal(audio, audio.round())
    assert audio.abs().max() < 32768
    assert audio.std() > 32768 * 0.005  # about -46 dB of full scale: it is not silence


def test_a_longer_speech_begins_with_the_shorter() -> None:
    short, long = speech_of(4, 6, 40), speech_of(4, 6, 80)
    assert torch.equal(short.phonemes, long.phonemes[:40])
    assert long.segments[: len(short.segments)] == short.segments
    # The last smoothing window (3 sigma of 40 ms) looks over the cut; before it all is equal.
    margin = int(0.13 * SAMPLE_RATE_HZ)
    assert torch.equal(short.audio[:-margin], long.audio[: len(short.audio) - margin])
    style = sample_style(4)
    a, b = (motion_track(s, style, seed=9)[:, OPEN] for s in (short, long))
    assert torch.allclose(a[:30], b[:30], atol=1e-6)  # fp32 of the same fp64 sum of more terms


def test_segments_tile_the_time() -> None:
    segments = speech_of(8, 8).segments
    assert segments[0].start_s == 0
    ends = [s.end_s for s in segments]
    assert [s.start_s for s in segments[1:]] == ends[:-1]
    assert ends[-1] >= 101 / 25
    assert all(s.end_s > s.start_s for s in segments)


def test_frame_phonemes_are_those_of_their_middle() -> None:
    speech = speech_of(2, 3)
    for i, t in enumerate(frame_times_s(101)):
        inside = [s.phoneme for s in speech.segments if s.start_s <= t < s.end_s]
        assert inside == [PHONEMES[int(speech.phonemes[i])]]


def test_closures_close() -> None:
    closures = 0
    for person in range(20):
        speech = speech_of(person, person)
        opening = motion_track(speech, sample_style(person), seed=0)[:, OPEN].numpy()
        for s in speech.segments:
            if s.phoneme in LIP_CLOSURES and s.end_s < 101 / 25:
                times = frame_times_s(101)
                inside = opening[(times >= s.start_s) & (times < s.end_s)]
                assert inside.min() < 0.05, (person, s)
                closures += 1
    assert closures > 60


def test_vowels_open_and_silence_closes() -> None:
    by_phoneme: dict[str, list[float]] = {p: [] for p in PHONEMES}
    for person in range(30):
        speech = speech_of(person, person)
        opening = motion_track(speech, sample_style(person), seed=0)[:, OPEN]
        for phoneme, value in zip(speech.phonemes.tolist(), opening.tolist(), strict=True):
            by_phoneme[PHONEMES[phoneme]].append(value)
    mean = {p: float(np.mean(values)) for p, values in by_phoneme.items() if len(values) > 5}
    assert mean["AA"] > mean["EH"] > mean["IY"] > mean["M"]
    assert max(mean["SIL"], mean["S"], mean["F"], mean["UW"]) < 0.3 < mean["AE"]


def test_lips_lead_the_sound() -> None:
    """Around one w in silence, rounding 50 ms before it is larger than 50 ms after it."""
    ends = np.array([0.4, 0.5, 1.0])
    zero = np.zeros(3)
    names = np.array(["SIL", "W", "SIL"])
    phases = Phases(names, np.array([0, 0.4, 0.5]), ends, zero, zero, zero > 0, zero)
    shape = mouth_shape(phases, np.array([0.05, 0.35, 0.45, 0.55, 0.95]), 1.0, 1.0, 0.0)
    rest, before, inside, after, later = shape[:, CHANNELS.index("round")]
    assert inside > before > after > max(rest, later)
    assert before > 0.1


def test_long_speech_is_made_in_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mouth of a run is that of the whole: phases that are farther away have no effect."""
    speech = speech_of(7, 7, num_frames=2500)
    times_s = np.arange(2500) / 25
    how = (speech.phases, times_s, 1.0, 1.0, 0.03)
    in_runs = mouth_shape(*how)
    monkeypatch.setattr(viseme, "_BLOCK", 2500)
    assert np.abs(in_runs - mouth_shape(*how)).max() < 1e-12


def test_loudness_does_not_follow_the_opening() -> None:
    """/s/ and /m/ sound with lips nearly shut: far louder than silence, far less open than AA."""
    loud: dict[str, list[float]] = {p: [] for p in PHONEMES}
    for person in range(30):
        speech = speech_of(person, person)
        power = speech.audio.reshape(-1, 640).double().square().mean(dim=1)
        for phoneme, p in zip(speech.phonemes.tolist(), power.tolist(), strict=True):
            loud[PHONEMES[phoneme]].append(10 * np.log10(p + 1e-9))
    mean = {p: float(np.mean(v)) for p, v in loud.items() if v}
    assert mean["S"] > mean["IY"] - 3
    assert mean["M"] > mean["SIL"] + 15


def test_motion_stays_in_its_ranges() -> None:
    low = dict.fromkeys(MOTION_NAMES, 0.0)
    low |= {"mouth_width": -1, "corner_raise": -1, "corner_asymmetry": -1}
    low |= {"gaze_x": -1, "gaze_y": -1, "brow": -1, "yaw": -1.5, "pitch": -0.6, "roll": -0.5}
    high = dict.fromkeys(MOTION_NAMES, 1.0) | {"yaw": 1.5, "pitch": 0.6, "roll": 0.5}
    tracks = torch.cat([motion_track(speech_of(i, i), sample_style(i), seed=i) for i in range(40)])
    for i, name in enumerate(MOTION_NAMES):
        values = tracks[:, i]
        assert values.min() >= low[name], name
        assert values.max() <= high[name], name
        assert values.std() > 0.005 or name == "cover", f"{name} never moves"


def test_some_frames_are_covered_or_turned_away() -> None:
    speech, style = speech_of(0, 0), sample_style(0)
    tracks = [motion_track(speech, style, seed=seed) for seed in range(150)]
    covered = sum(bool((t[:, MOTION_NAMES.index("cover")] > 0.9).any()) for t in tracks)
    turned = sum(bool((t[:, MOTION_NAMES.index("yaw")].abs() > 0.9).any()) for t in tracks)
    # Expected 7 and 9 of 150 four-second clips; 1 and 25 are more than three sigma away.
    assert 1 <= covered <= 25
    assert 1 <= turned <= 25


def test_the_mouth_does_not_depend_on_the_clip_seed() -> None:
    speech, style = speech_of(0, 0), sample_style(0)
    a, b = (motion_track(speech, style, seed=seed) for seed in (1, 2))
    mouth = [MOTION_NAMES.index(n) for n in ("mouth_open", "mouth_width", "mouth_round", "jaw")]
    assert torch.equal(a[:, mouth], b[:, mouth])
    assert not torch.equal(a, b)


def test_amplitude_scales_the_opening() -> None:
    style = sample_style(0)
    wide = dataclasses.replace(style, mouth_amplitude=1.2)
    narrow = dataclasses.replace(style, mouth_amplitude=0.7)
    speech = speech_of(0, 0)
    a, b = (motion_track(speech, s, seed=0)[:, OPEN].mean() for s in (wide, narrow))
    assert a > 1.3 * b


def test_style_is_independent_of_looks() -> None:
    """It is made of the id alone, and correlates with no look more than chance allows."""
    assert "person" not in inspect.getsource(style_module).split("from avatar_v.world.")
    num = 400
    ids = persons("train", num)
    styles = np.stack([style_vector(sample_style(i)) for i in ids])
    rows = [
        [v for v in dataclasses.asdict(sample_person(i)).values() if isinstance(v, float)]
        for i in ids
    ]
    looks = np.array(rows)
    r = np.corrcoef(styles.T, looks.T)[: styles.shape[1], styles.shape[1] :]
    # The largest of about 1,000 null correlations with n = 400 stays below 5 / sqrt(n).
    assert np.abs(r).max() < 5 / np.sqrt(num)


def test_style_vector_is_scaled() -> None:
    styles = np.stack([style_vector(sample_style(i)) for i in range(200)])
    assert styles.shape == (200, len(STYLE_NAMES))
    assert np.abs(styles).max() <= 1
    assert styles.std(axis=0).min() > 0.45  # uniform on [-1, 1] has 0.577


def test_phoneme_ids_are_an_index() -> None:
    assert [PHONEME_ID[name] for name in PHONEMES] == list(range(len(PHONEMES)))
    assert PHONEMES[0] == "SIL"
