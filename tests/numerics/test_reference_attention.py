"""Sparse Reference Attention: exact against one dense masked attention, and one-way."""

import dataclasses

import pytest
import torch
from torch import Tensor

from avatar_v.kernels.attention import attend_dense
from avatar_v.kernels.norm import rotate
from avatar_v.models import attention
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.layers import gated_add, modulated_norm, rotary_table
from avatar_v.models.reference import (
    FACE_GAP,
    SEGMENT_LENGTH,
    join_caches,
    join_references,
    one_frame,
    pack_frames,
    segments,
)
from avatar_v.testing import make_cond, make_dit, make_reference
from avatar_v.types import Cond, Reference

# fp32; the two sides sum the same terms in another order, values are of order 1.
TOLERANCE = 1e-5
NUM_FRAMES, NUM_REFERENCE, SIZE = 3, 19, 4

VALIDITY = {
    "all": torch.ones(2, NUM_REFERENCE, dtype=torch.bool),
    "ragged": torch.rand(2, NUM_REFERENCE, generator=torch.Generator().manual_seed(0)) > 0.4,
    "equal counts": torch.arange(NUM_REFERENCE).expand(2, -1) % 2 == torch.tensor([[0], [0]]),
    "one sample has none": torch.tensor([[True], [False]]).expand(2, NUM_REFERENCE).clone(),
    "a segment has none": (torch.arange(NUM_REFERENCE) // 8 != 1).expand(2, -1).clone(),
}


@pytest.fixture(scope="module")
def dit() -> AvatarDiT:
    return make_dit(DiTConfig.tiny())


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor, Tensor | None]]:
    """Query, key and key mask of every attention that runs from here on."""
    seen = []
    original = attention.attend

    def spy(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        seen.append((query, key, mask))
        return original(query, key, value, mask)

    monkeypatch.setattr(attention, "attend", spy)
    return seen


def target(config: DiTConfig) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    shape = (2, NUM_FRAMES, config.latent_channels, SIZE, SIZE)
    return torch.randn(shape, generator=generator), torch.rand(2, NUM_FRAMES, generator=generator)


def with_reference(config: DiTConfig, valid: Tensor, **changes: object) -> Cond:
    reference = dataclasses.replace(make_reference(config, valid, size=SIZE), **changes)
    return make_cond(config, 2, NUM_FRAMES, reference=reference)


def block_mask(valid: Tensor, segment: Tensor, num_target: int, tokens: int) -> Tensor:
    """The mask in words: G sees G and all valid R; R sees its own segment's valid R."""
    valid, segment = (x.repeat_interleave(tokens, dim=1) for x in (valid, segment))
    num_samples, num_reference = valid.shape
    size = num_target + num_reference
    mask = torch.zeros(num_samples, size, size, dtype=torch.bool)
    mask[:, :num_target, :num_target] = True
    mask[:, :num_target, num_target:] = valid[:, None]
    same = segment[:, :, None] == segment[:, None, :]
    mask[:, num_target:, num_target:] = same & valid[:, None]
    diagonal = torch.arange(num_target, size)
    mask[:, diagonal, diagonal] = True  # invalid tokens see themselves: no softmax over nothing
    return mask


def dense_forward(dit: AvatarDiT, x_t: Tensor, t: Tensor, cond: Cond, offset: int) -> Tensor:
    """The specification: all tokens in one sequence, invalid ones masked, a full mask."""
    reference = cond.reference
    assert reference is not None
    assert reference.audio is not None
    assert cond.audio is not None
    faces, faces_valid = reference.faces, reference.faces_valid
    if faces is None or faces_valid is None:
        faces, faces_valid = reference.latents[:, :0], reference.valid[:, :0]
    number, num_heard = torch.arange(faces.shape[1]), NUM_FRAMES + reference.latents.shape[1]
    grid, tokens = (SIZE // 2, SIZE // 2), (SIZE // 2) ** 2
    num_target = NUM_FRAMES * tokens
    x = dit._embed_patches(torch.cat([x_t, reference.latents, faces], dim=1))
    x = torch.cat([x[:, :num_heard], x[:, num_heard:] + dit.face_embed], dim=1)
    embedding, modulation = dit.time_embed(
        torch.cat([t, torch.zeros(2, x.shape[1] - NUM_FRAMES)], dim=1)
    )
    audio = dit._embed_audio(torch.cat([cond.audio, reference.audio], dim=1))
    assert audio is not None
    text = dit._embed_text(cond.text)
    position = torch.cat(
        [
            torch.arange(NUM_FRAMES),
            offset + torch.arange(reference.latents.shape[1]),
            offset - FACE_GAP - number,
        ]
    )
    rotary = rotary_table(position[None], *grid, dit.config.head_dim)
    valid = torch.cat([reference.valid, faces_valid], dim=1)
    alone = (reference.segment.max() + 1 + number).expand(2, -1)
    mask = block_mask(valid, torch.cat([reference.segment, alone], dim=1), num_target, tokens)
    for block in dit.blocks:
        parts = (block.modulation + modulation).unsqueeze(-2).unbind(2)
        attention = block.self_attention
        y = modulated_norm(x, parts[0], parts[1], block.eps).flatten(1, 2)
        key, value = attention.project_keys(y)
        query = rotate(attention.project_query(y), rotary)
        y = attention.merge(attend_dense(query, rotate(key, rotary), value, mask))
        x = gated_add(x, y.unflatten(1, (-1, tokens)), parts[2])
        y = block.text_attention(block.text_norm(x).flatten(1, 2), text).unflatten(1, (-1, tokens))
        y[:, NUM_FRAMES:] = 0  # the reference stream has no text
        x = x + y
        heard = x[:, :num_heard]
        y = block.audio_attention(block.audio_norm(heard).flatten(0, 1), audio.flatten(0, 1))
        x = torch.cat([heard + y.unflatten(0, heard.shape[:2]), x[:, num_heard:]], dim=1)
        x = gated_add(x, block.ffn(modulated_norm(x, parts[3], parts[4], block.eps)), parts[5])
    out = dit.head(x, embedding)[:, :NUM_FRAMES]
    return dit._to_latents(out, *grid)


@pytest.mark.parametrize("name", VALIDITY)
def test_equal_to_dense_masked_attention(dit: AvatarDiT, name: str) -> None:
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY[name])
    offset = -dit.config.reference_gap - NUM_REFERENCE + 1
    expected = dense_forward(dit, x_t, t, cond, offset)
    torch.testing.assert_close(dit(x_t, t, cond), expected, atol=TOLERANCE, rtol=TOLERANCE)
    plain = dit(x_t, t, dataclasses.replace(cond, reference=None))
    assert (plain - expected).abs().max() > 0.01, "the reference has no effect: the test is blind"


def test_equal_to_dense_masked_attention_at_another_offset(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY["ragged"])
    got = dit(x_t, t, cond, reference_offset=-40)
    expected = dense_forward(dit, x_t, t, cond, -40)
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert (got - dit(x_t, t, cond)).abs().max() > 1e-4


def test_segments_that_are_not_runs_are_kept_apart_by_their_number(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    segment = torch.arange(NUM_REFERENCE).expand(2, -1) % 3
    cond = with_reference(dit.config, VALIDITY["ragged"], segment=segment)
    expected = dense_forward(dit, x_t, t, cond, -dit.config.reference_gap - NUM_REFERENCE + 1)
    torch.testing.assert_close(dit(x_t, t, cond), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_packed_equals_masked_for_any_content_of_invalid_frames(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    valid = VALIDITY["ragged"]
    cond = with_reference(dit.config, valid)
    assert cond.reference is not None
    broken = torch.where(valid[..., None, None, None], cond.reference.latents, float("nan"))
    changed = dataclasses.replace(cond.reference, latents=broken)
    got = dit(x_t, t, dataclasses.replace(cond, reference=changed))
    assert torch.equal(got, dit(x_t, t, cond))


def test_no_reference_equals_plain_attention(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    plain = dit(x_t, t, make_cond(dit.config, 2, NUM_FRAMES))
    none_valid = with_reference(dit.config, torch.zeros(2, NUM_REFERENCE, dtype=torch.bool))
    assert torch.equal(dit(x_t, t, none_valid), plain)
    empty = with_reference(dit.config, torch.zeros(2, 0, dtype=torch.bool))
    assert torch.equal(dit(x_t, t, empty), plain)
    dropped = dataclasses.replace(
        with_reference(dit.config, VALIDITY["all"]), reference_keep=torch.tensor([False, False])
    )
    # masked keys are read and weigh nothing: sums of another order
    torch.testing.assert_close(dit(x_t, t, dropped), plain, atol=TOLERANCE, rtol=TOLERANCE)


def test_a_dropped_reference_is_dropped_for_its_sample_alone(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY["all"])
    got = dit(x_t, t, dataclasses.replace(cond, reference_keep=torch.tensor([True, False])))
    full = dit(x_t, t, cond)
    plain = dit(x_t, t, dataclasses.replace(cond, reference=None))
    torch.testing.assert_close(got[0], full[0], atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(got[1], plain[1], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.parametrize("name", ["all", "ragged", "one sample has none"])
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
    anchor = one_frame(full.latents + 1, clip, audio=full.audio, motion=full.motion)
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


def test_the_target_does_not_reach_the_reference(
    dit: AvatarDiT, calls: list[tuple[Tensor, Tensor, Tensor | None]]
) -> None:
    """The keys that generated tokens read: no gradient from the reference ones to x_t."""
    x_t, t = target(dit.config)
    x_t.requires_grad_()
    dit(x_t, t, with_reference(dit.config, VALIDITY["ragged"]))
    num_target = NUM_FRAMES * (SIZE // 2) ** 2
    keys = [k for q, k, mask in calls if q.shape[1] == num_target and mask is not None]
    assert len(keys) == dit.config.num_layers
    for key in keys:
        own, reference = key[:, :num_target], key[:, num_target:]
        (gradient,) = torch.autograd.grad(reference.square().sum(), x_t, retain_graph=True)
        assert torch.equal(gradient, torch.zeros_like(x_t))
        (gradient,) = torch.autograd.grad((own**3).sum(), x_t, retain_graph=True)
        assert gradient.abs().max() > 0


def test_every_valid_frame_reaches_the_target_and_no_invalid_one(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY["ragged"])
    assert cond.reference is not None
    latents = cond.reference.latents.clone().requires_grad_()
    changed = dataclasses.replace(cond.reference, latents=latents)
    out = dit(x_t, t, dataclasses.replace(cond, reference=changed))
    (gradient,) = torch.autograd.grad(out.square().sum(), latents)
    valid = cond.reference.valid
    assert (gradient[valid].abs().amax((1, 2, 3)) > 0).all()
    assert torch.equal(gradient[~valid], torch.zeros_like(gradient[~valid]))


def test_reference_tokens_see_their_own_segment_alone(dit: AvatarDiT) -> None:
    reference = make_reference(dit.config, VALIDITY["all"], size=SIZE)
    other = reference.latents.clone()
    other[:, 8:16] += 1  # the second segment
    before = dit.encode_reference(reference)
    after = dit.encode_reference(dataclasses.replace(reference, latents=other))
    assert before is not None
    assert after is not None
    tokens = (SIZE // 2) ** 2
    same = torch.ones(NUM_REFERENCE, dtype=torch.bool)
    same[8:16] = False
    same = same.repeat_interleave(tokens)
    for a, b in zip(before.layers, after.layers, strict=True):
        assert torch.equal(a[0][:, same], b[0][:, same])
        assert (a[0][:, ~same] - b[0][:, ~same]).abs().max() > 1e-3


def test_attention_sizes_are_linear_in_the_reference(
    dit: AvatarDiT, calls: list[tuple[Tensor, Tensor, Tensor | None]]
) -> None:
    """Masks are of b x keys alone, and reference tokens are never given more than a segment."""
    x_t, t = target(dit.config)
    valid = VALIDITY["ragged"]
    dit(x_t, t, with_reference(dit.config, valid))
    tokens = (SIZE // 2) ** 2
    num_target = NUM_FRAMES * tokens
    shapes = [(q.shape[1], k.shape[1], mask) for q, k, mask in calls]
    masks = [mask for _, _, mask in shapes if mask is not None]
    assert len(masks) == 2 * dit.config.num_layers
    assert all(mask.dim() == 2 for mask in masks)
    longest = int(valid.sum(1).max()) * tokens
    assert max(k for _, k, _ in shapes) == num_target + longest
    assert max(k for q, k, _ in shapes if q != num_target) <= SEGMENT_LENGTH * tokens


def test_layout_of_a_hand_made_case() -> None:
    valid = torch.tensor([[True, False, True, True], [False, False, True, False]])
    segment = torch.tensor([[0, 0, 0, 1], [0, 0, 1, 1]])
    layout = pack_frames(valid, segment)
    assert layout is not None
    assert layout.frames.tolist() == [[0, 2], [3, 3], [6, 6]]
    assert layout.frame_mask is not None
    assert layout.frame_mask.tolist() == [[True, True], [True, False], [True, False]]
    assert layout.keys.tolist() == [[0, 1, 2], [4, 0, 0]]
    assert layout.key_mask is not None
    assert layout.key_mask.tolist() == [[True, True, True], [True, False, False]]
    assert layout.position.tolist() == [[0, 2, 3], [2, 0, 0]]


def test_a_full_layout_needs_no_mask() -> None:
    layout = pack_frames(torch.ones(3, 16, dtype=torch.bool), segments(16).expand(3, -1))
    assert layout is not None
    assert layout.frames.shape == (6, SEGMENT_LENGTH)
    assert layout.frame_mask is None
    assert layout.key_mask is None


def test_a_reference_of_the_wrong_shape_is_refused(dit: AvatarDiT) -> None:
    reference = make_reference(dit.config, VALIDITY["all"], size=SIZE)
    wrong = Reference(
        reference.latents,
        reference.valid,
        reference.segment,
        reference.audio[:, :, :3],  # pyright: ignore
    )
    with pytest.raises(ValueError, match=r"reference.audio must have shape \(2, 19, 8, 32\)"):
        dit.encode_reference(wrong)


def test_two_minutes_of_reference_at_the_small_preset(
    calls: list[tuple[Tensor, Tensor, Tensor | None]],
) -> None:
    """3,001 frames, 12,016 tokens: generated tokens need no mask, and the reference attends to
    nothing beyond its segments; R x R scores would be 144 million numbers a head."""
    config = DiTConfig.small()
    dit = make_dit(config)
    reference = make_reference(config, torch.ones(1, 751, dtype=torch.bool), size=8)
    cond = make_cond(config, 1, 13)
    with torch.inference_mode():
        cache = dit.encode_reference(reference)
        assert cache is not None
        sizes = {(q.shape[1], k.shape[1]) for q, k, _ in calls}
        assert max(q * k for q, k in sizes) <= (16 * SEGMENT_LENGTH) ** 2
        calls.clear()
        v = dit(torch.randn(1, 13, config.latent_channels, 8, 8), torch.ones(1, 13), cond,
                reference_cache=cache)  # fmt: skip
    assert v.isfinite().all()
    assert all(mask is None for _, _, mask in calls)
    assert max(k.shape[1] for _, k, _ in calls) == 16 * (751 + 13)
