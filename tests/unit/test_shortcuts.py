"""The readers of the shortcut report: they find what is there, and nothing where nothing is."""

import pytest
import torch

from avatar_v.world.clip import make_clip
from avatar_v_eval.cases import drawn_clips
from avatar_v_eval.studies.shortcuts import (
    identity_numbers,
    loudness,
    mouth_numbers,
    one_frame,
    opening,
    ridge,
)


def test_ridge_finds_a_linear_map() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 6, generator=generator)
    weights = torch.randn(6, 2, generator=generator)
    asked = torch.randn(50, 6, generator=generator)
    # The smallest penalty, 0.01 n, shrinks weights by about 1 %: errors of a few hundredths.
    assert (ridge(x, x @ weights, asked) - asked @ weights).abs().max() < 0.15


def test_ridge_finds_nothing_in_noise() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y, asked = (torch.randn(n, 20, generator=generator) for n in (100, 100, 50))
    # Its best guess is about the mean: predictions spread far less than the truth (1).
    assert ridge(x, y, asked).std() < 0.35


def test_loudness_windows_are_centred() -> None:
    clips = drawn_clips("validation", 2, num_frames=101, video=False)
    windows = loudness(clips)
    power = clips[1].audio.reshape(-1, 640).square().mean(dim=1)
    assert windows.shape == (2, 101, 9)
    # fp32 means in another order: relative 1e-6, so 1e-4 of a logarithm is safe.
    assert torch.allclose(windows[1, :, 4], (power + 1e-7).log(), atol=1e-4)
    assert torch.equal(windows[1, 4:-4, 0], windows[1, :-8, 4])
    assert opening(clips).shape == (2, 101)


def test_one_frame_is_a_frame_of_its_clip() -> None:
    ids = (1_000_000, 1_000_001, 1_000_002)
    clip = make_clip(*ids, num_frames=101, size=64, render_video=False)
    frame = one_frame(*ids)
    assert frame.video.shape == (1, 3, 64, 64)
    expected = (
        clip.motion[clip.seed % 101, 15] < 0.3 and clip.motion[clip.seed % 101, 8].abs() < 0.8
    )
    assert bool(frame.valid[0]) or not expected


@pytest.mark.parametrize("numbers", [lambda: mouth_numbers(6, 3), lambda: identity_numbers(3)])
def test_reports_are_numbers_with_intervals(numbers) -> None:
    for number in numbers().values():
        assert number.n == 3
        assert -1 <= number.low <= number.value <= number.high <= 1
        assert number.label
