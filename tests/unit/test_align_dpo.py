"""stages/align_dpo: where it starts, which way it goes, ties, axes, and going on exactly."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from aligning import LENGTH, clips, fit, make_weights
from avatar_v.shards.pair_data import PairData
from avatar_v.shards.pairs import encode_pair
from avatar_v.shards.writer import write_shard
from avatar_v.stages.align_dpo import DPO, AlignDPO
from avatar_v.stages.motion_prior import MotionTraining
from avatar_v.stages.optim import Optim
from avatar_v.stages.settings import Models, Objective
from avatar_v.types import MOTION_NAMES, Batch, Judged
from tiny_run import make_pair

EYES = MOTION_NAMES.index("eye_open")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_weights(tmp_path_factory.mktemp("weights"))


def pairs(winner: list[int], *, axis: str = "overall") -> Batch:
    """Open eyes against closed ones: the first has them open."""
    batch = clips(len(winner))
    first, second = batch.motion.clone(), batch.motion.clone()
    first[..., EYES], second[..., EYES] = 1.0, 0.0
    judged = Judged(first, second, torch.tensor(winner), (axis,) * len(winner))
    return dataclasses.replace(batch, judged=judged)


def make_stage(weights: str | None, *, lr: float = 1e-3, **numbers) -> AlignDPO:
    made = AlignDPO(
        Models("tiny", init_from=weights, motion_stats=None if weights else "small"),
        Optim(lr=lr, num_warmup_steps=0, weight_decay=0.0, final_lr_share=1.0),
        Objective({0: LENGTH}, first_share=0.5, image_share=1.0, shift=2.0),
        MotionTraining(num_windows=3),
        DPO(**{"beta": 100.0, **numbers}),
    )
    made.configure_model()
    return made


def loss_of(stage: AlignDPO, batch: Batch, index: int = 0):
    begun = stage.begin(batch, index)
    assert len(begun.clean) == 2 * 3 * len(batch.motion)
    return stage.loss(begun.clean, begun.cond, begun.windows, batch, begun.generator)


def gradients(stage: AlignDPO, loss: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The parameters that have one, with it."""
    stage.zero_grad()
    loss.backward()
    return [(p, p.grad.clone()) for p in stage.network.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("winner", "ties", "expected"),
    [
        ([0, 1], 1.0, math.log(2)),
        ([0, 1], 4.0, math.log(5)),  # log(1 + k)
        ([2, 2], 4.0, math.log(25 / 15)),  # -log of (k² - 1) / (1 + k)²
    ],
)
def test_it_starts_where_nothing_is_preferred(
    weights: str, winner: list[int], ties: float, expected: float
) -> None:
    loss, logs = loss_of(make_stage(weights, ties=ties, hold=1.0), pairs(winner))
    assert float(loss.detach()) == float(
        torch.tensor(expected)
    )  # exactly: equal networks, equal errors
    assert logs["moved"] == logs["won"] == logs["lost"] == 0
    assert float(logs["accuracy"]) == (0.5 if winner[0] < 2 else 0.0)


def test_the_gradient_points_from_the_loser_to_the_winner(weights: str) -> None:
    stage = make_stage(weights)
    for winner in (0, 1):
        loss, _ = loss_of(stage, pairs([winner] * 4))
        grads = gradients(stage, loss)
        assert stage.frozen.head.out.weight.grad is None
        size = torch.stack([grad.norm() for _, grad in grads]).norm()
        with torch.no_grad():
            for p, grad in grads:
                p.sub_(1e-4 / size * grad)
        after, logs = loss_of(stage, pairs([winner] * 4))
        assert after < loss
        assert logs["won"] < logs["lost"]
        assert logs["accuracy"] > 0.5
        with torch.no_grad():
            for p, grad in grads:
                p.add_(1e-4 / size * grad)


def test_a_tie_has_no_side(weights: str) -> None:
    """At the start its gradient is 0 but for rounding."""
    stage, batch = make_stage(weights, ties=2.0), pairs([2, 2])
    tied, won = (
        sum(float(grad.square().sum()) for _, grad in gradients(stage, loss_of(stage, of)[0]))
        for of in (batch, pairs([0, 0]))
    )
    assert tied < 1e-8 * won


def test_an_axis_counts_in_its_components(weights: str) -> None:
    stage = make_stage(weights, axes={"blinks": ("eye_open",)})
    overall, blinks = pairs([0, 1]), pairs([0, 1], axis="blinks")
    assert stage.axis_weights(overall).tolist() == [[1.0] * 16] * 2
    row = stage.axis_weights(blinks)[0]
    assert float(row[EYES]) == 16
    assert float(row.sum()) == 16
    with torch.no_grad():
        stage.network.head.out.bias.add_(0.1)
    assert loss_of(stage, overall)[0] != loss_of(stage, blinks)[0]
    with pytest.raises(ValueError, match="component weights"):
        DPO(axes={"blinks": ("ears",)})
    with pytest.raises(ValueError, match="axes name components"):
        DPO(axes={"blinks": ()})


def state(stage: AlignDPO) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in stage.network.named_parameters()}


def test_training_learns_the_pairs_and_goes_on_exactly(weights: str, tmp_path: Path) -> None:
    batch = pairs([0, 1, 1, 0])
    straight = make_stage(weights)
    others = {n: p.clone() for n, p in straight.named_parameters() if "motion_net" not in n}
    losses = fit(straight, batch, tmp_path, 12, save=8)
    assert losses[0] == pytest.approx(math.log(2))
    assert losses[-1] < losses[0] - 0.05
    now = dict(straight.named_parameters())
    assert all(torch.equal(value, now[name]) for name, value in others.items())
    resumed = make_stage(weights)
    assert fit(resumed, batch, tmp_path, 12, ckpt=tmp_path / "middle.ckpt") == losses[8:]
    assert all(torch.equal(state(straight)[n], value) for n, value in state(resumed).items())


def test_holding_holds(weights: str, tmp_path: Path) -> None:
    moved = []
    for hold in (0.0, 1000.0):
        stage = make_stage(weights, hold=hold)
        fit(stage, pairs([0, 1, 1, 0]), tmp_path, 8)
        moved.append(float(loss_of(stage, pairs([0, 1, 1, 0]))[1]["moved"]))
    assert moved[1] < 0.5 * moved[0]


def test_what_does_not_fit_is_said_before_training(weights: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="motion network"):
        make_stage(None)
    with pytest.raises(ValueError, match="preferences need pairs"):
        loss_of(make_stage(weights), clips())
    for name, value in (("beta", 0.0), ("ties", 0.5), ("hold", -1.0)):
        with pytest.raises(ValueError, match=name):
            dataclasses.replace(DPO(), **{name: value})
    write_shard(tmp_path / "a.tar", [encode_pair(make_pair(i)) for i in range(4)])

    class Trainer:
        datamodule = PairData(str(tmp_path), 2)
        max_steps = 3

    stage = make_stage(weights)
    stage._trainer = Trainer()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match=r"1 of 4 pairs are ties: set dpo\.ties above 1"):
        stage.on_fit_start()
