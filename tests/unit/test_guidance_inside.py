"""Guidance in one pass: weights that are told w, and the stage that teaches them."""

import dataclasses
import warnings

import pytest
import torch

from avatar_v.models.dit import AvatarDiT
from avatar_v.models.guided import with_guidance_inside
from avatar_v.objectives.distill_cfg import DistillCFG, GuidanceRanges
from avatar_v.sampling.guidance import guided, guided_by_sample
from avatar_v.training.continuation import Continuation
from avatar_v.training.optim import Optim
from avatar_v.training.personality import Personality
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable
from avatar_v.types import Cond
from avatar_v.weights.random import make_batch
from avatar_v.weights.weights import load_dit, save_dit
from random_models import make_cond, make_dit, make_reference, randomise

RANGES = ((1.0, 3.0), (1.0, 4.0), (1.0, 2.0))


@pytest.fixture(scope="module")
def teacher() -> AvatarDiT:
    return make_dit().requires_grad_(False)


def conditions(dit: AvatarDiT, num: int) -> tuple[Cond, torch.Tensor, torch.Tensor]:
    """Conditions with a reference and motion; x_t and t."""
    reference = make_reference(dit.config, torch.ones(num, 5, dtype=torch.bool), has_motion=True)
    cond = make_cond(dit.config, num, 3, reference=reference)
    generator = torch.Generator().manual_seed(1)
    motion = torch.randn(num, 3, dit.config.motion_dim, generator=generator)
    x_t = torch.randn(num, 3, 16, 4, 4, generator=generator)
    return dataclasses.replace(cond, motion=motion), x_t, torch.full((num, 3), 0.5)


def test_weights_that_are_told_guidance_begin_as_those_that_are_not(teacher, tmp_path) -> None:
    told = with_guidance_inside(teacher, RANGES).eval()
    cond, x_t, t = conditions(teacher, 2)
    past = teacher.encode_reference(cond.reference)
    expected = teacher(x_t, t, cond, past=past)
    for weights in ([1.0, 1.0, 1.0], [3.0, 0.5, 2.0]):
        given = dataclasses.replace(cond, guidance=torch.tensor([weights, weights]))
        assert torch.equal(told(x_t, t, given, past=past), expected)
    save_dit(tmp_path, told)
    assert load_dit(tmp_path).config.guidance_ranges == RANGES
    with pytest.raises(ValueError, match="have guidance inside, got conditions without guidance"):
        told(x_t, t, cond, past=past)
    with pytest.raises(ValueError, match="read no guidance, got conditions with guidance"):
        teacher(x_t, t, dataclasses.replace(cond, guidance=torch.ones(2, 3)), past=past)
    with pytest.raises(ValueError, match="have guidance inside already"):
        with_guidance_inside(told, RANGES)


def test_no_guidance_is_the_teacher_exactly_where_the_embedding_alone_is_trained() -> None:
    distil = stage(Trainable("new"))
    embedding = distil.dit.guidance_embed
    assert embedding is not None
    trained = {id(p) for p in distil.parameters() if p.requires_grad}
    assert trained == {id(p) for p in embedding.parameters()}
    randomise(embedding)  # as after any training
    cond, x_t, t = conditions(distil.dit, 2)
    past = distil.teacher.encode_reference(cond.reference)
    given = torch.tensor([[1.0, 1.0, 1.0], [2.0, 1.0, 1.0]])
    got = distil.dit(x_t, t, dataclasses.replace(cond, guidance=given), past=past)
    expected = distil.teacher(x_t, t, cond, past=past)
    assert torch.equal(got[0], expected[0])
    assert not torch.allclose(got[1], expected[1])


def test_one_pass_whatever_the_weights_and_a_warning_outside_their_range(teacher) -> None:
    told = with_guidance_inside(teacher, RANGES)
    randomise(told)
    cond, x_t, t = conditions(teacher, 1)
    seen: list[list[float]] = []
    hook = told.register_forward_pre_hook(lambda _, given: seen.append(given[2].guidance.tolist()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        guided(told, cond, text=3.0, audio=2.5, reference=1.0)(x_t, t)
    with pytest.warns(UserWarning, match=r"audio guidance 4\.5 is outside 1\.0 to 4\.0"):
        guided(told, cond, text=1.0, audio=4.5, reference=1.0)(x_t, t)
    hook.remove()
    assert seen == [[[3.0, 2.5, 1.0]], [[1.0, 4.5, 1.0]]]


def test_the_target_is_the_guided_velocity_of_every_sample(teacher) -> None:
    cond, x_t, t = conditions(teacher, 2)
    cond = dataclasses.replace(cond, reference_keep=torch.tensor([True, False]))
    no_text, past = torch.zeros_like(cond.text), teacher.encode_reference(cond.reference)
    weights = torch.tensor([[1.5, 3.0, 2.0], [2.5, 1.0, 1.5]])
    got = guided_by_sample(teacher, x_t, t, cond, weights, no_text=no_text, past=past)
    for i, (text, audio, reference) in enumerate(weights.tolist()):
        fn = guided(
            teacher, cond, text=text, audio=audio, reference=reference, no_text=no_text, past=past
        )
        torch.testing.assert_close(got[i], fn(x_t, t)[i], atol=1e-5, rtol=1e-5)


def stage(trainable: Trainable | None = None) -> DistillCFG:
    made = DistillCFG(
        Models("tiny", motion_stats="small"),
        Optim(lr=1e-3, num_warmup_steps=1),
        Objective({0: 5}, text_dropout=0.0),
        0.0,
        1.0,
        Personality(motion_dropout=0.0, reference_dropout=0.0),
        Continuation(),
        GuidanceRanges(*RANGES),
        trainable or Trainable(),
    )
    made.configure_model()
    randomise(made.dit)
    state = {k: v for k, v in made.dit.state_dict().items() if not k.startswith("guidance_embed")}
    made.teacher.load_state_dict(state)
    return made


def test_the_student_learns_the_guided_velocity_and_the_teacher_stays() -> None:
    distil = stage()
    batch = make_batch(3, 25, 32, latent_channels=16, has_reference=True)
    before = {name: p.clone() for name, p in distil.teacher.named_parameters()}
    trained = [p for p in distil.parameters() if p.requires_grad]
    assert {id(p) for p in trained} == {id(p) for p in distil.dit.parameters()}
    optimizer, errors = torch.optim.Adam(trained, 3e-3), []
    for _ in range(18):  # the same draws, so that the error can fall
        loss, logs = distil.loss_at(batch, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        errors.append(float(logs["relative_error"]))
    assert errors[-1] < 0.5 * errors[0]
    assert all(torch.equal(before[name], p) for name, p in distil.teacher.named_parameters())


@pytest.mark.parametrize("wrong", [(3.0, 1.0), (-1.0, 1.0), (1.0, 1e6)])
def test_ranges_that_hold_no_weight_are_refused(wrong: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"guidance\.audio is 0 <= least <= largest"):
        GuidanceRanges(audio=wrong)
    drawn = GuidanceRanges(*RANGES).draw(100, torch.Generator().manual_seed(0))
    low, high = torch.tensor(RANGES).T
    assert bool(((drawn >= low) & (drawn <= high)).all())
    drawn = GuidanceRanges(*RANGES, none_share=0.25).draw(1000, torch.Generator().manual_seed(0))
    assert float((drawn == 1.0).all(1).double().mean()) == pytest.approx(0.25, abs=0.05)
