"""models/motion.py: packing of motion vectors into latent frames and back."""

import pytest
import torch

from avatar_v.models.config import DiTConfig
from avatar_v.models.motion import (
    CALM,
    CENTER,
    HEAD,
    MOTION_DIM,
    MOUTH,
    RARE,
    SCALE,
    STYLE_DIM,
    in_own_units,
    motion_moments,
    own_scale,
    pack_motion,
    style_statistics,
    unpack_motion,
)
from avatar_v.types import MOTION_NAMES


def test_packing_is_undone_exactly_enough():
    motion = torch.randn(2, 9, len(MOTION_NAMES), generator=torch.Generator().manual_seed(0))
    packed = pack_motion(motion)
    assert packed.shape == (2, 3, MOTION_DIM)
    # one division and one product in fp32
    torch.testing.assert_close(unpack_motion(packed), motion, atol=1e-6, rtol=1e-6)


def test_each_latent_holds_its_own_frames():
    motion = torch.zeros(1, 9, len(MOTION_NAMES)) + CENTER
    motion[0, 5] += SCALE  # the first frame of latent 2
    packed = pack_motion(motion).unflatten(-1, (4, -1))
    assert float((packed[0, 2, 0] - 1).abs().max()) < 1e-5  # rounding of the sum, over the scale
    packed[0, 2, 0] = 0
    assert float(packed.abs().max()) < 1e-6


def test_the_mean_motion_is_zero_and_a_typical_one_is_one():
    assert float(pack_motion(CENTER.expand(1, 5, -1)).abs().max()) == 0
    assert float((pack_motion((CENTER + SCALE).expand(1, 5, -1)) - 1).abs().max()) < 1e-5


def test_lengths_are_those_of_latents():
    with pytest.raises(ValueError, match="4k"):
        pack_motion(torch.zeros(1, 8, len(MOTION_NAMES)))


@pytest.mark.parametrize("preset", ["tiny", "small", "wan_1_3b", "wan_14b", "wan22_5b"])
def test_every_preset_has_the_width_of_the_stream(preset):
    assert getattr(DiTConfig, preset)().motion_dim == MOTION_DIM


def test_moments_of_two_clips_add_up_to_those_of_both():
    packed = torch.randn(2, 6, MOTION_DIM, generator=torch.Generator().manual_seed(0))
    valid = torch.tensor([[True] * 6, [True, False, True, True, False, True]])
    parts = motion_moments(packed[:, :2], valid[:, :2]) + motion_moments(
        packed[:, 2:], valid[:, 2:]
    )
    torch.testing.assert_close(parts, motion_moments(packed, valid), atol=1e-5, rtol=1e-5)


def test_a_style_without_frames_is_zero_and_a_short_one_lies_near_it():
    packed = 3 + torch.randn(1, 100, MOTION_DIM, generator=torch.Generator().manual_seed(0))

    def style(num: int) -> torch.Tensor:
        return style_statistics(motion_moments(packed, torch.arange(100)[None] < num))

    assert style(0).shape == (1, STYLE_DIM)
    assert not style(0).any()
    mean = style(100)[0, : len(MOTION_NAMES)]
    known = torch.tensor([400 / (800 if name in RARE else 425) for name in MOTION_NAMES])
    assert float((mean - 3 * known).abs().max()) < 0.2  # 0.05 is one standard error of a mean
    assert float(style(1).norm()) < 0.2 * float(style(100).norm())


def test_the_style_of_a_wide_mouth_is_wider():
    motion = torch.randn(1, 101, len(MOTION_NAMES), generator=torch.Generator().manual_seed(0))
    wide = motion.clone()
    wide[..., MOTION_NAMES.index("mouth_open")] *= 1.5
    seen = torch.ones(1, 26, dtype=torch.bool)
    a, b = (style_statistics(motion_moments(pack_motion(m), seen))[0] for m in (motion, wide))
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
            motion_moments(packed.flatten(2), torch.ones(1, 100, dtype=torch.bool))
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


def moments_of(tracks: torch.Tensor) -> torch.Tensor:
    """Of clips "b f m" in the units of MOTION_NAMES."""
    packed = pack_motion(tracks)
    return motion_moments(packed, torch.ones(packed.shape[:2], dtype=torch.bool))


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
    theirs = pack_motion(tracks[:, :13])
    average = pack_motion(tracks[:, :13] / scale[:, None])  # a face at rest stays at rest
    noise = torch.randn(theirs.shape, generator=generator)
    t = torch.tensor([[0.0, 0.3, 0.7, 1.0]]).expand(3, -1)
    own = in_own_units((1 - t[..., None]) * theirs + t[..., None] * noise, t, moments)
    tau = t[..., None] / own.size  # a state of the average person, at a time of its own
    torch.testing.assert_close(own.motion_t, (1 - tau) * average + tau * noise, atol=1e-4, rtol=0)
    got = own.velocity(noise - average)
    torch.testing.assert_close(got, noise - theirs, atol=1e-4, rtol=1e-4)
    nobody = in_own_units(theirs, t, None)
    assert torch.equal(nobody.motion_t, theirs)
    assert torch.equal(nobody.velocity(noise), noise)
