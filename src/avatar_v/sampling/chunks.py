"""The plan of a video of any length: which latents each chunk makes and which frames they are.

Avatar V §4.1. The first chunk (*ref2v*) starts from one clean image latent (which is made like the
others where no image is given, Settings.from_prompt); every later one (*prefix2v*) from the last
``OVERLAP`` latents of the chunk before, which are dropped from the output. These are the N chunks
of the streaming framework; an I chunk (*interpolate*) makes the transition into one of them once
more: N0, N1, I1, N2, I2 … A plan is data: it knows nothing of models and can be printed, compared
and tested.
"""

import math
from dataclasses import dataclass
from typing import Literal

from avatar_v.types import SAMPLES_PER_FRAME, TEMPORAL_FACTOR, num_frames

OVERLAP = 2
"""Latent frames that a chunk shares with the one before. The report says 2 frames; we count
latents (our choice), the longest prefix that training draws."""

INTERPOLATED = 2
"""New latents of an N chunk that its I chunk makes anew: 0.32 s (our choice)."""

NUM_SUFFIX = 1
"""Clean latents at the end of an I chunk; as many as training gives (training/windows.py)."""

CHUNK_LATENTS_FULL_SIZE = 41
"""161 frames, 6.44 s (Avatar V §4.1). The small preset uses the 13 latents of its training."""


@dataclass(frozen=True)
class Span:
    """Indices ``start <= i < stop``."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Chunk:
    """One run of the sampler. All positions count from the start of the whole video."""

    index: int
    mode: Literal["ref2v", "prefix2v", "interpolate"]
    latents: Span  # what the model sees, prefix and suffix included
    num_prefix: int  # clean latents at its start: the image (1) or the overlap (2)
    new_latents: Span  # what goes to the decoder; the image latent of ref2v is the first of them,
    # and those of an I chunk take the place of its N chunk's
    frames: Span  # what they decode to, cut at the end of the video
    num_suffix: int = 0  # clean latents at its end


@dataclass(frozen=True)
class ChunkPlan:
    """All chunks of one video; their ``frames`` follow each other from 0 to ``num_frames``."""

    num_frames: int
    num_latents: int
    chunks: tuple[Chunk, ...]


def frames_of_audio(num_samples: int) -> int:
    """Video frames that cover ``num_samples`` at 16 kHz: whole ones, the last one begun counts."""
    if num_samples < 1:
        raise ValueError(f"audio needs at least one sample, got {num_samples}")
    return math.ceil(num_samples / SAMPLES_PER_FRAME)


def plan(num_video_frames: int, *, chunk_latents: int) -> ChunkPlan:
    """Cut a video of ``num_video_frames`` into chunks of at most ``chunk_latents`` latents.

    Only the last chunk may be shorter: with a longer overlap, which would give it the length of
    training windows, it takes more time and its error stays the same. ValueError for an empty
    video, or chunks so short that they would add nothing behind their overlap.
    """
    if num_video_frames < 1:
        raise ValueError(f"a video has at least one frame, got {num_video_frames}")
    chunks, chunk = [], None
    while chunk := next_chunk(
        chunk, chunk_latents=chunk_latents, num_video_frames=num_video_frames
    ):
        chunks.append(chunk)
    return ChunkPlan(num_video_frames, latents_to_cover(num_video_frames), tuple(chunks))


def next_chunk(
    before: Chunk | None, *, chunk_latents: int, num_video_frames: int | None
) -> Chunk | None:
    """The chunk behind ``before`` (None: the first one); None behind the last.

    ``num_video_frames`` None is a video whose end is not known yet but lies beyond this chunk.
    """
    if chunk_latents <= OVERLAP:
        raise ValueError(f"a chunk is longer than its overlap of {OVERLAP}, got {chunk_latents}")
    index = 0 if before is None else before.index + 1
    start = 0 if before is None else before.latents.stop - OVERLAP
    stop = start + chunk_latents
    if num_video_frames is None:
        return _chunk(index, start, stop, num_frames(stop))
    total = latents_to_cover(num_video_frames)
    if before is not None and before.latents.stop >= total:
        return None
    return _chunk(index, start, min(stop, total), num_video_frames)


def interpolation(chunk: Chunk) -> Chunk | None:
    """The I chunk of an N chunk, with its number: between the overlap with the chunk before and an
    early latent of this one. None for the first chunk, and for one that is too short."""
    begin = chunk.latents.start
    new = Span(begin + OVERLAP, begin + OVERLAP + INTERPOLATED)
    latents = Span(begin, new.stop + NUM_SUFFIX)
    if chunk.mode != "prefix2v" or latents.stop > chunk.latents.stop:
        return None
    return Chunk(
        index=chunk.index,
        mode="interpolate",
        latents=latents,
        num_prefix=OVERLAP,
        new_latents=new,
        frames=Span(num_frames(new.start), num_frames(new.stop)),
        num_suffix=NUM_SUFFIX,
    )


def latents_to_cover(num_video_frames: int) -> int:
    """The fewest latents that decode to at least ``num_video_frames`` (and at least 2: a chunk of
    the image alone would leave nothing to generate)."""
    return max(math.ceil((num_video_frames - 1) / TEMPORAL_FACTOR) + 1, 2)


def _chunk(index: int, start: int, stop: int, num_video_frames: int) -> Chunk:
    first = index == 0
    new = Span(0 if first else start + OVERLAP, stop)
    begin = 0 if first else num_frames(new.start)
    end = min(num_frames(new.stop), num_video_frames)
    return Chunk(
        index=index,
        mode="ref2v" if first else "prefix2v",
        latents=Span(start, stop),
        num_prefix=1 if first else OVERLAP,
        new_latents=new,
        frames=Span(begin, end),
    )
