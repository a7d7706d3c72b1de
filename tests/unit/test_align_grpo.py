"""objectives/align_grpo: what the stage samples, asks of its weights, trains, and goes on from."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from aligning import (
    CLIPS,
    EYES,
    GROUP,
    LENGTH,
    OBJECTIVE,
    WINDOW,
    clips,
    eyes,
    fit,
    make_stage,
    make_weights,
)  # fmt: skip
from avatar_v.base.video_format import FRAME_RATES_HZ, VideoFormat
from avatar_v.callbacks.ema import EMA
from avatar_v.objectives.align_grpo import AlignGRPO
from avatar_v.objectives.policy_gradient import GRPO
from avatar_v.rewards.terms import RewardTerm
from avatar_v.sampling.exploring import Exploration, explored
from avatar_v.sampling.settings import Settings
from avatar_v.sampling.solver import normal, renoise, sample
from avatar_v.shards.datamodule import ShardData
from avatar_v.shards.writer import write_shard
from avatar_v.training.optim import Optim
from avatar_v.training.policies import Guidance, WarmStartWindows
from avatar_v.training.roles import Updates
from avatar_v.training.settings import Models
from avatar_v.types import Batch
from tiny_run import make_clip

GIVEN = "avatar_v.rewards.shipped."
PICTURES = RewardTerm(f"{__name__}.brightness", credit=("mouth",))


def nothing(frames, audio, reference, motion, **columns) -> torch.Tensor:
    return torch.zeros(len(motion))


def broken(frames, audio, reference, motion, **columns) -> torch.Tensor:
    raise RuntimeError("no face")


def brightness(frames, audio, reference, motion, *, truth, portrait, **columns) -> torch.Tensor:
    assert truth.shape[0] == portrait.shape[0] == CLIPS
    assert frames.shape[:2] == motion.shape[:2] == (CLIPS * GROUP, 4 * LENGTH - 3)
    assert audio.shape == (CLIPS * GROUP, 640 * (4 * LENGTH - 3))
    return frames.mean((1, 2, 3, 4))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_weights(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def batch() -> Batch:
    return clips()


def rolled(stage: AlignGRPO, batch: Batch, index: int = 0):
    return stage.roll(stage.begin(batch, index))


@pytest.mark.parametrize(
    ("policy", "reward", "guard"),
    [("motion", EYES, False), ("video", PICTURES, True)],
    ids=["motion", "video"],
)
def test_the_ratio_is_exactly_one_before_an_update_and_not_behind_it(
    weights: str, batch: Batch, policy: str, reward: RewardTerm, guard: bool
) -> None:
    grpo = GRPO(group_size=GROUP, guard=guard, hold={reward.credit[0]: 2.0})
    aligned = make_stage(weights, reward, policy=policy, grpo=grpo)
    rollout, trajectory = rolled(aligned, batch)
    assert [(weight, bool(of.any())) for weight, of in trajectory.held] == [(2.0, True)]
    assert trajectory.logs[f"missing_{reward.label}"] == 0
    assert len(trajectory.moves) == WINDOW
    losses = []
    for number in range(WINDOW):
        loss, logs = aligned.policy_loss(rollout, trajectory, number, first=True)
        assert logs["ratio"] == 0
        assert logs["kl"] < 1e-9  # the copy of the weights lies at other addresses in memory
        loss.backward()
        losses.append(loss)
    trained = {name for name, p in aligned.named_parameters() if p.grad is not None}
    assert trained
    assert all(name.startswith(f"{aligned.policy.module}.") for name in trained)
    with torch.no_grad():
        for p in aligned.network.parameters():
            if p.grad is not None:
                p.sub_(1e-2 * p.grad)
    _, logs = aligned.policy_loss(rollout, trajectory, 0, first=False)
    assert logs["ratio"] > 0
    assert logs["kl"] > 0
    with pytest.raises(RuntimeError, match="ratio is not 1"):
        aligned.policy_loss(rollout, trajectory, 0, first=True)


def test_clips_of_another_rate_than_the_weights_keep_are_refused(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.tar", [make_clip(i) for i in range(4)])
    data = ShardData(str(tmp_path), batch_size=1, pairs=True)
    for rate in FRAME_RATES_HZ:
        weights = make_weights(tmp_path / str(rate), video=VideoFormat(32, 32, rate))
        stage = make_stage(weights)
        if rate == 25:
            stage.subject.check_data(stage, data, 1)
            continue
        with pytest.raises(ValueError, match=f"make {rate} frames a second, .* the clips have 25"):
            stage.subject.check_data(stage, data, 1)


def test_the_ratio_is_one_in_half_precision_whose_copies_carry_gradients(
    weights: str, batch: Batch
) -> None:
    """Autocast keeps its copies of weights: those of the rollout must not serve the update."""
    aligned = make_stage(weights)
    with torch.autocast("cpu", torch.bfloat16):
        rollout, trajectory = rolled(aligned, batch)
        loss, _ = aligned.policy_loss(rollout, trajectory, 0, first=True)
    loss.backward()
    grads = [p.grad for n, p in aligned.network.named_parameters() if n.endswith("weight")]
    assert all(g is not None for g in grads)


def test_windows_of_a_batch_have_as_many_latents_given(weights: str, batch: Batch) -> None:
    aligned = make_stage(weights)
    assert aligned.subject.draw_windows(batch, aligned.draws(0)).prefix.tolist() == [1] * CLIPS
    aligned.subject.objective = dataclasses.replace(OBJECTIVE, first_share=0.0)
    windows = aligned.subject.draw_windows(batch, aligned.draws(0))
    assert windows.prefix.tolist() == [2] * CLIPS
    rollout, trajectory = rolled(aligned, batch)
    assert rollout.prefix is not None
    assert torch.equal(rollout.prefix[:CLIPS], rollout.clean[:, :2])
    assert trajectory.moves[0].before.shape[:2] == (CLIPS * GROUP, LENGTH - 2)


def test_a_rollout_may_begin_with_an_end_of_the_policy_s_own(weights: str, batch: Batch) -> None:
    aligned = make_stage(weights, grpo=GRPO(group_size=GROUP, max_lead=1))
    seen = {}
    for index in range(12):
        begun = aligned.begin(batch, index)
        assert isinstance(begun.windows, WarmStartWindows)
        true, _ = aligned.policy.begin(aligned.conditioner, batch, begun.windows)
        seen[begun.windows.lead] = (begun.windows, begun.clean, true)
    assert set(seen) == {0, 1}
    _, clean, true = seen[0]
    assert torch.equal(clean, true)
    windows, clean, true = seen[1]
    assert windows.prefix.tolist() == [2] * CLIPS
    assert int(windows.start.min()) >= LENGTH - 2
    assert not torch.allclose(clean[:, :2], true[:, :2])
    assert torch.equal(clean[:, 2:], true[:, 2:])
    long = make_stage(weights, grpo=GRPO(max_lead=3))
    with pytest.raises(ValueError, match="max_lead 3 needs clips of more"):
        _ = [long.subject.draw_windows(batch, long.draws(index)) for index in range(20)]
    with pytest.raises(ValueError, match="max_lead is 0"):
        make_stage(weights, grpo=GRPO(max_lead=1), policy="video")


def state(aligned: AlignGRPO) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in aligned.network.named_parameters()}


def test_rewards_that_say_nothing_change_nothing(
    weights: str, batch: Batch, tmp_path: Path
) -> None:
    aligned = make_stage(weights, RewardTerm(f"{__name__}.nothing"))
    before = state(aligned)
    fit(aligned, batch, tmp_path, 3)
    assert aligned.step == 3
    assert all(torch.equal(before[name], value) for name, value in state(aligned).items())


@pytest.mark.filterwarnings("ignore:reward broken")
def test_a_reward_that_fails_ends_no_run_unless_it_is_the_only_one(
    weights: str, batch: Batch, tmp_path: Path
) -> None:
    fails = RewardTerm(f"{__name__}.broken", credit=("yaw",))
    both, alone = make_stage(weights, EYES, fails), make_stage(weights, EYES)
    assert fit(both, batch, tmp_path, 2) == fit(alone, batch, tmp_path, 2)
    assert both.trainer.callback_metrics["train/missing_broken"] == 1
    assert both.trainer.callback_metrics["train/missing_eyes"] == 0
    with pytest.raises(ValueError, match=r"no reward has a value .*RuntimeError: no face"):
        fit(make_stage(weights, fails), batch, tmp_path, 2)


def test_what_is_rewarded_is_sampled_more(weights: str, batch: Batch, tmp_path: Path) -> None:
    """Up with the reward, down against it, and nothing but the policy moves."""
    levels = []
    for sign in (1.0, -1.0):
        reward = dataclasses.replace(EYES, options={"sign": sign})
        aligned = make_stage(weights, reward, grpo=GRPO(group_size=12, kl_weight=0.0), lr=6e-3)
        frozen = {n: p.clone() for n, p in aligned.named_parameters() if "motion_net" not in n}
        fit(aligned, batch, tmp_path, 4)
        now = dict(aligned.named_parameters())
        assert all(torch.equal(value, now[name]) for name, value in frozen.items())
        seen = [aligned.plain_samples(batch, index).motion for index in range(6)]
        levels.append(eyes(None, None, None, torch.cat(seen)).mean())
    assert levels[0] > levels[1] + 0.05


def test_a_resumed_run_goes_on_exactly(weights: str, batch: Batch, tmp_path: Path) -> None:
    grpo = GRPO(group_size=GROUP, updates_per_rollout=2)
    straight = make_stage(weights, grpo=grpo)
    average, again = EMA(0.9), EMA(0.9)
    losses = fit(straight, batch, tmp_path, 6, save=2, callbacks=(average,))
    assert len(losses) == 3
    assert average.num_updates == 6, "every update is averaged, and not every batch"
    resumed, middle = make_stage(weights, grpo=grpo), tmp_path / "middle.ckpt"
    assert fit(resumed, batch, tmp_path, 6, ckpt=middle, callbacks=(again,)) == losses[1:]
    assert again.num_updates == 6
    assert all(torch.equal(average.average[n], x) for n, x in again.average.items())
    assert resumed.step == 6
    assert all(torch.equal(state(straight)[n], value) for n, value in state(resumed).items())


def test_a_rank_that_knows_no_reward_adds_up_the_names_that_the_others_do(
    weights: str, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two ranks one sees no face: it waits for no other sum than that of all names."""
    nan = float("nan")
    ranks = {"sees": [[1.0, nan], [3.0, 5.0]], "blind": [[nan, nan], [nan, nan]]}
    aligned, sums, logged = make_stage(weights), [], {}
    monkeypatch.setattr(aligned, "plain_samples", lambda batch, index: index)
    monkeypatch.setattr(aligned, "log", lambda name, value: logged.update({name: float(value)}))
    for values in ranks.values():
        rewards = [{"face": torch.tensor(v), "never": torch.full((2,), nan)} for v in values]
        monkeypatch.setattr(aligned, "rewards", rewards.__getitem__)
        aligned.on_validation_epoch_start()
        for index in range(2):
            aligned.validation_step(batch, index)
        strategy = SimpleNamespace(reduce=lambda own, reduce_op: sums.append(own) or sum(sums))
        monkeypatch.setattr(aligned, "_trainer", SimpleNamespace(strategy=strategy))
        aligned.on_validation_epoch_end()
    assert sums[0].tolist() == [[9.0, 3.0], [0.0, 0.0]]
    assert sums[1].tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert logged == {"val/face": 3.0}


def test_accumulated_batches_are_one_update(weights: str, batch: Batch, tmp_path: Path) -> None:
    aligned, average = make_stage(weights, updates=Updates(accumulate_grad_batches=2)), EMA(0.9)
    assert len(fit(aligned, batch, tmp_path, 2, callbacks=(average,))) == 4
    assert average.num_updates == 2
    with pytest.raises(ValueError, match="updates_per_rollout is 1"):
        make_stage(
            weights,
            updates=Updates(accumulate_grad_batches=2),
            grpo=GRPO(updates_per_rollout=2),
        )


def test_a_student_is_rolled_out_in_its_own_steps(batch: Batch, tmp_path: Path) -> None:
    """Its rollout is what generation samples, whether a step is explored or not, and another number
    of steps, another sampler or guidance once more is an error."""
    start = make_weights(tmp_path, motion_steps=2, shift=3.0)
    plain = Guidance()
    steps = Exploration(num_steps=2, shift=3.0, sampler="student", window=1)
    aligned = make_stage(start, exploration=steps, guidance=plain)
    rollout, trajectory = rolled(aligned, batch)
    velocity = aligned.policy.velocity(aligned.network, aligned.conditioner, rollout)
    again, generator = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    noise = torch.randn(len(rollout.condition), *rollout.clean.shape[1:], generator=generator)
    torch.randn(noise.shape, generator=again)
    with torch.no_grad():
        settings = Settings(LENGTH, shift=3.0, motion_steps=2)
        expected = sample(
            velocity, noise, settings.motion_times, prefix=rollout.prefix, step=renoise,
            draw=normal(generator),
        )  # fmt: skip
        for window in (range(0), range(1)):
            drawn = torch.Generator()
            drawn.set_state(again.get_state())
            made, _ = explored(velocity, noise, steps, window, normal(drawn), rollout.prefix)
            assert torch.equal(made, expected)
    assert [move.std for move in trajectory.moves] == [pytest.approx(0.75)]
    loss, _ = aligned.policy_loss(rollout, trajectory, 0, first=True)
    loss.backward()
    assert all(bool(p.grad.any()) for p in aligned.network.parameters() if p.grad is not None)
    for match, changes in (
        ("student of 2 steps", {"exploration": Exploration(num_steps=4), "guidance": plain}),
        (
            "student of 2 steps",
            {"exploration": dataclasses.replace(steps, num_steps=3), "guidance": plain},
        ),
        ("with shift 3", {"exploration": dataclasses.replace(steps, shift=1.0), "guidance": plain}),
        ("guidance inside", {"exploration": steps, "guidance": Guidance(motion=2.0)}),
    ):
        with pytest.raises(ValueError, match=match):
            make_stage(start, **changes)
    with pytest.raises(ValueError, match="none of few steps"):
        make_stage(make_weights(tmp_path / "slow"), exploration=steps, guidance=plain)


def test_what_does_not_fit_is_said_before_training(weights: str, batch: Batch) -> None:
    with pytest.raises(ValueError, match="motion network"):
        AlignGRPO(
            Models("tiny", motion_stats="small"), Optim(1e-3, 0), OBJECTIVE, GRPO(),
            Exploration(), Guidance(), [EYES],
        ).configure_model()  # fmt: skip
    for policy, names in (("motion", "components of motion"), ("video", "face and mouth")):
        wrong = dataclasses.replace(EYES, credit=("nose",))
        with pytest.raises(ValueError, match=names):
            rolled(make_stage(weights, wrong, policy=policy), batch)
    with pytest.raises(ValueError, match="pairs"):
        rolled(make_stage(weights), dataclasses.replace(batch, reference=None))
    with pytest.raises(ValueError, match=r"held out|missing"):
        make_stage(weights, RewardTerm(GIVEN + "Identity", options={"critic": "face_held_out"}))
