"""A chunk of a causal network, block after block (Live Avatar alg. 3).

A block is noise that takes all steps before the next one begins. In each step it sees the keys and
values that the last blocks left in the same step: at the same time t, so no pass over finished
blocks is needed, and ranks may have some steps each (parallel/timestep.py). Chunks are as they are
elsewhere (chunks.py), but the end of the one before is not read again: what is known of it is the
history.

Positions do not grow. Behind the length of the training windows each new block takes the same
place, and the history moves back. So no block is further from the reference than in training
(rolling RoPE).
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.flow import Latents
from avatar_v.models.attention import Pattern
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.config import CAUSAL_FIRST, DiTConfig
from avatar_v.parallel.timestep import PipelineGroup
from avatar_v.sampling.chunks import OVERLAP, Chunk, Span
from avatar_v.sampling.guidance import Passes
from avatar_v.sampling.rollout import (
    ChunkStart,
    ChunkState,
    ChunkVelocity,
    History,
    States,
    start_chunk,
)
from avatar_v.sampling.settings import Settings


def check_chunks(block: int, chunk_latents: int) -> None:
    """ValueError for chunks that do not end where blocks of so many latents end."""
    if chunk_latents <= OVERLAP or (chunk_latents - CAUSAL_FIRST) % block:
        near = CAUSAL_FIRST + block * max(round((chunk_latents - CAUSAL_FIRST) / block), 1)
        raise ValueError(
            f"chunks of these causal weights have {CAUSAL_FIRST} + {block} k latents, got "
            f"{chunk_latents}; nearest: {near}"
        )


def split_blocks(chunk: Chunk, block: int) -> list[Span]:
    """The blocks of a chunk, counted from its first latent; the last of a video may be shorter."""
    num = len(chunk.latents)
    if chunk.index == 0:
        return [Span(*run) for run in Pattern.causal(block, first=CAUSAL_FIRST).runs(num)]
    edges = [*range(chunk.num_prefix, num, block), num]
    return [Span(*run) for run in pairwise(edges)]


def make_blocks(
    velocity: ChunkVelocity,
    carry: ChunkState,
    chunk: Chunk,
    settings: Settings,
    seeds: Sequence[int],
    config: DiTConfig,
    line: PipelineGroup | None = None,
) -> tuple[States, ChunkState]:
    """The states of a chunk, as `rollout.make_chunk` gives them, and the carry with its history.

    ``config`` is that of the causal network behind ``velocity``. In a ``line`` of ranks each makes
    its own steps of every block and has their history alone. Motion is the same on all ranks;
    the video is finished on the last one, and on the others as they hand it on.
    """
    assert config.causal_block is not None, "the network is causal"
    assert velocity.passes is not None
    start = start_chunk(velocity, carry.prefixes, None, chunk, settings, seeds)
    passes = velocity.passes(len(chunk.latents), start.motion)
    given = carry.prefixes[0].to(start.noise)
    steps = range(settings.num_steps) if line is None else line.steps
    done, history = [], carry.history
    for run in split_blocks(chunk, config.causal_block):
        block = _start_block(start, run, given, settings)
        x = block.noise if line is None else line.take(block.noise)
        x, history = _steps(passes, block, x, steps, history, settings, config)
        if line is not None:
            line.give(x)
        done.append(torch.cat([block.given, x], dim=1))
    if line is not None and chunk.index == 0 and settings.anchor and not given.shape[1]:
        done[0] = line.from_last(done[0])  # which becomes the anchor
    overlap = [] if chunk.index == 0 else [given]
    states = start.states(torch.cat([*overlap, *done], dim=1))
    return states, dataclasses.replace(carry, history=history)


@dataclass(frozen=True)
class _NewBlock:
    """A block before its first step."""

    run: Span  # of its chunk
    given: Float[Tensor, "b given c h w"]  # clean frames at its start
    noise: Float[Tensor, "b made c h w"]  # of the frames behind them
    fresh: tuple[Tensor | None, ...]  # the noise of each step that adds some


def _start_block(start: ChunkStart, run: Span, given: Latents, settings: Settings) -> _NewBlock:
    """The noise of all steps is drawn at once, so it is the same whoever makes which of them."""
    frames = slice(run.start, run.stop)
    prefix = given[:, frames]
    noise = start.noise[:, frames][:, prefix.shape[1] :].float()
    stds = [settings.step(noise, noise, t, t_next)[1] for t, t_next in _moves(settings)]
    fresh = tuple(start.fresh(noise.shape) if std > 0 else None for std in stds)
    return _NewBlock(run, prefix, noise, fresh)


def _steps(
    passes: Passes,
    block: _NewBlock,
    x: Float[Tensor, "b made c h w"],
    steps: range,
    history: History | None,
    settings: Settings,
    config: DiTConfig,
) -> tuple[Float[Tensor, "b made c h w"], History]:
    """``x``, the made frames of a block in front of ``steps`` of the sampler, behind them; and the
    history of these steps with the block."""
    num_given, frames = block.given.shape[1], slice(block.run.start, block.run.stop)
    start = 0 if history is None else history.next_start
    moves, caches = _moves(settings), []
    for i, step in enumerate(steps):
        t, t_next = moves[step]
        old = None if history is None else history.caches[i]
        whole = torch.cat([block.given, x], dim=1)
        at = whole.new_full(whole.shape[:2], t)
        at[:, :num_given] = 0
        v, keys = passes.of_block(whole, at, frames, old, start)
        x, std = settings.step(x, v.float()[:, num_given:], t, t_next)
        if (fresh := block.fresh[step]) is not None:
            x = x + std * fresh.to(x)
        caches.append(_followed(old, keys, config))
    return x, _rolled(tuple(caches), start + len(block.run), settings, config)


def _moves(settings: Settings) -> list[tuple[float, float]]:
    return list(pairwise(float(t) for t in settings.times()))


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
