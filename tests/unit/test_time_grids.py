"""Frames of 24, 25 and 30 a second in the time of encoders that hear 16 kHz and give 50 Hz."""

import math

import pytest
import torch
from torch import Tensor

from avatar_v.models.time_grids import at_16_khz, num_states, of_frames


def tone(hz: float, rate_hz: int, num: int) -> Tensor:
    return torch.sin(2 * math.pi * hz * torch.arange(num, dtype=torch.float64) / rate_hz).float()


@pytest.mark.parametrize("rate", [24, 30])
@pytest.mark.parametrize("num_frames", [1, 5, 47])
def test_tones_are_the_same_at_16_khz(rate: int, num_frames: int) -> None:
    """To 1e-3, the ripple of the filter, but within 3 ms of the ends, where the tone breaks off."""
    rows = torch.stack([tone(hz, 640 * rate, 640 * num_frames) for hz in (200, 3_000, 6_500)])
    found = at_16_khz(rows, rate)
    num = math.ceil(num_frames * 16_000 / rate)
    assert found.shape == (3, num)
    expected = torch.stack([tone(hz, 16_000, num) for hz in (200, 3_000, 6_500)])
    inner = slice(48, num - 48)
    torch.testing.assert_close(found[:, inner], expected[:, inner], atol=1e-3, rtol=0)
    if rate == 30:  # 8 kHz is the most that 16 kHz holds
        above = at_16_khz(tone(9_000, 640 * rate, 640 * num_frames)[None], rate)
        assert float(above[:, inner].abs().max()) < 1e-3


def test_25_frames_a_second_stay_as_they_are() -> None:
    """Bit for bit."""
    draw = torch.Generator().manual_seed(0)
    sound, states = torch.randn(2, 640 * 5, generator=draw), torch.randn(2, 13, 7, generator=draw)
    assert at_16_khz(sound, 25) is sound
    pairs = states[:, :12].unflatten(1, (6, 2)).mean(2)
    assert torch.equal(of_frames(states, 0, 6, 25), pairs)
    assert torch.equal(of_frames(states, 2, 3, 25), pairs[:, 2:5])


@pytest.mark.parametrize("rate", [24, 25, 30])
def test_a_frame_has_the_mean_of_the_states_of_its_time(rate: int) -> None:
    """Where states say their own time, frame i has its own, (i + 1/2) / rate, to 1.5 ms: states of
    20 ms are held, and a frame that begins within one takes its middle for its end's. And of any
    states it has what a grid gives that both divide."""
    num = num_states(61, rate)
    assert num == math.ceil(61 * 50 / rate)
    clock = ((torch.arange(num) + 0.5) / 50)[None, :, None]
    found = of_frames(clock, 0, 61, rate)[0, :, 0]
    torch.testing.assert_close(found, (torch.arange(61) + 0.5) / rate, atol=1.5e-3, rtol=0)
    states = torch.randn(2, num, 3, generator=torch.Generator().manual_seed(0))
    fine = states.repeat_interleave(rate, 1)[:, : 50 * 61].unflatten(1, (61, 50)).mean(2)
    torch.testing.assert_close(of_frames(states, 7, 54, rate), fine[:, 7:], atol=1e-6, rtol=1e-5)
    with pytest.raises(ValueError, match=f"{num - 1} states do not cover 61 frames"):
        of_frames(states[:, :-1], 7, 54, rate)
