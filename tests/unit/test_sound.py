"""A recording on disk reads as its tensor; loudness in parts is that of the whole sound."""

import math
from concurrent.futures import ThreadPoolExecutor

import pyloudnorm
import pytest
import torch

from avatar_v.media.sound import PART_S, Recording, integrated_loudness, loudness_gain

RATE = 16_000
PART = PART_S * RATE
SAMPLES = torch.randn(50_000, generator=torch.Generator().manual_seed(0)) / 8


@pytest.fixture
def recording() -> Recording:
    return Recording(SAMPLES.split(777))


@pytest.mark.parametrize(
    "span", [slice(None), slice(10, 20), slice(49_990, 60_000), slice(20, 10), slice(60_000, None)]
)
def test_slices_are_those_of_the_tensor(recording: Recording, span: slice) -> None:
    assert len(recording) == len(SAMPLES)
    assert torch.equal(recording[span], SAMPLES[span])


def test_parts_are_those_of_the_tensor(recording: Recording) -> None:
    pairs = zip(recording.split(16_000), SAMPLES.split(16_000), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert list(Recording([]).split(5)) == []


def test_a_slice_is_its_own(recording: Recording) -> None:
    recording[:100].zero_()
    assert torch.equal(recording[:], SAMPLES)


def test_threads_read_at_once(recording: Recording) -> None:
    starts = [7 * i for i in range(2000)]
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda start: recording[start : start + 500], starts))
    assert all(torch.equal(p, SAMPLES[s : s + 500]) for s, p in zip(starts, parts, strict=True))


def test_a_step_is_refused(recording: Recording) -> None:
    with pytest.raises(ValueError, match="in order, got a step of 2"):
        recording[::2]


def test_a_full_disk_is_one_error_that_names_the_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        monkeypatch.setattr("tempfile.TemporaryFile", lambda **_: full)
        with pytest.raises(OSError, match=r"has no room for the sound \(.*No space left.*TMPDIR"):
            Recording([SAMPLES])


@pytest.mark.parametrize("num", [0, 1000, 50_000])
def test_its_loudness_is_that_of_the_tensor(num: int) -> None:
    assert loudness_gain(Recording([SAMPLES[:num]])) == loudness_gain(SAMPLES[:num])


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
