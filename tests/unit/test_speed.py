"""The measurements of speed as far as a CPU goes: the ways do the same, the rows are right."""

import pytest
import torch

from avatar_v.models.guided import with_guidance_inside
from avatar_v_eval.speed import peers
from avatar_v_eval.speed.peers import plain
from avatar_v_eval.turns import in_turns, ratio
from random_models import make_dit


def test_ways_take_turns_and_a_ratio_is_taken_within_each() -> None:
    calls: list[str] = []
    ways = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = in_turns(ways, 3)
    assert calls == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert {name: len(each) for name, each in times.items()} == {"a": 3, "b": 3}
    found = ratio({"a": [2.0, 6.0, 4.0], "b": [1.0, 2.0, 4.0]}, "a", "b")
    assert (found.value, found.low, found.high, found.n) == (2.0, 1.0, 3.0, 3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_peers_are_timed_on_weights_of_either_precision(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Generation narrows weights where the processor has bf16; what is trained is fp32."""
    monkeypatch.setattr(peers, "emulates_bf16", lambda device: dtype == torch.float32)
    monkeypatch.setattr(peers, "TRAINED_WINDOWS", 1)
    dit = make_dit().to(dtype)
    rows = peers.dit_numbers(dit, 1) | peers.muon_numbers(dit, 1)
    assert list(rows) == ["denoise_speedup", "train_speedup", "muon_speedup"]
    assert all(row.value > 0 for row in rows.values())


def test_peers_get_the_backbone_without_guidance_inside() -> None:
    dit = make_dit()
    guided = with_guidance_inside(dit, ((1.0, 4.0),) * 3)
    state, copied = dit.state_dict(), plain(guided).state_dict()
    assert copied.keys() == state.keys()
    assert all(torch.equal(copied[key], state[key]) for key in state)
