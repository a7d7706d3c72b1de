"""The chunk plan: whole coverage, exact lengths, known examples."""

import pytest

from avatar_v.sampling.chunks import OVERLAP, Span, frames_of_audio, interpolation, plan
from avatar_v.types import num_frames

LENGTHS = [1, 2, 4, 5, 6, 48, 49, 50, 53, 54, 93, 94, 250, 3001]


@pytest.mark.parametrize("frames", LENGTHS)
@pytest.mark.parametrize("chunk_latents", [3, 13, 41])
def test_frames_and_latents_are_covered_once_and_in_order(frames: int, chunk_latents: int) -> None:
    result = plan(frames, chunk_latents=chunk_latents)
    frame, latent = 0, 0
    for chunk in result.chunks:
        assert chunk.frames.start == frame
        assert chunk.new_latents.start == latent
        assert len(chunk.frames) >= 1
        assert len(chunk.latents) <= chunk_latents
        assert len(chunk.latents) > chunk.num_prefix
        frame, latent = chunk.frames.stop, chunk.new_latents.stop
    assert frame == frames == result.num_frames
    assert latent == result.num_latents
    assert num_frames(latent) - frames < 4 or frames == 1  # no latent is made in vain


@pytest.mark.parametrize("frames", LENGTHS)
def test_later_chunks_start_with_the_end_of_the_one_before(frames: int) -> None:
    chunks = plan(frames, chunk_latents=13).chunks
    first, later = chunks[0], chunks[1:]
    assert (first.mode, first.num_prefix, first.latents.start) == ("ref2v", 1, 0)
    assert first.new_latents == first.latents  # the image latent is frame 0 of the video
    for before, chunk in zip(chunks, later, strict=False):
        assert (chunk.mode, chunk.num_prefix) == ("prefix2v", OVERLAP)
        assert chunk.latents.start == before.latents.stop - OVERLAP
        assert chunk.new_latents.start == before.latents.stop
        assert len(before.latents) == 13  # only the last one may be shorter


def test_a_known_plan() -> None:
    """100 frames are 26 latents: 13, then 11 new ones, then 2."""
    chunks = plan(100, chunk_latents=13).chunks
    assert [chunk.latents for chunk in chunks] == [Span(0, 13), Span(11, 24), Span(22, 26)]
    assert [chunk.frames for chunk in chunks] == [Span(0, 49), Span(49, 93), Span(93, 100)]


def test_an_i_chunk_lies_between_the_overlap_and_an_early_latent_of_its_n_chunk() -> None:
    first, second, last = plan(100, chunk_latents=13).chunks
    between = interpolation(second)
    assert between is not None
    assert (between.mode, between.index) == ("interpolate", second.index)
    assert between.latents == Span(11, 16)
    assert (between.num_prefix, between.num_suffix) == (OVERLAP, 1)
    assert between.new_latents == Span(13, 15)
    assert between.frames == Span(49, 57)
    assert interpolation(first) is None  # nothing lies before it
    assert len(last.latents) == 4
    assert interpolation(last) is None  # no latent is left behind the transition
    assert interpolation(between) is None


@pytest.mark.parametrize("frames", LENGTHS)
@pytest.mark.parametrize("chunk_latents", [3, 5, 13, 41])
def test_i_chunks_stay_within_their_n_chunks(frames: int, chunk_latents: int) -> None:
    for chunk in plan(frames, chunk_latents=chunk_latents).chunks:
        between = interpolation(chunk)
        assert (between is not None) == (chunk.index > 0 and len(chunk.latents) >= 5)
        if between is not None:
            assert between.latents.start == chunk.latents.start
            assert between.latents.stop <= chunk.latents.stop
            assert between.frames.start == chunk.frames.start
            assert between.frames.stop < chunk.frames.stop
            sizes = (between.num_prefix, len(between.new_latents), between.num_suffix)
            assert sum(sizes) == len(between.latents)


def test_full_size_chunk_is_161_frames() -> None:
    (chunk,) = plan(161, chunk_latents=41).chunks
    assert chunk.frames == Span(0, 161)
    assert len(plan(162, chunk_latents=41).chunks) == 2


@pytest.mark.parametrize(("samples", "frames"), [(1, 1), (640, 1), (641, 2), (16_000, 25)])
def test_frames_cover_the_audio(samples: int, frames: int) -> None:
    assert frames_of_audio(samples) == frames


def test_empty_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one frame, got 0"):
        plan(0, chunk_latents=13)
    with pytest.raises(ValueError, match="longer than its overlap of 2, got 2"):
        plan(10, chunk_latents=2)
    with pytest.raises(ValueError, match="at least one sample, got 0"):
        frames_of_audio(0)
