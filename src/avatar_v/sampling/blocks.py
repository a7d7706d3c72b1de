"""A chunk of a causal network, block after block (Live Avatar alg. 3).

A block is noise that takes all steps before the next one begins. In each step it sees the keys and
values that the last blocks left in the same step: at the same time t, so no pass over finished
blocks is needed, and ranks may have some steps each (parallel/timestep.py). Chunks are as they are
elsewhere (chunks.py), but the end of the one before is not read again: what is known of it is the
history.

Positions do not grow. Behind the length of the training windows each new block takes the same
place, and the history moves back. So no block is further from the reference than in training
(rolling RoPE). What else may be seen of the past, and in whose place, models/config.Streaming says.

Training makes the last step of each block again for its gradient (`BlockSteps`).
"""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.flow import Latents
from avatar_v.models.attention import Pattern
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.config import CAUSAL_FIRST, DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.parallel.timestep import PipelineGroup
from avatar_v.sampling.chunks import OVERLAP, Chunk, Span
from avatar_v.sampling.guidance import Passes
from avatar_v.sampling.rollout import (
    ChunkStart,
    ChunkState,
    ChunkVelocity,
    History,
    States,
    join_anchor,
    start_chunk,
    with_anchor_frame,
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
    *,
    num_moves: int | None = None,
    last: "list[LastStep] | None" = None,
) -> tuple[States, ChunkState]:
    """The states of a chunk, as `rollout.make_chunk` gives them, and the carry with its history.

    ``config`` is that of the causal network behind ``velocity``. In a ``line`` of ranks each makes
    its own steps of every block, if any, and has their history alone. Motion is the same on all
    ranks; the video is finished on the last one, and on the others as they hand it on. With
    ``num_moves`` blocks are x_0 as it is seen after so many steps. ``last`` takes the last step of
    each block.
    """
    assert config.causal_block is not None, "the network is causal"
    assert velocity.passes is not None
    start = start_chunk(velocity, carry.prefixes, None, chunk, settings, seeds)
    passes = velocity.passes(len(chunk.latents), start.shown)
    given = carry.prefixes[0].to(start.noise)
    moves = list(pairwise(float(t) for t in settings.times(num_moves)))
    steps = range(len(moves)) if line is None else line.steps
    done, history = [], carry.history or History((), 0)
    replaces_sink = settings.anchor and settings.streaming.sink == "replaced"
    for run in split_blocks(chunk, config.causal_block):
        block = _start_block(start, run, given, settings, moves, chunk.latents.start)
        x = block.noise if line is None else line.take(block.noise)
        if len(steps):
            x, history, step = _steps(passes, block, x, moves, steps, history, settings, config)
            if last is not None:
                last.append(step)
        if line is not None:
            line.give(x)
        if replaces_sink and chunk.index == run.start == 0:
            first = x[:, :1] if line is None else line.from_last(x[:, :1])
            carry, passes = _sink_replaced(passes, carry, first, block)
        done.append(torch.cat([block.given, x], dim=1))
    is_anchor = settings.anchor and not replaces_sink
    if line is not None and chunk.index == 0 and is_anchor and not given.shape[1]:
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
    number: int  # of its first frame in the video

    def whole(self, x: Tensor, t: float) -> tuple[Tensor, Float[Tensor, "b l"]]:
        """``x``, the frames that are made, at time ``t`` behind those that are given; the times."""
        whole = torch.cat([self.given, x], dim=1)
        times = whole.new_full(whole.shape[:2], t)
        times[:, : self.given.shape[1]] = 0
        return whole, times

    @property
    def frames(self) -> slice:
        return slice(self.run.start, self.run.stop)


def _start_block(
    start: ChunkStart,
    run: Span,
    given: Latents,
    settings: Settings,
    moves: Sequence[tuple[float, float]],
    first: int,
) -> _NewBlock:
    """The noise of all steps is drawn at once, so it is the same whoever makes which of them."""
    frames = slice(run.start, run.stop)
    prefix = given[:, frames]
    noise = start.noise[:, frames][:, prefix.shape[1] :].float()
    stds = [settings.step(noise, noise, t, t_next)[1] for t, t_next in moves]
    fresh = tuple(start.fresh(noise.shape) if std > 0 else None for std in stds)
    return _NewBlock(run, prefix, noise, fresh, first + run.start)


def _steps(
    passes: Passes,
    block: _NewBlock,
    x: Float[Tensor, "b made c h w"],
    moves: Sequence[tuple[float, float]],
    steps: range,
    history: History,
    settings: Settings,
    config: DiTConfig,
) -> tuple[Float[Tensor, "b made c h w"], History, "LastStep"]:
    """``x``, the made frames of a block in front of ``steps`` of the sampler, behind them; the
    history of these steps with the block; and the last of them."""
    is_clean, caches = settings.streaming.history == "clean", []
    old: KeyValueCache | None = None
    for i, step in enumerate(steps):
        if history.caches:
            old = history.caches[0 if is_clean else i]
        before, (t, t_next) = x, moves[step]
        x, std, keys = _moved(passes, block, x, t, t_next, old, history.next_start, settings)
        if (fresh := block.fresh[step]) is not None:
            x = x + std * fresh.to(x)
        if not is_clean:
            caches.append(_followed(old, keys, config))
    if is_clean:  # the pass that a history of noisy keys saves
        keys = passes.of_block(
            *block.whole(x, 0.0), block.frames, old, history.next_start, block.number
        )[1]
        caches.append(_followed(old, keys, config))
    last = LastStep(passes, block, before, t, history.next_start, keys)
    after = history.next_start + len(block.run)
    return x, _rolled(tuple(caches), after, settings, config), last


def _moved(
    passes: Passes,
    block: _NewBlock,
    x: Float[Tensor, "b made c h w"],
    t: float,
    t_next: float,
    old: KeyValueCache | None,
    start: int,
    settings: Settings,
) -> tuple[Float[Tensor, "b made c h w"], float, KeyValueCache]:
    """Mean and standard deviation of a step from ``x``, and the block's keys and values in it."""
    v, keys = passes.of_block(*block.whole(x, t), block.frames, old, start, block.number)
    x, std = settings.step(x, v.float()[:, block.given.shape[1] :], t, t_next)
    return x, std, keys


def _sink_replaced(
    passes: Passes, carry: ChunkState, first: Float[Tensor, "b 1 c h w"], block: _NewBlock
) -> tuple[ChunkState, Passes]:
    """Behind the first block: ``first``, the first latent frame that was made, takes the place of
    the reference's keys (Live Avatar §4.4)."""
    num, at = len(first), block.given.shape[1]
    audio, motion = (
        None if x is None else x[:num, at : at + 1]
        for x in (passes.joint.audio, passes.joint.motion)
    )
    carry = dataclasses.replace(with_anchor_frame(carry, first, audio, motion), past=None)
    carry = join_anchor(cast(AvatarDiT, passes.dit), carry)
    return carry, passes.behind(carry.past, carry.moments)


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
    window = (settings.window_latents or settings.chunk_latents) + settings.streaming.max_start
    latest = max(window - config.causal_block, CAUSAL_FIRST)
    if next_start <= latest or not settings.streaming.rolling:
        return History(caches, next_start)
    return History(tuple(cache.shifted(latest - next_start) for cache in caches), latest)


@dataclass(frozen=True)
class LastStep:
    """The step that finished a block, and the keys and values that later blocks see of it."""

    passes: Passes
    block: _NewBlock
    x: Float[Tensor, "b made c h w"]  # before the step
    t: float
    start: int
    keys: KeyValueCache


@dataclass(frozen=True)
class BlockSteps:
    """The last steps of all blocks of a window, to be made again with a gradient, one at a time:
    block-wise gradient accumulation (Live Avatar alg. 2). The past of a block takes none."""

    last: list[LastStep]
    settings: Settings
    config: DiTConfig

    def parts(self, gradient: Latents) -> Iterator[Tensor]:
        """Scalars, one a block from the last block to the first, whose gradients together are that
        of a loss with this ``gradient`` at ``made``. The graph of each is freed by its backward
        pass, before the next one is built. For one use."""
        while self.last:
            step, old = self.last.pop(), None
            for before in self.last[-(self.config.causal_window or len(self.last) + 1) :]:
                old = _followed(old, before.keys, self.config)
            with torch.enable_grad():
                x, _, _ = _moved(
                    step.passes, step.block, step.x, step.t, 0.0, old, step.start, self.settings
                )
                yield (x * gradient[:, step.block.frames][:, -x.shape[1] :]).sum()
