"""motion/own_units.py: how far a person moves, and motion without it."""

import pytest
import torch

from avatar_v.motion.own_units import HEAD, MOUTH, build_style, in_own_units, own_scale
from avatar_v.motion.style import motion_moments
from avatar_v.motion.vectors import pack_motion
from avatar_v.types import MOTION_NAMES
from avatar_v.weights.random import motion_stats

STATS = motion_stats()
CENTER = STATS.mean
SCALE = STATS.deviation


def moments_of(tracks: torch.Tensor) -> torch.Tensor:
    """Of clips "b f m" in the units of MOTION_NAMES."""
    packed = pack_motion(tracks, STATS)
    return motion_moments(packed, torch.ones(packed.shape[:2], dtype=torch.bool), STATS)


def test_a_person_who_moves_twice_as_far_has_twice_the_scale():
    normal = torch.randn(1, 4001, len(MOTION_NAMES), generator=torch.Generator().manual_seed(0))
    for factor in (0.5, 1.0, 2.0):
        (scale,) = own_scale(moments_of(CENTER + factor * normal * SCALE))
        for name, value in zip(MOTION_NAMES, scale.tolist(), strict=True):
            own = name in (*MOUTH, *HEAD)
            # 4,000 frames: one standard error of a deviation is 1.1 %, the prior's share 5 %
            assert value == pytest.approx(factor if own else 1.0, rel=0.1 if own else 0), name


def test_a_turn_away_is_no_sway():
    normal = 0.5 * torch.randn(1, 4001, generator=torch.Generator().manual_seed(0))
    turned = torch.where(torch.arange(4001) % 400 < 20, 6.0, normal)  # a twentieth of the time
    yaw, jaw = MOTION_NAMES.index("yaw"), MOTION_NAMES.index("jaw")
    tracks = CENTER.expand(2, 4001, -1).clone()
    for k in (yaw, jaw):
        tracks[:, :, k] += torch.cat([normal, turned]) * SCALE[k]
    calm, turning = own_scale(moments_of(tracks))
    assert turning[yaw] < 1.3 * calm[yaw]
    assert turning[jaw] > 2 * calm[jaw]


def test_what_is_short_or_extreme_has_a_scale_near_one():
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(own_scale(torch.zeros(2, 65)), torch.ones(2, len(MOTION_NAMES)))
    one = own_scale(moments_of(3 * torch.randn(1, 1, len(MOTION_NAMES), generator=generator)))
    assert 0.9 < float(one.min()) < float(one.max()) < 1.1
    still = own_scale(moments_of(CENTER.expand(1, 4001, -1)))
    wild = own_scale(moments_of(100 * torch.randn(1, 4001, len(MOTION_NAMES))))
    assert float(still.min()) >= 0.25
    assert float(wild.max()) <= 4.0


def test_own_units_are_exact_whatever_the_person_and_the_time():
    """A network that is right about average persons is right about one of any scale."""
    generator = torch.Generator().manual_seed(0)
    tracks = CENTER + 1.7 * SCALE * torch.randn(3, 401, len(MOTION_NAMES), generator=generator)
    tracks[1] = CENTER + 0.2 * (tracks[1] - CENTER)
    moments = moments_of(tracks)
    scale = own_scale(moments)
    theirs = pack_motion(tracks[:, :13], STATS)
    average = pack_motion(tracks[:, :13] / scale[:, None], STATS)  # a face at rest stays at rest
    noise = torch.randn(theirs.shape, generator=generator)
    t = torch.tensor([[0.0, 0.3, 0.7, 1.0]]).expand(3, -1)
    own = in_own_units(
        (1 - t[..., None]) * theirs + t[..., None] * noise, t, build_style(moments, STATS)
    )
    tau = t[..., None] / own.size  # a state of the average person, at a time of its own
    torch.testing.assert_close(own.motion_t, (1 - tau) * average + tau * noise, atol=1e-4, rtol=0)
    got = own.velocity(noise - average)
    torch.testing.assert_close(got, noise - theirs, atol=1e-4, rtol=1e-4)
    nobody = in_own_units(theirs, t, None)
    assert torch.equal(nobody.motion_t, theirs)
    assert torch.equal(nobody.velocity(noise), noise)
