"""The study `reward_signal`: what it says of gradients that are known, and of rewards that say
nothing."""

import itertools

import pytest
import torch

from aligning import EYES, GROUP, clips, make_stage, make_weights
from avatar_v.rewards.terms import RewardTerm
from avatar_v.stages.align_grpo import AlignGRPO
from avatar_v_eval.studies.reward_signal import WAYS, Signal, begun, signals, told, whole_of


def nothing(frames, audio, reference, motion, **columns) -> None:
    return None


class FramesUp:
    """1 in the latent frames that were given, ``most`` in the others."""

    def __init__(self, most: float) -> None:
        self.most = most

    def __call__(self, frames, audio, reference, motion, **columns) -> torch.Tensor:
        value = torch.full((len(motion), (motion.shape[1] + 3) // 4), self.most)
        value[:, : columns["num_given"]] = 1.0
        return value


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_weights(tmp_path_factory.mktemp("weights"))


def asked(weights: str, *terms: RewardTerm) -> AlignGRPO:
    return make_stage(weights, *terms, *map(whole_of, terms))


def test_each_reward_has_a_gradient_of_its_own(weights: str) -> None:
    none = RewardTerm(f"{__name__}.nothing")
    stage, batch = asked(weights, EYES, none), clips()
    before = [p.detach().clone() for p in stage.network.parameters()]
    found, again, other = (signals(stage, (EYES, none), batch, index) for index in (3, 3, 4))
    keys = {(term, way) for term in ("eyes", "nothing") for way in WAYS}
    assert found.keys() == keys
    gradients = []
    for key in keys:
        if key[0] == "nothing":
            assert found[key] == Signal(None, 0.0)
            continue
        (first, same, later) = (one[key].gradient for one in (found, again, other))
        assert first is not None
        assert same is not None
        assert later is not None
        assert torch.equal(first, same)
        assert not torch.allclose(first, later)
        assert found[key].spread > 0
        gradients.append(first)
    assert not any(torch.allclose(a, b) for a, b in itertools.combinations(gradients, 2))
    # alone, the same reward has the same gradient
    alone = signals(asked(weights, EYES), (EYES,), batch, 3)["eyes", "local"].gradient
    expected = found["eyes", "local"].gradient
    assert alone is not None
    assert expected is not None
    assert torch.equal(alone, expected)
    assert all(p.grad is None for p in stage.parameters())
    assert all(map(torch.equal, before, stage.network.parameters()))


def test_a_batch_without_any_reward_says_nothing(weights: str) -> None:
    none = RewardTerm(f"{__name__}.nothing")
    found = signals(asked(weights, none), (none,), clips(), 0)
    assert set(found.values()) == {Signal(None, 0.0)}


def test_a_whole_reward_is_the_mean_of_what_a_sample_made(weights: str) -> None:
    term = RewardTerm(f"{__name__}.FramesUp", options={"most": 3.0})
    stage = asked(weights, term)
    situation, generator = begun(stage, clips(), 0)
    made = stage.generated(situation, generator)
    values = stage.rewards(stage.policy.samples(stage.conditioner, situation, made))
    assert values["framesup_whole"].shape == (2 * GROUP,)
    assert (values["framesup_whole"] == 3).all()


def test_cosines_are_those_of_pairs_of_batches() -> None:
    x, y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    found = [Signal(g, 1.0) for g in (x, x, x, y, x, -x)] + [Signal(None, 0.0), Signal(x, 3.0)]
    numbers = told("eyes", "local", found)
    assert numbers["cosine_local_eyes"].value == pytest.approx(0.0)
    assert numbers["cosine_local_eyes"].n == 3
    assert numbers["spread_local_eyes"].value == pytest.approx(9 / 8)
    assert "cosine_local_eyes" not in told("eyes", "local", [Signal(None, 0.0)] * 8)
