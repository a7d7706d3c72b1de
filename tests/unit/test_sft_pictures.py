"""training/personality: close-ups and stills of the reference, as training shows them."""

import dataclasses

import pytest
import torch
from test_sft import loss_of, seeded, sft, step_of_a_middle, trained

from avatar_v.models.conditioner import latent_validity
from avatar_v.models.reference import NUM_FACES, NUM_STILLS
from avatar_v.motion.style import motion_moments
from avatar_v.motion.vectors import pack_motion
from avatar_v.training.continuation import Continuation
from avatar_v.training.personality import Personality, draw_faces
from avatar_v.types import Batch
from avatar_v.weights.random import make_batch, motion_stats

STATS = motion_stats()


@pytest.fixture
def batch() -> Batch:
    return make_batch(3, 25, 32, latent_channels=16, has_reference=True)


def faces_of(batch: Batch, num: int = 4) -> Batch:
    """``batch`` with faces of its references."""
    assert batch.reference is not None
    faces = torch.randn(3, num, 16, 4, 4, generator=seeded(9))
    valid = torch.ones(3, num, dtype=torch.bool)
    reference = dataclasses.replace(batch.reference, faces=faces, faces_valid=valid)
    return dataclasses.replace(batch, reference=reference)


def test_faces_move_no_loss_of_a_stage_that_does_not_read_them(batch: Batch) -> None:
    stage = sft()
    for index in range(3):
        expected = loss_of(stage, batch, index)[0]
        assert torch.equal(loss_of(stage, faces_of(batch), index)[0], expected)
    assert not stage.card_entries()["faces"]


def test_faces_are_read_and_their_mark_is_trained(batch: Batch) -> None:
    reads = Personality(reference_dropout=0.0, motion_dropout=0.0, faces=True, faces_dropout=0.0,
                        min_reference_latents=2)  # fmt: skip
    stage = sft(reads)
    loss = loss_of(stage, faces_of(batch))[0]
    loss.backward()
    assert "dit.face_embed" in trained(stage)
    shown = faces_of(batch).reference
    assert shown is not None
    assert shown.faces is not None
    other = dataclasses.replace(batch, reference=dataclasses.replace(shown, faces=-shown.faces))
    assert abs(float((loss_of(stage, other)[0] - loss).detach())) > 1e-6
    assert stage.card_entries()["faces"]
    with pytest.raises(ValueError, match="avatar-v shards faces"):
        loss_of(stage, batch)


def stills_of(batch: Batch, num: int = 16) -> Batch:
    """``batch`` with stills of its references."""
    assert batch.reference is not None
    reference = dataclasses.replace(
        batch.reference,
        stills=torch.randn(3, num, 16, 4, 4, generator=seeded(9)),
        stills_valid=torch.ones(3, num, dtype=torch.bool),
        still_frames=torch.arange(num).expand(3, -1),
    )
    return dataclasses.replace(batch, reference=reference)


def test_stills_stand_for_the_reference_in_their_share_of_the_steps(batch: Batch) -> None:
    stage, shown = sft(Personality(stills_share=0.5)), stills_of(batch)
    assert shown.reference is not None
    assert shown.reference.stills is not None
    first = {float(x) for x in shown.reference.stills[0, :, 0, 0, 0]}
    lengths = []
    for index in range(60):
        drawn = stage.begin(shown, index).cond.reference
        assert drawn is not None
        assert drawn.motion is not None
        assert drawn.moments is not None
        if {float(x) for x in drawn.latents[0, :, 0, 0, 0]} <= first:
            lengths.append(drawn.latents.shape[1])
    assert 20 <= len(lengths) <= 40
    assert min(lengths) == 1
    assert max(lengths) > 8
    assert lengths.count(1) > lengths.count(8)
    assert stage.card_entries()["stills"] == NUM_STILLS == 16
    assert sft().card_entries()["stills"] == 0


def test_stills_and_all_of_the_motion_are_read(batch: Batch) -> None:
    whole = Personality(
        stills_share=1.0, reference_dropout=0.0, motion_dropout=0.0, min_reference_latents=7
    )
    stage, shown = sft(whole), stills_of(batch).reference
    assert shown is not None
    assert shown.stills is not None
    loss = loss_of(stage, stills_of(batch))[0]
    later = torch.cat([shown.motion[:, :16], 1 - shown.motion[:, 16:]], dim=1)  # of no still
    for change in ({"stills": -shown.stills}, {"motion": later}):
        other = dataclasses.replace(batch, reference=dataclasses.replace(shown, **change))
        assert abs(float((loss_of(stage, other)[0] - loss).detach())) > 1e-6
    unread = dataclasses.replace(shown, latents=torch.zeros_like(shown.stills[:, :7]))
    same = loss_of(stage, dataclasses.replace(batch, reference=unread))[0]
    assert torch.equal(same, loss)
    windows = stage.subject.draw_windows(batch, stage.draws(0))
    read = stage.subject.conditions(stage, stills_of(batch), windows).reference
    assert read is not None
    assert read.latents.shape[1] == 16
    assert read.moments is not None
    expected = motion_moments(pack_motion(shown.motion, STATS), latent_validity(shown.valid), STATS)
    torch.testing.assert_close(read.moments, expected)
    without = Personality(stills_share=1.0, reference_motion_dropout=1.0)
    reference = sft(without).begin(stills_of(batch), 0).cond.reference
    assert reference is not None
    assert reference.motion is None
    assert reference.moments is None
    with pytest.raises(ValueError, match="avatar-v shards stills"):
        loss_of(stage, batch)


@pytest.mark.parametrize("stills_share", [0.0, 1.0])
def test_a_reference_without_its_background_shows_heads_alone(
    batch: Batch, stills_share: float
) -> None:
    """Stills and clips alike; frames, motion and sound stay, and no other number is drawn."""
    shown = stills_of(batch)
    assert shown.reference is not None
    box = torch.tensor([0.4, 0.45, 0.55, 0.6]).expand(3, 25, 4)  # a head: .34 … .61, .375 … .6375
    of_one_place = dataclasses.replace(
        shown, reference=dataclasses.replace(shown.reference, face_box=box)
    )
    head = torch.zeros(4, 4)
    head[1:3, 1:3] = 1  # of four cells a side
    for share, seen in ((1.0, head), (0.0, torch.ones(4, 4))):
        numbers = Personality(
            min_reference_latents=7, reference_dropout=0.0, stills_share=stills_share
        )
        hides = dataclasses.replace(numbers, background_dropout=share)
        drawn = sft(hides).begin(of_one_place, 0).cond.reference
        assert drawn is not None
        assert ((drawn.latents != 0).float() == seen).all()
        reference = sft(numbers).begin(of_one_place, 0).cond.reference
        assert reference is not None
        if share == 0:
            assert torch.equal(drawn.latents, reference.latents)
            continue
        assert drawn.motion is not None
        assert drawn.audio is not None
    with pytest.raises(ValueError, match="background_dropout"):
        Personality(background_dropout=1.5)


def test_the_anchor_beside_stills_is_marked_and_its_mark_trained(batch: Batch) -> None:
    reads = Personality(stills_share=1.0, reference_dropout=0.0, motion_dropout=0.0)
    stage = sft(reads, continuation=Continuation(anchor_share=1.0))
    inside = step_of_a_middle(stage, batch)
    begun = stage.begin(stills_of(batch), inside)
    windows, reference = begun.windows, begun.cond.reference
    assert reference is not None
    assert reference.anchor is not None
    assert reference.anchor.sum(1).tolist() == [1, 1, 1]
    assert reference.anchor[:, -1].all()
    assert torch.equal(reference.valid[:, -1], windows.start > 0)
    loss_of(stage, stills_of(batch), inside)[0].backward()
    assert "dit.anchor_embed" in trained(stage)


def test_faces_are_drawn_and_dropped_by_steps(batch: Batch) -> None:
    numbers = Personality(faces=True, faces_dropout=0.25)
    conditioner = sft().conditioner
    reference = faces_of(batch).reference
    assert reference is not None
    whole = conditioner.encode_reference(reference)
    picture = conditioner.encode_reference(reference, 2, 1)
    for shown, num, low, high in ((whole, NUM_FACES, 0.15, 0.35), (picture, 1, 0.4, 0.6)):
        drawn = [draw_faces(shown, numbers, seeded(i)).faces for i in range(300)]
        assert low < sum(faces is None for faces in drawn) / 300 < high
        kept = [faces for faces in drawn if faces is not None]
        assert all(faces.shape[1] == num for faces in kept)
        assert len({float(faces[0, 0, 0, 0, 0]) for faces in kept}) == 4
    given = draw_faces(whole, numbers, None).faces
    assert given is not None
    assert whole.faces is not None
    assert torch.equal(given, whole.faces[:, [1, 3]])
    with pytest.raises(ValueError, match="faces_dropout"):
        Personality(faces_dropout=1.5)


def test_what_a_step_draws_does_not_depend_on_what_the_clips_have(batch: Batch) -> None:
    """Ranks have other clips and must agree about everything that is drawn behind it."""
    reads = Personality(stills_share=0.7, faces=True)
    runs = []
    for num_stills, num_faces in ((16, 4), (5, 2), (0, 1), (16, 0)):
        stage = sft(reads)
        shown = stills_of(faces_of(batch, num_faces), num_stills)
        steps = []
        for index in range(12):
            begun = stage.begin(shown, index)
            drawn = begun.cond.reference
            assert drawn is not None
            parts = (drawn.faces is None, drawn.motion is None, drawn.latents.shape[1])
            steps.append((*parts, begun.draws.common.get_state().tolist()))
        runs.append(steps)
    assert runs[1:] == [runs[0]] * 3
    assert {parts[0] for parts in runs[0]} == {True, False}


def test_without_a_face_in_any_clip_the_stills_are_there_and_hidden(batch: Batch) -> None:
    stage = sft(Personality(stills_share=1.0))
    windows = stage.subject.draw_windows(batch, stage.draws(0))
    reference = stage.subject.conditions(stage, stills_of(batch, 0), windows).reference
    assert reference is not None
    assert reference.latents.shape[1] == NUM_STILLS
    assert not reference.valid.any()
    assert torch.isfinite(loss_of(stage, stills_of(batch, 0))[0])
