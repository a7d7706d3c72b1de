"""stages/motion_times: motion is ahead of its video in its share of the samples."""

import pytest
import torch

from avatar_v.stages.motion_times import draw_lead


def test_motion_is_known_or_ahead_in_its_share_of_the_samples() -> None:
    t = torch.full((4000, 3), 0.8)
    t[:, 0] = 0.0  # a prefix
    ahead = draw_lead(t, share=0.6, generator=torch.Generator().manual_seed(0))
    assert not ahead[:, 0].any()
    assert torch.equal(ahead[:, 1], ahead[:, 2])
    later = ahead[:, 1]
    assert later.max() <= 0.8
    # 4000 draws: five standard errors of a share are below 0.04
    assert (later == 0).float().mean().item() == pytest.approx(0.3, abs=0.04)
    assert (later == t[:, 1]).float().mean().item() == pytest.approx(0.4, abs=0.04)
    between = later[(later > 0) & (later < t[:, 1])]
    assert between.mean().item() == pytest.approx(0.4, abs=0.04)
