"""Two gloo ranks: Muon's step on shards, a text encoder that is gathered layer by layer, and roles
that begin in the same memory."""

from typing import Any

import pytest

import shard_ranks


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return shard_ranks.main(tmp_path_factory.mktemp("ranks"))


@pytest.mark.multi
def test_muon_of_shards_steps_as_on_one_rank_with_two_exchanges_for_each_turn(found) -> None:
    # both iterate in bf16 (8 bits), one matrix or a stack at a time: sums of another order
    assert found["muon off"] < 0.02
    # in each step 2 + 1 + 1 turns of a matrix a rank, two exchanges each, and no gathering
    assert found["muon collectives"] == {"alltoall_base_": 3 * 2 * 4}


@pytest.mark.multi
def test_a_frozen_text_encoder_is_gathered_by_layer_and_put_back(found) -> None:
    assert found["text off"] < 1e-5  # the same sums
    assert found["text units"] == shard_ranks.NUM_LAYERS + 1
    assert found["text gathered"] == 0
    assert found["text same in generation"]
    assert found["text gathered inside"] < 0.6 * found["text whole"]


@pytest.mark.multi
def test_roles_begin_in_the_same_memory_and_have_shards_of_their_own(found) -> None:
    assert found["same memory"]
    assert not found["same parameters"]
    assert found["moved"] == pytest.approx(1.0, abs=1e-6)
    assert found["kept"] == 0
