"""Pairs of what wraps or changes a network give the velocity of the plain network; a pair that
cannot be is refused in a sentence. The pairs of other tests are in docs/architecture.md."""

from pathlib import Path
from typing import Any

import pytest

import composing

pytestmark = pytest.mark.multi


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return composing.main(tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("pair", composing.PAIRS, ids=" ".join)
def test_a_pair_gives_the_velocity_of_the_plain_network(pair: tuple[str, ...], found) -> None:
    off, in_bf16 = found[" ".join(pair)]
    # fp32: sums in another order; bf16 may round in other places, not more coarsely
    assert off < (2 * in_bf16 if "bf16" in pair else 2e-6)


@pytest.mark.slow
def test_graphs_that_end_at_every_block_give_the_same_velocity(tmp_path: Path) -> None:
    found = composing.main(tmp_path, composing.BROKEN)
    assert found.keys() == {" ".join(pair) for pair in composing.BROKEN}
    assert all(off < 2e-6 for off, _ in found.values()), found


@pytest.mark.parametrize("ways", composing.SHARDED, ids=" ".join)
def test_weights_gathered_by_block_are_the_weights(ways: tuple[str, ...], found) -> None:
    """Bit for bit, with the reference from its cache and without one."""
    of = found["sharded " + " ".join(ways)]
    assert of["same"]
    assert of["whole"] == 0
    assert of["whole inside"] == 0
    assert of["share"] == pytest.approx(0.5, rel=0.02)
    # what is outside of blocks, the first block, and the last one for the video and its motion
    assert of["gathered"] == 1 + 1 + 2
    assert of["noted"] == 0


def test_training_shards_cannot_be_offloaded(found) -> None:
    assert "offloading needs whole weights" in found["refused"]
