"""callbacks/watch_rewards and rewards/metrics: what is watched, and what ends a run."""

import dataclasses
import math
from pathlib import Path

import pytest
import torch

from aligning import EYES, clips, fit, make_stage, make_weights
from avatar_v.callbacks.watch_rewards import WatchRewards, change, read_watch
from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face import FaceCritic
from avatar_v.faces.face_track import track_faces
from avatar_v.media.reading import read_video
from avatar_v.motion.extractors import from_landmarks
from avatar_v.objectives.policy_gradient import GRPO
from avatar_v.rewards.metrics import (
    HeldOutIdentity,
    HeldOutMouth,
    HeldOutSync,
    LandmarkMouth,
)
from avatar_v.rewards.terms import Rewards, RewardTerm
from avatar_v.weights.random import make_batch
from avatar_v.world.clip import make_clip

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
    FaceCritic(width=12, num_heads=2).save_pretrained(tmp_path / "face")
    WorldSyncNet(width=12, num_heads=2).save_pretrained(tmp_path / "sync")
    MotionMeter(width=10, num_heads=2).save_pretrained(tmp_path / "motion")
    kinds = ((HeldOutIdentity, "face"), (HeldOutSync, "sync"), (HeldOutMouth, "motion"))
    for kind, name in kinds:
        with pytest.raises(ValueError, match="expected one that is held out"):
            kind(str(tmp_path / name))
    with pytest.raises(ValueError, match="one or more"):
        Rewards([])


def mouth_of(
    metric: HeldOutMouth, frames: torch.Tensor, motion: torch.Tensor, **columns: object
) -> float:
    batch = make_batch(1)
    found = metric(frames[None], batch.audio, batch, motion[None], num_given=1, **columns)
    assert found is not None
    return float(found)


def test_a_mouth_that_opens_less_than_it_should_is_seen() -> None:
    clip = make_clip(3, 5, 7, num_frames=33, size=64)
    assert clip.video is not None
    true, metric = clip.video.float() / 127.5 - 1, HeldOutMouth()
    assert mouth_of(metric, true, clip.motion) > 0.8
    assert abs(mouth_of(metric, true[:1].expand_as(true), clip.motion)) < 0.01
    half = {"truth": (0.5 * (true + true[:1]))[None], "condition": torch.tensor([0])}
    assert 0.1 < mouth_of(metric, true, clip.motion, **half) < mouth_of(metric, true, clip.motion)
    batch = make_batch(1)
    assert metric(None, batch.audio, batch, clip.motion[None], num_given=1) is None


@pytest.mark.faces
@pytest.mark.media
def test_a_real_mouth_is_read_by_its_landmarks(media: Path) -> None:
    frames = read_video(media / "talking_head.mp4", max_frames=25)
    motion, true = from_landmarks(frames, track_faces(frames)), frames.float() / 127.5 - 1
    metric = LandmarkMouth()
    assert mouth_of(metric, true, motion) == pytest.approx(1, abs=1e-3)
    assert abs(mouth_of(metric, true[:1].expand_as(true), motion)) < 0.01
    assert math.isnan(mouth_of(metric, torch.rand(9, 3, 96, 96), motion[:9]))
