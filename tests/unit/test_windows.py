"""training/windows.py: where windows start, what is given clean, and at which time."""

import dataclasses

import pytest
import torch

from avatar_v.training.windows import (
    draw_window_times,
    draw_windows,
    reduced,
    value_at,
)
from avatar_v.types import MOTION_NAMES, Batch


def draw(num: int = 4000, clip: int = 26, length: int = 13, seed: int = 0, **shares):
    shares = {"first_share": 0.4, "image_share": 0.7, **shares}
    generator = torch.Generator().manual_seed(seed)
    return draw_windows(num, clip, length, generator=generator, **shares)


def test_starts_and_prefixes_keep_the_rules() -> None:
    windows = draw()
    first = windows.start == 0
    assert windows.start.min() == 0
    assert windows.start.max() == 26 - 13
    assert set(windows.prefix[first].tolist()) == {0, 1}
    assert set(windows.prefix[~first].tolist()) == {1, 2}
    # 4000 draws: five standard errors of a share are below 0.04
    assert first.float().mean().item() == pytest.approx(0.4, abs=0.04)
    assert windows.prefix[first].float().mean().item() == pytest.approx(0.7, abs=0.06)
    assert (windows.prefix[~first] == 2).float().mean().item() == pytest.approx(0.5, abs=0.06)
    counts = torch.bincount(windows.start[~first], minlength=14)[1:].float()
    # uniform over 13 starts: 185 expected each, six standard deviations are 80
    assert (counts - counts.mean()).abs().max() < 80


def test_a_suffix_is_drawn_only_where_one_is_wanted() -> None:
    plain, half, all_ = draw(), draw(suffix_share=0.5), draw(suffix_share=1.0)
    assert not plain.suffix.any()
    # 4000 draws: five standard errors of a share are below 0.04
    assert half.suffix.float().mean().item() == pytest.approx(0.5, abs=0.04)
    assert all_.suffix.all()
    for windows in (half, all_):  # the other draws are what they were
        assert torch.equal(windows.start, plain.start)
        assert torch.equal(windows.prefix, plain.prefix)
        assert torch.equal(windows.scored()[:, :-1], plain.scored()[:, :-1])
        assert torch.equal(windows.scored()[:, -1], windows.suffix == 0)


def test_without_suffixes_nothing_more_is_drawn() -> None:
    """Golden losses depend on it: what a step draws next is what it drew before."""
    states = []
    for share in (0.0, 0.5):
        generator = torch.Generator().manual_seed(0)
        draw_windows(
            4, 26, 13, first_share=0.4, image_share=0.7, suffix_share=share, generator=generator
        )
        states.append(generator.get_state())
    expected = torch.Generator().manual_seed(0)
    torch.rand(3, 4, generator=expected)
    assert torch.equal(states[0], expected.get_state())
    assert not torch.equal(states[1], states[0])


def test_a_window_as_long_as_the_clip_starts_at_its_beginning() -> None:
    assert not draw(clip=13).start.any()


def test_single_frames_are_generated_from_nothing() -> None:
    windows = draw(length=1)
    assert not windows.start.any()
    assert not windows.prefix.any()


@pytest.mark.parametrize("length", [1, 2, 3])
def test_something_is_left_to_generate(length: int) -> None:
    assert draw(length=length).scored().any(dim=1).all()
    windows = draw(length=length, suffix_share=1.0)
    assert windows.scored().any(dim=1).all()
    assert bool(windows.suffix.any()) == (length > 1)


def test_same_generator_same_windows() -> None:
    a, b, c = draw(seed=1), draw(seed=1), draw(seed=2)
    assert torch.equal(a.start, b.start)
    assert torch.equal(a.prefix, b.prefix)
    assert not torch.equal(a.start, c.start)


@pytest.mark.parametrize("length", [0, 27])
def test_a_window_that_does_not_fit(length: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        draw(length=length)


def test_crop_takes_each_window() -> None:
    windows = draw(num=5)
    clip = torch.arange(26).expand(5, 26)[..., None] + 100 * torch.arange(5)[:, None, None]
    out = windows.crop(clip)
    for i, start in enumerate(windows.start.tolist()):
        assert torch.equal(out[i], clip[i, start : start + 13])


@pytest.mark.parametrize("suffix_share", [0.0, 0.5])
def test_times_are_zero_on_what_is_given_and_one_value_elsewhere(suffix_share: float) -> None:
    windows = draw(num=64, suffix_share=suffix_share)
    t = draw_window_times(windows, shift=1.0, generator=torch.Generator().manual_seed(0))
    scored = windows.scored()
    assert not t[~scored].any()
    for row, mask in zip(t, scored, strict=True):
        assert row[mask].unique().numel() == 1
        assert 0 < row[mask][0] < 1


def test_a_schedule_follows_the_step() -> None:
    schedule = {0: 1, 100: 5, 200: 13}
    lengths = [value_at(schedule, step) for step in (0, 99, 100, 199, 200, 5000)]
    assert lengths == [1, 1, 5, 5, 13, 13]
    with pytest.raises(ValueError, match="step 0"):
        value_at({5: 1}, 7)


def test_videos_are_reduced_to_multiples_of_16() -> None:
    batch = make_batch(size=64)
    assert batch.video is not None
    small = reduced(batch, 0.4).video
    assert small is not None
    assert small.shape == (2, 5, 3, 32, 32)
    # a reduced constant is the same constant, up to the rounding of its weights
    torch.testing.assert_close(small, torch.full_like(small, 0.5))
    assert reduced(batch, 1.0) is batch
    # a VAE of factor 16 under a patch of 2: 240 pixels would be 15 latents
    whole = reduced(make_batch(size=480), 0.5, multiple=32).video
    assert whole is not None
    assert whole.shape[-1] == 256
    with pytest.raises(ValueError, match="at most 1"):
        reduced(batch, 1.5)
    with pytest.raises(ValueError, match="precomputed"):
        reduced(dataclasses.replace(batch, latents=torch.zeros(2, 2, 16, 8, 8)), 0.5)


def make_batch(size: int) -> Batch:
    box = torch.zeros(2, 5, 4)
    return Batch(
        video=torch.full((2, 5, 3, size, size), 0.5),
        audio=torch.zeros(2, 5 * 640),
        text=("", ""),
        motion=torch.zeros(2, 5, len(MOTION_NAMES)),
        face_box=box,
        mouth_box=box,
        valid=torch.ones(2, 5, dtype=torch.bool),
        key=("a", "b"),
        person=("a", "b"),
        scene=("a", "b"),
    )
