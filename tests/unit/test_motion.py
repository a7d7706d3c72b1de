"""motion/vectors.py and motion/style.py: packing of motion vectors into latent frames and back."""

import pytest
import torch

from avatar_v.models.config import DiTConfig
from avatar_v.motion.style import (
    CALM,
    RARE,
    STYLE_DIM,
    motion_moments,
    style_code,
    style_shrinking,
    style_statistics,
)
from avatar_v.motion.vectors import MOTION_DIM, known_mask, pack_motion, unpack_motion
from avatar_v.types import MOTION_NAMES
from avatar_v.weights.random import motion_stats
from avatar_v.world.clip import make_clip

STATS = motion_stats()
CENTER = STATS.mean
SCALE = STATS.deviation
AVERAGE_STYLE = STATS.style_average
STYLE_SCALE = STATS.style_deviation


def test_packing_is_undone_exactly_enough():
    motion = torch.randn(2, 9, len(MOTION_NAMES), generator=torch.Generator().manual_seed(0))
    packed = pack_motion(motion, STATS)
    assert packed.shape == (2, 3, MOTION_DIM)
    # one division and one product in fp32
    torch.testing.assert_close(unpack_motion(packed, STATS), motion, atol=1e-6, rtol=1e-6)


def test_each_latent_holds_its_own_frames():
    motion = torch.zeros(1, 9, len(MOTION_NAMES)) + CENTER
    motion[0, 5] += SCALE  # the first frame of latent 2
    packed = pack_motion(motion, STATS).unflatten(-1, (4, -1))
    assert float((packed[0, 2, 0] - 1).abs().max()) < 1e-5  # rounding of the sum, over the scale
    packed[0, 2, 0] = 0
    assert float(packed.abs().max()) < 1e-6


def test_the_mean_motion_is_zero_and_a_typical_one_is_one():
    assert float(pack_motion(CENTER.expand(1, 5, -1), STATS).abs().max()) == 0
    assert float((pack_motion((CENTER + SCALE).expand(1, 5, -1), STATS) - 1).abs().max()) < 1e-5


def test_lengths_are_those_of_latents():
    with pytest.raises(ValueError, match="4k"):
        pack_motion(torch.zeros(1, 8, len(MOTION_NAMES)), STATS)


@pytest.mark.parametrize("preset", ["tiny", "small", "wan_1_3b", "wan_14b", "wan22_5b"])
def test_every_preset_has_the_width_of_the_stream(preset):
    assert getattr(DiTConfig, preset)().motion_dim == MOTION_DIM


def test_moments_of_two_clips_add_up_to_those_of_both():
    packed = torch.randn(2, 6, MOTION_DIM, generator=torch.Generator().manual_seed(0))
    valid = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    parts = motion_moments(packed[:, :2], valid[:, :2], STATS) + motion_moments(
        packed[:, 2:], valid[:, 2:], STATS
    )
    torch.testing.assert_close(parts, motion_moments(packed, valid, STATS), atol=1e-5, rtol=1e-5)


def test_a_style_without_frames_is_zero_and_a_short_one_lies_near_it():
    packed = 3 + torch.randn(1, 100, MOTION_DIM, generator=torch.Generator().manual_seed(0))

    def style(num: int) -> torch.Tensor:
        return style_statistics(motion_moments(packed, torch.arange(100)[None] < num, STATS))

    assert style(0).shape == (1, STYLE_DIM)
    assert not style(0).any()
    mean = style(100)[0, : len(MOTION_NAMES)]
    known = torch.tensor([400 / (800 if name in RARE else 425) for name in MOTION_NAMES])
    assert float((mean - 3 * known).abs().max()) < 0.2  # 0.05 is one standard error of a mean
    assert float(style(1).norm()) < 0.2 * float(style(100).norm())


def test_components_that_are_not_known_are_an_average_person_s():
    generator = torch.Generator().manual_seed(0)
    packed, num = 3 * torch.randn(2, 26, MOTION_DIM, generator=generator), len(MOTION_NAMES)
    valid = torch.ones(2, 26, dtype=torch.bool)
    known = known_mask(("yaw", "jaw"))
    assert [MOTION_NAMES[i] for i in known[0].nonzero()[:, 0]] == ["jaw", "yaw"]
    every, some = motion_moments(packed, valid, STATS), motion_moments(packed, valid, STATS, known)
    rows = known.repeat(1, 4)[0]
    assert torch.equal(some[:, 1:][:, rows], every[:, 1:][:, rows])
    assert torch.equal(some[:, 0], every[:, 0])
    average = (AVERAGE_STYLE * style_shrinking(104))[~rows].expand(2, -1)
    torch.testing.assert_close(style_statistics(some)[:, ~rows], average, atol=1e-4, rtol=1e-4)
    all_known = torch.ones(1, num, dtype=torch.bool)
    assert torch.equal(motion_moments(packed, valid, STATS, all_known), every)
    assert not motion_moments(packed, torch.zeros_like(valid), STATS, known).any()


@pytest.fixture(scope="module")
def people() -> torch.Tensor:
    """Moments of 16 s of 24 TRAIN persons."""
    clips = [make_clip(i, i, i, num_frames=401, size=64, render_video=False) for i in range(24)]
    packed = pack_motion(torch.stack([clip.motion for clip in clips]), STATS)
    return motion_moments(packed, torch.ones(packed.shape[:2], dtype=torch.bool), STATS)


def test_the_average_person_is_that_of_the_world(people: torch.Tensor):
    """Within what 24 of them tell."""
    styles = style_statistics(people) / style_shrinking(404)
    off = (styles.mean(0) - AVERAGE_STYLE).abs() / (styles.std(0) / 24**0.5 + 0.01)
    assert float(off.max()) < 4.5, off
    assert float(off.median()) < 1.5


def test_people_differ_by_one_in_each_number_that_a_network_reads_of_them(people: torch.Tensor):
    """But for those whose unit is the floor; sway and blinks are read alike, other than raw."""
    spread, raw = style_code(people, STATS).std(0), style_statistics(people).std(0)
    above = STYLE_SCALE > 0.05
    assert int(above.sum()) > 40, "most are floors"
    # 24 persons know a deviation to 15 %, and turning away, squints and looks fall at random
    assert bool((spread < 1.75).all()), spread
    assert bool((spread > 0.45)[above].all()), spread
    assert float((spread[above].log().mean()).abs()) < 0.1
    assert float(raw[above].max() / raw[above].min()) > 4, "nothing to bring together"


def test_the_style_of_a_wide_mouth_is_wider():
    motion = torch.randn(1, 101, len(MOTION_NAMES), generator=torch.Generator().manual_seed(0))
    wide = motion.clone()
    wide[..., MOTION_NAMES.index("mouth_open")] *= 1.5
    seen = torch.ones(1, 26, dtype=torch.bool)
    a, b = (
        style_statistics(motion_moments(pack_motion(m, STATS), seen, STATS))[0]
        for m in (motion, wide)
    )
    spread = (
        b[len(MOTION_NAMES) : 2 * len(MOTION_NAMES)] - a[len(MOTION_NAMES) : 2 * len(MOTION_NAMES)]
    )
    assert spread.argmax() == MOTION_NAMES.index("mouth_open")
    assert int((spread.abs() > 1e-6).sum()) == 1


def test_a_head_that_turns_once_differs_from_one_that_sways_in_its_calm_spread():
    yaw, num = MOTION_NAMES.index("yaw"), len(MOTION_NAMES)

    def style(track: torch.Tensor) -> torch.Tensor:
        packed = torch.zeros(1, 100, 4, num)
        packed[..., yaw] = track.reshape(100, 4)
        return style_statistics(
            motion_moments(packed.flatten(2), torch.ones(1, 100, dtype=torch.bool), STATS)
        )[0]

    time = torch.arange(400) / 25
    sways = 0.6 * torch.sin(2 * torch.pi * time / 4)
    turns = torch.where(time < 1, 0.6 * 8**0.5, 0.0)  # one of 16 seconds
    a, b = style(sways), style(turns - turns.mean())
    known = 400 / 425
    assert a[num + yaw].item() == pytest.approx(known * (0.6 / 2**0.5 - 1), abs=1e-3)
    assert b[num + yaw].item() == pytest.approx(a[num + yaw].item(), abs=0.03), "as far"
    calm = a[3 * num + yaw] - b[3 * num + yaw]
    # the sway's is its deviation, 0.42; the turn's sqrt(1/16 + 15/16 * 0.106^2) = 0.27
    assert calm.item() == pytest.approx(known * (0.424 - 0.27), abs=0.005)


def test_calm_is_that_of_normal_numbers():
    z = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert z.square().clamp(max=1).mean().sqrt().item() == pytest.approx(CALM, abs=1e-3)
