"""parallel/timestep.py: ranks with steps of their own make the latents of one process."""

from typing import Any

import pytest
import torch

import step_ranks
from avatar_v.parallel.timestep import steps_of_ranks
from step_ranks import CASES


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return step_ranks.main(tmp_path_factory.mktemp("ranks"))


@pytest.mark.multi
@pytest.mark.parametrize("name", CASES)
def test_latents_are_those_of_one_process(found: list[dict[str, Any]], name: str) -> None:
    """Bit for bit; the last rank begins when rank 0 has begun its second block (Watched). A video
    that is closed while nobody takes what is finished ends on all ranks."""
    alone, together = found[0][name]["alone"], found[0][name]["together"]
    assert alone.shape[:2] == (1, 17 if name == "closed" else 11)
    assert alone.std() > 0.1
    assert torch.equal(together, alone)
    for rank, num_steps in enumerate(CASES[name].mapping):
        assert found[rank][name]["caches"] == {num_steps}


def test_ranks_have_consecutive_steps() -> None:
    assert steps_of_ranks(4, 2) == [range(2), range(2, 4)]
    assert [len(steps) for steps in steps_of_ranks(6, 4)] == [1, 1, 2, 2]
    assert steps_of_ranks(2, 3) == [range(0), range(1), range(1, 2)]  # the first one decodes
    with pytest.raises(ValueError, match="4 devices for 2 steps"):
        steps_of_ranks(2, 4)
