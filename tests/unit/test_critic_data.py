"""Pictures for the critics: moments spread over the mouth's range, batches of persons x scenes."""

from types import SimpleNamespace

import pytest
import torch

from avatar_v.objectives import critic_data, epochs
from avatar_v.objectives.critic_data import (
    CriticFrames,
    LabelledFrames,
    read_frames,
    spread_moments,
)
from avatar_v.objectives.critic_face import identity_across_scenes
from avatar_v.objectives.critic_motion import r_squared
from avatar_v.objectives.epochs import RandomLoader


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_moments_cover_the_range_and_avoid_hidden_faces():
    opening = torch.arange(40.0)[torch.randperm(40, generator=seeded())]
    valid = opening < 32
    chosen = spread_moments(opening, valid, 8, seeded(1))
    ranks = opening[chosen].sort().values
    assert [int(r) // 4 for r in ranks] == list(range(8))  # one of each eighth of the 32 valid
    with pytest.raises(ValueError, match="no frame"):
        spread_moments(opening, torch.zeros(40, dtype=torch.bool), 8, seeded())


def test_a_clip_without_a_face_is_left_out(monkeypatch):
    def clip(name: str) -> SimpleNamespace:
        return SimpleNamespace(
            video=torch.zeros(5, 3, 4, 4, dtype=torch.uint8),
            motion=torch.zeros(5, 16),
            valid=torch.full((5,), name != "covered"),
            meta=SimpleNamespace(person=name, scene="here"),
        )

    monkeypatch.setattr(critic_data, "read_folder", lambda folder: folder.split())
    monkeypatch.setattr(critic_data, "read_clip", clip)
    frames = read_frames(["anna covered", "bert"], num_moments=2, seed=0)
    assert frames.person.tolist() == [0, 0, 1, 1]
    with pytest.raises(ValueError, match="no clip of covered shows a face"):
        read_frames(["covered"], num_moments=2, seed=0)


@pytest.fixture
def data() -> CriticFrames:
    """5 persons, 3 clips each (the last has 1), 2 moments a clip; each picture knows its index."""
    data = CriticFrames(["here"], ["there"], 4, 3, batches_per_epoch=6, num_moments=2)
    person = torch.tensor([p for p in range(5) for _ in range(3 if p < 4 else 1) for _ in range(2)])
    n = len(person)
    scene = torch.arange(n) // 2
    images = torch.arange(n, dtype=torch.uint8)[:, None, None, None].expand(n, 3, 4, 4)
    data.train_frames = LabelledFrames(images, torch.zeros(n, 16), person, scene)
    return data


def test_a_batch_shows_every_person_in_every_scene(data):
    for batch in data.train_dataloader():
        assert len(batch) == 12
        assert batch.person.unique().tolist() == [0, 1, 2, 3]  # the fifth has too few scenes
        assert len(batch.scene.unique()) == 12
        assert torch.equal(batch.images[:, 0, 0, 0].long() // 2, batch.scene)


def test_epochs_differ_and_a_seed_repeats_them(data):
    first, again = data.train_dataloader(), data.train_dataloader()

    def epoch(batches: RandomLoader) -> torch.Tensor:
        return torch.cat([b.images[:, 0, 0, 0] for b in batches])

    one = epoch(first)
    assert torch.equal(one, epoch(again))
    assert not torch.equal(one, epoch(first))


def test_too_few_persons_and_several_ranks_are_refused(data, monkeypatch):
    monkeypatch.setattr(epochs.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(epochs.dist, "get_world_size", lambda: 2)
    with pytest.raises(ValueError, match="trained by one process, got 2 ranks"):
        data.train_dataloader()
    data.persons_per_batch = 5
    with pytest.raises(ValueError, match="4 persons have 3 clips"):
        data.train_dataloader()


def test_r_squared_by_hand():
    truth = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    assert float(r_squared(truth, truth)) == 1.0
    assert float(r_squared(torch.full((4, 1), 1.5), truth)) == pytest.approx(0.0)
    assert float(r_squared(truth + 1, truth)) == pytest.approx(1 - 4 / 5)
    with pytest.raises(ValueError, match="vary"):
        r_squared(truth, torch.ones(4, 1))


def test_identity_across_scenes_needs_the_person_not_the_scene():
    person = torch.tensor([0, 0, 1, 1, 2, 2])
    scene = torch.tensor([0, 1, 0, 1, 0, 1])
    by_person, by_scene = torch.eye(3)[person], torch.eye(3)[scene]
    assert identity_across_scenes(by_person, person, scene) == {"top1": 1.0, "pairwise": 1.0}
    assert identity_across_scenes(by_scene, person, scene)["pairwise"] == 0.5
