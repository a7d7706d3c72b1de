"""Loudness in parts: pyloudnorm's numbers, whatever the length."""

import math

import pyloudnorm
import pytest
import torch

from avatar_v.loudness import PART_S, integrated_loudness, loudness_gain

RATE = 16_000
PART = PART_S * RATE


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
