"""The reference cache, also joined and turned: what encoding it in every pass would give."""

import dataclasses

import pytest
import torch

from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import anchor_frame, join_caches, join_references
from avatar_v.testing import make_cond, make_reference
from references import (
    NUM_FRAMES,
    NUM_REFERENCE,
    SIZE,
    TOLERANCE,
    VALIDITY,
    target,
    with_reference,
)


@pytest.mark.parametrize("name", ["all", "ragged", "one sample has none", "none"])
def test_cached_equals_uncached_bit_for_bit(dit: AvatarDiT, name: str) -> None:
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY[name])
    assert cond.reference is not None
    cache = dit.encode_reference(cond.reference)
    without = dataclasses.replace(cond, reference=None)
    for time in (t, t / 2):  # one cache, several steps
        assert torch.equal(dit(x_t, time, without, reference_cache=cache), dit(x_t, time, cond))
    moved = dit(x_t, t, without, reference_cache=cache, reference_offset=-50)
    assert torch.equal(moved, dit(x_t, t, cond, reference_offset=-50))


def test_one_cache_serves_a_batch_of_the_same_request(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY["ragged"])
    assert cond.reference is not None
    one = cond.reference.map(lambda x: x[:1])
    twice = one.map(lambda x: x.expand(2, *x.shape[1:]))
    both = dit(x_t, t, dataclasses.replace(cond, reference=twice))
    got = dit(
        x_t, t, dataclasses.replace(cond, reference=None), reference_cache=dit.encode_reference(one)
    )
    torch.testing.assert_close(got, both, atol=TOLERANCE, rtol=TOLERANCE)
    three = make_cond(dit.config, 3, NUM_FRAMES)
    cache = dit.encode_reference(cond.reference)
    with pytest.raises(ValueError, match="cache of 2 samples cannot serve a batch of 3"):
        dit(x_t.repeat(2, 1, 1, 1, 1)[:3], t.repeat(2, 1)[:3], three, reference_cache=cache)


def test_a_cache_obeys_reference_keep(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY["all"])
    assert cond.reference is not None
    cache = dit.encode_reference(cond.reference)
    cond = dataclasses.replace(cond, reference_keep=torch.tensor([True, False]))
    got = dit(x_t, t, dataclasses.replace(cond, reference=None), reference_cache=cache)
    torch.testing.assert_close(got, dit(x_t, t, cond), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("has_audio", [True, False])
@pytest.mark.parametrize("name", VALIDITY)
def test_joined_caches_equal_both_clips_encoded_together(
    dit: AvatarDiT, name: str, has_audio: bool
) -> None:
    config = dit.config
    clip = make_reference(config, VALIDITY[name], size=SIZE, has_audio=has_audio, has_motion=True)
    full = make_reference(config, torch.ones(2, 1, dtype=torch.bool), size=SIZE, has_motion=True)
    anchor = anchor_frame(full.latents + 1, clip, audio=full.audio, motion=full.motion)
    assert (anchor.audio is None) == (not has_audio)
    encoded = [dit.encode_reference(part) for part in (clip, anchor)]
    assert encoded[0] is not None
    assert encoded[1] is not None
    joined = join_caches(encoded[0], encoded[1])
    together = dit.encode_reference(join_references([clip, anchor]))
    assert together is not None
    assert joined.num_frames == together.num_frames == NUM_REFERENCE + 1
    if name in ("all", "equal counts"):  # no padding: the same tokens in the same places
        assert torch.equal(joined.position, together.position)
        assert joined.key_mask is None
        for ours, theirs in zip(joined.layers, together.layers, strict=True):
            torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=TOLERANCE)
    x_t, t = target(config)
    cond = make_cond(config, 2, NUM_FRAMES)
    got = dit(x_t, t, cond, reference_cache=joined)
    expected = dit(x_t, t, cond, reference_cache=together)
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)
    without = dit(x_t, t, cond, reference_cache=encoded[0])
    assert (got - without).abs().max() > 1e-3, "the anchor has no effect: the test is blind"


@pytest.mark.parametrize("name", VALIDITY)
def test_keys_turned_once_are_those_turned_in_every_pass(dit: AvatarDiT, name: str) -> None:
    """Bit for bit: the same rotation of the same keys."""
    x_t, t = target(dit.config)
    cond = make_cond(dit.config, 2, NUM_FRAMES)
    reference = make_reference(dit.config, VALIDITY[name], size=SIZE, has_motion=True)
    cache = dit.encode_reference(reference)
    assert cache is not None
    turned = dit.turned(cache)
    got = dit(x_t, t, cond, reference_cache=turned)
    assert torch.equal(got, dit(x_t, t, cond, reference_cache=cache))
    far = -NUM_REFERENCE - 50
    with pytest.raises(ValueError, match=f"asked for {far}"):
        dit(x_t, t, cond, reference_cache=turned, reference_offset=far)
    got = dit(x_t, t, cond, reference_cache=cache.turned(far), reference_offset=far)
    elsewhere = dit(x_t, t, cond, reference_cache=cache, reference_offset=far)
    assert torch.equal(got, elsewhere)
    with pytest.raises(ValueError, match="joined before their keys are turned"):
        join_caches(turned, cache)


def test_caches_that_do_not_fit_are_not_joined(dit: AvatarDiT) -> None:
    two, one = (make_reference(dit.config, torch.ones(n, 3, dtype=torch.bool)) for n in (2, 1))
    caches = [dit.encode_reference(part) for part in (two, one)]
    assert caches[0] is not None
    assert caches[1] is not None
    with pytest.raises(ValueError, match="one number of samples and one grid"):
        join_caches(caches[0], caches[1])
