"""objectives/align_dpo, align_video_dpo: where they start, which way they go, ties, axes, what is
given, and going on exactly."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from aligning import LENGTH, clips, fit, make_weights
from avatar_v.models.guided import with_guidance_inside
from avatar_v.models.lora import FACTORS
from avatar_v.objectives.align_dpo import DPO, AlignDPO
from avatar_v.objectives.align_video_dpo import AlignVideoDPO
from avatar_v.objectives.preferences import Preferences
from avatar_v.shards.pair_data import PairData
from avatar_v.shards.pairs import encode_pair
from avatar_v.shards.writer import write_shard
from avatar_v.training.engine import Engine
from avatar_v.training.motion import MotionTraining, get_motion_net
from avatar_v.training.optim import Optim
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable
from avatar_v.types import MOTION_NAMES, Batch, Cond, PreferencePairs, PreferenceVideos
from avatar_v.weights.card import read_card
from tiny_run import make_pair, make_video_pair

EYES = MOTION_NAMES.index("eye_open")
both_networks = pytest.mark.parametrize("of", ["motion", "video"])


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_weights(tmp_path_factory.mktemp("weights"))


def pairs(winner: list[int], *, axis: str = "overall") -> Batch:
    """Open eyes against closed ones: the first has them open. Behind their first frame the video of
    the first is bright and that of the second dark."""
    batch = clips(len(winner))
    first, second = batch.motion.clone(), batch.motion.clone()
    first[..., EYES], second[..., EYES] = 1.0, 0.0
    bright, dark = (torch.full((len(winner), 25, 3, 32, 32), at) for at in (0.8, -0.8))
    bright[:, 0] = dark[:, 0] = 0.0
    seen = torch.tensor([[True, False]] * len(winner))
    portraits = torch.linspace(-1, 1, 32).expand(len(winner), 2, 3, 32, 32)
    videos = PreferenceVideos(bright, dark, portraits, seen)
    judged = PreferencePairs(first, second, torch.tensor(winner), (axis,) * len(winner), videos)
    return dataclasses.replace(batch, preferences=judged)


def swapped(batch: Batch) -> Batch:
    """The same pairs with the second sample shown first."""
    judged = batch.preferences
    assert judged is not None
    assert judged.videos is not None
    videos = dataclasses.replace(
        judged.videos, first=judged.videos.second, second=judged.videos.first
    )
    winner = torch.tensor([1, 0, 2])[judged.winner]
    turned = PreferencePairs(judged.second, judged.first, winner, judged.axis, videos)
    return dataclasses.replace(batch, preferences=turned)


def make_stage(
    weights: str | None,
    of: str = "motion",
    *,
    lr: float = 1e-3,
    trainable: Trainable | None = None,
    image_share: float = 1.0,
    **numbers,
) -> AlignDPO | AlignVideoDPO:
    models = Models("tiny", init_from=weights, motion_stats=None if weights else "small")
    optim = Optim(lr=lr, num_warmup_steps=0, weight_decay=0.0, final_lr_share=1.0)
    share = 0.5 if of == "motion" else 1.0
    numbers = {"beta": 100.0 if of == "motion" else 1.0, **numbers}
    objective = Objective({0: LENGTH}, first_share=share, image_share=image_share, shift=2.0)
    if of == "motion":
        training = MotionTraining(num_windows=3)
        made = AlignDPO(models, optim, objective, training, DPO(**numbers), trainable=trainable)
    else:
        made = AlignVideoDPO(models, optim, objective, Preferences(**numbers), trainable=trainable)
    made.configure_model()
    return made


def network_of(stage: AlignDPO | AlignVideoDPO) -> torch.nn.Module:
    return get_motion_net(stage) if isinstance(stage, AlignDPO) else stage.dit


def loss_of(stage: Engine, batch: Batch, index: int = 0):
    begun = stage.begin(batch, index)
    each = {AlignDPO: 3, AlignVideoDPO: 1}[type(stage)]
    assert len(begun.clean) == 2 * each * len(batch.motion)
    return stage.loss(begun)


def gradients(
    stage: AlignDPO | AlignVideoDPO, loss: torch.Tensor
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The parameters that have one, with it."""
    stage.zero_grad()
    loss.backward()
    return [(p, p.grad.clone()) for p in network_of(stage).parameters() if p.grad is not None]


@both_networks
@pytest.mark.parametrize(
    ("winner", "ties", "expected"),
    [
        ([0, 1], 1.0, math.log(2)),
        ([0, 1], 4.0, math.log(5)),  # log(1 + k)
        ([2, 2], 4.0, math.log(25 / 15)),  # -log of (k² - 1) / (1 + k)²
    ],
)
def test_it_starts_where_nothing_is_preferred(
    of: str, weights: str, winner: list[int], ties: float, expected: float
) -> None:
    loss, logs = loss_of(make_stage(weights, of, ties=ties, hold=1.0), pairs(winner))
    # motion: exactly, equal networks have equal errors. Errors of this random DiT are hundreds, and
    # its copy's weights, which lie elsewhere in memory, are rounded otherwise
    rounding = 0.0 if of == "motion" else 5e-4
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-7, abs=rounding)
    for name in ("moved", "won", "lost"):
        assert float(logs[name]) == pytest.approx(0.0, abs=rounding)
    if of == "motion":
        assert float(logs["accuracy"]) == (0.5 if winner[0] < 2 else 0.0)


@both_networks
def test_the_gradient_points_from_the_loser_to_the_winner(of: str, weights: str) -> None:
    stage = make_stage(weights, of)
    for winner in (0, 1):
        loss, _ = loss_of(stage, pairs([winner] * 4))
        grads = gradients(stage, loss)
        assert all(p.grad is None for p in stage.frozen.parameters())
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


@both_networks
def test_a_tie_has_no_side(of: str, weights: str) -> None:
    """At the start its gradient is 0 but for rounding."""
    stage, batch = make_stage(weights, of, ties=2.0), pairs([2, 2])
    tied, won = (
        sum(float(grad.square().sum()) for _, grad in gradients(stage, loss_of(stage, batch)[0]))
        for batch in (batch, pairs([0, 0]))
    )
    assert tied < 1e-8 * won


def test_an_axis_counts_in_its_components(weights: str) -> None:
    stage = make_stage(weights, axes={"blinks": ("eye_open",)})
    assert isinstance(stage, AlignDPO)
    overall, blinks = pairs([0, 1]), pairs([0, 1], axis="blinks")
    assert stage.subject.axis_weights(overall).tolist() == [[1.0] * 16] * 2
    row = stage.subject.axis_weights(blinks)[0]
    assert float(row[EYES]) == 16
    assert float(row.sum()) == 16
    with torch.no_grad():
        get_motion_net(stage).head.out.bias.add_(0.1)
    assert loss_of(stage, overall)[0] != loss_of(stage, blinks)[0]
    with pytest.raises(ValueError, match="component weights"):
        DPO(axes={"blinks": ("ears",)})
    with pytest.raises(ValueError, match="axes name components"):
        DPO(axes={"blinks": ()})


@both_networks
def test_the_order_in_which_samples_are_shown_is_none(of: str, weights: str) -> None:
    """Away from the start, where the two orders would differ."""
    stage, batch = make_stage(weights, of), pairs([0, 1, 1])
    with torch.no_grad():
        network_of(stage).get_parameter("head.out.bias").add_(0.1)
    loss, other = (loss_of(stage, batch)[0] for batch in (batch, swapped(batch)))
    assert loss == other != math.log(2)


def state(stage: AlignDPO | AlignVideoDPO) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in network_of(stage).named_parameters()}


@both_networks
def test_training_learns_the_pairs_and_goes_on_exactly(
    of: str, weights: str, tmp_path: Path
) -> None:
    batch = pairs([0, 1, 1, 0])
    straight = make_stage(weights, of)
    trained = "conditioner.motion_net." if of == "motion" else "dit."
    others = {n: p.clone() for n, p in straight.named_parameters() if not n.startswith(trained)}
    assert any(name.startswith("frozen.") for name in others)
    losses = fit(straight, batch, tmp_path, 12, save=8)
    assert losses[0] == pytest.approx(math.log(2), abs=5e-4)
    assert losses[-1] < losses[0] - 0.05
    now = dict(straight.named_parameters())
    assert all(torch.equal(value, now[name]) for name, value in others.items())
    resumed = make_stage(weights, of)
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


def test_the_factors_of_a_video_network_alone_are_trained(weights: str, tmp_path: Path) -> None:
    stage = make_stage(weights, "video", trainable=Trainable("lora", lora_rank=2), lr=1e-3)
    before = {name: p.detach().clone() for name, p in stage.named_parameters()}
    losses = fit(stage, pairs([0, 1]), tmp_path, 4)
    assert losses[0] == pytest.approx(math.log(2), abs=5e-4)
    assert losses[-1] < losses[0]
    moved = {name for name, p in stage.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all(FACTORS in name for name in moved)


def test_a_first_latent_is_given_where_both_videos_begin_alike(weights: str) -> None:
    stage, batch = make_stage(weights, "video"), pairs([0, 1])
    assert batch.preferences is not None
    assert batch.preferences.videos is not None
    batch.preferences.videos.second[1, 0] = 0.4
    begun = stage.begin(batch, 0)
    assert begun.windows.prefix.tolist() == [1, 0]
    assert torch.equal(begun.clean[0, 0], begun.clean[2, 0])
    assert not torch.equal(begun.clean[0, 1], begun.clean[2, 1])
    assert make_stage(weights, "video", image_share=0.0).begin(batch, 0).windows.prefix.sum() == 0


def test_each_video_follows_its_own_motion_and_shares_all_else(weights: str) -> None:
    stage, batch = make_stage(weights, "video"), pairs([0, 1])
    judged, cond = batch.preferences, stage.begin(batch, 0).cond
    assert judged is not None
    assert isinstance(cond, Cond)
    assert cond.motion is not None
    assert cond.audio is not None
    assert cond.reference is not None
    pack = stage.conditioner.pack_motion
    first, second = (pack(of)[:, :LENGTH] for of in (judged.first, judged.second))
    assert torch.equal(cond.motion, torch.stack([first[0], second[1], second[0], first[1]]))
    assert torch.equal(cond.audio[:2], cond.audio[2:])
    assert cond.reference.valid.tolist() == [[True, False]] * 4  # a second picture is missing
    assert cond.reference.latents.shape[1:] == (2, 16, 4, 4)
    assert cond.reference.motion is None


def test_videos_that_do_not_fit_are_said(weights: str, tmp_path: Path) -> None:
    stage, batch = make_stage(weights, "video"), pairs([0])
    assert batch.preferences is not None
    assert batch.preferences.videos is not None
    without = dataclasses.replace(
        batch, preferences=dataclasses.replace(batch.preferences, videos=None)
    )
    with pytest.raises(ValueError, match=r"set data\.init_args\.videos to true"):
        stage.begin(without, 0)
    videos = batch.preferences.videos
    tall = dataclasses.replace(
        videos, first=torch.zeros(1, 25, 3, 40, 32), second=torch.zeros(1, 25, 3, 40, 32)
    )
    odd = dataclasses.replace(
        batch, preferences=dataclasses.replace(batch.preferences, videos=tall)
    )
    with pytest.raises(ValueError, match="judged videos of 40x32: expected sides of whole tokens"):
        stage.begin(odd, 0)
    with pytest.raises(ValueError, match=r"first_share 1 and suffix_share 0, got 0\.5 and 0"):
        AlignVideoDPO(
            Models("tiny"), Optim(lr=1.0, num_warmup_steps=0), Objective({0: 4}), Preferences()
        )
    few = make_weights(tmp_path, num_steps=4)
    assert read_card(few).can.num_steps == 4
    with pytest.raises(ValueError, match="is a student of 4 steps: align its teacher"):
        make_stage(few, "video")
    stage.dit = with_guidance_inside(stage.dit, ((1.0, 5.0), (1.0, 5.0), (1.0, 3.0)))
    with pytest.raises(ValueError, match="guidance inside: align its teacher"):
        stage.build_roles()

    write_shard(tmp_path / "pairs" / "a.tar", [encode_pair(make_video_pair(i)) for i in range(2)])

    class Trainer:
        datamodule = PairData(str(tmp_path / "pairs"), 2, videos=True)
        max_steps = 3

    short = make_stage(weights, "video", ties=2.0)
    short.subject.objective = dataclasses.replace(short.subject.objective, window_latents={0: 10})
    short._trainer = Trainer()  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="a window of 10 latents does not fit clips of 9"):
        short.on_fit_start()
