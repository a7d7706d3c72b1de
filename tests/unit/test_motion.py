"""models/motion.py: packing of motion vectors into latent frames and back."""

import pytest
import torch

from avatar_v.models.config import DiTConfig
from avatar_v.models.motion import CENTER, MOTION_DIM, SCALE, pack_motion, unpack_motion
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
