"""What several numerics tests start from."""

import pytest

from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from random_models import make_dit


@pytest.fixture(scope="module")
def dit() -> AvatarDiT:
    return make_dit(DiTConfig.tiny())
