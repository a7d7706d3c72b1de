"""scoring/scorers: a copy scores perfect, a shift is found, another's speech scores at chance."""

import re
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from avatar_v.base import trust
from avatar_v.critics.frozen import Score
from avatar_v.critics.motion import MOUTH_OPEN
from avatar_v.critics.syncnet import SyncNet
from avatar_v.faces.face_track import FaceTrack
from avatar_v.faces.syncnet_crop import CropPlan
from avatar_v.recipe.cli import merge_recipes
from avatar_v.rewards.score_features import ScoreFeatures
from avatar_v.rewards.terms import RewardTerm, load_reward
from avatar_v.scoring import readings
from avatar_v.scoring.clip import Footage, ScoredClip
from avatar_v.scoring.registry import build, find_scorers, scorer_classes
from avatar_v.scoring.sampling import first_minus_last, pearson, sampled, trimmed_mean
from avatar_v.scoring.scorer import Scorer
from avatar_v.scoring.scorers.likeness import FaceWorldScorer
from avatar_v.scoring.scorers.looks import DriftScorer, FlickerScorer, SharpnessScorer
from avatar_v.scoring.scorers.motion import MouthScorer, StyleScorer
from avatar_v.scoring.scorers.quality import QAlignScorer
from avatar_v.scoring.scorers.sync import SyncWorldScorer
from bench_cases import footage, judged, late, pixels, world_clip
from random_models import randomise

NUM_PERSONS = 4
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def clips() -> list[ScoredClip]:
    return [judged(i) for i in range(NUM_PERSONS)]


@pytest.fixture(scope="module")
def sync() -> SyncWorldScorer:
    return SyncWorldScorer()


@pytest.mark.parametrize(("num", "expected"), [(1, [0]), (25, [0, 12]), (51, [0, 12, 25, 37, 50])])
def test_two_frames_a_second(num: int, expected: list[int]):
    assert sampled(num) == expected


def test_the_trimmed_mean_cuts_a_tenth_at_each_end():
    values = [1000.0, *map(float, range(1, 9)), -1000.0]
    assert trimmed_mean(values) == 4.5
    assert trimmed_mean([3.0]) == 3.0
    with pytest.raises(ValueError, match="got none"):
        trimmed_mean([])


def test_drift_is_first_quarter_less_last():
    assert first_minus_last([4.0, 2.0, 9.0, 9.0, 9.0, 9.0, 1.0, 0.0]) == 2.5
    with pytest.raises(ValueError, match="2 sampled frames"):
        first_minus_last([1.0])


def test_a_copy_of_the_truth_scores_perfect(clips: list[ScoredClip], sync: SyncWorldScorer):
    mouth = MouthScorer()
    for clip in clips:
        same = replace(clip, video=clip.truth)
        assert mouth.score(same).values["mouth_r"] == pytest.approx(1.0, abs=1e-9)
        assert abs(sync.score(same).values["sync_world_offset"]) <= 1  # as right as it gets


def test_the_reference_itself_has_its_own_style_and_face(clips: list[ScoredClip]):
    for clip in clips:
        same = replace(clip, video=clip.reference)
        assert StyleScorer().score(same).values["style"] == 0.0
        own = FaceWorldScorer().score(same).values["face_world"]
        assert own > 0.85  # single frames about their mean direction
        assert own > FaceWorldScorer().score(clip).values["face_world"]


@pytest.mark.parametrize("shift", [-4, 3, 6])
def test_a_shift_is_reported_as_offset(clips: list[ScoredClip], sync: SyncWorldScorer, shift: int):
    found = [
        sync.score(replace(clip, video=late(clip.video, shift))).values["sync_world_offset"]
        for clip in clips
    ]
    # positive: sound comes before its mouth movement; the critic is right within a frame
    assert np.median(found) == shift
    assert max(abs(one - shift) for one in found) <= 1


def test_another_persons_speech_scores_at_chance(clips: list[ScoredClip], sync: SyncWorldScorer):
    def mean(num_around: int, key: str) -> float:
        values = []
        for i, clip in enumerate(clips):
            other = clips[(i + num_around) % NUM_PERSONS].video
            video = replace(clip.video, audio=other.audio)
            values.append(sync.score(replace(clip, video=video)).values[key])
        return float(np.mean(values))

    assert mean(0, "sync_world_c") > 0.6  # critics.json: 0.80, and 0.16 for another's speech
    assert max(mean(k, "sync_world_c") for k in (1, 2, 3)) < 0.3
    assert mean(1, "sync_world_d") > mean(0, "sync_world_d") + 0.4
    wrong = [replace(c, video=clips[i - 1].video) for i, c in enumerate(clips)]
    r = [MouthScorer().score(clip).values["mouth_r"] for clip in wrong]
    assert abs(np.mean(r)) < 0.35  # four pairs of 3 s: a deviation of some 0.15


def test_another_persons_face_is_farther(clips: list[ScoredClip]):
    face = FaceWorldScorer()
    for i, clip in enumerate(clips):
        other = replace(clip, reference=clips[i - 1].reference)
        own = face.score(clip).values["face_world"]
        assert own > face.score(other).values["face_world"]


def test_pictures_that_lose_detail_flicker_and_wander(clips: list[ScoredClip]):
    clip = clips[0]
    frames = pixels(clip.video)

    def moved(changed: torch.Tensor) -> ScoredClip:
        return replace(clip, video=Footage.of(changed, clip.video.audio))

    small = torch.nn.functional.avg_pool2d(frames.float(), 2)
    blurred = (
        torch.nn.functional.interpolate(small, scale_factor=2, mode="bilinear")
        .round()
        .to(torch.uint8)
    )
    assert value(SharpnessScorer(), moved(blurred)) < 0.8 * value(SharpnessScorer(), clip)
    lit = frames.clone()
    lit[::2] = (lit[::2].float() * 0.9).to(torch.uint8)
    assert value(FlickerScorer(), moved(lit)) > 2 * value(FlickerScorer(), clip)
    fading = (frames.float() * torch.linspace(1, 0.5, len(frames))[:, None, None, None]).byte()
    assert value(DriftScorer(), moved(fading)) > 5 * value(DriftScorer(), clip)
    still = moved(frames[:1].repeat(len(frames), 1, 1, 1))
    assert DriftScorer().score(still).values == {"drift_colour": 0.0, "drift_sharpness": 0.0}
    assert value(FlickerScorer(), still) == 0.0


def test_resolution_is_not_a_merit(clips: list[ScoredClip]):
    image = clips[0].image
    large = torch.full((2, 3, 128, 128), 90, dtype=torch.uint8)
    large[..., 64:] = 30
    small = readings.at_scene_size(large, image)
    assert small.shape == (2, 3, 64, 64)
    assert small[0, 0, 0, :30].unique().tolist() == [90]
    assert small[0, 0, 0, 34:].unique().tolist() == [30]
    assert readings.at_scene_size(small[..., :32, :32], image).shape == (2, 3, 32, 32)


def test_no_two_scorers_give_one_number():
    known = scorer_classes()
    assert len(known) == 20
    assert all(one.name == name for name, one in known.items())
    keys = [output.key for one in known.values() for output in one.outputs]
    assert len(keys) == len(set(keys))


def test_the_motion_of_a_drawn_truth_is_taken_as_known(clips: list[ScoredClip]):
    clip = clips[0]
    assert clip.truth is not None
    motion = world_clip(0).motion
    known = replace(clip, truth=replace(clip.truth, motion=motion))
    expected = pearson(
        MouthScorer().critic.mouth_open(pixels(clip.video)).double().numpy(),
        motion[:, MOUTH_OPEN].double().numpy(),
    )
    found = MouthScorer().score(known).values["mouth_r"]
    assert found == pytest.approx(expected)
    assert 0.9 < found < 1
    with pytest.raises(ValueError, match="no truth to compare with"):
        MouthScorer().score(replace(clip, truth=None))


def test_what_applies_is_chosen_and_the_rest_is_named():
    chosen, left_out = find_scorers([], {}, "drawn")
    names = [one.name for one in chosen]
    assert names == [
        *("drift", "face_world", "fid_world", "flicker", "fps", "fvd_world", "mouth"),
        *("sharpness", "style", "sync_world", "ttff"),
    ]
    assert "needs --weights qalign=PATH" in left_out["qalign"]
    assert "is for real faces" in left_out["syncnet"]
    assert "face_dlib" in [one.name for one in find_scorers([], {}, "real")[0]]
    for names, weights, words in (
        (["nothing"], {}, "no metric 'nothing'"),
        (["syncnet"], {}, "is for real faces"),
        (["qalign"], {}, "needs --weights"),
        ([], {"nothing": "x"}, "--weights nothing"),
        (["os.path"], {}, "is no metric"),
        (["mine/jumps.py"], {}, r"expected a module's name, such as mine\.jumps, no file"),
        (["nowhere.jumps"], {}, r"No module named 'nowhere' \(PYTHONPATH=\. finds nowhere in"),
    ):
        with pytest.raises(ValueError, match=words):
            find_scorers(names, weights, "drawn")


def test_weights_that_are_not_there_are_named(tmp_path: Path):
    named = ("syncnet", "real"), ("qalign", "drawn"), ("face_arcface", "real"), ("dino", "drawn")
    for name, faces in named:
        weights = {name: str(tmp_path / "nowhere")}
        (one,) = find_scorers([name], weights, faces)[0]
        with pytest.raises(ValueError, match=r"nowhere|insightface"):
            build(one, weights)


def test_the_measure_of_the_docs_is_metric_reward_feature_and_watched(
    tmp_path: Path, clips: list[ScoredClip], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    text, merged = (ROOT / "docs/evaluation/own_measure.md").read_text(encoding="utf-8"), []
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/jumps.py").write_text(code)
    ((one,), _) = find_scorers(["mine.jumps"], {}, "drawn")
    measured = value(build(one, {}), clips[0])
    frames = pixels(clips[0].video)
    by_hand = max(float((b.float() - a.float()).abs().mean()) for a, b in pairwise(frames))
    assert measured == pytest.approx(by_hand)

    monkeypatch.setattr(trust, "_trusted", {"mine"})
    under = (("5a_grpo_video", "small"), ("5a_grpo_video", "small"), ("critic_preference",))
    overlays = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    for i, (overlay, names) in enumerate(zip(overlays, under, strict=True)):
        (tmp_path / f"{i}.yaml").write_text(overlay)
        recipes = [str(ROOT / f"recipes/{name}.yaml") for name in names]
        merged.append(merge_recipes([*recipes, str(tmp_path / f"{i}.yaml")]))
    rewarded, watched, read = merged
    batch = torch.stack([frames, frames[:1].expand_as(frames)]).float() / 127.5 - 1
    audio, motion, condition = torch.zeros(2, 75 * 640), torch.zeros(2, 75, 16), torch.arange(2)
    (watch,) = (
        callback["init_args"]
        for callback in watched["trainer"]["callbacks"]
        if callback["class_path"].endswith("WatchRewards")
    )
    for terms in (rewarded["model"]["init_args"]["rewards"], watch["metrics"]):
        own, other = [RewardTerm(**term) for term in terms]
        assert other.path.startswith("avatar_v.rewards.")
        said = load_reward(own)(batch, audio, None, motion, condition=condition)
        assert said.values.tolist() == pytest.approx([-by_hand, 0], rel=1e-4)
    (feature,) = read["model"]["init_args"]["critic"]["init_args"]["features"][1:]
    part = ScoreFeatures(**feature["init_args"])
    rows = part(batch, audio, batch[:, :1], motion, torch.ones(2, 75).bool(), condition)
    assert rows[:, 0].tolist() == pytest.approx([by_hand, 0], rel=1e-4)
    del sys.modules["mine.jumps"]


def test_every_metric_is_documented():
    text = (ROOT / "docs/evaluation/benchmark.md").read_text(encoding="utf-8")
    listed = {
        name
        for line in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", line)
    }
    assert set(scorer_classes()) <= listed


def test_qalign_asks_both_questions(clips: list[ScoredClip]):
    class Fake:
        def measure(self, frames: torch.Tensor, task: str) -> Score:
            assert len(frames) == 6  # 3 s, 2 a second
            level = {"quality": 4.0, "aesthetics": 2.5}[task]
            return Score(torch.full((len(frames),), level), "fake", "0")

    metric = QAlignScorer.__new__(QAlignScorer)
    metric.critic = Fake()
    measured = metric.score(clips[0])
    assert measured.values == {"qalign_iqa": 4.0, "qalign_ase": 2.5}
    assert [frame for frame, _ in measured.frames["qalign_iqa"]] == sampled(75)


def test_a_style_asks_for_a_second_of_motion():
    motion = np.random.default_rng(0).normal(size=(50, 16))
    assert readings.style_distance(motion, motion) == 0.0
    assert 0.2 < readings.style_distance(motion, 3 * motion) < 0.8
    with pytest.raises(ValueError, match="1 s of motion"):
        readings.style_distance(motion[:20], motion)


def test_the_longest_run_of_a_lost_face():
    def track(found: list[bool]) -> FaceTrack:
        num = len(found)
        return FaceTrack(torch.zeros(num, 4), torch.zeros(num, 68, 2), torch.tensor(found), 1)

    assert readings.longest_run(track([True, False, True, True, False])) == (2, 4)
    assert readings.longest_run(track([True] * 3)) == (0, 3)
    assert readings.longest_run(track([False, True])) == (1, 2)


def test_crops_are_those_of_syncnet_python():
    cv2 = pytest.importorskip("cv2")
    medfilt = pytest.importorskip("scipy.signal").medfilt
    generator = np.random.default_rng(0)
    frames = torch.from_numpy(generator.integers(0, 256, (20, 3, 120, 160), dtype=np.uint8))
    corner = generator.uniform(30, 50, (20, 2))
    boxes = np.concatenate([corner, corner + generator.uniform(30, 45, (20, 2))], 1)
    size = np.array([160, 120, 160, 120])
    plan = CropPlan(torch.from_numpy((boxes / size).astype(np.float32)), 120, 160)
    ours = torch.cat([plan(frames[:9], 0), plan(frames[9:], 9)])
    # run_pipeline.py, crop_video; crop_scale 0.40
    s = medfilt(np.maximum(boxes[:, 3] - boxes[:, 1], boxes[:, 2] - boxes[:, 0]) / 2, 13)
    y, x = (
        medfilt((boxes[:, 1] + boxes[:, 3]) / 2, 13),
        medfilt((boxes[:, 0] + boxes[:, 2]) / 2, 13),
    )
    for index in range(6, 14):  # at the ends the median of padding zeros is a box without size
        bs, cs = s[index], 0.40
        bsi = int(bs * (1 + 2 * cs))
        image = frames[index].permute(1, 2, 0).numpy()
        frame = np.pad(image, ((bsi, bsi), (bsi, bsi), (0, 0)), "constant", constant_values=110)
        my, mx = y[index] + bsi, x[index] + bsi
        face = frame[
            int(my - bs) : int(my + bs * (1 + 2 * cs)),
            int(mx - bs * (1 + cs)) : int(mx + bs * (1 + cs)),
        ]
        theirs = cv2.resize(face, (224, 224)).astype(int)
        difference = np.abs(ours[index].permute(1, 2, 0).numpy().astype(int) - theirs)
        assert difference.max() <= 2  # cv2 interpolates in fixed point


@pytest.mark.media
@pytest.mark.faces
def test_real_faces(media: Path, tmp_path: Path):
    from avatar_v.media.reading import read_audio, read_video

    def shown(name: str, start: int) -> Footage:
        frames = read_video(media / name, max_frames=start + 40)[start:]
        return Footage.of(frames, read_audio(media / name)[start * 640 : (start + 40) * 640])

    own, later, other = (
        shown("talking_head.mp4", 0),
        shown("talking_head.mp4", 60),
        shown("presenter.mp4", 0),
    )
    chosen, _ = find_scorers(["face_dlib", "style_landmarks"], {}, "real")
    face, style = (build(one, {}) for one in chosen)
    shots = pixels(own)
    clip = ScoredClip(later, own, shots[0])
    measured = face.score(clip).values
    assert measured["face_dlib"] < 0.4  # one person: below dlib's 0.6
    assert measured["face_dlib_found"] == 1.0
    another = face.score(replace(clip, video=other)).values["face_dlib"]
    assert another > measured["face_dlib"] + 0.2
    assert style.score(replace(clip, video=own)).values["style_landmarks"] == 0.0
    empty = Footage.of(torch.full_like(shots, 90), own.audio)
    for metric in (face, style):
        with pytest.raises(ValueError, match="no face was found"):
            metric.score(replace(clip, video=empty))
    blank = torch.full_like(shots[20:], 90)
    lost = Footage.of(torch.cat([shots[:20], blank]), own.audio)
    assert face.score(replace(clip, video=lost)).values["face_dlib_found"] == 0.5
    two = replace(later)
    two.__dict__["track"] = replace(later.track, num_faces=2)
    assert "2 faces in one picture" in face.score(replace(clip, video=two)).notes[0]
    model = SyncNet()
    randomise(model)
    torch.save(model.state_dict(), tmp_path / "syncnet_v2.model")
    weights = {"syncnet": str(tmp_path / "syncnet_v2.model")}
    syncnet = build(find_scorers(["syncnet"], weights, "real")[0][0], weights)
    part = Footage.of(shots[:16], own.audio[: 16 * 640])
    values = syncnet.score(replace(clip, video=part)).values
    assert values["syncnet_d"] > 0
    assert -15 <= values["syncnet_offset"] <= 15


def value(metric: Scorer, clip: ScoredClip) -> float:
    """The first number."""
    return metric.score(clip).values[metric.outputs[0].key]


def test_helpers_shift_as_they_say():
    clip = footage(world_clip(0, 10))
    assert torch.equal(pixels(late(clip, 2))[5], pixels(clip)[3])
    assert torch.equal(pixels(late(clip, -2))[5], pixels(clip)[7])
