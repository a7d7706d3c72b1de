"""The study `reward_signal`: what it says of gradients that are known, and of rewards that say
nothing."""

import pytest
import torch

from aligning import EYES, GROUP, clips, make_stage, make_weights
from avatar_v.critics.reward_terms import RewardTerm
from avatar_v.stages.align_grpo import AlignGRPO
from avatar_v_eval.studies.reward_signal import Signal, asked, begun, signal, told


def nothing(frames, audio, reference, motion, **columns) -> None:
    return None


def frames_up(frames, audio, reference, motion, **columns) -> torch.Tensor:
    """1 in the latent frames that were given, 3 in the others."""
    value = torch.full((len(motion), (motion.shape[1] + 3) // 4), 3.0)
    value[:, : columns["num_given"]] = 1.0
    return value


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> AlignGRPO:
    return make_stage(make_weights(tmp_path_factory.mktemp("weights")))


def test_a_gradient_is_of_one_reward_in_one_batch(stage: AlignGRPO) -> None:
    batch, before = clips(), [p.detach().clone() for p in stage.network.parameters()]
    first, again = (signal(stage, batch, 3, EYES, is_random=False) for _ in range(2))
    assert first.gradient is not None
    assert again.gradient is not None
    assert torch.equal(first.gradient, again.gradient)
    assert first.spread > 0
    for other in (
        signal(stage, batch, 3, EYES, is_random=True),
        signal(stage, batch, 4, EYES, is_random=False),
        signal(stage, batch, 3, asked(EYES, "whole"), is_random=False),
    ):
        assert other.gradient is not None
        assert not torch.allclose(other.gradient, first.gradient)
    none = RewardTerm(f"{__name__}.nothing")
    assert signal(stage, batch, 3, none, is_random=False) == Signal(None, 0.0)
    assert stage.rewards.terms == (EYES,)
    assert stage.grpo.control == "none"
    assert all(p.grad is None for p in stage.parameters())
    assert all(map(torch.equal, before, stage.network.parameters()))


def test_a_whole_reward_is_the_mean_of_what_a_sample_made(stage: AlignGRPO) -> None:
    situation, generator = begun(stage, clips(), 0)
    rewards = make_stage(
        str(stage.models.init_from), asked(RewardTerm(f"{__name__}.frames_up"), "whole")
    ).rewards
    samples = stage.policy.samples(
        stage.conditioner, situation, stage.generated(situation, generator)
    )
    (value,) = rewards(samples).values()
    assert value.shape == (len(situation.condition),)
    assert len(value) == 2 * GROUP
    assert (value == 3).all()


def test_cosines_are_those_of_pairs_of_batches() -> None:
    x, y = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])
    found = [Signal(g, 1.0) for g in (x, x, x, y, x, -x)] + [Signal(None, 0.0), Signal(x, 3.0)]
    numbers = told("eyes", "local", found)
    assert numbers["cosine_local_eyes"].value == pytest.approx(0.0)
    assert numbers["cosine_local_eyes"].n == 3
    assert numbers["spread_local_eyes"].value == pytest.approx(9 / 8)
    assert "cosine_local_eyes" not in told("eyes", "local", [Signal(None, 0.0)] * 8)
