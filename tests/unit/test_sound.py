"""A recording on disk reads as its tensor; loudness in parts is that of the whole sound; what the
networks hear is free of what lies below a voice and of the level of the microphone."""

import math
from concurrent.futures import ThreadPoolExecutor

import pyloudnorm
import pytest
import torch
from torch import Tensor

from avatar_v.media.sound import (
    PART_S,
    HighPass,
    TemporarySound,
    high_passed,
    integrated_loudness,
    loudness_gain,
    measure_level,
    normalise_loudness,
    prepared,
)

RATE = 16_000
PART = PART_S * RATE
SAMPLES = torch.randn(50_000, generator=torch.Generator().manual_seed(0)) / 8


@pytest.fixture
def recording() -> TemporarySound:
    return TemporarySound(SAMPLES.split(777))


@pytest.mark.parametrize(
    "span", [slice(None), slice(10, 20), slice(49_990, 60_000), slice(20, 10), slice(60_000, None)]
)
def test_slices_are_those_of_the_tensor(recording: TemporarySound, span: slice) -> None:
    assert len(recording) == len(SAMPLES)
    assert torch.equal(recording[span], SAMPLES[span])


def test_parts_are_those_of_the_tensor(recording: TemporarySound) -> None:
    pairs = zip(recording.split(16_000), SAMPLES.split(16_000), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert list(TemporarySound([]).split(5)) == []


def test_a_slice_is_its_own(recording: TemporarySound) -> None:
    recording[:100].zero_()
    assert torch.equal(recording[:], SAMPLES)


def test_threads_read_at_once(recording: TemporarySound) -> None:
    starts = [7 * i for i in range(2000)]
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda start: recording[start : start + 500], starts))
    assert all(torch.equal(p, SAMPLES[s : s + 500]) for s, p in zip(starts, parts, strict=True))


def test_a_step_is_refused(recording: TemporarySound) -> None:
    with pytest.raises(ValueError, match="in order, got a step of 2"):
        recording[::2]


def test_a_full_disk_is_one_error_that_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: full)
        with pytest.raises(OSError, match=r"has no room for the sound \(.*No space left.*TMPDIR"):
            TemporarySound([SAMPLES])


@pytest.mark.parametrize("num", [0, 1000, 50_000])
def test_its_loudness_is_that_of_the_tensor(num: int) -> None:
    assert loudness_gain(TemporarySound([SAMPLES[:num]])) == loudness_gain(SAMPLES[:num])


@pytest.mark.parametrize(
    "num", [6_400, 6_401, 9_599, 16_000, PART - 1, PART, PART + 1, 3 * PART + 77]
)
@pytest.mark.parametrize("level", [0.001, 0.1])
def test_parts_give_what_pyloudnorm_gives_for_the_whole(num: int, level: float) -> None:
    sound = level * torch.randn(num, generator=torch.Generator().manual_seed(num))
    sound *= torch.arange(num) // RATE % 3 != 1  # pauses, which the gates leave out
    expected = pyloudnorm.Meter(RATE).integrated_loudness(sound.double().numpy())
    # sums in float64 in another order
    assert integrated_loudness(sound) == pytest.approx(expected, rel=1e-12)


def test_silence_nan_and_short_sounds() -> None:
    assert integrated_loudness(torch.zeros(RATE)) == -math.inf
    assert loudness_gain(torch.zeros(RATE)) == loudness_gain(torch.zeros(0)) == 1.0
    tone = 0.1 * torch.sin(torch.arange(800) * 0.5)
    assert loudness_gain(tone) == pytest.approx(loudness_gain(tone.repeat(8)), rel=1e-9)
    late = torch.zeros(2 * PART)
    late[-1] = math.nan
    with pytest.raises(ValueError, match="NaN"):
        loudness_gain(late)


def spoken(seconds: int = 4, pause: float = 0.0) -> Tensor:
    """Noise in the band of speech, -23 LUFS, with pauses of another level."""
    sound = high_passed(torch.randn(seconds * RATE, generator=torch.Generator().manual_seed(1)))
    is_pause = torch.arange(seconds * RATE) // (RATE // 4) % 4 == 3
    return normalise_loudness(torch.where(is_pause, pause * sound[:], sound[:]))


@pytest.mark.parametrize("low_hz", [0, 10, 50, 60])
def test_what_lies_below_a_voice_is_not_heard(low_hz: int) -> None:
    """An offset, rumble or the hum of mains as loud as the voice."""
    at_s = torch.arange(4 * RATE) / RATE
    low = 0.1 * torch.cos(2 * torch.pi * low_hz * at_s)
    left = high_passed(low)[RATE:]
    assert float(left.square().mean().sqrt()) < 0.1 * 10 ** (-28 / 20)  # 60 Hz: 31 dB
    voice = spoken()
    heard, clean = prepared(voice + low)[RATE:], prepared(voice)[RATE:]
    assert float(torch.corrcoef(torch.stack([heard, clean]))[0, 1]) > 0.99


@pytest.mark.parametrize("hz", [85, 100, 300, 4_000])
def test_a_voice_is_left_alone(hz: int) -> None:
    voice = 0.1 * torch.sin(2 * torch.pi * hz * torch.arange(4 * RATE) / RATE)
    ratio = high_passed(voice)[RATE:].square().mean() / voice[RATE:].square().mean()
    assert abs(10 * math.log10(float(ratio))) < 0.11  # the filter's ripple


@pytest.mark.parametrize("size", [1, 777, 16_000])
def test_a_sound_in_parts_is_heard_as_the_whole(size: int) -> None:
    samples = SAMPLES[: 2000 * size]
    whole = high_passed(samples)
    assert torch.equal(high_passed(TemporarySound(samples.split(777)))[:], whole[:])
    high = HighPass()
    assert torch.equal(torch.cat([high(part) for part in samples.split(size)]), whole[:])


@pytest.mark.parametrize("lufs", [-30.0, -59.0, -61.0, -70.0, -79.0])
def test_quiet_speech_is_raised_where_its_pauses_are_still(lufs: float) -> None:
    level = measure_level(spoken() * 10 ** ((lufs + 23) / 20))
    assert level.lufs == pytest.approx(lufs, abs=0.5)  # below -70 other blocks pass the gate
    assert level.lufs + 20 * math.log10(level.gain) == pytest.approx(-23, abs=1e-6)
    words = level.warnings("a.wav")
    assert len(words) == (lufs < -60)
    assert all("very quiet" in w and "its noise with it" in w for w in words)
    assert level.warnings("a.wav", gain_db=20.0) == ()


def test_noise_bounds_what_a_faint_sound_is_raised_by() -> None:
    """A pause 15 dB below the speech is raised to -60 LUFS, and noise alone likewise."""
    faint = 10 ** (-47 / 20)
    level = measure_level(faint * spoken(pause=10 ** (-15 / 20)))
    assert level.lufs == pytest.approx(-70, abs=0.5)
    assert 20 * math.log10(level.gain) == pytest.approx(25, abs=2)  # 40 ms of noise vary by 1 dB
    assert "its noise lets it be heard only" in level.warnings("a.wav")[0]
    alone = measure_level(faint * spoken(pause=1.0))
    assert 20 * math.log10(alone.gain) == pytest.approx(10, abs=1)
    assert measure_level(10 ** (-65 / 20) * spoken()).gain == 1.0  # -88 LUFS: silence
    assert "is silent" in measure_level(torch.zeros(RATE)).warnings("a.wav")[0]
