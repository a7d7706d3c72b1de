"""Captions encoded ahead: training gives the losses that it gives with the encoder in the step."""

import dataclasses
from pathlib import Path

import pytest
import tiny_stages
import torch
from shard_clips import make_sample

from avatar_v.models.text import ByteTextEncoder, StoredText, text_hash, without_padding
from avatar_v.shards.datamodule import ShardData
from avatar_v.shards.pair_data import PairData
from avatar_v.shards.pairs import encode_pair
from avatar_v.shards.writer import write_shard
from avatar_v.training.engine import Engine, subject_of
from avatar_v.training.policies import Guidance, VideoPolicy
from avatar_v.training.settings import Models
from avatar_v.training.windows import Windows
from avatar_v.types import Batch
from avatar_v.weights.presets import build
from avatar_v.weights.random import make_batch, motion_stats
from random_models import randomise
from shard_ranks import TinyUMT5
from tiny_run import make_video_pair

WORDS = ("a person speaks", "a person in a red jacket, in front of stripes")
FP16 = 2e-4
"""Of a loss: fp16 keeps 11 bits of each number of an encoding. Measured: 2.2e-5 at most."""


def frozen_encoder() -> ByteTextEncoder:
    torch.manual_seed(0)
    return ByteTextEncoder.tiny().requires_grad_(False)


def test_the_stand_in_gives_what_the_encoder_gives() -> None:
    for encoder in (frozen_encoder(), TinyUMT5()):
        stored = StoredText.of(encoder, lambda encoder=encoder: encoder)
        with torch.no_grad():
            whole = encoder(WORDS)
        rows = [without_padding(row) for row in whole]
        longest = max(len(row) for row in rows)
        states = torch.stack(
            [torch.cat([r, r.new_zeros(longest - len(r), r.shape[1])]) for r in rows]
        )
        assert torch.equal(stored.padded(states), whole)
        assert torch.equal(stored(["", ""]), torch.stack([encoder([""])[0]] * 2))
        assert stored.hash == text_hash(encoder)
        with pytest.raises(ValueError, match="leaves the encoder out that 'a person speaks' needs"):
            stored(["", "a person speaks"])


def test_a_hash_says_which_encoder_and_not_how_it_is_stored() -> None:
    encoder = frozen_encoder()
    known = text_hash(encoder.bfloat16())
    assert text_hash(encoder.float()) == known
    with torch.no_grad():
        encoder.position[0, 0] += 1
    assert text_hash(encoder) != known


def clips(*, judged: bool) -> Batch:
    batch = tiny_stages.clips() if judged else make_batch(2, 33, 32, has_reference=True)
    return dataclasses.replace(batch, text=WORDS)


def losses(stage: Engine, batch: Batch) -> torch.Tensor:
    return torch.stack(tiny_stages.losses_of(stage, batch)).detach()


@pytest.mark.parametrize("make", [tiny_stages.distill_cfg, tiny_stages.dpo_of_video])
def test_losses_are_those_with_the_encoder_in_the_step(make, tmp_path: Path) -> None:
    """With captions left out too, and at a lower resolution of a ladder where the stage has one."""
    ladder = make is tiny_stages.distill_cfg
    batch, stage = clips(judged=not ladder), make(tmp_path)
    if ladder:
        subject = subject_of(stage)
        subject.objective = dataclasses.replace(
            subject.objective, resolution={0: 0.5}, text_dropout=0.5
        )
    stage.configure_model()
    if ladder:
        randomise(stage.dit)  # fresh, the student says what the teacher says, whatever the text
    else:  # nor does a fresh policy differ from its reference
        with torch.no_grad():
            for parameter in stage.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.1 * torch.randn_like(parameter))
    encoder = stage.conditioner.text_encoder
    expected = losses(stage, batch)
    stored = StoredText.of(encoder, lambda: encoder)
    stored.require_frozen()
    stage.conditioner.text_encoder = stored
    with torch.no_grad():
        exact = dataclasses.replace(batch, text_states=encoder(WORDS))
        half = dataclasses.replace(batch, text_states=encoder(WORDS).half())
    assert torch.equal(losses(stage, exact), expected)
    torch.testing.assert_close(losses(stage, half), expected, rtol=FP16, atol=0)
    other = dataclasses.replace(exact, text_states=encoder(("another", "caption")))
    assert not torch.equal(losses(stage, other), expected)
    with pytest.raises(ValueError, match="has no encodings of its captions"):
        losses(stage, batch)


def test_rollouts_of_video_take_them(tmp_path: Path) -> None:
    _, conditioner = build("tiny", motion_stats=motion_stats())
    batch, begin = clips(judged=True), torch.zeros(2, dtype=torch.long)
    batch = dataclasses.replace(batch, text_states=conditioner.encode_text(WORDS).detach())
    conditioner.text_encoder = StoredText.of(conditioner.text_encoder, frozen_encoder)
    windows = Windows(begin, begin, begin, 5)
    _, cond = VideoPolicy(Guidance()).begin(conditioner, batch, windows)
    assert cond.text is not None
    assert torch.equal(cond.text, batch.text_states)


def test_a_stage_that_trains_its_encoder_refuses_encodings_ahead() -> None:
    stored = StoredText.of(frozen_encoder().requires_grad_(True), frozen_encoder)
    with pytest.raises(ValueError, match="this stage trains its text encoder"):
        stored.require_frozen()
    with pytest.raises(ValueError, match="needs init_from or text"):
        Models("tiny", stored_text=True)


def test_clips_without_encodings_and_those_of_another_encoder_are_named(tmp_path: Path) -> None:
    samples = [make_sample(number) for number in range(4)]
    for number in (0, 1, 3):
        meta = dataclasses.replace(samples[number].meta, text_hash="ab" * 8)
        states = torch.full((number + 2, 3), float(number)).half()
        samples[number] = dataclasses.replace(samples[number], meta=meta, text_states=states)
    write_shard(tmp_path / "whole" / "a.tar", [samples[i] for i in (0, 1)])
    data = ShardData(str(tmp_path / "whole"), 2, decode_video=False)
    data.require_text("ab" * 8)
    with pytest.raises(ValueError, match=r"clip clip000: its caption is encoded by abab.*expects"):
        data.require_text("cd" * 8)
    (batch,) = data._loader(data.train_folder, shuffle=False)
    assert batch.text_states.shape == (2, 3, 3)
    assert batch.text_states[:, :, 0].tolist() == [[0, 0, 0], [1, 1, 1]]
    write_shard(tmp_path / "part" / "a.tar", [samples[i] for i in (3, 2)])
    data = ShardData(str(tmp_path / "part"), 2, decode_video=False)
    with pytest.raises(ValueError, match="clip clip002: its caption is not encoded"):
        data.require_text("ab" * 8)
    (batch,) = data._loader(data.train_folder, shuffle=False)
    assert batch.text_states is None


def test_a_pair_of_videos_keeps_the_encoding_of_its_clip(tmp_path: Path) -> None:
    pair = make_video_pair(0)
    meta = dataclasses.replace(pair.clip.meta, text_hash="ab" * 8)
    clip = dataclasses.replace(pair.clip, meta=meta, text_states=torch.ones(3, 2).half())
    write_shard(tmp_path / "a.tar", [encode_pair(dataclasses.replace(pair, clip=clip))])
    for videos in (True, False):  # pairs of motion alone are read without captions
        data = PairData(str(tmp_path), 1, videos=videos)
        data.require_text("ab" * 8)
        (batch,) = data._loader(data.train_folder, shuffle=False)
        assert (batch.text_states is not None) == videos
