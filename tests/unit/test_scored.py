"""rewards/scored and score_features: a scorer as reward, watcher and feature."""

import dataclasses
import warnings
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor

from aligning import clips, fit, make_stage, make_weights
from avatar_v.base import trust
from avatar_v.callbacks.watch_rewards import WatchRewards
from avatar_v.critics.frozen import Score
from avatar_v.faces.face_track import track_faces
from avatar_v.media.reading import read_video
from avatar_v.motion.extractors import from_landmarks
from avatar_v.rewards import score_features
from avatar_v.rewards.features import Features, FeatureSources
from avatar_v.rewards.preference import Preference, PreferenceModel
from avatar_v.rewards.score_features import ScoreFeatures
from avatar_v.rewards.scored import Scored, scored_clips
from avatar_v.rewards.shipped import by_latent
from avatar_v.rewards.terms import Rewards, RewardSamples, RewardTerm
from avatar_v.scoring.clip import ScoredClip
from avatar_v.scoring.registry import make_scorer
from avatar_v.scoring.scorers import likeness, quality
from avatar_v.scoring.scorers.looks import FlickerScorer
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.weights.random import make_batch
from avatar_v.world.clip import make_clip

PATH = "avatar_v.rewards.scored.Scored"
FRAMES, LATENTS = 49, 13


def term(scorer: str, **options: Any) -> RewardTerm:
    return RewardTerm(PATH, options={"scorer": scorer, **options})


@pytest.fixture(scope="module")
def shots() -> RewardSamples:
    """A true clip as the first sample, and blurred, its mouth half as far open, as the second."""
    clip = make_clip(2_000_021, 5, 7, num_frames=FRAMES, size=64)
    assert clip.video is not None
    true = clip.video.float() / 127.5 - 1
    blurred = torch.nn.functional.avg_pool2d(true, 3, 1, 1)
    columns = {"truth": true[None], "portrait": true[None, :2], "true_motion": clip.motion[None]}
    own = clip.motion[None].repeat(1, 2, 1)[:, :75]
    reference = dataclasses.replace(make_batch(1, 75), motion=own)
    return RewardSamples(
        torch.stack([true, 0.5 * (blurred + blurred[:1])]),
        clip.audio[None].repeat(2, 1),
        reference,
        clip.motion[None].repeat(2, 1, 1),
        torch.tensor([0, 0]),
        1,
        columns,
    )


def said(shots: RewardSamples, scorer: str, **options: Any) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (values,) = Rewards([term(scorer, **options)], watch=True)(shots).values()
    return values


def as_clips(shots: RewardSamples, first: int = 1) -> list[ScoredClip]:
    assert shots.frames is not None
    assert shots.reference is not None
    columns = shots.columns
    return list(
        scored_clips(
            shots.frames, shots.audio, shots.condition, columns["portrait"],
            [shots.reference.motion[0][shots.reference.valid[0]]], columns["truth"],
            columns["true_motion"], first,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scorer", "output", "sign"),
    [
        *(("mouth", "mouth_r", 1), ("face_world", "face_world", 1), ("flicker", "flicker", -1)),
        *(("style", "style", -1), ("sync_world", "sync_world_d", -1)),
    ],
)
def test_a_reward_is_what_the_scorer_says_of_the_clip(
    shots: RewardSamples, scorer: str, output: str, sign: int
) -> None:
    alone = [make_scorer(scorer).score(clip).values[output] for clip in as_clips(shots)]
    expected = pytest.approx([sign * value for value in alone], rel=1e-5)
    assert said(shots, scorer, output=output).tolist() == expected
    with torch.autocast("cpu", torch.bfloat16):
        assert said(shots, scorer, output=output).tolist() == expected, "in its own precision"
    assert shots.frames is not None
    half = dataclasses.replace(shots, frames=shots.frames.bfloat16())
    assert said(half, scorer, output=output).isfinite().all()


def test_what_is_best_at_zero_is_minus_its_size(shots: RewardSamples) -> None:
    moved = dataclasses.replace(shots, audio=shots.audio.roll(-4 * SAMPLES_PER_FRAME, 1))
    assert said(moved, "sync_world", output="sync_world_offset")[0] == -4
    with pytest.raises(ValueError, match="best at zero"):
        Scored("sync_world", "sync_world_offset", relative=True)


def test_pictures_are_at_most_as_good_as_the_true_ones(shots: RewardSamples) -> None:
    sharp, dull = said(shots, "sharpness")  # neither way is better: relative
    alone = [make_scorer("sharpness").score(clip).values["sharpness"] for clip in as_clips(shots)]
    assert sharp == 1
    assert dull == pytest.approx(alone[1] / alone[0])
    flicker = [FlickerScorer().score(clip).values["flicker"] for clip in as_clips(shots)]
    noisy = shots.frames[:1] + 0.1 * torch.randn(1, FRAMES, 3, 64, 64)
    restless = dataclasses.replace(shots, frames=torch.cat([noisy, shots.frames[1:]]))
    share, calm = said(restless, "flicker", relative=True)
    assert calm == 1 > share > 0
    assert flicker[1] < flicker[0]
    rewards, told = Rewards([term("sharpness")]), "no truth to compare with"
    with pytest.warns(UserWarning, match=told), pytest.raises(ValueError, match=told):
        rewards(dataclasses.replace(shots, columns={}))


def test_credit_is_local_where_a_scorer_has_values_per_frame(shots: RewardSamples) -> None:
    rows = said(shots, "flicker", per_latent=True)
    for row, clip in zip(rows, as_clips(shots), strict=True):
        each = torch.tensor([value for _, value in FlickerScorer().score(clip).frames["flicker"]])
        each = torch.cat([each[:1], each])  # the first frame was given, and no value is of it
        torch.testing.assert_close(row, -by_latent(each[None], "mean")[0])
    sparse = said(shots, "sharpness", per_latent=True)  # 2 frames a second
    assert sparse.shape == (2, LATENTS)
    assert (sparse[0] == 1).all()
    assert (sparse[1] < 0.5).all()
    rewards, told = Rewards([term("style", per_latent=True)]), "no values per frame of style"
    with pytest.warns(UserWarning, match=told), pytest.raises(ValueError, match=told):
        rewards(shots)


def test_frames_that_were_given_are_not_judged(shots: RewardSamples) -> None:
    noisy = shots.frames.clone()
    noisy[:, :5] += 0.5 * torch.randn(2, 5, 3, 64, 64)
    given = dataclasses.replace(shots, num_given=2)
    other = dataclasses.replace(given, frames=noisy)
    for options in ({"scorer": "flicker", "per_latent": True}, {"scorer": "mouth"}):
        assert torch.equal(said(given, **options), said(other, **options))
    assert not torch.equal(said(shots, "flicker"), said(other, "flicker"))


def test_lips_that_open_less_than_they_should_are_seen(shots: RewardSamples) -> None:
    slope = {"scorer": "mouth", "output": "mouth_slope"}
    own, half = said(shots, **slope, critic="motion_held_out")
    assert own == 1
    assert 0.3 < half < 0.7
    still = dataclasses.replace(shots, frames=shots.frames[:, :1].expand_as(shots.frames))
    assert said(still, **slope).abs().max() < 0.05


@pytest.mark.faces
@pytest.mark.media
def test_a_real_mouth_is_read_by_its_landmarks(media: Path) -> None:
    frames = read_video(media / "talking_head.mp4", max_frames=25)
    motion, true = from_landmarks(frames, track_faces(frames)), frames.float() / 127.5 - 1
    video = torch.stack([true, true[:1].expand_as(true), torch.zeros_like(true)])
    shots = RewardSamples(
        video, torch.zeros(3, 25 * SAMPLES_PER_FRAME), None, motion[None].repeat(3, 1, 1),
        torch.zeros(3).long(), 1, {"truth": true[None], "true_motion": motion[None]},
    )  # fmt: skip
    with pytest.warns(UserWarning, match=r"1 of 3 values \(no face was found"):
        found = Rewards([term("mouth_landmarks")])(shots)["mouth_landmarks"]
    assert found[0] == 1
    assert abs(float(found[1])) < 0.01
    assert found[2].isnan()


class Brightness:
    """In the place of a critic whose weights are the user's: it sees a face where it is not dark,
    and brightness is all that it judges."""

    def __init__(self, folder: str, device: str = "cpu") -> None:
        assert folder == "weights"

    def hash(self) -> str:
        return "stand-in"

    def of(self, frames: Tensor) -> Tensor:
        assert frames.dtype == torch.uint8
        return frames.float().mean((1, 2, 3)) / 255

    def measure(self, frames: Tensor, task: str = "") -> Score:
        return Score(1 + 4 * self.of(frames), "stand-in", "")


class Faces(Brightness):
    def measure(self, frames: Tensor) -> tuple[Score, Tensor]:
        level = self.of(frames)
        rows = torch.stack([level, 1 - level, *[torch.zeros_like(level)] * 510], dim=1)
        return Score(torch.nn.functional.normalize(rows, dim=1), "stand-in", ""), level > 0.1


def test_critics_that_users_supply_judge_and_what_they_cannot_is_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(quality, "QAlign", Brightness)
    monkeypatch.setattr(likeness.arcface, "ArcFace", Faces)
    level = torch.tensor([-1.0, 0.0, 1.0, 0.0])[:, None, None, None, None]
    own = torch.tensor([0.0, -0.5])[:, None, None, None, None]
    shots = RewardSamples(
        level.expand(4, 25, 3, 8, 8), torch.zeros(4, 25 * SAMPLES_PER_FRAME), None,
        torch.zeros(4, 25, 16), torch.tensor([0, 0, 0, 1]), 1,
        {"truth": own.expand(2, 25, 3, 8, 8), "portrait": own.expand(2, 2, 3, 8, 8)},
    )  # fmt: skip
    shares = said(shots, "qalign", relative=True, weights="weights")
    assert shares.tolist() == pytest.approx([1 / 3, 1, 1, 1], abs=0.01)  # pictures have 256 levels
    with pytest.warns(UserWarning, match=r"face_arcface: 1 of 4 values \(SCRFD found no face"):
        found = Rewards([term("face_arcface", weights="weights")])(shots)["face_arcface"]
    assert found.isnan().tolist() == [True, False, False, False]
    assert found[1:].tolist() == pytest.approx([1, 0.5**0.5, 0.8**0.5], abs=0.01)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scorer": "nothing"}, "no metric 'nothing'; there are dino"),
        ({"scorer": "fid"}, "no metric 'fid'"),  # a set's
        (
            {"scorer": "mouth", "output": "flicker"},
            "output is one of mouth_r, mouth_slope, got 'flicker'",
        ),
        ({"scorer": "qalign"}, "qalign needs weights: q-future/one-align"),
        ({"scorer": "mouth", "size": 3}, "metric mouth: its options are critic, got size"),
    ],
)
def test_what_is_no_scorer_is_refused_when_it_is_named(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Rewards([RewardTerm(PATH, options=options)])


def test_held_out_critics_watch_and_are_no_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = make_weights(tmp_path)
    held_out, plain = term("face_world", critic="face_held_out"), term("face_world")
    with pytest.raises(ValueError, match="face_world has a critic that is held out"):
        make_stage(weights, held_out)
    scorer = likeness.FaceWorldScorer("face_held_out")
    monkeypatch.setattr(score_features, "make_scorer", lambda name: scorer)
    with pytest.raises(ValueError, match="mine has a critic that is held out"):
        ScoreFeatures(["mine"])
    trainer = L.Trainer(accelerator="cpu", logger=False)
    WatchRewards([dataclasses.replace(held_out, name="person")]).setup(
        trainer, make_stage(weights, plain), "fit"
    )
    identity = RewardTerm("avatar_v.rewards.shipped.Identity")
    for rewarded in (plain, dataclasses.replace(plain, name="another"), identity):
        stage = make_stage(weights, rewarded)
        same = term("face_world", output="face_world_drift", critic="face")
        with pytest.raises(ValueError, match="face_world_drift: its judge is rewarded"):
            fit(stage, clips(), tmp_path, 1, callbacks=(WatchRewards([same]),))
    sharp = dataclasses.replace(term("sharpness", per_latent=True), name="local")
    with pytest.raises(ValueError, match="local: its judge is rewarded"):
        WatchRewards([sharp]).setup(trainer, make_stage(weights, term("sharpness")), "fit")


def test_a_preference_model_reads_scorers(
    shots: RewardSamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = ScoreFeatures(["sharpness", "sync_world"])
    features = Features([part])
    assert features.sources == FeatureSources("", "", "", scorers=("sharpness", "sync_world"))
    model = PreferenceModel(
        features.num, 4, sources=features.sources, features_hash=features.hash()
    )
    model.save_pretrained(tmp_path)
    found = Preference(str(tmp_path))(
        shots.frames, shots.audio, shots.reference, shots.motion, condition=shots.condition,
        portrait=shots.columns["portrait"],
    )  # fmt: skip
    scorers = [make_scorer("sharpness"), make_scorer("sync_world")]
    rows = [
        [value for scorer in scorers for value in scorer.score(clip).values.values()]
        for clip in as_clips(shots, 0)
    ]
    torch.testing.assert_close(found, model(torch.tensor(rows))[:, 0])
    monkeypatch.setattr(type(scorers[0]), "version", 2)
    with pytest.raises(ValueError, match=r"reads features .* sharpness, sync_world, and these are"):
        Preference(str(tmp_path))
    monkeypatch.setattr(trust, "_trusted", set())
    with pytest.raises(ValueError, match=r"mine\.jumps is not among what a recipe may name"):
        Features.of(FeatureSources("", "", "", scorers=("mine.jumps",)))
