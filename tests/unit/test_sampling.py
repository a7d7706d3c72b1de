"""generate/sampling.py: how a chunk leaves the one before it."""

import pytest
import torch
from torch import Tensor

from avatar_v.generate.chunks import plan
from avatar_v.generate.sampling import Settings, eased, make_chunk

CHUNKS = plan(49, chunk_latents=7).chunks


def flat(*levels: float, size: int = 8) -> Tensor:
    """One picture a level, all cells alike."""
    return torch.tensor(levels)[None, :, None, None, None].expand(1, -1, 2, size, size).clone()


def test_a_jump_of_brightness_is_spread_over_four_latents() -> None:
    got = eased(flat(0.0, 0.0, 8.0, 8.0, 8.0, 8.0, 8.0), 2)
    torch.testing.assert_close(got, flat(0.0, 0.0, 2.0, 4.0, 6.0, 8.0, 8.0))


@pytest.mark.parametrize("num_new", [1, 2, 3, 4])
def test_short_chunks_are_eased_as_far_as_they_go(num_new: int) -> None:
    got = eased(flat(0.0, *[8.0] * num_new), 1)
    torch.testing.assert_close(got, flat(0.0, *[2.0, 4.0, 6.0, 8.0][:num_new]))


def test_details_stay_and_parts_of_the_picture_are_eased_alone() -> None:
    details = flat(0.0, 0.0, 0.0)
    details[:, 1, :, ::2] += 1.0
    details[:, 1, :, 1::2] -= 1.0
    torch.testing.assert_close(eased(details, 1), details)
    half = flat(0.0, 0.0, 0.0, size=32)
    half[:, 1:, :, :, 16:] = 8.0
    got = eased(half, 1)
    assert not got[..., :8].any()  # bilinear: parts blend between their middles
    torch.testing.assert_close(got[:, 1, :, :, 24:], torch.full((1, 2, 32, 8), 2.0))


@pytest.mark.parametrize("size", [(1, 1), (3, 5), (60, 104)])
def test_pictures_of_any_size_are_eased(size: tuple[int, int]) -> None:
    step = torch.cat([torch.zeros(1, 1, 16, *size), torch.ones(1, 5, 16, *size)], dim=1)
    got = eased(step, 1)
    assert got.shape == step.shape
    torch.testing.assert_close(got[:, 1], torch.full((1, 16, *size), 0.25))


@pytest.mark.parametrize("chunk", CHUNKS[:2])
def test_only_chunks_that_continue_one_are_eased(chunk) -> None:
    """The first one begins with a latent of one frame, which is of another kind."""
    prefixes = (torch.zeros(1, chunk.num_prefix, 2, 8, 8), torch.zeros(1, chunk.num_prefix, 64))

    def velocity_of(num_latents: int):
        def velocity(x, t, motion):
            return torch.where(t[..., None, None, None] > 0, x - 8.0, 0.0), motion

        return velocity

    plain, eased_ = (
        make_chunk(velocity_of, prefixes, chunk, Settings(7, num_steps=1, ease=ease))
        for ease in (False, True)
    )
    torch.testing.assert_close(
        plain[0][:, chunk.num_prefix :], flat(*[8.0] * (7 - chunk.num_prefix))
    )
    assert torch.equal(eased_[1], plain[1])
    expected = plain[0] if chunk.index == 0 else eased(plain[0], chunk.num_prefix)
    assert torch.equal(eased_[0], expected)
    assert torch.equal(eased_[0], plain[0]) == (chunk.index == 0)


def test_what_is_not_finite_is_an_error_and_no_black_video() -> None:
    def velocity_of(num_latents: int):
        return lambda x, t: torch.full_like(x, torch.inf)

    with pytest.raises(ValueError, match="chunk 1 came out without finite numbers"):
        make_chunk(velocity_of, (torch.zeros(1, 2, 2, 8, 8),), CHUNKS[1], Settings(7, num_steps=1))
