"""Distribution matching in a stage: its chunks, its terms, and whose weights move."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from avatar_v.flow import schedule
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.guided import with_guidance_inside
from avatar_v.objectives.distill_cfg import GuidanceRanges
from avatar_v.objectives.distill_dmd import DistillDMD
from avatar_v.objectives.distribution_matching import Matching, ScoredChunk
from avatar_v.objectives.matching import FAKE, REAL
from avatar_v.sampling.chunks import next_chunk
from avatar_v.sampling.rollout import begin, chunk_velocity, join_anchor, make_chunk, next_state
from avatar_v.training.batch import Draws, TrainBatch
from avatar_v.training.chunk_rollout import SelfRollout, last_chunk
from avatar_v.training.optim import Optim
from avatar_v.training.personality import Personality
from avatar_v.training.roles import STUDENT
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable
from avatar_v.training.windows import Windows
from avatar_v.types import Cond
from avatar_v.weights.card import Capabilities, Card
from avatar_v.weights.random import make_batch, randomise
from avatar_v.weights.weights import save_pipeline

RANGES = ((1.0, 2.0), (1.0, 3.0), (1.0, 2.0))
NUM, LENGTH = 2, 5


def stage(
    trainable: Trainable | None = None,
    matching: Matching | None = None,
    steps: int = 2,
    *,
    inside: bool = True,
) -> DistillDMD:
    """A tiny stage whose networks say something, and have guidance inside unless told otherwise."""
    made = DistillDMD(
        Models("tiny", motion_stats="small"),
        Optim(lr=1e-3, num_warmup_steps=1),
        Objective({0: LENGTH}, text_dropout=0.0),
        0.0,
        1.0,
        Personality(motion_dropout=0.0, reference_dropout=0.0),
        matching or Matching(fake_updates=2, fake_lr=1e-3),
        SelfRollout({0: steps}),
        GuidanceRanges(*RANGES),
        trainable or Trainable(),
    )
    build_roles = made.build_roles

    def with_guidance() -> None:
        if inside:
            made.dit = with_guidance_inside(made.dit, RANGES)
        randomise(made.dit)
        build_roles()

    made.build_roles = with_guidance
    made.configure_model()
    return made


def windows(prefix: int, length: int) -> Windows:
    start = torch.zeros(NUM, dtype=torch.long)
    return Windows(start, torch.full_like(start, prefix), start, length)


def a_batch(dmd: DistillDMD, prefix: int, length: int) -> TrainBatch[Cond]:
    """The first batch, with these windows."""
    batch = make_batch(NUM, 33, 32, latent_channels=16, has_reference=True)
    window, draws = windows(prefix, length), dmd.draws(0)
    clean, cond = dmd.subject.encode(dmd, batch, window, draws)
    return TrainBatch(batch, window, clean, cond, draws, 0)


def judged(dmd: DistillDMD, prefix: int, length: int) -> ScoredChunk:
    """A chunk of two moves, as both scores look at it."""
    begun = a_batch(dmd, prefix, length)
    rollout = dmd.chunk(begun)
    weight = rollout.window(dmd.subject.region(begun))
    made = rollout.make(rollout.velocity(dmd.dit), rollout.settings.num_steps)
    return ScoredChunk(rollout, made, rollout.window(begun.clean), weight)


@pytest.fixture(scope="module")
def dmd() -> DistillDMD:
    return stage()


@pytest.mark.parametrize("prefix", [0, 1])
def test_a_chunk_of_training_is_that_of_generation(dmd: DistillDMD, prefix: int) -> None:
    """The second chunk of a video, behind a first one with and without a first frame."""
    length = 2 * LENGTH - 2
    batch = a_batch(dmd, prefix, length)
    rollout, clean = dmd.chunk(batch), batch.clean
    told = torch.tensor([[1.5, 2.5, 1.0]]).expand(NUM, -1)
    cond = dataclasses.replace(batch.cond, guidance=told, motion=None)
    own = last_chunk(
        dmd.dit, clean, cond, rollout.words.no_text, batch.windows, rollout.settings, rollout.seeds
    )
    settings = dataclasses.replace(
        rollout.settings, guidance_text=1.5, guidance_audio=2.5, guidance_reference=1.0
    )
    begun = begin(dmd.dit, (clean[:, :prefix],), cond.reference, settings)
    assert cond.audio is not None
    first = next_chunk(None, chunk_latents=LENGTH, num_video_frames=None)
    heard = [
        (chunk, cond.audio[:, chunk.latents.start :][:, :LENGTH]) for chunk in (first, own.chunk)
    ]
    with torch.no_grad():
        made = own.make(own.velocity(dmd.dit))
        chunks, carry = [], begun
        for chunk, audio in heard:
            carry = join_anchor(dmd.dit, carry)
            velocity = chunk_velocity(dmd.dit, own.words, audio, carry, settings)
            states = make_chunk(velocity, carry.prefixes, chunk, settings, rollout.seeds)
            carry = next_state(carry, states, chunk, audio, settings)
            chunks.append(states[0])
    assert torch.equal(own.prefix, chunks[0][:, -2:])
    assert torch.equal(made, chunks[1])


def test_the_last_move_alone_takes_a_gradient(dmd: DistillDMD) -> None:
    rollout = dmd.chunk(a_batch(dmd, 0, LENGTH))
    velocity, grads = rollout.velocity(dmd.dit), []

    def noted(x_t: Tensor, t: Tensor) -> Tensor:
        grads.append(torch.is_grad_enabled())
        return velocity(x_t, t)

    rollout.make(noted, 2)
    rollout.make(noted, 1)
    assert grads == [False, True, True]
    whole = rollout.make(velocity)
    assert torch.equal(whole, rollout.make(velocity, 2))
    assert not torch.equal(whole, rollout.make(velocity, 1))
    with pytest.raises(ValueError, match="3 moves of 2 steps"):
        rollout.make(velocity, 3)


@pytest.mark.parametrize("parts", ["all", "lora"])
def test_every_update_moves_its_own_role(parts: str) -> None:
    """Two fake updates and one of the student; the real score never moves."""
    dmd = stage(Trainable(parts, lora_rank=2))
    fake_is_due, moved = [], []
    params = dict(dmd.named_parameters())
    names = {role: set(dmd._names[role]) for role in (STUDENT, FAKE)}
    optimizers = {role: torch.optim.SGD([params[n] for n in names[role]], 1e-6) for role in names}

    def update(role: str, loss: Tensor) -> bool:
        before = {n: p.detach().clone() for n, p in params.items()}
        _, others = dmd._split(role)
        for p in others:
            p.grad = None
        loss.backward()
        dmd.num_backward[role] += 1
        for p in others:
            p.grad = None
        optimizers[role].step()
        optimizers[role].zero_grad()
        moved.append((role, {n for n, p in params.items() if not torch.equal(p, before[n])}))
        return True

    dmd.update = update
    rollout = dmd.chunk(a_batch(dmd, 0, LENGTH))
    with dmd.network(REAL) as real:
        before = rollout.velocity(real)(
            torch.ones(NUM, LENGTH, 16, 4, 4), torch.full((NUM, LENGTH), 0.5)
        )
    for _ in range(4):
        fake_is_due.append(dmd.matching.numbers.is_due(dmd.num_backward[FAKE], dmd.updates))
        loss, logs = dmd.iterate(a_batch(dmd, 0, LENGTH))
    assert fake_is_due == [False, True, False, True]
    assert [role for role, _ in moved] == [FAKE, STUDENT, FAKE, FAKE, STUDENT, FAKE]
    for role, changed in moved:
        assert changed
        assert changed <= names[role]
    with dmd.network(REAL) as real:
        after = rollout.velocity(real)(
            torch.ones(NUM, LENGTH, 16, 4, 4), torch.full((NUM, LENGTH), 0.5)
        )
    assert torch.equal(before, after)
    assert loss > 0
    assert {"dmd", "fake", "spread", "energy"} <= set(logs)


def test_regression_is_0_for_a_student_that_takes_its_teacher_s_last_step() -> None:
    for steps in (1, 2):
        dmd = stage(matching=Matching(regression={0: 1.0}, teacher_steps=steps), steps=steps)
        chunk = judged(dmd, 1, LENGTH)
        assert float(dmd.matching.regression_term(dmd, chunk, steps).detach()) == 0
    assert float(dmd.matching.regression_term(dmd, chunk, 1).detach()) > 0


def test_regression_is_from_where_the_student_s_own_steps_are() -> None:
    dmd = stage(matching=Matching(regression={0: 1.0}, teacher_steps=4), steps=2)
    chunk, asked = judged(dmd, 1, LENGTH), []
    dmd.dit.register_forward_pre_hook(lambda _, given: asked.append(float(given[1].amax())))
    for num_moves in (1, 2):
        assert float(dmd.matching.regression_term(dmd, chunk, num_moves).detach()) > 0
    assert asked == pytest.approx(schedule(2, shift=dmd.rollout.shift)[:2].tolist())


def test_the_real_score_alone_is_guided_by_several_passes() -> None:
    """The gradient of distribution matching changes by what guidance adds to the real score."""
    guided = {"text": 2.0, "audio": 3.0, "reference": 1.5}
    seen = []
    for guidance in ({}, guided):
        dmd = stage(matching=Matching(real_guidance=guidance), inside=False)
        chunk = judged(dmd, 1, LENGTH)
        dmd.matching.matching_term(dmd, chunk, torch.Generator().manual_seed(0)).backward()
        seen.append([p.grad for p in dmd.dit.blocks.parameters() if p.grad is not None])
    assert not all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    x_t, t = torch.randn(NUM, LENGTH, 16, 4, 4), torch.full((NUM, LENGTH), 0.5)
    with torch.no_grad():
        rollout = chunk.rollout
        settings = dataclasses.replace(
            rollout.settings, guidance_text=2.0, guidance_audio=3.0, guidance_reference=1.5
        )
        expected = dataclasses.replace(rollout, settings=settings).velocity(dmd.real)(x_t, t)
        found = rollout.velocity(dmd.real, guided)(x_t, t)
        plain = rollout.velocity(dmd.real)(x_t, t)
    assert torch.equal(found, expected)
    assert float((found - plain).abs().max()) > 1e-3


def test_gradients_in_bf16_point_where_those_in_fp32_do(dmd: DistillDMD) -> None:
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            randomise(dmd.fake, seed=5)
            chunk = judged(dmd, 1, 2 * LENGTH - 2)
            loss = dmd.matching.matching_term(dmd, chunk, torch.Generator().manual_seed(0))
        named = [(n, p) for n, p in dmd.dit.named_parameters() if "embed" not in n]
        grads = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
        assert all(g is not None for (n, _), g in zip(named, grads, strict=True) if "blocks" in n)
        found.append(torch.cat([g.flatten() for g in grads if g is not None]).float())
    assert float(torch.cosine_similarity(*found, dim=0)) > 0.99


def drawn_windows(numbers: SelfRollout) -> list[Windows]:
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    return [numbers.draw(3, 9, LENGTH, Draws(*generators, step=0)) for _ in range(2000)]


def share_of_images(drawn: list[Windows]) -> float:
    return sum(bool(each.prefix[0]) for each in drawn) / len(drawn)


def test_kinds_of_windows_come_as_often_as_asked() -> None:
    """A rollout that continues begins as one of the others does."""
    numbers = SelfRollout({0: 2}, prompt_share=0.5, image_share=0.2)
    drawn = drawn_windows(numbers)
    assert {w.length for w in drawn} == {LENGTH, numbers.longest(LENGTH)} == {5, 8}
    longer, short = ([w for w in drawn if (w.length > LENGTH) is more] for more in (True, False))
    assert len(longer) / len(drawn) == pytest.approx(0.3, abs=0.04)
    assert share_of_images(short) == pytest.approx(2 / 7, abs=0.04)
    assert share_of_images(longer) == pytest.approx(2 / 7, abs=0.06)
    all_longer = drawn_windows(SelfRollout({0: 2}, prompt_share=0.0, image_share=0.0))
    assert {w.length for w in all_longer} == {8}
    assert share_of_images(all_longer) == pytest.approx(0.5, abs=0.04)


def test_starting_points_and_numbers_that_do_not_fit_are_refused(tmp_path) -> None:
    dmd = stage()
    plain = Capabilities(motion=True, num_steps=2)
    folder = tmp_path / "weights"
    save_pipeline(folder, dmd.dit, dmd.conditioner, Card("tiny", can=plain))
    dmd.subject.models = dataclasses.replace(dmd.subject.models, init_from=str(folder))
    with pytest.raises(ValueError, match="is a student of 2 steps already"):
        DistillDMD.build_roles(dmd)
    with pytest.raises(ValueError, match=r"guidance\.audio 1\.0 to 3\.0 leaves 1\.0 to 2\.0"):
        GuidanceRanges(*RANGES).check_within(((1.0, 9.0), (1.0, 2.0), (1.0, 9.0)))
    with pytest.raises(ValueError, match="for weights without guidance inside"):
        stage(matching=Matching(real_guidance={"audio": 2.0}))
    refused: tuple[dict[str, Any], ...] = (
        {"min_t": 0.0},
        {"fake_updates": 0},
        {"weight": {0: -1.0}},
        {"real_guidance": {"style": 2.0}},
        {"real_guidance": {"text": -1.0}},
    )
    for wrong in refused:
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Matching(**wrong)
    with pytest.raises(ValueError, match="shares of one whole"):
        SelfRollout({0: 2}, prompt_share=0.7, image_share=0.7)
    with pytest.raises(ValueError, match=r"multiple of rollout\.num_steps"):
        stage(matching=Matching(regression={0: 1.0}, teacher_steps=5), steps=2)


def test_the_network_that_is_exported_says_its_steps(dmd: DistillDMD) -> None:
    entries = dmd.card_entries()
    assert entries["num_steps"] == 2
    assert entries["shift"] == dmd.rollout.shift
    assert isinstance(dmd.dit, AvatarDiT)
