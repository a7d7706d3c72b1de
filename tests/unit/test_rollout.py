"""sampling/rollout.py: how a chunk leaves the one before it."""

import pytest
import torch
from torch import Tensor

from avatar_v.sampling.blend import blended
from avatar_v.sampling.chunks import plan
from avatar_v.sampling.rollout import ChunkVelocity, check_finite, make_chunk
from avatar_v.sampling.settings import Settings

CHUNKS = plan(49, chunk_latents=7).chunks


def flat(*levels: float, size: int = 8) -> Tensor:
    """One picture a level, all cells alike."""
    return torch.tensor(levels)[None, :, None, None, None].expand(1, -1, 2, size, size).clone()


def test_a_jump_of_brightness_is_spread_over_four_latents() -> None:
    got = blended(flat(0.0, 0.0, 8.0, 8.0, 8.0, 8.0, 8.0), 2)
    torch.testing.assert_close(got, flat(0.0, 0.0, 2.0, 4.0, 6.0, 8.0, 8.0))


@pytest.mark.parametrize("num_new", [1, 2, 3, 4])
def test_short_chunks_are_blended_as_far_as_they_go(num_new: int) -> None:
    got = blended(flat(0.0, *[8.0] * num_new), 1)
    torch.testing.assert_close(got, flat(0.0, *[2.0, 4.0, 6.0, 8.0][:num_new]))


def test_details_stay_and_parts_of_the_picture_are_blended_alone() -> None:
    details = flat(0.0, 0.0, 0.0)
    details[:, 1, :, ::2] += 1.0
    details[:, 1, :, 1::2] -= 1.0
    torch.testing.assert_close(blended(details, 1), details)
    half = flat(0.0, 0.0, 0.0, size=32)
    half[:, 1:, :, :, 16:] = 8.0
    got = blended(half, 1)
    assert not got[..., :8].any()  # bilinear: parts blend between their middles
    torch.testing.assert_close(got[:, 1, :, :, 24:], torch.full((1, 2, 32, 8), 2.0))


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (60, 104)])
def test_pictures_of_any_size_are_blended(size: tuple[int, int]) -> None:
    step = torch.cat([torch.zeros(1, 1, 16, *size), torch.ones(1, 5, 16, *size)], dim=1)
    got = blended(step, 1)
    assert got.shape == step.shape
    torch.testing.assert_close(got[:, 1], torch.full((1, 16, *size), 0.25))


@pytest.mark.parametrize("chunk", CHUNKS[:2])
def test_only_chunks_that_continue_one_are_blended(chunk) -> None:
    """The first one begins with a latent of one frame, which is of another kind."""
    prefixes = (torch.zeros(1, chunk.num_prefix, 2, 8, 8), torch.zeros(1, chunk.num_prefix, 64))

    def video(num_latents: int, motion):
        return lambda x, t: torch.where(t[..., None, None, None] > 0, x - 8.0, 0.0)

    velocity = ChunkVelocity(video, lambda num_latents: lambda motion, t: 0 * motion)
    plain, blended_ = (
        make_chunk(velocity, prefixes, chunk, Settings(7, num_steps=1, blend=blend), (0,))
        for blend in (False, True)
    )
    torch.testing.assert_close(
        plain[0][:, chunk.num_prefix :], flat(*[8.0] * (7 - chunk.num_prefix))
    )
    assert torch.equal(blended_[1], plain[1])
    expected = plain[0] if chunk.index == 0 else blended(plain[0], chunk.num_prefix)
    assert torch.equal(blended_[0], expected)
    assert torch.equal(blended_[0], plain[0]) == (chunk.index == 0)


def test_what_is_not_finite_is_an_error_and_no_black_video() -> None:
    states = (torch.zeros(1, 2, 2, 8, 8), torch.zeros(1, 2, 64))
    assert check_finite(states, 1) is states
    states[0][0, 1, 0, 3, 3] = torch.inf
    with pytest.raises(ValueError, match="chunk 1 came out without finite numbers"):
        check_finite(states, 1)


def test_seeds_that_are_accepted_give_noise_of_their_own() -> None:
    seeds = [0, 1, 2, 2**31, 2**32, 2**32 + 1, 3 * 2**32, 2**62, 2**63 - 2, 2**63 - 1]
    starts: list[Tensor] = []

    def still(x: Tensor, t: Tensor) -> Tensor:
        starts.append(x)
        return torch.zeros_like(x)

    for seed in seeds:
        for chunk in CHUNKS[:2]:
            prefixes = (torch.zeros(1, chunk.num_prefix, 2, 8, 8),)
            velocity = ChunkVelocity(lambda num, motion: still)
            make_chunk(velocity, prefixes, chunk, Settings(7, num_steps=1), (seed,))
    noises = {tuple(x[0, -1].flatten().tolist()) for x in starts}
    assert len(noises) == 2 * len(seeds)
