"""models/identity: the vector of a reference's face, in training, in weights and in generation."""

import dataclasses
from pathlib import Path

import pytest
import torch
from test_sft import OBJECTIVE, OPTIM, loss_of, randomise, trained
from test_sft_pictures import stills_of

from avatar_v.critics.look import Faces
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.person import encode_clips
from avatar_v.inputs.reference_clip import ReferenceClip
from avatar_v.models.identity import NUM_LOOKS, FaceVectors, add_identity, looks_of
from avatar_v.models.reference import anchor_frame, join_references
from avatar_v.models.refiner import as_refiner
from avatar_v.objectives.sft import SFT
from avatar_v.objectives.t2v import T2V
from avatar_v.training.continuation import Continuation
from avatar_v.training.perceptual import PerceptualTerms
from avatar_v.training.personality import Personality
from avatar_v.training.settings import Models
from avatar_v.training.trainable import Trainable
from avatar_v.types import Batch
from avatar_v.weights.card import Capabilities, Card
from avatar_v.weights.presets import build
from avatar_v.weights.random import make_batch, motion_stats
from avatar_v.weights.weights import load_pipeline, save_pipeline

WHOLE = Personality(min_reference_latents=7, reference_dropout=0.0, motion_dropout=0.0)


def stage_of(identity: str | None, personality: Personality = WHOLE) -> SFT:
    models = Models("tiny", motion_stats="small", identity=identity)
    stage = SFT(
        models, OPTIM, OBJECTIVE, 0.0, 1.0, personality, Continuation(), PerceptualTerms(),
        Trainable(),
    )  # fmt: skip
    stage.configure_model()
    return stage


@pytest.fixture
def batch() -> Batch:
    return make_batch(3, 25, 32, latent_channels=16, has_reference=True)


def filmed(batch: Batch) -> Batch:
    """``batch`` whose references are videos."""
    assert batch.reference is not None
    video = torch.rand(3, 25, 3, 32, 32, generator=torch.Generator().manual_seed(5)) * 2 - 1
    reference = dataclasses.replace(batch.reference, video=video, latents=None)
    return dataclasses.replace(batch, reference=reference)


def test_the_vector_changes_nothing_until_it_is_trained(batch: Batch) -> None:
    with_vector, without = stage_of("face"), stage_of(None)
    shown = filmed(batch)
    assert torch.equal(loss_of(with_vector, shown)[0], loss_of(without, shown)[0])
    randomise(with_vector.dit)
    loss_of(with_vector, shown)[0].backward()
    assert "dit.identity_embed.weight" in trained(with_vector)
    reference = with_vector.begin(shown, 0).cond.reference
    assert reference is not None
    assert reference.identity is not None
    assert reference.identity.shape == (3, 7, 64)
    assert reference.identity.square().mean(2) == pytest.approx(torch.ones(3, 7), abs=1e-4)
    first = with_vector.dit.encode_reference(reference)
    other = dataclasses.replace(reference, identity=reference.identity.flip(0))
    second = with_vector.dit.encode_reference(other)
    assert first is not None
    assert second is not None
    assert not torch.allclose(first.layers[0][0], second.layers[0][0], atol=1e-5)


def test_stills_are_looked_at_and_what_hides_a_room_hides_nothing_of_them(batch: Batch) -> None:
    shown = stills_of(batch)
    own = dataclasses.replace(WHOLE, stills_share=1.0)
    whole = stage_of("face", own).begin(shown, 0).cond.reference
    alone = dataclasses.replace(own, background_dropout=1.0)
    hidden = stage_of("face", alone).begin(shown, 0).cond.reference
    assert whole is not None
    assert hidden is not None
    assert whole.identity is not None
    assert hidden.identity is not None
    assert torch.equal(hidden.identity[:, 0], whole.identity[:, 0])
    with pytest.raises(ValueError, match="avatar-v shards stills"):
        stage_of("face").begin(batch, 0)


def test_the_pictures_looked_at_are_spread_over_those_that_show_a_face() -> None:
    """Fewer where there are fewer, and none where no clip of the batch shows one."""
    batch = make_batch(3, 9, 32)
    valid = torch.zeros(3, 9, dtype=torch.bool)
    valid[0], valid[1, [2, 5]] = True, True
    batch = dataclasses.replace(batch, valid=valid, video=torch.arange(9.0).expand(3, 1, 1, 1, 9)
                                .movedim(-1, 1).expand(3, 9, 3, 32, 32))  # fmt: skip
    looks = looks_of(batch, lambda pictures: pictures[:, None])
    assert looks.seen.tolist() == [[True] * 4, [True, True, False, False], [False] * 4]
    shown = looks.latents[:, :, 0, 0, 0]
    assert shown[looks.seen].tolist() == [1, 3, 5, 7, 2, 5]
    assert NUM_LOOKS == 4
    empty = stills_of(make_batch(3, 25, 32, latent_channels=16, has_reference=True), num=0)
    assert empty.reference is not None
    nothing = looks_of(empty.reference, lambda pictures: pictures[:, None])
    assert nothing.latents.shape == (3, 4, 16, 4, 4)
    assert not nothing.seen.any()


def test_generation_reads_the_vector_that_training_read(batch: Batch, tmp_path: Path) -> None:
    """Of the same pictures, from weights that were written and read; a clip of several parts has
    one vector, and the first frame of the video that is made none."""
    stage, shown = stage_of("face"), filmed(batch)
    folder = tmp_path / "weights"
    vectors = stage.conditioner.face_vectors
    assert vectors is not None
    can = Capabilities(motion=True, identity=vectors.name, identity_hash=vectors.hash())
    save_pipeline(folder, stage.dit, stage.conditioner, Card("tiny", can=can))
    dit, conditioner = load_pipeline(folder)
    assert dit.config.identity_dim == 64
    assert shown.reference is not None
    assert shown.reference.video is not None
    video = ((shown.reference.video[0] + 1) * 127.5).round().to(torch.uint8)
    train = dataclasses.replace(
        shown.reference, video=video[None].repeat(3, 1, 1, 1, 1) / 127.5 - 1
    )
    train = dataclasses.replace(train, valid=torch.ones(3, 25, dtype=torch.bool))
    expected = conditioner.with_identity(conditioner.encode_reference(train), train).identity
    clip = ReferenceClip(video, torch.ones(25, dtype=torch.bool), None, None)
    inputs = Inputs(video[0], torch.zeros(640), 1, 0, (), (clip, clip))
    reference = encode_clips(inputs, conditioner, (32, 32), faces=False, stills=4)
    assert reference is not None
    assert reference.identity is not None
    assert expected is not None
    assert reference.identity.shape == (1, 8, 64)
    torch.testing.assert_close(reference.identity[0, 5], expected[0, 0], atol=1e-4, rtol=0)
    anchor = anchor_frame(reference.latents[:, :1], reference, audio=None, motion=None)
    joined = join_references([reference, anchor]).identity
    assert joined is not None
    assert not joined[:, -1].any()
    assert torch.equal(joined[:, :-1], reference.identity)
    wrong = dataclasses.replace(can, identity_hash="0" * 12)
    save_pipeline(folder, dit, conditioner, Card("tiny", can=wrong), overwrite=True)
    with pytest.raises(ValueError, match="trained with the recogniser 000000000000"):
        load_pipeline(folder)


def test_recognisers_that_do_not_fit_are_refused(batch: Batch) -> None:
    with pytest.raises(ValueError, match="held"):
        Models("tiny", identity="face_held_out")
    with pytest.raises(ValueError, match="w600k_r50"):
        Models("tiny", identity="weights/arcface")
    with pytest.raises(ValueError, match="stages 1 and 2 have none"):
        T2V(Models("tiny", identity="face"), OPTIM, OBJECTIVE)
    dit, conditioner = build("tiny", motion_stats=motion_stats())
    add_identity(dit, 64)
    refiner = as_refiner(dit, sigma=0.7, temporal_window=1)
    assert refiner.identity_embed is None, "the low video shows whose face it is"
    with pytest.raises(ValueError, match="face vectors of 64 numbers"):
        add_identity(dit, 512)
    with pytest.raises(ValueError, match="face vector: 0 here, 64 in the DiT"):
        conditioner.check_fits(dit.config)
    vectors = FaceVectors("face")
    vectors.by_face = True  # as ArcFace
    faces = Faces(batch.face_box[:, :1], None, batch.valid[:, :1])
    with pytest.raises(ValueError, match="68 landmarks"):
        vectors.read(torch.zeros(3, 1, 3, 64, 64), batch.valid[:, :1], faces)
