"""critics/quality: pictures are ranked as eyes rank them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from avatar_v.critics.quality import flicker, sharpness
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES

ID = RANGES["validation"][0]


@pytest.fixture(scope="module")
def video() -> Tensor:
    clip = make_clip(ID, ID + 1, ID + 2, num_frames=13, size=64)
    assert clip.video is not None
    return clip.video


def blurred(video: Tensor) -> Tensor:
    return F.avg_pool2d(video.float(), 3, 1, 1).round().byte()


def test_a_blurred_picture_is_less_sharp(video: Tensor) -> None:
    sharp, soft = sharpness(video), sharpness(blurred(video))
    assert sharp.shape == (13,)
    assert bool((sharp > 2 * soft).all())


def test_noise_in_time_flickers_and_motion_does_not(video: Tensor) -> None:
    noise = torch.randint(-8, 9, video.shape, generator=torch.Generator().manual_seed(0))
    noisy = (video.int() + noise).clamp(0, 255).byte()
    calm = flicker(video)
    assert calm.shape == (13,)
    assert bool((flicker(noisy) > calm + 2).all())
    ramp = torch.arange(9).view(9, 1, 1, 1).expand(9, 3, 8, 8).byte() * 20
    assert flicker(ramp).eq(0).all(), "steady change is no flicker"
    assert flicker(video[:2]).eq(0).all()
