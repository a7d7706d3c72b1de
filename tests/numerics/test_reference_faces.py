"""Close-ups of the face in the reference stream: exact against one dense masked attention."""

import dataclasses

import pytest
import torch
from test_reference_attention import (
    NUM_FRAMES,
    NUM_REFERENCE,
    SIZE,
    TOLERANCE,
    VALIDITY,
    dense_forward,
    target,
)
from torch import Tensor

from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import FACE_GAP, anchor_frame, join_references
from avatar_v.sampling.guidance import guided
from avatar_v.types import Cond, Reference
from random_models import make_cond, make_dit, make_reference, run

FACES = {
    "all": torch.ones(2, 3, dtype=torch.bool),
    "ragged": torch.tensor([[True, False, True], [False, True, False]]),
    "one sample has none": torch.tensor([[False] * 3, [True] * 3]),
}


@pytest.fixture(scope="module")
def dit() -> AvatarDiT:
    return make_dit(DiTConfig.tiny())


def reference_of(dit: AvatarDiT, valid: str = "ragged", faces: str = "ragged") -> Reference:
    return make_reference(dit.config, VALIDITY[valid], size=SIZE, faces_valid=FACES[faces])


def cond_of(dit: AvatarDiT, reference: Reference | None) -> Cond:
    return make_cond(dit.config, 2, NUM_FRAMES, reference=reference)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("faces", FACES)
@pytest.mark.parametrize("valid", VALIDITY)
@pytest.mark.parametrize("offset", [None, -40])
def test_equal_to_dense_masked_attention(
    dit: AvatarDiT, valid: str, faces: str, offset: int | None
) -> None:
    x_t, t = target(dit.config)
    reference = reference_of(dit, valid, faces)
    usual = -dit.config.reference_gap - NUM_REFERENCE + 1
    first = usual if offset is None else offset
    got = run(dit, x_t, t, cond_of(dit, reference), shift=first - usual)
    close(got, dense_forward(dit, x_t, t, cond_of(dit, reference), first))
    without = run(dit, x_t, t, cond_of(dit, reference.without_faces()), shift=first - usual)
    assert (got - without).abs().max() > 1e-3, "the faces have no effect: the test is blind"


def test_without_valid_faces_it_is_as_without_faces_bit_for_bit(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    reference = reference_of(dit)
    plain = run(dit, x_t, t, cond_of(dit, reference.without_faces()))
    assert reference.faces is not None
    for num in (3, 0):
        none = dataclasses.replace(
            reference,
            faces=reference.faces[:, :num],
            faces_valid=torch.zeros(2, num, dtype=torch.bool),
        )
        assert torch.equal(run(dit, x_t, t, cond_of(dit, none)), plain)


def test_what_marks_a_face_begins_at_zero_and_counts_for_faces_alone() -> None:
    assert not AvatarDiT(DiTConfig.tiny()).face_embed.any()
    x_t, t = target(DiTConfig.tiny())
    outputs = []
    for mark in (0.0, 1.0):
        dit = make_dit(DiTConfig.tiny())
        dit.face_embed.data *= mark
        reference = reference_of(dit)
        faceless = cond_of(dit, reference.without_faces())
        outputs.append((run(dit, x_t, t, cond_of(dit, reference)), run(dit, x_t, t, faceless)))
    assert (outputs[0][0] - outputs[1][0]).abs().max() > 1e-4
    assert torch.equal(outputs[0][1], outputs[1][1])


def test_invalid_faces_may_hold_anything(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    reference = reference_of(dit)
    assert reference.faces is not None
    assert reference.faces_valid is not None
    broken = torch.where(
        reference.faces_valid[..., None, None, None], reference.faces, float("nan")
    )
    got = run(dit, x_t, t, cond_of(dit, dataclasses.replace(reference, faces=broken)))
    assert torch.equal(got, run(dit, x_t, t, cond_of(dit, reference)))


def test_faces_alone_are_a_reference(dit: AvatarDiT) -> None:
    """Of a clip without one valid frame, and at the place they have beside its frames."""
    x_t, t = target(dit.config)
    nothing = torch.zeros(2, NUM_REFERENCE, dtype=torch.bool)
    reference = dataclasses.replace(reference_of(dit), valid=nothing)
    first = -dit.config.reference_gap - NUM_REFERENCE + 1
    close(
        run(dit, x_t, t, cond_of(dit, reference)),
        dense_forward(dit, x_t, t, cond_of(dit, reference), first),
    )


def test_a_dropped_reference_takes_its_faces_along(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    cond = cond_of(dit, reference_of(dit, "all", "all"))
    got = run(dit, x_t, t, dataclasses.replace(cond, reference_keep=torch.tensor([True, False])))
    close(got[0], run(dit, x_t, t, cond)[0])
    close(got[1], run(dit, x_t, t, cond_of(dit, None))[1])


def test_positions_of_faces_do_not_depend_on_the_clip(dit: AvatarDiT) -> None:
    cache = dit.encode_reference(reference_of(dit, "all", "all"))
    assert cache is not None
    first = -dit.config.reference_gap - NUM_REFERENCE + 1 - FACE_GAP
    assert cache.position[0, -3:].tolist() == [first, first - 1, first - 2]


def test_an_anchor_behind_a_clip_with_faces_is_as_if_they_were_encoded_together(
    dit: AvatarDiT,
) -> None:
    x_t, t = target(dit.config)
    clip = reference_of(dit)
    full = make_reference(dit.config, VALIDITY["all"], size=SIZE, seed=3)
    anchor = anchor_frame(full.latents[:, :1], clip, audio=clip.audio[:, :1], motion=None)  # pyright: ignore
    first, second = dit.encode_reference(clip), dit.encode_reference(anchor)
    assert first is not None
    assert second is not None
    got = dit(x_t, t, cond_of(dit, None), past=first.append(second))
    close(got, run(dit, x_t, t, cond_of(dit, join_references((clip, anchor)))))


def test_guidance_takes_faces_with_the_reference(dit: AvatarDiT) -> None:
    x_t, t = (x[:1] for x in target(dit.config))
    reference = reference_of(dit).map(lambda x: x[:1])
    cond = cond_of(dit, None).map(lambda x: x[:1])
    empty = torch.zeros(1, 5, dit.config.text_dim)
    outputs = []
    for shown in (reference, reference.without_faces()):
        weights = {"text": 1.0, "audio": 1.0, "reference": 2.0, "no_text": empty}
        uncached = guided(dit, dataclasses.replace(cond, reference=shown), **weights)
        cached = guided(dit, cond, past=dit.encode_reference(shown), **weights)
        outputs.append(cached(x_t, t))
        close(uncached(x_t, t), outputs[-1])
    assert (outputs[0] - outputs[1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"faces": torch.zeros(2, 3, 16, 2, 2)}, r"faces must have shape \(2, any, 16, 4"),
        ({"faces_valid": None}, "faces comes with reference.faces_valid"),
    ],
)
def test_faces_of_the_wrong_shape_are_refused(dit: AvatarDiT, change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dit.encode_reference(dataclasses.replace(reference_of(dit), **change))
