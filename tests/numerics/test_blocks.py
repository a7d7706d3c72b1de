"""sampling/blocks.py: a causal network makes block after block what it would make at once."""

import dataclasses

import pytest
import torch
from torch import Tensor

from avatar_v.models.causal import as_causal
from avatar_v.models.dit import AvatarDiT
from avatar_v.sampling import blocks
from avatar_v.sampling.blocks import check_chunks, make_blocks, split_blocks
from avatar_v.sampling.chunks import Chunk, Span, plan
from avatar_v.sampling.rollout import (
    ChunkStart,
    ChunkState,
    Words,
    begin,
    chunk_velocity,
    join_anchor,
    make_chunk,
    next_state,
)
from avatar_v.sampling.settings import Settings
from random_models import make_cond, make_reference
from references import SIZE, TOLERANCE, VALIDITY

BLOCK, WINDOW, LENGTH = 3, 2, 11  # the first block has 2 latents, three more follow it
SETTINGS = Settings(LENGTH, num_steps=3, shift=2.0, blend=False, anchor=False)


@pytest.fixture
def causal(dit: AvatarDiT) -> AvatarDiT:
    return as_causal(dit, block=BLOCK, window=WINDOW)


def begun_of(dit: AvatarDiT, num_given: int, *, has_reference: bool) -> ChunkState:
    prefix = torch.randn(2, num_given, dit.config.latent_channels, SIZE, SIZE)
    reference = None
    if has_reference:
        reference = make_reference(dit.config, VALIDITY["ragged"], size=SIZE, has_motion=True)
    return begin(dit, (prefix,), reference, SETTINGS)


def words(dit: AvatarDiT) -> tuple[Words, Tensor]:
    cond = make_cond(dit.config, 2, 60)
    assert cond.audio is not None
    return Words(cond.text, torch.zeros_like(cond.text)), cond.audio


def first_chunk(num_given: int) -> Chunk:
    return dataclasses.replace(plan(41, chunk_latents=LENGTH).chunks[0], num_prefix=num_given)


@pytest.mark.parametrize(
    ("num_given", "guidance_audio", "block"), [(0, 1.0, 3), (1, 2.0, 3), (0, 2.0, 1), (1, 1.0, 1)]
)
@torch.no_grad()
def test_blocks_equal_a_whole_window_under_the_causal_mask(
    dit: AvatarDiT, num_given: int, guidance_audio: float, block: int
) -> None:
    """In every step blocks stand at one time, whether they take it together or in turn."""
    causal = as_causal(dit, block=block, window=WINDOW)
    settings = dataclasses.replace(SETTINGS, guidance_audio=guidance_audio)
    carry, (said, audio) = begun_of(causal, num_given, has_reference=True), words(causal)
    velocity = chunk_velocity(causal, said, audio[:, :LENGTH], carry, settings)
    chunk = first_chunk(num_given)
    (whole,) = make_chunk(velocity, carry.prefixes, chunk, settings, (1, 2))
    (got,), after = make_blocks(velocity, carry, chunk, settings, (1, 2), causal.config)
    torch.testing.assert_close(got, whole, atol=TOLERANCE, rtol=TOLERANCE)
    assert after.history is not None
    assert len(after.history.caches) == SETTINGS.num_steps
    num_passes = 1 if guidance_audio == 1 else 2
    assert after.history.caches[0].num_samples == 2 * num_passes


def streamed(
    dit: AvatarDiT,
    carry: ChunkState,
    settings: Settings,
    total: int,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Tensor, ChunkState]:
    """All latents of a video whose noise does not depend on its chunks."""
    draw = torch.Generator().manual_seed(7)
    noise = torch.randn(2, total, dit.config.latent_channels, SIZE, SIZE, generator=draw)

    def begun(velocity, prefixes, suffixes, chunk: Chunk, settings, seeds) -> ChunkStart:
        run = slice(chunk.latents.start, chunk.latents.stop)
        return ChunkStart(noise[:, run], lambda shape: torch.zeros(*shape), None)

    monkeypatch.setattr(blocks, "start_chunk", begun)
    said, audio = words(dit)
    parts = []
    for chunk in plan(4 * total - 3, chunk_latents=settings.chunk_latents).chunks:
        heard = audio[:, chunk.latents.start : chunk.latents.stop]
        carry = join_anchor(dit, carry)
        velocity = chunk_velocity(dit, said, heard, carry, settings)
        states, carry = make_blocks(velocity, carry, chunk, settings, (1, 2), dit.config)
        carry = next_state(carry, states, chunk, heard, settings)
        parts.append(states[0][:, -len(chunk.new_latents) :])
    return torch.cat(parts, dim=1), carry


@pytest.mark.parametrize("anchor", [False, True])
@torch.no_grad()
def test_the_length_of_chunks_changes_nothing(
    causal: AvatarDiT, anchor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an anchor, which joins behind the first chunk."""
    carry = begun_of(causal, 1, has_reference=True)
    long = dataclasses.replace(SETTINGS, anchor=anchor, window_latents=LENGTH)
    short = dataclasses.replace(long, chunk_latents=5)
    expected, _ = streamed(causal, carry, long, 20, monkeypatch)
    got, _ = streamed(causal, carry, short, 20, monkeypatch)
    alike = 5 if anchor else 20
    torch.testing.assert_close(got[:, :alike], expected[:, :alike], atol=2e-5, rtol=2e-5)
    assert anchor == ((got - expected).abs().max() > 1e-3)


@torch.no_grad()
def test_a_stream_stays_where_training_was_and_keeps_a_window(
    causal: AvatarDiT, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rolling positions change nothing where there is no reference to be near to."""
    rolling = dataclasses.replace(SETTINGS, chunk_latents=5, window_latents=LENGTH)
    growing = dataclasses.replace(rolling, window_latents=1000)
    carry = begun_of(causal, 0, has_reference=False)
    got, after = streamed(causal, carry, rolling, 50, monkeypatch)
    expected, far = streamed(causal, carry, growing, 50, monkeypatch)
    torch.testing.assert_close(got, expected, atol=5e-5, rtol=5e-5)
    assert after.history is not None
    assert far.history is not None
    assert (after.history.next_start, far.history.next_start) == (LENGTH - BLOCK, 50)
    for cache in after.history.caches:
        assert cache.num_frames == cache.num_stream == BLOCK * WINDOW
        assert cache.position[0].tolist() == [2, 3, 4, 5, 6, 7]


def test_blocks_end_where_chunks_end() -> None:
    first, second, *_, last = plan(4 * 28 - 3, chunk_latents=LENGTH).chunks
    assert split_blocks(first, BLOCK) == [Span(0, 2), Span(2, 5), Span(5, 8), Span(8, 11)]
    assert split_blocks(second, BLOCK) == [Span(2, 5), Span(5, 8), Span(8, 11)]
    assert split_blocks(last, BLOCK)[-1].stop == len(last.latents)
    check_chunks(BLOCK, 5)
    for wrong, near in ((13, 14), (6, 5), (2, 5)):
        with pytest.raises(ValueError, match=f"nearest: {near}"):
            check_chunks(BLOCK, wrong)
