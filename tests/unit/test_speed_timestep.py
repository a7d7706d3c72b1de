"""speed timestep: a line of ranks that sleep, and what its slowest one could do."""

import argparse
from pathlib import Path

import pytest
import torch

from avatar_v_eval.speed import timestep
from forked import spawn


@pytest.mark.multi
def test_blocks_go_through_a_line_at_the_rate_of_its_slowest_rank(tmp_path: Path) -> None:
    options = argparse.Namespace(blocks=6, jitter=0.0, repeats=1)
    spawn(timestep.sleeper, (2, options, tmp_path), 2)
    found = torch.load(tmp_path / "found.pt")
    assert set(found) == {"two buffers", "blocking"}
    for (rate,) in found.values():
        assert 0 < rate * max(timestep.work_s(2)) <= 1, "no line is faster than a rank of it"


def test_the_first_rank_decodes_beside_its_steps() -> None:
    step_s, decode_s = timestep.STEP_S, timestep.DECODE_S
    assert timestep.work_s(2) == pytest.approx([2 * step_s + decode_s, 2 * step_s])
    assert timestep.work_s(5) == pytest.approx([decode_s, *[step_s] * 4])
    with pytest.raises(ValueError, match="--jitter is a share"):
        timestep.measure(argparse.Namespace(frames=9, blocks=9, repeats=1, jitter=2.0))
