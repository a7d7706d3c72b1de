"""training/engine, objectives/t2v and a2v: what a step sees, what it trains, and that it repeats
exactly."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import Tensor

from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.objectives.a2v import A2V
from avatar_v.objectives.t2v import T2V
from avatar_v.parallel.mesh import Layout, step_generator
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.settings import Models, Objective
from avatar_v.types import MOTION_NAMES, Batch, Cond, num_frames
from avatar_v.weights.weights import save_dit
from random_models import randomise

OPTIM = Optim(lr=1e-3, num_warmup_steps=1)
OBJECTIVE = Objective({0: 4}, first_share=0.5, image_share=0.5)


def t2v(objective: Objective = OBJECTIVE) -> T2V:
    stage = T2V(Models("tiny"), OPTIM, objective)
    stage.configure_model()
    return stage


def a2v(objective: Objective = OBJECTIVE, mouth_boost: float = 4.0) -> A2V:
    stage = A2V(Models("tiny"), OPTIM, objective, face_boost=0.0, mouth_boost=mouth_boost)
    stage.configure_model()
    return stage


def test_no_random_network_is_made_where_a_trained_one_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is loaded is built without memory, and no other is built."""
    trained = AvatarDiT(DiTConfig.tiny())
    randomise(trained)
    save_dit(tmp_path, trained)
    drawn, reset = [], AvatarDiT.reset_parameters

    def noted(dit: AvatarDiT) -> None:
        drawn.append(dit.style_embed.device.type)
        reset(dit)

    monkeypatch.setattr(AvatarDiT, "reset_parameters", noted)
    stage = T2V(Models("tiny", dit=str(tmp_path)), OPTIM, OBJECTIVE)
    stage.configure_model()
    assert drawn == ["meta"]
    assert torch.equal(stage.dit.style_embed, trained.style_embed)


@pytest.fixture
def batch() -> Batch:
    num, latents, frames = 8, 7, num_frames(7)
    generator = torch.Generator().manual_seed(0)
    box = torch.tensor([0.2, 0.2, 0.8, 0.8]).expand(num, frames, 4)
    mouth = torch.tensor([0.25, 0.5, 0.75, 0.75]).expand(num, frames, 4)  # 2 of 4 x 4 cells
    return Batch(
        video=None,
        audio=0.1 * torch.randn(num, frames * 640, generator=generator),
        text=("somebody",) * num,
        motion=torch.zeros(num, frames, len(MOTION_NAMES)),
        face_box=box,
        mouth_box=mouth,
        valid=torch.ones(num, frames, dtype=torch.bool),
        key=tuple(map(str, range(num))),
        person=("p",) * num,
        scene=("s",) * num,
        latents=torch.randn(num, latents, 16, 4, 4, generator=generator),
    )


def test_what_runs_is_drawn_alike_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = {}
    for rank in (0, 1):
        stage = a2v()
        monkeypatch.setattr(type(stage), "layout", Layout(2, rank))
        drawn = stage.draws(7)
        draws[rank] = tuple(torch.rand(3, generator=of) for of in (drawn.own, drawn.common))
        other = stage.draws(7, validation=True).common
        assert not torch.equal(torch.rand(3, generator=other), draws[rank][1])
    assert not torch.equal(draws[0][0], draws[1][0])
    assert torch.equal(draws[0][1], draws[1][1])


def loss_of(stage: Engine, batch: Batch, index: int = 0) -> Tensor:
    return stage.loss_at(batch, index)[0]


@pytest.mark.parametrize("make", [t2v, a2v])
def test_a_step_repeats_exactly_and_steps_differ(make, batch: Batch) -> None:
    first, second = make(), make()
    assert torch.equal(loss_of(first, batch, 3), loss_of(second, batch, 3))
    assert not torch.equal(loss_of(first, batch, 3), loss_of(first, batch, 4))


def test_ranks_and_seeds_draw_differently() -> None:
    draws = {
        tuple(torch.rand(2, generator=step_generator(seed, rank, index)).tolist())
        for seed in (0, 1)
        for rank in (0, 1)
        for index in (0, 1)
    }
    assert len(draws) == 8


@pytest.mark.parametrize("make", [t2v, a2v])
def test_the_prefix_reaches_the_model_clean_at_time_zero(
    make, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, seen = make(), []

    def spy(x_t: Tensor, t: Tensor, cond: Cond) -> Tensor:
        seen.append((x_t, t, cond))
        return torch.zeros_like(x_t)

    monkeypatch.setattr(stage.dit, "forward", spy)
    begun = stage.begin(batch, 1)
    stage.loss(begun)
    windows, cond = begun.windows, begun.cond
    (x_t, t, given), scored = seen[0], windows.scored()
    assert x_t.shape == (8, 4, 16, 4, 4)
    assert {0, 1, 2} == set(windows.prefix.tolist())
    assert not t[~scored].any()
    assert t[scored].min() > 0
    assert batch.latents is not None
    window = windows.crop(batch.latents)
    assert torch.equal(x_t[~scored], window[~scored])
    assert not torch.isclose(x_t[scored], window[scored]).all(-1).any()
    assert given is cond
    if cond.audio is not None:
        whole = stage.conditioner.encode_audio(batch.audio)
        torch.testing.assert_close(cond.audio, windows.crop(whole))


def test_the_first_stage_hears_nothing_and_leaves_audio_untrained(batch: Batch) -> None:
    stage = t2v()
    assert stage.begin(batch, 0).cond.audio is None
    loss_of(stage, batch).backward()
    trained = {name for name, p in stage.named_parameters() if p.grad is not None}
    assert not [name for name in trained if "audio" in name]
    assert "dit.head.out.weight" in trained


def test_the_second_stage_trains_audio_from_the_first_step(batch: Batch) -> None:
    """The audio output starts at zero, so its own weight learns first, then all behind it."""
    stage = a2v()
    # a fresh head passes no gradient to what lies before it
    torch.nn.init.normal_(stage.dit.head.out.weight, generator=torch.Generator().manual_seed(0))
    loss_of(stage, batch).backward()
    out = [p for n, p in stage.named_parameters() if n.endswith("audio_attention.out.weight")]
    assert out
    assert all(p.grad is not None and bool(p.grad.any()) for p in out)
    with torch.no_grad():
        for p in out:
            p -= 0.1 * p.grad
    stage.zero_grad()
    loss_of(stage, batch).backward()
    encoder = dict(stage.conditioner.audio_encoder.named_parameters())
    assert all(p.grad is not None and bool(p.grad.any()) for p in encoder.values())


def test_dropped_audio_is_as_no_audio(batch: Batch) -> None:
    deaf = a2v(dataclasses.replace(OBJECTIVE, audio_dropout=1.0))
    torch.nn.init.normal_(deaf.dit.head.out.weight, generator=torch.Generator().manual_seed(0))
    for block in deaf.dit.blocks:
        torch.nn.init.normal_(block.audio_attention.out.weight)
    other = dataclasses.replace(batch, audio=batch.audio.flip(0))
    assert torch.equal(loss_of(deaf, batch), loss_of(deaf, other))


@pytest.mark.parametrize(("boost", "expected"), [(0.0, 2 / 16), (4.0, 2 * 5 / (16 + 2 * 4))])
def test_the_mouth_counts_more(
    boost: float, expected: float, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is off by 1 on the two cells of the mouth and right on the other 14."""
    stage = a2v(mouth_boost=boost)
    begun = stage.begin(batch, 0)
    v = torch.randn(begun.clean.shape, generator=begun.draws.own) - begun.clean
    v[:, :, :, 2, 1:3] += 1.0
    monkeypatch.setattr(stage.dit, "forward", lambda x_t, t, cond: v)
    loss, _ = stage.loss(stage.begin(batch, 0))
    assert float(loss) == pytest.approx(expected, rel=1e-5)  # fp32 noise of ε - x_0 ± 1


def test_checkpoints_hold_what_is_trained() -> None:
    stage = a2v()
    state = stage.state_dict()
    assert not [name for name in state if name.startswith("conditioner.vae")]
    assert "dit.head.out.weight" in state
    a2v().load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"dit\.head\.out\.weight"):
        a2v().load_state_dict({k: v for k, v in state.items() if k != "dit.head.out.weight"})
    with pytest.raises(RuntimeError, match="nonsense"):
        a2v().load_state_dict({**state, "nonsense": torch.zeros(1)})


def test_settings_refuse_what_makes_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="brings its own"):
        Models("tiny", init_from="a", text="b")
    with pytest.raises(ValueError, match="step 0"):
        Objective({4: 5})
    with pytest.raises(ValueError, match="image_share"):
        Objective({0: 5}, image_share=1.5)
    with pytest.raises(ValueError, match=r"suffix_share is in \[0, 1\], got -1.0"):
        Objective({0: 5}, suffix_share=-1.0)
    with pytest.raises(ValueError, match="face_boost is at least 0"):
        A2V(Models("tiny"), OPTIM, OBJECTIVE, face_boost=-1.0, mouth_boost=0.0)
    with pytest.raises(ValueError, match="no preset 'giant'"):
        T2V(Models("giant"), OPTIM, OBJECTIVE).configure_model()
    with pytest.raises(ValueError, match=r"card\.json"):
        T2V(Models("tiny", init_from=str(tmp_path)), OPTIM, OBJECTIVE).configure_model()
