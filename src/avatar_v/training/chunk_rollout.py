"""Chunks that a few-step student makes in training, behind chunks of its own.

A student whose chunks continued true video would never see its own errors, which generation hands
on from chunk to chunk (Self-Forcing, arXiv 2506.08009). So a window is the last chunk of a short
video that the student makes from its clip's sound, motion and reference by the loop of generation
(sampling/rollout.py). The chunks before it take no gradient. `ChunkRollout` is that last chunk
before it is made: student, fake and real score all give their velocity in it.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.sampling.blocks import BlockSteps, LastStep, make_blocks
from avatar_v.sampling.chunks import OVERLAP, Chunk, next_chunk
from avatar_v.sampling.rollout import (
    ChunkState,
    ChunkVelocity,
    History,
    Words,
    begin,
    chunk_velocity,
    join_anchor,
    make_chunk,
    next_state,
)
from avatar_v.sampling.settings import Settings
from avatar_v.sampling.solver import VelocityFn, last_with_gradient
from avatar_v.training.batch import Draws, TrainBatch
from avatar_v.training.settings import MAX_SHIFT
from avatar_v.training.windows import Windows, value_at
from avatar_v.types import Cond, Reference

Latents = Float[Tensor, "b l c h w"]


@dataclass(frozen=True)
class SelfRollout:
    """Numbers of the videos that a student makes in training."""

    num_steps: dict[int, int]
    """{training step: steps of the student from then on}; falling: progressive distillation."""
    shift: float = 3.0  # of the times of its steps; generation takes the same
    prompt_share: float = 0.35  # share of batches whose window has no first frame
    image_share: float = 0.25  # share of those with a true one; the others continue own chunks
    num_chunks: int = 2  # of the videos whose last chunk is a window that continues
    anchor: bool = True  # later chunks read the first frame made, as generation lets them

    def __post_init__(self) -> None:
        checks.by_step(checks.count, "num_steps", self.num_steps)
        checks.positive("shift", self.shift, most=MAX_SHIFT)
        checks.each(checks.share, self, ("prompt_share", "image_share"))
        if self.prompt_share + self.image_share > 1:
            raise ValueError("prompt_share and image_share are shares of one whole")
        checks.count("num_chunks", self.num_chunks, least=2)

    def longest(self, length: int) -> int:
        """Latents of the longest video, of chunks of ``length`` latents."""
        return length + (self.num_chunks - 1) * (length - OVERLAP)

    def draw(self, num: int, clip_latents: int, length: int, draws: Draws) -> Windows:
        """One kind of window for the batch and all ranks, which make as many chunks, from the
        beginning of ``num`` clips: a first chunk without (prefix 0) or with its first frame (1), or
        the latents of a video of several chunks that begins as one of the two."""
        kind, first = torch.rand(2, generator=draws.common).tolist()
        prompt, image = self.prompt_share, self.image_share
        continues = kind >= prompt + image
        if continues:
            has_image = first * (prompt + image) >= prompt if prompt + image > 0 else first >= 0.5
        else:
            has_image = kind >= prompt
        start = torch.zeros(num, dtype=torch.long)
        length = self.longest(length) if continues else length
        return Windows(start, torch.full_like(start, int(has_image)), start, length)

    def settings(
        self, window: int, step: int, *, from_prompt: bool, has_reference: bool
    ) -> Settings:
        """Those of generation with the student."""
        return Settings(
            chunk_latents=window,
            num_steps=value_at(self.num_steps, step),
            shift=self.shift,
            guidance_audio=1.0,
            from_prompt=from_prompt,
            anchor=self.anchor and has_reference,
            renoise=True,
        )

    def sampled_with(self, settings: Settings, step: int) -> Settings:
        """``settings`` as generation changes them for the student."""
        steps = value_at(self.num_steps, step)
        return dataclasses.replace(
            settings, num_steps=steps, shift=self.shift, guidance_audio=1.0, renoise=True
        )

    def card_entries(self) -> dict[str, Any]:
        """What the card of the student's weights says of its steps."""
        steps = self.num_steps[max(self.num_steps)]
        return {"anchor": self.anchor, "num_steps": steps, "shift": self.shift}


@dataclass(frozen=True)
class ChunkRollout:
    """A chunk that is about to be made. The conditions are cut to its latents."""

    chunk: Chunk
    prefix: Float[Tensor, "b p c h w"]  # clean: nothing, the first frame, or the end of a chunk
    words: Words
    audio: Float[Tensor, "b l n d"] | None
    motion: Float[Tensor, "b l md"] | None
    weights: Float[Tensor, "b 3"] | None  # of guidance, for networks that have it inside
    reference: Reference | None
    anchor: Reference | None  # the first frame of the video, once a chunk is made
    settings: Settings
    seeds: tuple[int, ...]  # one for each sample
    start: int = 0  # position of the first latent, for a causal network
    gradients: Literal["window", "blocks"] = "window"
    """A causal network makes the chunk in one pass a step, whose gradients pass into the past; or
    block after block, as generation does, and its gradients are accumulated block by block."""

    def velocity(self, dit: AvatarDiT, guidance: Mapping[str, float] | None = None) -> VelocityFn:
        """The velocity of ``dit`` in this chunk; the reference's keys take no gradient.
        ``guidance`` has weights of text, audio and reference, for guidance by several passes."""
        _, given = self._given(dit, guidance)
        velocity = given.video(len(self.chunk.latents), self.motion)
        if not dit.config.is_causal:
            return velocity
        return partial(velocity, start=self.start)  # pyright: ignore[reportCallIssue]

    def _given(
        self, dit: AvatarDiT, guidance: Mapping[str, float] | None = None
    ) -> tuple[ChunkState, ChunkVelocity]:
        weights = {f"guidance_{name}": weight for name, weight in (guidance or {}).items()}
        settings = dataclasses.replace(self.settings, **weights)
        with torch.no_grad():
            carry = begin(dit, (self.prefix,), self.reference, settings)
            carry = join_anchor(dit, dataclasses.replace(carry, anchor=self.anchor))
        given = chunk_velocity(dit, self.words, self.audio, carry, settings, weights=self.weights)
        return carry, given

    def roll(
        self, dit: AvatarDiT, num_moves: int | None = None, *, with_steps: bool = False
    ) -> tuple[Latents, BlockSteps | None]:
        """The latents that ``dit`` makes of the chunk, as `make`; with gradients by blocks these
        are without, and the steps that give them come beside ``with_steps``, which keep the keys
        and values of the whole window."""
        if self.gradients == "window":
            return self.make(self.velocity(dit), num_moves), None
        with torch.no_grad():
            carry, given = self._given(dit)
            last: list[LastStep] | None = [] if with_steps else None
            carry = dataclasses.replace(carry, history=History((), self.start))
            (made,), _ = make_blocks(
                given.after(self.motion), carry, self.chunk, self.settings, self.seeds, dit.config,
                num_moves=num_moves, last=last,
            )  # fmt: skip
        return made, None if last is None else BlockSteps(last, self.settings, dit.config)

    def make(self, velocity: VelocityFn, num_moves: int | None = None) -> Latents:
        """The latents of the chunk, prefix included. With ``num_moves`` they are x_0 as it is seen
        after so many steps, and the last of them alone takes a gradient."""
        last = self.settings.num_steps if num_moves is None else num_moves
        (latents,) = make_chunk(
            ChunkVelocity(lambda *_: last_with_gradient(velocity, last)),
            (self.prefix,),
            self.chunk,
            self.settings,
            self.seeds,
            num_moves=num_moves,
        )
        return latents

    def scored(self) -> Bool[Tensor, "b l"]:
        """True for the latents that the chunk makes."""
        made = torch.arange(len(self.chunk.latents)) >= self.prefix.shape[1]
        return made.expand(len(self.seeds), -1).to(self.prefix.device)

    def window(self, x: Tensor) -> Tensor:
        """The latents of this chunk in what is given "b l …" for the whole video."""
        return x[:, self.chunk.latents.start : self.chunk.latents.stop]


def roll_out_chunk(
    dit: AvatarDiT,
    conditioner: Conditioner,
    batch: TrainBatch[Cond],
    numbers: SelfRollout,
    window_length: int,
) -> ChunkRollout:
    """The last chunk of ``window_length`` latents of each video; ``dit``, the student, makes those
    before it."""
    seeds = torch.randint(2**62, (batch.size,), generator=batch.draws.own).tolist()
    settings = numbers.settings(
        window_length,
        batch.draws.step,
        from_prompt=not bool(batch.windows.prefix[0]),
        has_reference=batch.cond.reference is not None,
    )
    no_text = conditioner.encode_text([""] * batch.size)
    return last_chunk(dit, batch.clean, batch.cond, no_text, batch.windows, settings, tuple(seeds))


def last_chunk(
    dit: AvatarDiT,
    clean: Latents,
    cond: Cond,
    no_text: Float[Tensor, "b n d"],
    windows: Windows,
    settings: Settings,
    seeds: tuple[int, ...],
) -> ChunkRollout:
    """The last chunk of a video of ``windows.length`` latents, whose other chunks ``dit`` makes.

    ``clean`` and ``cond`` are those of the whole video; of ``clean`` the first frame alone is read,
    where ``windows.prefix`` says so. ``cond.guidance`` holds the guidance weights, for networks
    that have guidance inside.
    """
    rollout, whole = None, Words(cond.text, no_text)
    prefix, anchor = clean[:, : int(windows.prefix[0])], None
    while True:
        before = None if rollout is None else rollout.chunk
        chunk = next_chunk(before, chunk_latents=settings.chunk_latents, num_video_frames=None)
        assert chunk is not None, "a video without an end has a next chunk"
        run = slice(chunk.latents.start, chunk.latents.stop)
        audio, motion = (None if x is None else x[:, run] for x in (cond.audio, cond.motion))
        rollout = ChunkRollout(
            chunk, prefix, whole, audio, motion, cond.guidance, cond.reference, anchor, settings,
            seeds,
        )  # fmt: skip
        if chunk.latents.stop >= windows.length:
            return rollout
        prefix, anchor = _handed_on(dit, rollout)


@torch.no_grad()
def _handed_on(
    dit: AvatarDiT, rollout: ChunkRollout
) -> tuple[Float[Tensor, "b p c h w"], Reference | None]:
    """The end of a chunk that ``dit`` makes, and the anchor for the chunks behind it."""
    stats = dit.motion_stats
    carry = ChunkState((rollout.prefix,), None, rollout.reference, stats, anchor=rollout.anchor)
    states = (rollout.make(rollout.velocity(dit)),)
    if rollout.motion is not None:
        states = (*states, rollout.motion)
    audio = rollout.audio
    assert audio is not None, "a student has audio"
    after = next_state(carry, states, rollout.chunk, audio, rollout.settings)
    return after.prefixes[0], after.anchor
