"""A chunk of a causal network, block after block (Live Avatar alg. 3).

A block is noise that takes all steps before the next one begins. In each step it sees the keys and
values that the last blocks left in the same step: at the same time t, so no pass over finished
blocks is needed, and steps may lie on different devices. Chunks are as they are elsewhere
(chunks.py), but the end of the one before is not read again: what is known of it is the history.

Positions do not grow. Behind the length of the training windows each new block takes the same
place, and the history moves back. So no block is further from the reference than in training
(rolling RoPE).
"""

import dataclasses
from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.flow import Latents
from avatar_v.models.attention import Pattern
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.config import CAUSAL_FIRST, DiTConfig
from avatar_v.sampling.chunks import OVERLAP, Chunk, Span
from avatar_v.sampling.guidance import Passes
from avatar_v.sampling.rollout import (
    BegunChunk,
    Carry,
    ChunkVelocity,
    History,
    Settings,
    States,
    begun_chunk,
)


def check_chunks(block: int, chunk_latents: int) -> None:
    """ValueError for chunks that do not end where blocks of so many latents end."""
    if chunk_latents <= OVERLAP or (chunk_latents - CAUSAL_FIRST) % block:
        near = CAUSAL_FIRST + block * max(round((chunk_latents - CAUSAL_FIRST) / block), 1)
        raise ValueError(
            f"chunks of these causal weights have {CAUSAL_FIRST} + {block} k latents, got "
            f"{chunk_latents}; nearest: {near}"
        )


def blocks_of(chunk: Chunk, block: int) -> list[Span]:
    """The blocks of a chunk, counted from its first latent; the last of a video may be shorter."""
    num = len(chunk.latents)
    if chunk.index == 0:
        return [Span(*run) for run in Pattern.causal(block, first=CAUSAL_FIRST).runs(num)]
    edges = [*range(chunk.num_prefix, num, block), num]
    return [Span(*run) for run in pairwise(edges)]


def make_blocks(
    velocity: ChunkVelocity,
    carry: Carry,
    chunk: Chunk,
    settings: Settings,
    seeds: Sequence[int],
    config: DiTConfig,
) -> tuple[States, Carry]:
    """The states of a chunk, as `rollout.make_chunk` gives them, and the carry with its history.

    ``config`` is that of the causal network behind ``velocity``.
    """
    assert config.causal_block is not None, "the network is causal"
    assert velocity.passes is not None
    begun = begun_chunk(velocity, carry.prefixes, None, chunk, settings, seeds)
    passes = velocity.passes(len(chunk.latents), begun.motion)
    given = carry.prefixes[0].to(begun.noise)
    done, history = [], carry.history
    for run in blocks_of(chunk, config.causal_block):
        prefix = given[:, run.start : run.stop]
        latents, history = _block(passes, begun, run, prefix, history, settings, config)
        done.append(latents)
    overlap = [] if chunk.index == 0 else [given]
    states = begun.states(torch.cat([*overlap, *done], dim=1))
    return states, dataclasses.replace(carry, history=history)


def _block(
    passes: Passes,
    begun: BegunChunk,
    run: Span,
    prefix: Float[Tensor, "b given c h w"],
    history: History | None,
    settings: Settings,
    config: DiTConfig,
) -> tuple[Latents, History]:
    """A block, whose first frames may be given, and the history with it."""
    num_given, frames = prefix.shape[1], slice(run.start, run.stop)
    x = begun.noise[:, frames][:, num_given:].float()
    start = 0 if history is None else history.next_start
    times = [float(t) for t in settings.times()]
    caches = []
    for i, (t, t_next) in enumerate(pairwise(times)):
        old = None if history is None else history.caches[i]
        whole = torch.cat([prefix, x], dim=1)
        at = whole.new_full(whole.shape[:2], t)
        at[:, :num_given] = 0
        v, keys = passes.of_block(whole, at, frames, old, start)
        mean, std = settings.step(x, v.float()[:, num_given:], t, t_next)
        x = mean + std * begun.fresh(mean.shape).to(mean) if std > 0 else mean
        caches.append(_followed(old, keys, config))
    whole = torch.cat([prefix, x], dim=1)
    return whole, _rolled(tuple(caches), start + len(run), settings, config)


def _followed(old: KeyValueCache | None, new: KeyValueCache, config: DiTConfig) -> KeyValueCache:
    cache = new if old is None else old.append(new)
    if config.causal_window is None:
        return cache
    assert config.causal_block is not None
    return cache.evict(config.causal_block * config.causal_window)


def _rolled(
    caches: tuple[KeyValueCache, ...], next_start: int, settings: Settings, config: DiTConfig
) -> History:
    """The history in front of the next block, which begins no later than in training."""
    assert config.causal_block is not None
    window = settings.window_latents or settings.chunk_latents
    latest = max(window - config.causal_block, CAUSAL_FIRST)
    if next_start <= latest:
        return History(caches, next_start)
    return History(tuple(cache.shifted(latest - next_start) for cache in caches), latest)
