"""Sparse Reference Attention: exact against one dense masked attention, and one-way."""

import dataclasses

import pytest
import torch
from torch import Tensor

from avatar_v.kernels.key_mask import KeyMask
from avatar_v.kernels.norm import rotate
from avatar_v.kernels.residual import gated_add, modulated_norm
from avatar_v.models import attention
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.layers import rotary_table
from avatar_v.models.reference import (
    FACE_GAP,
    SEGMENT_LENGTH,
    pack_frames,
    segments,
)
from avatar_v.types import Cond, Reference
from naive_attention import attend_dense
from random_models import make_cond, make_dit, make_reference, run
from references import (
    NUM_FRAMES,
    NUM_REFERENCE,
    SIZE,
    TOLERANCE,
    VALIDITY,
    target,
    with_reference,
)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor, KeyMask | None]]:
    """Query, key and key mask of every attention that runs from here on."""
    seen = []
    original = attention.attend

    def spy(query: Tensor, key: Tensor, value: Tensor, mask: KeyMask | None = None) -> Tensor:
        seen.append((query, key, mask))
        return original(query, key, value, mask)

    monkeypatch.setattr(attention, "attend", spy)
    return seen


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


@pytest.mark.parametrize("name", [name for name in VALIDITY if name != "none"])
def test_equal_to_dense_masked_attention(dit: AvatarDiT, name: str) -> None:
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY[name])
    offset = -dit.config.reference_gap - NUM_REFERENCE + 1
    expected = dense_forward(dit, x_t, t, cond, offset)
    torch.testing.assert_close(run(dit, x_t, t, cond), expected, atol=TOLERANCE, rtol=TOLERANCE)
    plain = run(dit, x_t, t, dataclasses.replace(cond, reference=None))
    assert (plain - expected).abs().max() > 0.01, "the reference has no effect: the test is blind"


def test_equal_to_dense_masked_attention_at_another_offset(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY["ragged"])
    first = -dit.config.reference_gap - NUM_REFERENCE + 1
    got = run(dit, x_t, t, cond, shift=-40 - first)
    expected = dense_forward(dit, x_t, t, cond, -40)
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=TOLERANCE)
    assert (got - run(dit, x_t, t, cond)).abs().max() > 1e-4


def test_segments_that_are_not_runs_are_kept_apart_by_their_number(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    segment = torch.arange(NUM_REFERENCE).expand(2, -1) % 3
    cond = with_reference(dit.config, VALIDITY["ragged"], segment=segment)
    expected = dense_forward(dit, x_t, t, cond, -dit.config.reference_gap - NUM_REFERENCE + 1)
    torch.testing.assert_close(run(dit, x_t, t, cond), expected, atol=TOLERANCE, rtol=TOLERANCE)


def test_packed_equals_masked_for_any_content_of_invalid_frames(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    valid = VALIDITY["ragged"]
    cond = with_reference(dit.config, valid)
    assert cond.reference is not None
    broken = torch.where(valid[..., None, None, None], cond.reference.latents, float("nan"))
    changed = dataclasses.replace(cond.reference, latents=broken)
    got = run(dit, x_t, t, dataclasses.replace(cond, reference=changed))
    assert torch.equal(got, run(dit, x_t, t, cond))


def test_no_reference_equals_plain_attention(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    plain = run(dit, x_t, t, make_cond(dit.config, 2, NUM_FRAMES))
    empty = with_reference(dit.config, torch.zeros(2, 0, dtype=torch.bool))
    assert torch.equal(run(dit, x_t, t, empty), plain)
    none_valid = with_reference(dit.config, VALIDITY["none"])
    dropped = dataclasses.replace(
        with_reference(dit.config, VALIDITY["all"]), reference_keep=torch.tensor([False, False])
    )
    for cond in (none_valid, dropped):
        # masked keys are read and weigh nothing: sums of another order
        torch.testing.assert_close(run(dit, x_t, t, cond), plain, atol=TOLERANCE, rtol=TOLERANCE)


def test_what_a_reference_without_a_valid_frame_holds_is_never_read(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY["none"])
    assert cond.reference is not None
    assert cond.reference.audio is not None
    broken = dataclasses.replace(
        cond.reference,
        latents=torch.full_like(cond.reference.latents, float("nan")),
        audio=torch.full_like(cond.reference.audio, float("nan")),
    )
    got = run(dit, x_t, t, dataclasses.replace(cond, reference=broken))
    assert torch.equal(got, run(dit, x_t, t, cond))


def test_every_rank_runs_the_same_blocks_whatever_is_valid(
    dit: AvatarDiT, calls: list[tuple[Tensor, Tensor, KeyMask | None]]
) -> None:
    """Sharded over ranks, a block that one rank runs alone waits for the others for ever."""
    x_t, t = target(dit.config)
    counts = set()
    for clip in (VALIDITY["all"], VALIDITY["one sample has none"], VALIDITY["none"]):
        for faces in (torch.ones(2, 2, dtype=torch.bool), torch.zeros(2, 2, dtype=torch.bool)):
            cond = with_reference(dit.config, clip)
            assert cond.reference is not None
            pictures = cond.reference.latents[:, :2]
            reference = dataclasses.replace(cond.reference, faces=pictures, faces_valid=faces)
            calls.clear()
            run(dit, x_t, t, dataclasses.replace(cond, reference=reference))
            counts.add(len(calls))
    assert len(counts) == 1


def test_a_dropped_reference_is_dropped_for_its_sample_alone(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY["all"])
    got = run(dit, x_t, t, dataclasses.replace(cond, reference_keep=torch.tensor([True, False])))
    full = run(dit, x_t, t, cond)
    plain = run(dit, x_t, t, dataclasses.replace(cond, reference=None))
    torch.testing.assert_close(got[0], full[0], atol=TOLERANCE, rtol=TOLERANCE)
    torch.testing.assert_close(got[1], plain[1], atol=TOLERANCE, rtol=TOLERANCE)


def test_the_target_does_not_reach_the_reference(
    dit: AvatarDiT, calls: list[tuple[Tensor, Tensor, KeyMask | None]]
) -> None:
    """The keys that generated tokens read: no gradient from the reference ones to x_t."""
    x_t, t = target(dit.config)
    x_t.requires_grad_()
    run(dit, x_t, t, with_reference(dit.config, VALIDITY["ragged"]))
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
    out = run(dit, x_t, t, dataclasses.replace(cond, reference=changed))
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
    dit: AvatarDiT, calls: list[tuple[Tensor, Tensor, KeyMask | None]]
) -> None:
    """Masks are of b x keys alone, and reference tokens are never given more than a segment."""
    x_t, t = target(dit.config)
    valid = VALIDITY["ragged"]
    run(dit, x_t, t, with_reference(dit.config, valid))
    tokens = (SIZE // 2) ** 2
    num_target = NUM_FRAMES * tokens
    shapes = [(q.shape[1], k.shape[1], mask) for q, k, mask in calls]
    masks = [mask for _, _, mask in shapes if mask is not None]
    assert len(masks) == 2 * dit.config.num_layers
    assert all(mask.seen.dim() == 2 for mask in masks)
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
    calls: list[tuple[Tensor, Tensor, KeyMask | None]],
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
                past=cache)  # fmt: skip
    assert v.isfinite().all()
    assert all(mask is None for _, _, mask in calls)
    assert max(k.shape[1] for _, k, _ in calls) == 16 * (751 + 13)
