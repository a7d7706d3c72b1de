"""objectives/sft: what stage 3 sees and trains; test_perceptual.py is about its critics."""

import dataclasses
from pathlib import Path
from typing import ClassVar

import lightning as L
import pytest
import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from peft.tuners.lora import LoraLayer
from untrained import untrained_critics

from avatar_v.callbacks.record import Export
from avatar_v.callbacks.samples import Samples, first_samples
from avatar_v.losses.flow import motion_flow_loss
from avatar_v.models.lora import FACTORS, merged
from avatar_v.motion.vectors import MOTION_DIM, component_weights
from avatar_v.objectives.sft import SFT
from avatar_v.sampling.chunks import plan
from avatar_v.sampling.rollout import (
    ChunkVelocity,
    Words,
    begin,
    chunk_velocity,
    make_chunk,
)
from avatar_v.sampling.settings import Settings
from avatar_v.training.continuation import Continuation
from avatar_v.training.optim import Optim
from avatar_v.training.perceptual import TERMS, PerceptualTerms
from avatar_v.training.personality import Personality, draw_run
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import MOTION, Trainable
from avatar_v.training.windows import Windows
from avatar_v.types import MOTION_NAMES, Batch, Cond
from avatar_v.weights.card import Capabilities, read_card
from avatar_v.weights.random import make_batch
from avatar_v.weights.weights import load_pipeline
from random_models import randomise

OPTIM = Optim(lr=1e-3, num_warmup_steps=1)
OBJECTIVE = Objective({0: 5}, first_share=0.5, image_share=0.5, audio_dropout=0.1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sft(
    personality: Personality | None = None,
    perceptual: PerceptualTerms | None = None,
    trainable: Trainable | None = None,
    continuation: Continuation | None = None,
) -> SFT:
    stage = SFT(
        Models("tiny", motion_stats="small"),
        OPTIM,
        OBJECTIVE,
        face_boost=0.0,
        mouth_boost=1.0,
        personality=personality or Personality(motion_dropout=0.0),
        continuation=continuation or Continuation(),
        perceptual=perceptual or PerceptualTerms(),
        trainable=trainable or Trainable(),
    )
    stage.configure_model()
    randomise(stage.dit)  # a fresh head passes no gradient to what lies before it
    return stage


@pytest.fixture
def batch() -> Batch:
    return make_batch(3, 25, 32, latent_channels=16, has_reference=True)


@pytest.fixture
def critics(tmp_path: Path) -> dict[str, str]:
    return untrained_critics(tmp_path)


def loss_of(stage: SFT, batch: Batch, index: int = 0) -> tuple[torch.Tensor, dict]:
    return stage.loss_at(batch, index)


def trained(stage: SFT) -> set[str]:
    return {n for n, p in stage.named_parameters() if p.grad is not None and bool(p.grad.any())}


def test_a_step_repeats_exactly_and_steps_differ(batch: Batch) -> None:
    first, second = sft(), sft()
    assert torch.equal(loss_of(first, batch, 3)[0], loss_of(second, batch, 3)[0])
    assert not torch.equal(loss_of(first, batch, 3)[0], loss_of(first, batch, 4)[0])


def test_data_without_references_is_refused(batch: Batch) -> None:
    with pytest.raises(ValueError, match="pairs"):
        loss_of(sft(), dataclasses.replace(batch, reference=None))


def test_the_reference_and_its_motion_are_read(batch: Batch) -> None:
    stage = sft(Personality(reference_dropout=0.0, motion_dropout=0.0))
    loss = loss_of(stage, batch)[0]
    assert batch.reference is not None
    for change in ({"latents": -batch.reference.latents}, {"motion": 1 - batch.reference.motion}):
        reference = dataclasses.replace(batch.reference, **change)
        other = loss_of(stage, dataclasses.replace(batch, reference=reference))[0]
        assert abs(float((other - loss).detach())) > 1e-6


def test_a_video_follows_its_motion_but_in_the_steps_that_leave_it_out(batch: Batch) -> None:
    stage = sft()
    loss, logs = loss_of(stage, batch)
    loss.backward()
    assert set(logs) == {"video"}
    assert "dit.motion_embed.weight" in trained(stage)
    assert any("motion_inject" in name for name in trained(stage))
    windows = stage.subject.draw_windows(batch, stage.draws(0))
    expected = windows.crop(stage.conditioner.pack_motion(batch.motion))
    assert torch.equal(stage.subject.conditions(stage, batch, windows).motion, expected)
    shown = [cond.motion for cond in drawn(sft(Personality(motion_dropout=0.5)), batch)]
    assert 8 < sum(motion is None for motion in shown) < 32
    still = sft(Personality(motion_dropout=1.0, reference_dropout=1.0))
    loss_of(still, batch)[0].backward()
    assert not [name for name in trained(still) if "motion" in name and "norm" not in name]
    assert stage.card_entries()["motion"]
    assert not still.card_entries()["motion"]


def drawn(stage: SFT, batch: Batch) -> list[Cond]:
    """The conditions of the same windows in 40 steps."""
    windows = stage.subject.draw_windows(batch, stage.draws(0))
    return [stage.subject.conditions(stage, batch, windows, stage.draws(i)) for i in range(40)]


def test_references_are_drawn_between_the_bounds_short_ones_more_often() -> None:
    runs = [draw_run(20, 3, 11, seeded(i)) for i in range(300)]
    lengths = [length for _, length in runs]
    assert set(lengths) == set(range(3, 12))
    assert lengths.count(3) > 2 * lengths.count(11)
    assert min(start for start, _ in runs) == 0
    assert max(start + length for start, length in runs) == 20
    assert draw_run(20, 50, 100, seeded()) == (0, 20)
    with pytest.raises(ValueError, match="min <= max"):
        Personality(min_reference_latents=4, max_reference_latents=3)


def test_a_run_of_the_reference_is_that_of_the_whole(batch: Batch) -> None:
    conditioner = sft().conditioner
    assert batch.reference is not None
    whole = conditioner.encode_reference(batch.reference)
    run = conditioner.encode_reference(batch.reference, 2, 4)
    for name in ("latents", "valid", "audio", "motion"):
        torch.testing.assert_close(getattr(run, name), getattr(whole, name)[:, 2:6])
    assert not run.segment.any()
    with pytest.raises(ValueError, match="not in a reference of 7"):
        conditioner.encode_reference(batch.reference, 5, 3)


def test_some_steps_have_no_motion_of_the_reference(batch: Batch) -> None:
    """Real videos may come without it, so the model must make do with the picture."""
    stage = sft(Personality(reference_motion_dropout=0.5))
    references = [cond.reference for cond in drawn(stage, batch)]
    without = sum(shown is not None and shown.motion is None for shown in references)
    assert 8 < without < 32
    windows = stage.subject.draw_windows(batch, stage.draws(0))
    given = stage.subject.conditions(stage, batch, windows).reference
    assert given is not None
    assert given.motion is not None


def test_lora_trains_factors_and_the_motion_stream_and_leaves_no_trace(batch: Batch) -> None:
    stage = sft(trainable=Trainable("lora", lora_rank=2))
    loss_of(stage, batch)[0].backward()
    names = trained(stage)
    assert names
    assert all(any(part in n for part in (FACTORS, *MOTION)) for n in names)
    assert any("lora_A" in n for n in names)
    assert any("motion_inject" in n for n in names)
    plain = merged(stage.dit)
    assert set(plain.state_dict()) == set(sft().dit.state_dict())
    assert any(isinstance(m, LoraLayer) for m in stage.dit.modules()), "the stage trains on"
    changed = stage.dit.state_dict()["blocks.0.self_attention.query.base_layer.weight"]
    assert not torch.equal(plain.state_dict()["blocks.0.self_attention.query.weight"], changed)
    expected = loss_of(stage, batch)[0]
    stage.dit = plain
    torch.testing.assert_close(loss_of(stage, batch)[0], expected)


def test_lora_checkpoints_hold_what_is_trained() -> None:
    state = sft(trainable=Trainable("lora")).state_dict()
    assert state
    assert all(any(part in name for part in (FACTORS, *MOTION)) for name in state)
    sft(trainable=Trainable("lora")).load_state_dict(state)


def test_new_parts_alone_can_be_trained(batch: Batch) -> None:
    stage = sft(trainable=Trainable("new"))
    loss_of(stage, batch)[0].backward()
    assert trained(stage)
    assert all(any(part in name for part in MOTION) for name in trained(stage))
    with pytest.raises(ValueError, match="rank"):
        Trainable("lora", lora_rank=0)


def test_motion_of_frames_that_do_not_count_is_not_scored() -> None:
    v, target = torch.zeros(2, 3, MOTION_DIM), torch.ones(2, 3, MOTION_DIM)
    target[0, 1] = 100.0
    scored = torch.ones(2, 3, dtype=torch.bool)
    scored[0, 1] = False
    alike = component_weights({})[None]
    assert float(motion_flow_loss(v, target, scored, alike)) == pytest.approx(1.0)
    assert float(motion_flow_loss(v, target, ~scored & False, alike)) == 0.0


def test_weights_of_components_count_in_every_frame_of_a_latent() -> None:
    eye, scored = MOTION_NAMES.index("eye_open"), torch.ones(1, 1, dtype=torch.bool)
    weights = component_weights({"eye_open": 9.0})[None]
    v, target = torch.zeros(1, 1, MOTION_DIM), torch.zeros(1, 1, 4, len(MOTION_NAMES))
    target[..., eye] = 1.0
    share = 9.0 / (9.0 + len(MOTION_NAMES) - 1)
    assert float(motion_flow_loss(v, target.flatten(2), scored, weights)) == pytest.approx(share)
    with pytest.raises(ValueError, match="component weights"):
        component_weights({"eyes": 2.0})


def test_critics_reach_the_model_through_the_decoder(batch: Batch, critics) -> None:
    on = {0: 1.0}
    terms = PerceptualTerms(**dict.fromkeys(TERMS, on), **critics)
    stage = sft(perceptual=terms)
    index = next(i for i in range(50) if "perceptual_identity" in loss_of(stage, batch, i)[1])
    loss, logs = loss_of(stage, batch, index)
    assert {f"perceptual_{name}" for name in TERMS} <= set(logs)
    (loss - logs["video"]).backward()  # what is left is the critics' part
    assert "dit.head.out.weight" in trained(stage)
    assert not [name for name in trained(stage) if "vae" in name]


def test_the_video_before_a_window_is_shown_as_generation_shows_it(batch: Batch) -> None:
    """Anchors reach the loss in every step that has one, estimates where a window continues."""
    plain, inside = sft(), step_of_a_middle(sft(), batch)
    for numbers in (Continuation(anchor_share=1.0), Continuation(estimate_share=1.0)):
        loss = loss_of(sft(continuation=numbers), batch, inside)[0]
        assert abs(float((loss - loss_of(plain, batch, inside)[0]).detach())) > 1e-6
    assert sft(continuation=Continuation(anchor_share=0.5)).card_entries()["anchor"]
    assert not plain.card_entries()["anchor"]
    anchored = sft(continuation=Continuation(anchor_share=1.0))
    windows = plain.subject.draw_windows(batch, plain.draws(0))
    given = anchored.subject.conditions(anchored, batch, windows)
    assert given.reference is not None
    assert batch.reference is not None
    assert batch.reference.latents is not None
    assert given.reference.latents.shape[1] == batch.reference.latents.shape[1]


def step_of_a_middle(stage: SFT, batch: Batch) -> int:
    """The first step that has a window from inside its clip."""
    windows = (stage.subject.draw_windows(batch, stage.draws(i)) for i in range(50))
    return next(i for i, window in enumerate(windows) if bool((window.start > 0).any()))


class Finished(L.Trainer):
    """What `Export` asks of a trainer whose run is over."""

    is_global_zero = True
    callbacks: ClassVar = []
    default_root_dir = ""
    strategy = SingleDeviceStrategy()
    datamodule = None

    def __init__(self, root: Path) -> None:
        self.default_root_dir = str(root)


def test_the_exported_card_says_how_the_weights_are_to_be_sampled(tmp_path: Path) -> None:
    stage = sft(Personality(faces=True), continuation=Continuation(anchor_share=0.5))
    sampled = {"guidance_audio": 1.0, "guidance_motion": 2.0}
    export = Export("recipes/3_sft.yaml", people="drawn people", **sampled)
    export.on_train_end(Finished(tmp_path), stage)
    card = read_card(tmp_path / "weights", preset="tiny")
    assert {name: getattr(card, name) for name in sampled} == sampled
    assert card.can == Capabilities(
        "drawn people", None, 5, reference=True, motion=True, faces=True, anchor=True, shift=1.0,
        audio_look_ahead=0,
    )  # fmt: skip
    assert card.recipe == "recipes/3_sft.yaml"
    dit, _ = load_pipeline(tmp_path / "weights")
    for name, tensor in stage.dit.state_dict().items():
        assert torch.equal(tensor, dit.state_dict()[name])


def test_previews_are_what_generation_makes_of_the_same_conditions(batch: Batch) -> None:
    """A first chunk from the same frame and seeds, after the clip's own motion."""
    stage, num = sft(), 2
    batch = first_samples(batch, num)
    samples = Samples(num, 3, shift=2.0, guidance_audio=1.5)
    true, made = samples.generate(stage, batch)
    assert torch.equal(true, stage.conditioner.vae.decode(batch.latents[:, :5]).clamp(-1, 1))
    beginning = torch.zeros(num, dtype=torch.long)
    windows = Windows(beginning, beginning, beginning, 5)
    cond = stage.subject.conditions(stage, batch, windows)
    settings = Settings(5, 3, shift=2.0, guidance_audio=1.5)
    words = Words(cond.text, stage.conditioner.encode_text([""] * num))
    prefixes = (batch.latents[:, :1],)
    with torch.no_grad():
        carry = begin(stage.dit, prefixes, cond.reference, settings)
        video = chunk_velocity(stage.dit, words, cond.audio, carry, settings).video
        (latents,) = make_chunk(
            ChunkVelocity(lambda length, _: video(length, cond.motion)),
            prefixes, plan(17, chunk_latents=5).chunks[0], settings, range(num),
        )  # fmt: skip
    assert torch.equal(made, stage.conditioner.vae.decode(latents).clamp(-1, 1))
    other = dataclasses.replace(batch, motion=1 - batch.motion)
    assert not torch.equal(samples.generate(stage, other)[1], made)
