"""Self-forcing: what the student makes, what the scores see of it, and who is trained."""

import dataclasses
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch

from avatar_v.models.base import hash_folder
from avatar_v.models.causal import as_causal
from avatar_v.models.config import Streaming
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.lora import add_factors, merged
from avatar_v.objectives.distribution_matching import Matching
from avatar_v.objectives.matching import FAKE, REAL
from avatar_v.objectives.self_forcing import CausalStudent, SelfForcing
from avatar_v.parallel.mesh import Layout
from avatar_v.sampling.blocks import make_blocks
from avatar_v.sampling.chunks import Span
from avatar_v.sampling.rollout import begin, chunk_velocity
from avatar_v.training import engine
from avatar_v.training.chunk_rollout import SelfRollout
from avatar_v.training.optim import Optim
from avatar_v.training.personality import Personality
from avatar_v.training.roles import STUDENT
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable
from avatar_v.weights.adapter_files import save_adapter
from avatar_v.weights.card import AdapterCard, Capabilities, Card
from avatar_v.weights.presets import build
from avatar_v.weights.random import make_batch, motion_stats
from avatar_v.weights.weights import load_pipeline, save_pipeline
from random_models import make_cond, randomise

LENGTH, SEEN = 10, 5  # five blocks of 2, of which one sees two before it


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Weights of scores and student that differ."""
    folder = tmp_path_factory.mktemp("weights")
    dit, conditioner = build("tiny", motion_stats=motion_stats())
    for name, seed in (("scores", 0), ("student", 1)):
        network = dit if name == "scores" else as_causal(dit, block=2, window=2)
        randomise(network, seed=seed)
        save_pipeline(folder / name, network, conditioner, Card(preset="tiny"))
    return {name: str(folder / name) for name in ("scores", "student")}


def stage_of(folders: dict[str, str], **changes: object) -> SelfForcing:
    values = {
        "models": Models("tiny", init_from=folders["scores"]),
        "optim": Optim(lr=1e-3, num_warmup_steps=1),
        "objective": Objective({0: LENGTH}, text_dropout=0.0),
        "face_boost": 0.0,
        "mouth_boost": 1.0,
        "personality": Personality(motion_dropout=0.0, reference_dropout=0.0),
        "student": CausalStudent(folders["student"], SEEN),
        "matching": Matching(fake_updates=2, fake_lr=1e-3),
        "rollout": SelfRollout({0: 2}, prompt_share=0.5, image_share=0.5),
        "trainable": Trainable(),
        **changes,
    }
    stage = SelfForcing(**values)  # pyright: ignore
    stage.configure_model()
    return stage


def test_a_window_of_training_is_the_stream_of_generation(folders: dict[str, str]) -> None:
    stage = stage_of(folders)
    batch = make_batch(2, 4 * LENGTH - 3, 32, latent_channels=16, has_reference=True)
    begun = stage.begin(batch, 0)
    rollout = stage.chunk(begun)
    settings = dataclasses.replace(rollout.settings, anchor=False)
    step = dataclasses.replace(rollout, settings=settings)
    with torch.no_grad():
        carry = begin(stage.dit, (rollout.prefix,), rollout.reference, settings)
        velocity = chunk_velocity(stage.dit, rollout.words, rollout.audio, carry, settings)
        one = dataclasses.replace(step.settings, num_steps=1)  # no fresh noise between steps
        whole = dataclasses.replace(step, settings=one, motion=None).make(
            velocity.video(LENGTH, None)
        )
        (blocks,), _ = make_blocks(
            velocity, carry, rollout.chunk, one, rollout.seeds, stage.dit.config
        )
    torch.testing.assert_close(blocks, whole, atol=1e-5, rtol=1e-5)


def test_scores_see_a_part_that_continues_the_student_s_own_latents(
    folders: dict[str, str],
) -> None:
    stage = stage_of(folders)
    batch = make_batch(2, 4 * LENGTH - 3, 32, latent_channels=16, has_reference=True)
    begun = stage.begin(batch, 0)
    rollout = stage.chunk(begun)
    made = torch.randn(2, LENGTH, 16, 4, 4, requires_grad=True)
    places = set()
    for index in range(40):
        seen, part = stage.part_for_scores(rollout, made, stage.draws(index))
        begin_, stop = seen.chunk.latents.start, seen.chunk.latents.stop
        places.add(begin_)
        assert stop - begin_ == SEEN
        assert torch.equal(part, made[:, begin_:stop])
        assert torch.equal(seen.window(made), part)
        assert seen.audio is not None
        assert rollout.audio is not None
        assert torch.equal(seen.audio, rollout.audio[:, begin_:stop])
        (grad,) = torch.autograd.grad(part.sum(), made)
        if begin_ == 0:
            assert seen.anchor is None
            assert torch.equal(seen.prefix, rollout.prefix)
            continue
        assert torch.equal(seen.prefix, part[:, :2])
        assert not grad[:, begin_ : begin_ + 2].any(), "what is given takes no gradient"
        assert grad[:, begin_ + 2 : stop].all()
        assert seen.anchor is not None
        assert torch.equal(seen.anchor.latents, made[:, :1])
        assert seen.scored()[0].tolist() == [False, False, True, True, True]
    assert places == set(range(LENGTH - SEEN + 1))
    assert seen.chunk.latents == Span(begin_, stop)


def test_an_update_moves_student_and_fake_score_and_never_the_real_one(
    folders: dict[str, str],
) -> None:
    stage = stage_of(folders)
    assert stage.dit.config.causal_block == 2
    assert not stage.fake.config.is_causal
    randomise(stage.fake, seed=5)  # it begins as the real score, where nothing pulls
    batch = make_batch(2, 4 * LENGTH - 3, 32, latent_channels=16, has_reference=True)
    losses = {}
    stage.update = lambda role, loss: losses.setdefault(role, loss)  # pyright: ignore
    stage.num_backward = dict.fromkeys((STUDENT, FAKE), 1)  # pyright: ignore
    begun = stage.begin(batch, 0)
    _, logs = stage.iterate(begun)
    assert set(losses) == {STUDENT, FAKE}
    assert {"dmd", "fake", "spread", "energy"} <= set(logs)
    losses[STUDENT].backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in stage.dit.parameters())
    assert all(p.grad is None for p in getattr(stage, REAL).parameters())
    assert stage.card_entries()["causal_block"] == 2


def iterated(stage: SelfForcing) -> dict[str, dict[str, torch.Tensor]]:
    """The gradients of each role in one step that trains both."""
    batch = make_batch(2, 4 * LENGTH - 3, 32, latent_channels=16, has_reference=True)
    found = {}

    def update(role: str, loss: torch.Tensor | Iterator[torch.Tensor]) -> bool:
        stage.zero_grad(set_to_none=True)
        for part in [loss] if isinstance(loss, torch.Tensor) else loss:
            part.backward()
        own = {n for n in stage._names[role] if stage.get_parameter(n).grad is not None}
        found[role] = {n: stage.get_parameter(n).grad.clone() for n in own}  # pyright: ignore
        return True

    stage.update = update
    stage.num_backward = dict.fromkeys((STUDENT, FAKE), 1)
    stage.iterate(stage.begin(batch, 0))
    return found


ALL = Streaming("clean", "replaced", max_start=4, corrupt_share=0.5, corrupt_strength=0.3)


@pytest.mark.filterwarnings("ignore:.*were trained with Streaming")
def test_blocks_train_the_student_with_every_switch(folders: dict[str, str]) -> None:
    student = CausalStudent(folders["student"], SEEN, "blocks")
    found = {}
    for name, streaming in (("plain", Streaming()), ("all", ALL)):
        stage = stage_of(folders, student=student, streaming=streaming)
        randomise(stage.fake, seed=5)
        found[name] = iterated(stage)
        assert stage.card_entries()["streaming"] == streaming
        head = found[name][STUDENT]["dit.head.out.weight"]
        assert bool(torch.isfinite(head).all())
        assert head.abs().sum() > 0
    key = "dit.blocks.1.self_attention.key.weight"
    assert not torch.equal(found["plain"][STUDENT][key], found["all"][STUDENT][key])
    with pytest.raises(ValueError, match="gradients is blocks where"):
        stage_of(folders, streaming=ALL)


@pytest.fixture(scope="module")
def factored(folders: dict[str, str]) -> AvatarDiT:
    """What 4d with factors leaves."""
    base, _ = load_pipeline(folders["scores"])
    network = as_causal(base, block=2, window=2)
    add_factors(network, rank=4, alpha=2.0, seed=3)
    with_factors(network)
    return network


@pytest.fixture(scope="module")
def adapter(
    folders: dict[str, str], factored: AvatarDiT, tmp_path_factory: pytest.TempPathFactory
) -> str:
    folder = tmp_path_factory.mktemp("adapter")
    about = AdapterCard(
        "dit", Card("tiny"), folders["scores"], hash_folder(f"{folders['scores']}/dit")
    )
    save_adapter(folder / "adapter", factored, about)
    return str(folder / "adapter")


def with_factors(network: AvatarDiT, role: str = "") -> None:
    """Let the factors of ``role`` change something."""
    draw = torch.Generator().manual_seed(4)
    for name, p in network.named_parameters():
        if f"lora_B.{role}" in name:
            torch.nn.init.normal_(p, std=0.1, generator=draw)


OF_FACTORS = Trainable("lora", lora_rank=4, lora_alpha=2.0)


def test_student_and_fake_score_are_factors_on_the_real_score(
    folders: dict[str, str], factored: AvatarDiT, adapter: str
) -> None:
    """The student begins as 4d's adapter; the base is the real score and never moves."""
    stage = stage_of(folders, student=CausalStudent(adapter, SEEN, "blocks"), trainable=OF_FACTORS)
    x, t = torch.randn(1, LENGTH, 16, 4, 4), torch.full((1, LENGTH), 0.5)
    cond = make_cond(stage.dit.config, 1, LENGTH)
    found = {}
    with torch.no_grad():
        for role in (STUDENT, FAKE, REAL):
            with stage.network(role) as network:
                found[role] = network(x, t, cond)
        torch.testing.assert_close(found[STUDENT], merged(factored)(x, t, cond))
        real = load_pipeline(folders["scores"])[0](x, t, cond)
    assert torch.equal(found[REAL], real)
    assert torch.equal(found[FAKE], real), "it begins as the real score"
    assert not torch.allclose(found[STUDENT], real)
    assert not any(p.requires_grad for n, p in stage.dit.named_parameters() if "lora_" not in n)
    assert stage.dit.config.causal_block == 2, "it is written as the student is"
    for wrong in (Trainable("lora", lora_rank=8, lora_alpha=2.0), Trainable("lora", 4, 4.0)):
        with pytest.raises(ValueError, match="has rank 4 and alpha 2"):
            stage_of(folders, student=CausalStudent(adapter, SEEN), trainable=wrong)


@pytest.mark.parametrize("gradients", ["window", "blocks"])
def test_factors_have_the_same_gradients_where_activations_are_computed_again(
    folders: dict[str, str], adapter: str, gradients: Literal["window", "blocks"]
) -> None:
    """Those of the head's term pass through the fake score, whose factors are then active."""
    found = []
    for again in (False, True):
        stage = stage_of(
            folders,
            models=Models("tiny", init_from=folders["scores"], checkpoint_activations=again),
            student=CausalStudent(adapter, SEEN, gradients),
            matching=Matching(fake_updates=2, fake_lr=1e-3, adversarial={0: 0.5}),
            trainable=OF_FACTORS,
        )
        with_factors(stage.dit, FAKE)
        found.append(iterated(stage))
        for role in (STUDENT, FAKE):
            assert found[-1][role]
            assert all(f".{role}." in name for name in found[-1][role])
            assert any(bool(g.any()) for g in found[-1][role].values())
    assert found[0].keys() == {STUDENT, FAKE, "head"}
    for role, own in found[0].items():
        for name, gradient in own.items():
            assert torch.equal(gradient, found[1][role][name]), name


def test_a_student_goes_on_with_what_it_saw_of_the_past(
    folders: dict[str, str], tmp_path: Path
) -> None:
    seen = Streaming(max_start=4, corrupt_share=0.5, corrupt_strength=0.3)
    folder = str(tmp_path / "w")
    card = Card("tiny", can=Capabilities(streaming=seen))
    save_pipeline(folder, *load_pipeline(folders["student"]), card)
    student = CausalStudent(folder, SEEN)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert stage_of(folders, student=student).streaming == seen
        assert stage_of(folders, student=student, streaming=seen).streaming == seen
    with pytest.warns(UserWarning, match="were trained with Streaming"):
        assert stage_of(folders, student=student, streaming=Streaming()).streaming == Streaming()
    card = Card("tiny", can=Capabilities(streaming=ALL))
    save_pipeline(folder, *load_pipeline(folders["student"]), card, overwrite=True)
    with pytest.raises(ValueError, match="gradients is blocks where"):
        stage_of(folders, student=student)
    card = Card("tiny", can=Capabilities(audio_look_ahead=2))
    save_pipeline(folder, *load_pipeline(folders["student"]), card, overwrite=True)
    with pytest.raises(ValueError, match="to hear 2 latents ahead, and this recipe would hear 0"):
        stage_of(folders, student=student)


def test_what_cannot_be_is_refused(
    folders: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped = {"scores": folders["student"], "student": folders["scores"]}
    no_anchor = {
        "rollout": SelfRollout({0: 2}, prompt_share=0.5, image_share=0.5, anchor=False),
        "student": CausalStudent(folders["student"], SEEN, "blocks"),
        "streaming": Streaming(sink="replaced"),
    }
    for changes, words in (
        ({"trainable": Trainable("new")}, "trainable.parts is all or lora"),
        ({"trainable": Trainable("lora")}, "no adapter"),
        ({"matching": Matching(regression={0: 1.0}, teacher_steps=2)}, "regression is 0"),
        ({"rollout": SelfRollout({0: 2})}, "make 1"),
        (no_anchor, "rollout.anchor is true"),
        ({"objective": Objective({0: 4}, text_dropout=0.0)}, "at least student.score_latents"),
        ({"student": CausalStudent(folders["scores"], SEEN)}, "are not causal"),
    ):
        with pytest.raises(ValueError, match=words):
            stage_of(folders, **changes)
    with pytest.raises(ValueError, match="see whole windows"):
        stage_of(swapped)
    monkeypatch.setattr(engine, "trainer_layout", lambda _: Layout(2, 0, 2))
    with pytest.raises(ValueError, match="adversarial is for videos that one rank computes"):
        stage_of(folders, matching=Matching(adversarial={0: 0.1}))


def test_a_missing_student_is_named(folders: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises((ValueError, OSError), match="none"):
        stage_of(folders, student=CausalStudent(str(tmp_path / "none"), SEEN))
