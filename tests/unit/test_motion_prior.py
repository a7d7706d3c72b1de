"""training/motion, objectives/motion_prior: windows of motion, what they are shown, and when."""

import dataclasses
from pathlib import Path

import pytest
import torch

from avatar_v.motion.own_units import build_style
from avatar_v.motion.style import motion_moments
from avatar_v.motion.vectors import MOTION_DIM, pack_motion
from avatar_v.objectives.motion_prior import MotionPrior
from avatar_v.training.motion import MotionTraining, get_motion_net, run_moments
from avatar_v.training.optim import Optim
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable
from avatar_v.training.windows import Windows
from avatar_v.types import MOTION_NAMES, Batch, MotionCond
from avatar_v.weights.card import Card
from avatar_v.weights.presets import build
from avatar_v.weights.random import make_batch, motion_stats
from avatar_v.weights.weights import load_pipeline, save_pipeline

STATS = motion_stats()
AVERAGE_STYLE = STATS.style_average

NUM, CLIPS, LENGTH = 50, 4, 3
OBJECTIVE = Objective({0: LENGTH}, first_share=0.4, image_share=0.5, shift=3.0, audio_dropout=0.5)


@pytest.fixture(scope="module")
def batch() -> Batch:
    batch = make_batch(CLIPS, 25, 32, latent_channels=16, has_reference=True)
    valid = batch.valid.clone()
    valid[0, 6] = False  # of latent 2
    return dataclasses.replace(batch, valid=valid)


def prior(**numbers) -> MotionPrior:
    optim = Optim(lr=1e-3, num_warmup_steps=1)
    models = Models("tiny", motion_stats="small")
    stage = MotionPrior(models, optim, OBJECTIVE, MotionTraining(**{"num_windows": 3, **numbers}))
    stage.configure_model()
    return stage


@pytest.fixture(scope="module")
def stage() -> MotionPrior:
    return prior(num_windows=NUM, style_dropout=0.3)


@pytest.fixture(scope="module")
def drawn(stage: MotionPrior, batch: Batch) -> tuple[Windows, torch.Tensor, MotionCond]:
    """Windows of all clips, their motion and what it is shown."""
    begun = stage.begin(batch, 0)
    return begun.windows, begun.clean, begun.cond


def moments(stage: MotionPrior, batch: Batch, *, most: int = 100) -> torch.Tensor:
    clip, generator = stage.subject.clip_of_windows(batch), torch.Generator().manual_seed(0)
    return run_moments(batch.reference, clip, stage.conditioner, most, generator)


def test_what_is_not_run_stays_where_it_is_and_is_exported(tmp_path: Path) -> None:
    stage = prior()
    parts = {name.rpartition(".")[0].split(".")[1] for name, _ in stage.named_parameters()}
    assert parts == {"audio_encoder", "motion_net"}
    save_pipeline(tmp_path / "weights", stage.dit, stage.conditioner, Card("tiny"))
    stored = load_pipeline(tmp_path / "weights")
    fresh, around = build("tiny", motion_stats=STATS)
    for found, made in zip(stored, (fresh, around), strict=True):
        state = found.state_dict()
        assert all(torch.equal(state[name], value) for name, value in made.state_dict().items())
    stage.to("meta")
    asides = (stage.dit, stage.conditioner.vae, stage.conditioner.text_encoder)
    assert {p.device.type for part in asides for p in part.parameters()} == {"cpu"}
    assert {p.device.type for p in stage.parameters()} == {"meta"}


def test_windows_are_cut_from_their_clips_with_the_sound_there(stage, batch, drawn) -> None:
    windows, motion, cond = drawn
    packed, audio = pack_motion(batch.motion, STATS), stage.conditioner.encode_audio(batch.audio)
    assert motion.shape == (NUM * CLIPS, LENGTH, MOTION_DIM)
    for i, start in enumerate(windows.start.tolist()):
        assert torch.equal(motion[i], packed[i // NUM, start : start + LENGTH])
        assert torch.equal(cond.audio[i], audio[i // NUM, start : start + LENGTH])
    assert set(windows.start.tolist()) == set(range(packed.shape[1] - LENGTH + 1))
    assert 0.35 < float(cond.audio_keep.float().mean()) < 0.65
    assert 0.55 < float(cond.style_keep.float().mean()) < 0.85
    assert not torch.equal(cond.style_keep, cond.audio_keep)


def test_the_network_sees_the_times_of_the_samplers_steps_and_given_ends(stage, batch) -> None:
    seen: list[torch.Tensor] = []
    hook = get_motion_net(stage).register_forward_pre_hook(lambda _, given: seen.append(given[1]))
    loss_of(stage, batch)
    hook.remove()
    (t,) = seen
    late = t.amax(1)
    assert ((t == late[:, None]) | (t == 0)).all(), "one time a window, 0 where it is given"
    assert 0 < late.min() < late.max() < 1
    # shift_time(1/2, 3) = 0.75: half of the steps lie above; five standard errors of 200 are 0.18
    assert (late > 0.75).float().mean().item() == pytest.approx(0.5, abs=0.18)


def test_motion_of_frames_without_a_face_is_no_target(stage, batch) -> None:
    changed = batch.motion.clone()
    changed[0, 5:9] += 3.0  # latent 2 of the first clip, whose face is hidden in one frame
    spoilt = dataclasses.replace(batch, motion=changed)
    # v = 0, whatever the network reads
    torch.nn.init.zeros_(get_motion_net(stage).head.out.weight)
    assert torch.equal(loss_of(stage, batch), loss_of(stage, spoilt))
    shown = dataclasses.replace(spoilt, valid=torch.ones_like(spoilt.valid))
    assert not torch.equal(loss_of(stage, batch), loss_of(stage, shown))


def test_styles_are_of_a_run_of_the_reference(stage, batch) -> None:
    packed = pack_motion(batch.reference.motion, STATS)
    whole = packed.shape[1]
    got = moments(stage, batch)
    lengths = got[:, 0] / 4
    assert set(lengths.tolist()) == set(range(1, whole + 1))
    for i, row in enumerate(got):
        length = int(lengths[i])
        runs = [packed[i // NUM, k : k + length] for k in range(whole - length + 1)]
        found = [
            motion_moments(run[None], torch.ones(1, length, dtype=torch.bool), STATS)
            for run in runs
        ]
        # fp32; sums over zeros besides
        assert any(torch.allclose(row, other[0], atol=1e-4, rtol=1e-4) for other in found)
    assert moments(stage, batch, most=2)[:, 0].max() == 8


def test_styles_of_components_that_were_not_read_are_an_average_person_s(stage, batch) -> None:
    known = torch.ones(CLIPS, len(MOTION_NAMES), dtype=torch.bool)
    known[1] = False
    partly = dataclasses.replace(batch.reference, habits_known=known)
    got = moments(stage, dataclasses.replace(batch, reference=partly))
    whole = moments(stage, batch)
    hidden = torch.arange(len(got)) // NUM == 1
    assert torch.equal(got[~hidden], whole[~hidden])
    means = got[hidden][:, 1 : 1 + len(MOTION_NAMES)] / got[hidden][:, :1]
    average = AVERAGE_STYLE[: len(MOTION_NAMES)].expand_as(means)
    torch.testing.assert_close(means, average, atol=1e-5, rtol=1e-5)


def loss_of(stage: MotionPrior, batch: Batch, index: int = 0) -> torch.Tensor:
    return stage.loss_at(batch, index)[0]


def test_the_motion_network_alone_is_trained_and_a_step_repeats(batch: Batch) -> None:
    stage = prior()
    loss = loss_of(stage, batch, 3)
    loss.backward()
    names = {n for n, p in stage.named_parameters() if p.grad is not None}
    assert names
    assert all(name.startswith("conditioner.motion_net.") for name in names)
    assert torch.equal(loss, loss_of(prior(), batch, 3))
    assert not torch.equal(loss, loss_of(stage, batch, 4))
    assert all("motion_net" in name for name in stage.state_dict())
    entries = stage.card_entries()
    assert (entries["motion"], entries["anchor"]) == (True, False)
    with pytest.raises(ValueError, match="pairs"):
        loss_of(stage, dataclasses.replace(batch, reference=None))


def test_motion_that_was_not_read_is_no_target(stage, batch) -> None:
    known = torch.zeros(CLIPS, len(MOTION_NAMES), dtype=torch.bool)
    known[:2, MOTION_NAMES.index("yaw")] = True  # of the others nothing was read
    loss = loss_of(stage := prior(), dataclasses.replace(batch, motion_known=known))
    loss.backward()
    net = stage.conditioner.motion_net
    assert net is not None
    grad = net.head.out.bias.grad
    assert grad is not None
    taught = grad.unflatten(0, (-1, len(MOTION_NAMES))).abs().sum(0) > 0
    assert [MOTION_NAMES[i] for i in taught.nonzero()[:, 0]] == ["yaw"]


def test_styles_of_windows_are_those_of_their_moments(stage, batch, drawn) -> None:
    style = drawn[2].style
    assert style is not None
    assert len(style.code.unique(dim=0)) > CLIPS, "windows of a clip share no run"
    whole = stage.conditioner.clip_moments(batch.reference.motion, batch.reference.valid)
    assert style.scale.shape == build_style(whole, STATS).scale.repeat(NUM, 1).shape


def test_the_other_side_is_heard_where_there_is_one(batch: Batch) -> None:
    """By a share of the windows of dialogues; others, also of a batch without any, hear nobody."""
    stage = prior(num_windows=NUM, hears=True, heard_dropout=0.4)
    voice = batch.audio.flip(1).clone()
    voice[1] = 0  # of a clip that is no dialogue
    talk = dataclasses.replace(batch, heard=voice)
    begun, expected = stage.begin(talk, 0), stage.conditioner.encode_audio(voice)
    cond = begun.cond
    assert isinstance(cond, MotionCond)
    assert cond.heard is not None
    assert cond.heard_keep is not None
    for i, start in enumerate(begun.windows.start.tolist()):
        assert torch.equal(cond.heard[i], expected[i // NUM, start : start + LENGTH])
    kept = cond.heard_keep.unflatten(0, (CLIPS, NUM)).float().mean(1)
    assert kept[1] == 0
    assert (kept[[0, 2, 3]] > 0.3).all()
    assert (kept[[0, 2, 3]] < 0.9).all()
    alone = stage.begin(batch, 0).cond
    assert alone.heard_keep is not None
    assert not alone.heard_keep.any()
    stage.loss(stage.begin(batch, 0))[0].backward()
    found = dict(get_motion_net(stage).named_parameters())
    assert all(p.grad is not None for p in found.values()), "ranks of FSDP train the same"
    assert prior().begin(talk, 0).cond.heard is None


def test_weights_that_hear_one_voice_learn_to_hear_both(tmp_path: Path, batch: Batch) -> None:
    deaf = prior()
    save_pipeline(tmp_path / "deaf", deaf.dit, deaf.conditioner, Card("tiny"))
    optim, start = (
        Optim(lr=1e-3, num_warmup_steps=1),
        Models("tiny", init_from=str(tmp_path / "deaf")),
    )
    stage = MotionPrior(start, optim, OBJECTIVE, MotionTraining(hears=True))
    stage.configure_model()
    net, before = get_motion_net(stage), get_motion_net(deaf).state_dict()
    assert net.config.hears
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    save_pipeline(tmp_path / "hears", stage.dit, stage.conditioner, Card("tiny"))
    stored = load_pipeline(tmp_path / "hears")[1].motion_net
    assert stored is not None
    assert stored.config.hears
    other = MotionPrior(
        Models("tiny", init_from=str(tmp_path / "hears")), optim, OBJECTIVE, MotionTraining()
    )
    other.configure_model()
    trained = {name for name, p in get_motion_net(other).named_parameters() if p.requires_grad}
    assert trained == before.keys(), "a stage that shows nobody leaves what hears as it is"
    begun = other.begin(dataclasses.replace(batch, heard=batch.audio), 0)
    assert isinstance(begun.cond, MotionCond)
    assert begun.cond.heard is None
    lora = MotionPrior(
        start, optim, OBJECTIVE, MotionTraining(hears=True), trainable=Trainable(parts="lora")
    )
    with pytest.raises(ValueError, match="hears nobody else yet; train it whole first"):
        lora.configure_model()
