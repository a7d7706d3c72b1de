"""critics/preference: what is read of a clip, scores by axis, the reward, and how right it is."""

import dataclasses
from pathlib import Path

import pytest
import torch

from avatar_v.objectives.critic_preference import accuracy_interval, decided_right
from avatar_v.objectives.preference_data import PairFeatures
from avatar_v.rewards.clip_features import MAX_SHIFT, NUM_SPREAD, ClipFeatures
from avatar_v.rewards.preference import Preference, PreferenceModel
from avatar_v.rewards.terms import Rewards, RewardSamples, RewardTerm
from avatar_v.types import SAMPLES_PER_FRAME
from avatar_v.weights.random import make_batch
from avatar_v.world.clip import WorldClip, make_clip

NUM = 25
FIT = 2 * MAX_SHIFT + 3 + NUM_SPREAD
"""The last numbers of a row: how lips fit the sound."""


@pytest.fixture(scope="module")
def features() -> ClipFeatures:
    return ClipFeatures()


@pytest.fixture(scope="module")
def clip() -> WorldClip:
    return make_clip(2_000_031, 2_000_031, 2_000_031, num_frames=NUM + 2 * 4, size=64)


def shown(clip: WorldClip) -> torch.Tensor:
    assert clip.video is not None
    return clip.video.float() / 127.5 - 1


def read(
    features: ClipFeatures, clip: WorldClip, *, lag: int = 0, mouth: float = 1.0
) -> torch.Tensor:
    """The middle of a clip with its sound, its face ``lag`` frames behind, beside a person whose
    mouth moves ``mouth`` times as far."""
    frames = shown(clip)[4 - lag : 4 - lag + NUM][None]
    audio = clip.audio[4 * SAMPLES_PER_FRAME : (4 + NUM) * SAMPLES_PER_FRAME][None]
    own = (clip.motion * mouth)[None, :NUM]
    valid = torch.ones(1, NUM, dtype=torch.bool)
    return features(frames, audio, shown(clip)[None, :2], own, valid, torch.zeros(1).long())[0]


def test_a_row_says_by_how_much_lips_are_late_and_how_far_the_mouth_goes(
    features: ClipFeatures, clip: WorldClip
) -> None:
    rows = {lag: read(features, clip, lag=lag) for lag in (-3, 0, 3)}
    for lag, row in rows.items():
        assert len(row) == features.num
        table = row[-FIT : -FIT + 2 * MAX_SHIFT + 1]
        # window i shows what is heard lag windows before
        assert abs(int(table.argmax()) - MAX_SHIFT + lag) <= 1
    off = {lag: float(row[-NUM_SPREAD - 1]) for lag, row in rows.items()}
    assert off[0] < min(off[-3], off[3])
    ratios = slice(3 * 16, 3 * 16 + 1)  # of mouth_open
    little, much = (read(features, clip, mouth=mouth)[ratios] for mouth in (2.0, 0.5))
    assert float(much - little) == pytest.approx(torch.tensor(4.0).log().item(), abs=0.01)


def test_rows_of_a_batch_are_those_of_its_clips(features: ClipFeatures, clip: WorldClip) -> None:
    audio = clip.audio[: NUM * SAMPLES_PER_FRAME]
    frames = torch.stack([shown(clip)[:NUM], shown(clip)[:NUM].flip(-1)])
    portraits = torch.stack([shown(clip)[:2], torch.zeros(2, 3, 64, 64)])
    own, valid = clip.motion[None, :NUM].repeat(2, 1, 1), torch.ones(2, NUM, dtype=torch.bool)
    valid[1] = False  # nothing is known of the second person
    both = features(frames, audio.repeat(2, 1), portraits, own, valid, torch.tensor([1, 0]))
    alone = features(
        frames[:1], audio[None], portraits[1:], own[1:], valid[1:], torch.zeros(1).long()
    )
    assert torch.allclose(both[0], alone[0], atol=1e-4)  # other sizes of matrices
    assert torch.equal(alone[0, 48:64], torch.zeros(16))
    with pytest.raises(ValueError, match="more than 5 frames, got 5"):
        features(frames[:, :5], audio.repeat(2, 1), portraits, own, valid, torch.tensor([0, 1]))


def samples(num: int = 3) -> RewardSamples:
    batch = make_batch(num, 9, 64, has_reference=True)
    condition = torch.arange(num)
    portrait = torch.zeros(num, 2, 3, 64, 64)
    columns = {"portrait": portrait}
    return RewardSamples(
        batch.video, batch.audio, batch.reference, batch.motion, condition, 0, columns
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, features: ClipFeatures) -> Path:
    path = tmp_path_factory.mktemp("preference")
    torch.manual_seed(0)
    model = PreferenceModel(features.num, 8, ("overall", "lips"), features_hash=features.hash())
    model.save_pretrained(path)
    return path


def test_a_recipe_names_it_as_a_reward(folder: Path) -> None:
    path = "avatar_v.rewards.preference.Preference"
    term = RewardTerm(path, options={"critic": str(folder), "axis": "lips"})
    said = Rewards([term])(samples())["preference"]
    assert said.shape == (3,)
    assert len(said.unique()) == 3
    other = RewardTerm(path, options={"critic": str(folder)})
    assert not torch.equal(Rewards([other])(samples())["preference"], said)
    of = samples()
    moved = dataclasses.replace(of, frames=None)
    reward = Preference(str(folder))
    assert reward(None, of.audio, of.reference, of.motion, condition=of.condition) is None
    with (
        pytest.warns(UserWarning, match="it gave None"),
        pytest.raises(ValueError, match="no reward has a value"),
    ):
        Rewards([term])(moved)


def test_models_that_must_not_judge_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"axes of this model are overall, lips; got \['eyes'\]"):
        Preference(str(folder), "eyes")
    for changes, words in (
        ({"features_hash": "000000000000"}, "reads features 000000000000"),
        ({"held_out": True}, "held out"),
    ):
        model = PreferenceModel(400, 8, **changes)
        model.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=words):
            Preference(str(tmp_path))
    with pytest.raises(ValueError, match="axes are one or more"):
        PreferenceModel(4, 8, ("a", "a"))


def test_the_bias_to_the_first_place_is_no_part_of_what_is_right() -> None:
    model = PreferenceModel(2, 1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.head[0].weight[0, 0] = model.head[2].weight[0, 0] = 1.0
        model.position_bias[0] = 5.0
    better, worse = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    first, second = (
        torch.cat([better, worse, worse, better]),
        torch.cat([worse, better, worse, worse]),
    )
    pairs = PairFeatures(
        first, second, torch.tensor([0, 0, 1, 2]), torch.zeros(4).long(), torch.arange(4)
    )
    assert decided_right(model, pairs).tolist() == [1.0, 0.0, 0.5, 0.5]
    margin = model.margin(first, second, pairs.axis)
    assert bool((margin > 4).all())


def test_an_accuracy_has_an_interval_over_persons() -> None:
    right = torch.tensor([1.0] * 40 + [0.0] * 40)
    alone = accuracy_interval(right, torch.arange(80))
    shared = accuracy_interval(right, torch.arange(80) // 20)  # four persons, each all or nothing
    assert alone[0] == pytest.approx(0.5 - 1.96 * 0.056, abs=0.02)
    assert shared[1] - shared[0] > 2 * (alone[1] - alone[0])
    assert accuracy_interval(right, torch.zeros(80).long()) == (0.0, 1.0)
