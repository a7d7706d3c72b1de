"""Chunks that a few-step student makes in training, behind chunks of its own.

A student whose chunks continued true video would never see its own errors, which generation hands
on from chunk to chunk (Self-Forcing, arXiv 2506.08009). So a window is the last chunk of a short
video that the student makes from its clip's sound, motion and reference by the loop of generation
(sampling/rollout.py). The chunks before it take no gradient. `Turn` is that last chunk before it
is made: student, fake and real score all give their velocity in it.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v.base import checks
from avatar_v.models.dit import AvatarDiT
from avatar_v.sampling.chunks import OVERLAP, Chunk, next_chunk
from avatar_v.sampling.rollout import (
    Carry,
    ChunkVelocity,
    Words,
    begin,
    carried,
    chunk_velocity,
    joined,
    make_chunk,
)
from avatar_v.sampling.settings import Settings
from avatar_v.sampling.solver import VelocityFn, last_with_gradient
from avatar_v.stages.settings import MAX_SHIFT
from avatar_v.stages.windows import Windows, value_at
from avatar_v.types import Cond, Reference

Latents = Float[Tensor, "b l c h w"]


@dataclass(frozen=True)
class OwnRollout:
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

    def length(self, window: int) -> int:
        """Latents of the longest video, of chunks of ``window`` latents."""
        return window + (self.num_chunks - 1) * (window - OVERLAP)

    def draw(self, num: int, window: int, generator: torch.Generator) -> Windows:
        """One kind of window for the whole batch, from the beginning of ``num`` clips: a first
        chunk without (prefix 0) or with its first frame (1), or the latents of a video of several
        chunks that begins as one of the two."""
        kind, first = torch.rand(2, generator=generator).tolist()
        prompt, image = self.prompt_share, self.image_share
        continues = kind >= prompt + image
        if continues:
            has_image = first * (prompt + image) >= prompt if prompt + image > 0 else first >= 0.5
        else:
            has_image = kind >= prompt
        start = torch.zeros(num, dtype=torch.long)
        length = self.length(window) if continues else window
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


@dataclass(frozen=True)
class Turn:
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

    def velocity(self, dit: AvatarDiT, guidance: Mapping[str, float] | None = None) -> VelocityFn:
        """The velocity of ``dit`` in this chunk; the reference's keys take no gradient.
        ``guidance`` has weights of text, audio and reference, for guidance by several passes."""
        weights = {f"guidance_{name}": weight for name, weight in (guidance or {}).items()}
        settings = dataclasses.replace(self.settings, **weights)
        with torch.no_grad():
            carry = begin(dit, (self.prefix,), self.reference, settings)
            carry = joined(dit, dataclasses.replace(carry, anchor=self.anchor))
        given = chunk_velocity(dit, self.words, self.audio, carry, settings, weights=self.weights)
        return given.video(len(self.chunk.latents), self.motion)

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


def last_turn(
    dit: AvatarDiT,
    clean: Latents,
    cond: Cond,
    no_text: Float[Tensor, "b n d"],
    windows: Windows,
    settings: Settings,
    seeds: tuple[int, ...],
) -> Turn:
    """The last chunk of a video of ``windows.length`` latents, whose other chunks ``dit`` makes.

    ``clean`` and ``cond`` are those of the whole video; of ``clean`` the first frame alone is read,
    where ``windows.prefix`` says so. ``cond.guidance`` holds the guidance weights, for networks
    that have guidance inside.
    """
    turn, whole = None, Words(cond.text, no_text)
    prefix, anchor = clean[:, : int(windows.prefix[0])], None
    while True:
        before = None if turn is None else turn.chunk
        chunk = next_chunk(before, chunk_latents=settings.chunk_latents, num_video_frames=None)
        assert chunk is not None, "a video without an end has a next chunk"
        run = slice(chunk.latents.start, chunk.latents.stop)
        audio, motion = (None if x is None else x[:, run] for x in (cond.audio, cond.motion))
        turn = Turn(
            chunk, prefix, whole, audio, motion, cond.guidance, cond.reference, anchor, settings,
            seeds,
        )  # fmt: skip
        if chunk.latents.stop >= windows.length:
            return turn
        prefix, anchor = _handed_on(dit, turn)


@torch.no_grad()
def _handed_on(dit: AvatarDiT, turn: Turn) -> tuple[Float[Tensor, "b p c h w"], Reference | None]:
    """The end of a chunk that ``dit`` makes, and the anchor for the chunks behind it."""
    stats = dit.motion_stats
    carry = Carry((turn.prefix,), None, turn.reference, stats, anchor=turn.anchor)
    states = (turn.make(turn.velocity(dit)),)
    if turn.motion is not None:
        states = (*states, turn.motion)
    audio = turn.audio
    assert audio is not None, "a student hears its sound"
    after = carried(carry, states, turn.chunk, audio, turn.settings)
    return after.prefixes[0], after.anchor
