"""callbacks/watch_rewards and rewards/metrics: what is watched, and what ends a run."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from aligning import EYES, clips, fit, make_stage, make_weights
from avatar_v.callbacks.watch_rewards import WatchRewards, change, read_watch
from avatar_v.objectives.policy_gradient import GRPO
from avatar_v.rewards.terms import Rewards, RewardTerm

METRICS = "avatar_v.rewards.metrics."
LIPS = RewardTerm(METRICS + "lips")
SHUT = dataclasses.replace(EYES, options={"sign": -1.0}, name="shut")
BATCH = clips()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_weights(tmp_path_factory.mktemp("weights"))


def test_a_change_is_of_samples_with_the_same_noise() -> None:
    start = torch.tensor([1.0, 5.0, 2.0, math.nan])
    assert change(start + 1, start) == math.inf
    assert change(start, start) == 0
    up = torch.tensor([1.1, 5.3, 2.2, 9.0])
    assert change(up, start) == pytest.approx(0.2 / (0.1 / 3**0.5), rel=1e-4)
    assert change(start, up) == -change(up, start)
    assert change(torch.full((4,), math.nan), start) == 0


def test_a_resumed_run_is_watched_as_if_nothing_had_happened(weights: str, tmp_path: Path) -> None:
    metrics = [LIPS, RewardTerm(METRICS + "blink_level"), RewardTerm(METRICS + "sway_level")]

    def watch() -> WatchRewards:
        return WatchRewards(metrics, every_num_steps=2, patience=9)

    straight = make_stage(weights)
    losses = fit(straight, BATCH, tmp_path, 6, save=4, callbacks=(watch(),))
    rows = read_watch(tmp_path / "watch.csv")
    assert [row["step"] for row in rows] == [0, 2, 4, 6]
    assert {"eyes", "reward", "lips", "blink_level", "sway_level", "kl"} < set(rows[0])
    assert rows[0]["kl"] == 0 < rows[-1]["kl"]
    assert -1 <= rows[0]["lips"] <= 1
    assert (tmp_path / "watch.png").stat().st_size > 1000
    resumed = make_stage(weights)
    more = fit(resumed, BATCH, tmp_path, 6, ckpt=tmp_path / "middle.ckpt", callbacks=(watch(),))
    assert more == losses[4:], "watching draws nothing of the run's"
    assert read_watch(tmp_path / "watch.csv") == rows
    plain = make_stage(weights)
    assert fit(plain, BATCH, tmp_path, 2) == losses[:2]


def test_a_run_ends_where_the_reward_rises_and_a_reader_falls(
    weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    watch = WatchRewards([SHUT, LIPS], every_num_steps=2, patience=2)
    aligned = make_stage(weights, grpo=GRPO(group_size=12, kl_weight=0.0), lr=6e-3)
    fit(aligned, BATCH, tmp_path, 30, callbacks=(watch,))
    assert 4 <= aligned.step < 30
    assert "the reward rises and shut" in capsys.readouterr().out
    first, *_, last = read_watch(tmp_path / "watch.csv")
    assert last["reward"] > first["reward"]
    assert last["shut"] < first["shut"]


def test_readers_are_no_rewards(weights: str, tmp_path: Path) -> None:
    for metric, words in (
        (EYES, "eyes is a reward of the run.*: it is watched already"),
        (dataclasses.replace(EYES, name="another"), "is a reward of the run"),
        (RewardTerm(LIPS.path, name="kl"), "lips: a column of watch.csv is kl already"),
    ):
        stage = make_stage(weights)
        stage.configure_model = lambda: pytest.fail("said after weights are loaded")
        with pytest.raises(ValueError, match=words):
            fit(stage, BATCH, tmp_path, 1, callbacks=(WatchRewards([metric]),))
    with pytest.raises(ValueError, match="one or more"):
        Rewards([])
