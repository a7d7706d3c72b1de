"""Causal forcing: times by block, windows of whole blocks, and the weights it makes."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from avatar_v import flow
from avatar_v.callbacks.samples import Samples
from avatar_v.losses.flow import flow_loss
from avatar_v.models.attention import Pattern
from avatar_v.models.config import Streaming
from avatar_v.models.dit import AvatarDiT
from avatar_v.objectives.causal_forcing import Blocks, CausalForcing
from avatar_v.parallel.mesh import Layout
from avatar_v.training.continuation import Continuation
from avatar_v.training.optim import Optim
from avatar_v.training.personality import Personality
from avatar_v.training.settings import Models, Objective
from avatar_v.training.trainable import Trainable
from avatar_v.training.windows import Windows
from avatar_v.weights.card import Capabilities, Card, read_card
from avatar_v.weights.presets import build
from avatar_v.weights.random import make_batch, motion_stats
from avatar_v.weights.weights import load_pipeline, save_pipeline
from random_models import randomise

BLOCKS = Blocks(length=2, window=1, one_time_share=0.5)
OBJECTIVE = Objective({0: 6}, first_share=0.5, image_share=0.5)


def stage_of(
    models: Models,
    objective: Objective = OBJECTIVE,
    streaming: Streaming | None = None,
    anchor_share: float = 0.5,
) -> CausalForcing:
    stage = CausalForcing(
        models,
        Optim(lr=1e-3, num_warmup_steps=1),
        objective,
        face_boost=0.0,
        mouth_boost=1.0,
        personality=Personality(motion_dropout=0.0),
        continuation=Continuation(anchor_share=anchor_share),
        blocks=BLOCKS,
        trainable=Trainable(),
        streaming=streaming,
    )
    stage.configure_model()
    randomise(stage.dit)
    return stage


def windows(num: int, prefix: int, length: int = 8) -> Windows:
    none = torch.zeros(num, dtype=torch.long)
    return Windows(none, torch.full_like(none, prefix), none, length)


def test_a_block_has_one_time_and_blocks_differ_in_half_of_the_windows() -> None:
    drawn = BLOCKS.draw_times(
        windows(400, prefix=1), shift=3.0, generator=torch.Generator().manual_seed(0)
    )
    assert not drawn[:, 0].any(), "what is given is clean"
    runs = Pattern.causal(2, first=2).runs(8)
    assert runs == [(0, 2), (2, 4), (4, 6), (6, 8)]
    for start, stop in runs[1:]:
        assert torch.equal(drawn[:, start], drawn[:, stop - 1])
    alike = (drawn[:, 1:] == drawn[:, 1:2]).all(1)
    assert 0.4 < float(alike.float().mean()) < 0.6
    assert ((drawn[:, 1:] > 0) & (drawn[:, 1:] < 1)).all()
    other = flow.draw_times(4000, shift=3.0, generator=torch.Generator().manual_seed(1))
    assert abs(float(drawn[:, 2].mean() - other.mean())) < 0.05


def test_a_step_is_the_flow_loss_of_a_causal_network_and_repeats() -> None:
    batch = make_batch(3, 25, 32, latent_channels=16, has_reference=True)
    stage = stage_of(Models("tiny", motion_stats="small"))
    assert (stage.dit.config.causal_block, stage.dit.config.causal_window) == (2, 1)
    loss, logs = stage.loss_at(batch, 3)
    assert set(logs) == {"video"}
    assert torch.equal(loss, stage_of(Models("tiny", motion_stats="small")).loss_at(batch, 3)[0])
    begun = stage.begin(batch, 3)
    noised = stage.subject.noisy(begun)
    assert noised.t.unique(dim=1).shape[1] > 1
    past = stage.dit.encode_reference(begun.cond.reference)  # pyright: ignore
    v = stage.dit(noised.x_t, noised.t, begun.cond, past=past)
    weight = stage.subject.region(begun)
    assert torch.equal(flow_loss(v, noised.velocity, noised.scored, weight), loss)
    later = noised.x_t.clone()
    later[:, 2:] += 1
    again = stage.dit(later, noised.t, begun.cond, past=past)
    assert torch.equal(again[:, :2], v[:, :2]), "a block does not see what comes behind it"
    assert not torch.equal(again[:, 2:], v[:, 2:])


def test_blocks_are_trained_to_see_what_a_stream_will_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise, finished blocks, a place that is drawn, and the first frame in the reference's place;
    without switches the loss of before."""
    batch = make_batch(2, 25, 32, latent_channels=16, has_reference=True)
    models, losses, calls = Models("tiny", motion_stats="small"), [], []
    forward = AvatarDiT.forward

    def noting(self: AvatarDiT, x: Tensor, t: Tensor, *given: Any, **named: Any) -> Any:
        calls.append((float(t.max()), named.get("start", 0), named["past"]))
        return forward(self, x, t, *given, **named)

    monkeypatch.setattr(AvatarDiT, "forward", noting)
    streaming = Streaming(
        "clean", "replaced", max_start=40, corrupt_share=0.5, corrupt_strength=0.5
    )
    objective = dataclasses.replace(OBJECTIVE, first_share=0.0, image_share=0.0)
    for how in (Streaming(), dataclasses.replace(streaming, history="same_step"), streaming):
        stage = stage_of(models, objective, how, anchor_share=1.0)
        losses.append(float(stage.loss_at(batch, 3)[0]))
    (_, place, past), (t, start, alone), (clean_t, *_), (noisy_t, *_) = calls
    assert (clean_t, place) == (0.0, 0)
    assert t == noisy_t > 0
    assert start > 0
    assert alone.num_frames == 1 < past.num_frames
    assert len(set(losses)) == 3


def test_pictures_of_progress_see_the_past_as_generation_does() -> None:
    stage = stage_of(Models("tiny", motion_stats="small"))
    batch = make_batch(2, 25, 32, latent_channels=16, has_reference=True)
    made = []
    for streaming in (Streaming(), Streaming(history="clean"), Streaming(sink="replaced")):
        stage.streaming = streaming
        made.append(Samples(num_steps=2).generate(stage, batch)[1])
    for other in made[1:]:  # the first block, two latents, has no past
        torch.testing.assert_close(other[:, :5], made[0][:, :5], atol=1e-4, rtol=0.0)
        assert (other - made[0]).abs().max() > 1e-3
    assert not torch.equal(made[1], made[2])


def test_windows_that_blocks_do_not_fill_and_distilled_weights_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"2 \+ 2 k latents, got 5; nearest: 6"):
        stage_of(
            Models("tiny", motion_stats="small"),
            dataclasses.replace(OBJECTIVE, window_latents={0: 5}),
        )
    with pytest.raises(ValueError, match="suffix_share is 0"):
        stage_of(Models("tiny"), dataclasses.replace(OBJECTIVE, suffix_share=0.1))
    with pytest.raises(ValueError, match="anchor_share is above 0"):
        stage_of(Models("tiny"), streaming=Streaming(sink="replaced"), anchor_share=0.0)
    noised = Streaming(corrupt_share=0.5, corrupt_strength=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(CausalForcing, "layout", Layout(2, 0, 2))
        with pytest.raises(ValueError, match="tensor_parallel_size is 1, got 2"):
            stage_of(Models("tiny", motion_stats="small"), streaming=noised)
    dit, conditioner = build("tiny", motion_stats=motion_stats())
    can = Capabilities(num_steps=2)
    save_pipeline(tmp_path / "w", dit, conditioner, Card(preset="tiny", can=can))
    with pytest.raises(ValueError, match="is distilled"):
        stage_of(Models("tiny", init_from=str(tmp_path / "w")))


def test_weights_say_that_they_are_causal_and_load_so(tmp_path: Path) -> None:
    stage = stage_of(Models("tiny", motion_stats="small"))
    entries = stage.card_entries()
    assert entries["causal_block"] == 2
    can = Capabilities(causal_block=entries["causal_block"])
    save_pipeline(tmp_path / "w", stage.dit, stage.conditioner, Card(preset="tiny", can=can))
    assert read_card(tmp_path / "w").can.causal_block == 2
    assert load_pipeline(tmp_path / "w")[0].config == stage.dit.config
