"""Distribution matching in a stage: its chunks, its terms, and whose weights move."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from avatar_v.models.dit import AvatarDiT
from avatar_v.models.guided import with_guidance_inside
from avatar_v.sampling.chunks import next_chunk
from avatar_v.sampling.rollout import begin, carried, chunk_velocity, joined, make_chunk
from avatar_v.stages.distill_cfg import GuidanceRanges
from avatar_v.stages.distill_dmd import DistillDMD, Matching
from avatar_v.stages.matching import FAKE, REAL
from avatar_v.stages.optim import Optim
from avatar_v.stages.own_rollout import OwnRollout, Turn, last_turn
from avatar_v.stages.personality import Personality
from avatar_v.stages.roles import STUDENT
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.trainable import Trainable
from avatar_v.stages.windows import Windows
from avatar_v.types import Batch
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
        OwnRollout({0: steps}),
        GuidanceRanges(*RANGES),
        trainable or Trainable(),
    )
    adapt = made.adapt

    def with_guidance() -> None:
        if inside:
            made.dit = with_guidance_inside(made.dit, RANGES)
        randomise(made.dit)
        adapt()

    made.adapt = with_guidance
    made.configure_model()
    return made


def windows(prefix: int, length: int) -> Windows:
    start = torch.zeros(NUM, dtype=torch.long)
    return Windows(start, torch.full_like(start, prefix), start, length)


def a_turn(dmd: DistillDMD, prefix: int, length: int) -> tuple[Turn, Tensor, Batch]:
    """A chunk about to be made, the clean latents of its video, and the clips."""
    batch = make_batch(NUM, 33, 32, latent_channels=16, has_reference=True)
    generator = dmd.begin_batch(0)
    window = windows(prefix, length)
    clean, cond = dmd.encode(batch, window, generator)
    return dmd.turn(clean, cond, window, generator), clean, batch


@pytest.fixture(scope="module")
def dmd() -> DistillDMD:
    return stage()


@pytest.mark.parametrize("prefix", [0, 1])
def test_a_chunk_of_training_is_that_of_generation(dmd: DistillDMD, prefix: int) -> None:
    """The second chunk of a video, behind a first one with and without a first frame."""
    length = 2 * LENGTH - 2
    turn, clean, batch = a_turn(dmd, prefix, length)
    _, cond = dmd.encode(batch, windows(prefix, length), dmd.begin_batch(0))
    told = torch.tensor([[1.5, 2.5, 1.0]]).expand(NUM, -1)
    cond = dataclasses.replace(cond, guidance=told, motion=None)
    own = last_turn(
        dmd.dit, clean, cond, turn.words.no_text, windows(prefix, length), turn.settings, turn.seeds
    )
    settings = dataclasses.replace(
        turn.settings, guidance_text=1.5, guidance_audio=2.5, guidance_reference=1.0
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
            carry = joined(dmd.dit, carry)
            velocity = chunk_velocity(dmd.dit, own.words, audio, carry, settings)
            states = make_chunk(velocity, carry.prefixes, chunk, settings, turn.seeds)
            carry = carried(carry, states, chunk, audio, settings)
            chunks.append(states[0])
    assert torch.equal(own.prefix, chunks[0][:, -2:])
    assert torch.equal(made, chunks[1])


def test_the_last_move_alone_takes_a_gradient(dmd: DistillDMD) -> None:
    turn, _, _ = a_turn(dmd, 0, LENGTH)
    velocity, grads = turn.velocity(dmd.dit), []

    def noted(x_t: Tensor, t: Tensor) -> Tensor:
        grads.append(torch.is_grad_enabled())
        return velocity(x_t, t)

    turn.make(noted, 2)
    turn.make(noted, 1)
    assert grads == [False, True, True]
    whole = turn.make(velocity)
    assert torch.equal(whole, turn.make(velocity, 2))
    assert not torch.equal(whole, turn.make(velocity, 1))
    with pytest.raises(ValueError, match="3 moves of 2 steps"):
        turn.make(velocity, 3)


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
    turn, _, batch = a_turn(dmd, 0, LENGTH)
    with dmd.network(REAL) as real:
        before = turn.velocity(real)(
            torch.ones(NUM, LENGTH, 16, 4, 4), torch.full((NUM, LENGTH), 0.5)
        )
    for _ in range(4):
        generator = dmd.begin_batch(0)
        window = windows(0, LENGTH)
        clean, cond = dmd.encode(batch, window, generator)
        fake_is_due.append(dmd.matching.is_due(dmd.num_backward[FAKE], dmd.updates))
        loss, logs = dmd.iterate(clean, cond, window, batch, generator)
    assert fake_is_due == [False, True, False, True]
    assert [role for role, _ in moved] == [FAKE, STUDENT, FAKE, FAKE, STUDENT, FAKE]
    for role, changed in moved:
        assert changed
        assert changed <= names[role]
    with dmd.network(REAL) as real:
        after = turn.velocity(real)(
            torch.ones(NUM, LENGTH, 16, 4, 4), torch.full((NUM, LENGTH), 0.5)
        )
    assert torch.equal(before, after)
    assert loss > 0
    assert {"dmd", "fake", "spread", "energy"} <= set(logs)


def test_regression_is_0_for_a_student_that_is_its_teacher() -> None:
    dmd = stage(matching=Matching(regression={0: 1.0}, teacher_steps=1), steps=1)
    turn, clean, batch = a_turn(dmd, 1, LENGTH)
    weight = turn.window(dmd.region(windows(1, LENGTH), clean, batch))
    assert float(dmd.regression_term(turn, weight, 1).detach()) == 0
    more = stage(matching=Matching(regression={0: 1.0}, teacher_steps=4), steps=2)
    turn, _, _ = a_turn(more, 1, LENGTH)
    assert float(more.regression_term(turn, weight, 1).detach()) > 0
    assert float(more.regression_term(turn, weight, 2).detach()) > 0


def test_the_real_score_alone_is_guided_by_several_passes() -> None:
    """The gradient of distribution matching changes by what guidance adds to the real score."""
    guided = {"text": 2.0, "audio": 3.0, "reference": 1.5}
    seen = []
    for guidance in ({}, guided):
        dmd = stage(matching=Matching(real_guidance=guidance), inside=False)
        turn, _, _ = a_turn(dmd, 1, LENGTH)
        made = turn.make(turn.velocity(dmd.dit), 2)
        weight = torch.ones(NUM, LENGTH, 1, 4, 4)
        dmd.matching_term(turn, made, weight, torch.Generator().manual_seed(0)).backward()
        seen.append([p.grad for p in dmd.dit.blocks.parameters() if p.grad is not None])
    assert not all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    x_t, t = torch.randn(NUM, LENGTH, 16, 4, 4), torch.full((NUM, LENGTH), 0.5)
    with torch.no_grad():
        settings = dataclasses.replace(
            turn.settings, guidance_text=2.0, guidance_audio=3.0, guidance_reference=1.5
        )
        expected = dataclasses.replace(turn, settings=settings).velocity(dmd.real)(x_t, t)
        found = turn.velocity(dmd.real, guided)(x_t, t)
        plain = turn.velocity(dmd.real)(x_t, t)
    assert torch.equal(found, expected)
    assert float((found - plain).abs().max()) > 1e-3


def test_gradients_in_bf16_point_where_those_in_fp32_do(dmd: DistillDMD) -> None:
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            randomise(dmd.fake, seed=5)
            turn, clean, batch = a_turn(dmd, 1, 2 * LENGTH - 2)
            made = turn.make(turn.velocity(dmd.dit), 2)
            weight = turn.window(dmd.region(windows(1, 2 * LENGTH - 2), clean, batch))
            loss = dmd.matching_term(turn, made, weight, torch.Generator().manual_seed(0))
        named = [(n, p) for n, p in dmd.dit.named_parameters() if "embed" not in n]
        grads = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
        assert all(g is not None for (n, _), g in zip(named, grads, strict=True) if "blocks" in n)
        found.append(torch.cat([g.flatten() for g in grads if g is not None]).float())
    assert float(torch.cosine_similarity(*found, dim=0)) > 0.99


def test_kinds_of_windows_come_as_often_as_asked() -> None:
    numbers = OwnRollout({0: 2}, prompt_share=0.5, image_share=0.2)
    generator = torch.Generator().manual_seed(0)
    drawn = [numbers.draw(3, LENGTH, generator) for _ in range(2000)]
    longer = [w.length == 2 * LENGTH - 2 for w in drawn]
    assert sum(longer) / 2000 == pytest.approx(0.3, abs=0.04)
    image = [bool(w.prefix[0]) for w, more in zip(drawn, longer, strict=True) if not more]
    assert sum(image) / len(image) == pytest.approx(2 / 7, abs=0.04)
    assert {w.length for w in drawn} == {LENGTH, numbers.length(LENGTH)}


def test_starting_points_and_numbers_that_do_not_fit_are_refused(tmp_path) -> None:
    dmd = stage()
    plain = Capabilities(motion=True, num_steps=2)
    folder = tmp_path / "weights"
    save_pipeline(folder, dmd.dit, dmd.conditioner, Card("tiny", can=plain))
    dmd.models = dataclasses.replace(dmd.models, init_from=str(folder))
    with pytest.raises(ValueError, match="is a student of 2 steps already"):
        DistillDMD.adapt(dmd)
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
        OwnRollout({0: 2}, prompt_share=0.7, image_share=0.7)
    with pytest.raises(ValueError, match=r"multiple of rollout\.num_steps"):
        stage(matching=Matching(regression={0: 1.0}, teacher_steps=5), steps=2)


def test_the_network_that_is_exported_says_its_steps(dmd: DistillDMD) -> None:
    entries = dmd.card_entries()
    assert entries["num_steps"] == 2
    assert entries["shift"] == dmd.rollout.shift
    assert isinstance(dmd.dit, AvatarDiT)
