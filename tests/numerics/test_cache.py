"""The key-value cache: reference passes and block-causal streaming, against passes without one."""

import dataclasses

import pytest
import torch
from torch import Tensor

from avatar_v.kernels.attention import attend_dense
from avatar_v.models import attention
from avatar_v.models.attention import Pattern
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.causal import as_causal
from avatar_v.models.config import CAUSAL_FIRST
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import anchor_frame, join_references
from avatar_v.types import Cond
from avatar_v.weights.random import make_cond, make_reference, run
from references import (
    NUM_FRAMES,
    SIZE,
    TOLERANCE,
    VALIDITY,
    target,
    with_reference,
)

NUM_CLIP = 11  # latent frames of a streamed clip: three blocks of 3 and a shorter one


def close(a: object, b: object) -> None:
    torch.testing.assert_close(a, b, atol=TOLERANCE, rtol=TOLERANCE)


def cache_of(dit: AvatarDiT, valid: str = "ragged") -> KeyValueCache:
    reference = make_reference(dit.config, VALIDITY[valid], size=SIZE, has_motion=True)
    cache = dit.encode_reference(reference)
    assert cache is not None
    return cache


# --- the reference ---


def test_a_pass_that_lacks_the_keys_of_its_reference_is_refused(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    with pytest.raises(ValueError, match="give its keys"):
        dit(x_t, t, with_reference(dit.config, VALIDITY["all"]))


def test_one_cache_serves_a_batch_of_the_same_request(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY["ragged"])
    assert cond.reference is not None
    one = cond.reference.map(lambda x: x[:1])
    twice = one.map(lambda x: x.expand(2, *x.shape[1:]))
    both = run(dit, x_t, t, dataclasses.replace(cond, reference=twice))
    cache = dit.encode_reference(one)
    assert cache is not None
    close(dit(x_t, t, cond, past=cache), both)
    assert cache.repeat(3).num_samples == 3
    two = dit.encode_reference(cond.reference)
    assert two is not None
    assert torch.equal(two.repeat(2).position, two.position.repeat(2, 1))
    with pytest.raises(ValueError, match="cache of 2 samples cannot serve a batch of 3"):
        dit(x_t[:1].repeat(3, 1, 1, 1, 1), t[:1].repeat(3, 1), make_cond(dit.config, 3), past=two)


@pytest.mark.parametrize("has_audio", [True, False])
@pytest.mark.parametrize("name", VALIDITY)
def test_an_anchor_appended_equals_both_clips_encoded_together(
    dit: AvatarDiT, name: str, has_audio: bool
) -> None:
    config = dit.config
    clip = make_reference(config, VALIDITY[name], size=SIZE, has_audio=has_audio, has_motion=True)
    full = make_reference(config, torch.ones(2, 1, dtype=torch.bool), size=SIZE, has_motion=True)
    clip = dataclasses.replace(clip, moments=dit.reference_moments(clip))
    anchor = anchor_frame(
        full.latents + 1, clip, audio=full.audio, motion=full.motion, stats=dit.motion_stats
    )
    assert (anchor.audio is None) == (not has_audio)
    first, second = dit.encode_reference(clip), dit.encode_reference(anchor)
    assert first is not None
    assert second is not None
    joined = first.append(second)
    together = dit.encode_reference(join_references([clip, anchor]))
    assert together is not None
    if name in ("all", "equal counts"):  # no padding: the same tokens in the same places
        assert torch.equal(joined.position, together.position)
        assert joined.mask is None
        for ours, theirs in zip(joined.layers, together.layers, strict=True):
            close(ours, theirs)
    x_t, t = target(config)
    cond = make_cond(config, 2, NUM_FRAMES)
    got = dit(x_t, t, cond, past=joined)
    close(got, dit(x_t, t, cond, past=together))
    without = dit(x_t, t, cond, past=first)
    assert (got - without).abs().max() > 1e-3, "the anchor has no effect: the test is blind"


@pytest.mark.parametrize("name", ["all", "ragged", "none"])
def test_keys_rotated_once_are_those_rotated_in_every_pass(dit: AvatarDiT, name: str) -> None:
    """Bit for bit: the same rotation of the same keys."""
    x_t, t = target(dit.config)
    cond, cache = make_cond(dit.config, 2, NUM_FRAMES), cache_of(dit, name)
    rotated = cache.rotated()
    assert rotated.rotated() is rotated
    for time in (t, t / 2):  # one cache, several steps
        assert torch.equal(dit(x_t, time, cond, past=rotated), dit(x_t, time, cond, past=cache))
    with pytest.raises(ValueError, match="shift them before"):
        rotated.shifted(1)
    with pytest.raises(ValueError, match="both rotated or both not"):
        rotated.append(cache)


def test_gradients_reach_the_reference_unless_it_is_detached(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    cond, cache = make_cond(dit.config, 2, NUM_FRAMES), cache_of(dit)
    assert dit(x_t, t, cond, past=cache).requires_grad
    assert cache.layers[0][0].requires_grad
    assert not cache.detach().layers[0][0].requires_grad


# --- positions ---


def test_an_anchor_that_is_hidden_moves_nothing(dit: AvatarDiT) -> None:
    """Training hides it from windows that begin their clip, generation's first chunk has none."""
    x_t, t = target(dit.config)
    cond = with_reference(dit.config, VALIDITY["ragged"])
    assert cond.reference is not None
    assert cond.reference.audio is not None
    first, audio = cond.reference.latents[:, :1] + 1, cond.reference.audio[:, :1]
    anchor = anchor_frame(first, cond.reference, audio=audio, motion=None)
    hidden = dataclasses.replace(anchor, valid=torch.tensor([[False], [True]]))
    joined = dataclasses.replace(cond, reference=join_references([cond.reference, hidden]))
    got, without = run(dit, x_t, t, joined), run(dit, x_t, t, cond)
    close(got[0], without[0])
    assert (got[1] - without[1]).abs().max() > 1e-3


def test_moving_the_cache_and_the_new_frames_together_changes_nothing(dit: AvatarDiT) -> None:
    x_t, t = target(dit.config)
    cond, cache = make_cond(dit.config, 2, NUM_FRAMES), cache_of(dit)
    expected = dit(x_t, t, cond, past=cache)
    for by in (7, -40, 1000):
        close(dit(x_t, t, cond, past=cache.shifted(by), start=by), expected)
    alone = dit(x_t, t, cond, past=cache.shifted(7))
    assert (alone - expected).abs().max() > 1e-4, "positions have no effect: the test is blind"
    there_and_back = cache.shifted(2.5).shifted(-2.5)
    assert torch.equal(dit(x_t, t, cond, past=there_and_back), expected)


def test_a_shift_of_some_frames_is_rolling_rope(dit: AvatarDiT) -> None:
    cache = cache_of(dit, "all")
    rolled = cache.shifted(5, slice(2))
    assert (rolled.position - cache.position)[0, :4].tolist() == [5, 5, 0, 0]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(rolled.layers, cache.layers, strict=True))
    tokens = (SIZE // 2) ** 2
    for by, read in ((5, slice(2 * tokens)), (0, slice(2 * tokens, None))):
        expected, _ = cache.shifted(by).rotated().layers[1]
        assert torch.equal(rolled.rotated().layers[1][0][:, read], expected[:, read])


# --- operations ---


def numbered(num_frames: int, num_context: int = 0, first: int = 0) -> KeyValueCache:
    """One token a frame; keys and values are the number of their frame."""
    number = torch.arange(first, first + num_frames, dtype=torch.float32)
    keys = number[None, :, None, None].expand(1, -1, 1, 6)
    position = torch.arange(first, first + num_frames)[None]
    return KeyValueCache(((keys, keys),), position, None, (1, 1), num_frames - num_context)


def shown(cache: KeyValueCache) -> list[int]:
    key, value = cache.layers[0]
    assert torch.equal(key, value)
    assert torch.equal(key[..., 0, 0], cache.position.float())
    return cache.position[0].tolist()


def test_eviction_keeps_context_sink_and_window() -> None:
    cache = numbered(2, num_context=2, first=-2).append(numbered(8))
    assert shown(cache) == [-2, -1, 0, 1, 2, 3, 4, 5, 6, 7]
    assert shown(cache.evict(3)) == [-2, -1, 5, 6, 7]
    assert shown(cache.evict(3, sink=1)) == [-2, -1, 0, 5, 6, 7]
    assert cache.evict(3, sink=1).num_context == 2
    assert shown(cache.evict(0, sink=1)) == [-2, -1, 0]
    assert cache.evict(8) is cache
    assert cache.evict(7, sink=1) is cache
    evicted = cache.evict(3, sink=1).append(numbered(2, first=8)).evict(3, sink=1)
    assert shown(evicted) == [-2, -1, 0, 7, 8, 9]


def test_runs_of_frames_keep_what_is_context_in_them() -> None:
    cache = numbered(6, num_context=3)
    for run_, kept in ((slice(2), 2), (slice(2, 5), 1), (slice(4, None), 0), (slice(None), 3)):
        part = cache.frames(run_)
        assert (shown(part), part.num_context) == (list(range(6))[run_], kept)
    with pytest.raises(ValueError, match="a step of 2"):
        cache.frames(slice(0, 6, 2))


def test_masks_follow_their_frames_and_keep_hides_context_alone() -> None:
    hidden = torch.tensor([[True, False]])
    context = dataclasses.replace(numbered(2, num_context=2), mask=hidden)
    cache = context.append(numbered(2, first=2))
    assert cache.mask is not None
    assert cache.mask.tolist() == [[True, False, True, True]]
    assert cache.seen_frames(torch.tensor([False])).tolist() == [[False, False, True, True]]  # pyright: ignore
    assert numbered(3).seen_frames() is None
    with pytest.raises(ValueError, match="context lies in front"):
        numbered(2).append(context)
    with pytest.raises(ValueError, match="one number of samples and one grid"):
        cache.append(cache.repeat(2))


# --- streaming ---


def clip_of(dit: AvatarDiT) -> tuple[Tensor, Tensor, Cond]:
    generator = torch.Generator().manual_seed(8)
    shape = (2, NUM_CLIP, dit.config.latent_channels, SIZE, SIZE)
    x, t = torch.randn(shape, generator=generator), torch.rand(2, NUM_CLIP, generator=generator)
    motion = torch.randn(2, NUM_CLIP, dit.config.motion_dim, generator=generator)
    return x, t, dataclasses.replace(make_cond(dit.config, 2, NUM_CLIP), motion=motion)


def streamed(
    dit: AvatarDiT,
    past: KeyValueCache | None,
    *,
    block: int,
    window: int | None = None,
    sink: int = 0,
    start: int = 0,
    first: int | None = None,
) -> Tensor:
    """Block after block, each with what the blocks before have left in the cache."""
    x, t, cond = clip_of(dit)
    assert cond.audio is not None
    assert cond.motion is not None
    outputs = []
    for block_of in Pattern.causal(block, first=first).runs(NUM_CLIP):
        now = slice(*block_of)
        heard = dataclasses.replace(cond, audio=cond.audio[:, now], motion=cond.motion[:, now])
        begin = start + now.start
        v, keys = dit(x[:, now], t[:, now], heard, past=past, start=begin, return_keys=True)
        past = keys if past is None else past.append(keys)
        if window is not None:
            past = past.evict(block * window, sink=sink)
        outputs.append(v)
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize("has_reference", [True, False])
@pytest.mark.parametrize(
    ("block", "window", "sink"),
    [(3, None, 0), (3, 1, 0), (3, 1, 3), (3, 2, 1), (1, 2, 1), (4, 0, 0)],
)
@torch.no_grad()
def test_streaming_equals_one_pass_under_the_block_causal_mask(
    dit: AvatarDiT, block: int, window: int | None, sink: int, has_reference: bool
) -> None:
    past = cache_of(dit) if has_reference else None
    x, t, cond = clip_of(dit)
    whole = dit(x, t, cond, past=past, pattern=Pattern.causal(block, window, sink=sink))
    close(streamed(dit, past, block=block, window=window, sink=sink), whole)
    full = dit(x, t, cond, past=past)
    assert (full - whole).abs().max() > 1e-3, "the pattern has no effect: the test is blind"


@pytest.mark.parametrize("window", [None, 1, 2])
@torch.no_grad()
def test_a_causal_network_streams_as_it_sees_a_whole_window(
    dit: AvatarDiT, window: int | None
) -> None:
    """The first block is shorter, and no pass is told a pattern."""
    causal = as_causal(dit, block=3, window=window)
    assert as_causal(causal, block=3, window=window) is causal
    past, (x, t, cond) = cache_of(causal), clip_of(causal)
    whole = causal(x, t, cond, past=past)
    close(streamed(causal, past, block=3, window=window, first=CAUSAL_FIRST), whole)
    assert (dit(x, t, cond, past=past) - whole).abs().max() > 1e-3
    with pytest.raises(ValueError, match="asked for 4"):
        as_causal(causal, block=4, window=window)
    _, stream = causal(x[:, :2], t[:, :2], _cut(cond, 2), past=past, return_keys=True)
    with pytest.raises(ValueError, match="one block of 3"):
        causal(x[:, 2:6], t[:, 2:6], _cut(cond, 4), past=past.append(stream), start=2)


def _cut(cond: Cond, num: int) -> Cond:
    audio, motion = (None if x is None else x[:, :num] for x in (cond.audio, cond.motion))
    return dataclasses.replace(cond, audio=audio, motion=motion)


@torch.no_grad()
def test_a_stream_that_begins_later_is_the_same_stream(dit: AvatarDiT) -> None:
    past = cache_of(dit)
    settings = {"block": 3, "window": 1, "sink": 3}
    expected = streamed(dit, past, **settings)
    close(streamed(dit, past.shifted(50), start=50, **settings), expected)


@pytest.mark.parametrize("pattern", [Pattern.causal(3, 1, sink=2), Pattern.local(2)])
@torch.no_grad()
def test_patterns_equal_dense_masked_attention(
    dit: AvatarDiT, pattern: Pattern, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, t, cond = clip_of(dit)
    got = dit(x, t, cond, pattern=pattern)
    frame = torch.arange(NUM_CLIP).repeat_interleave((SIZE // 2) ** 2)
    query, key = frame[:, None], frame[None]
    if pattern.block == 3:
        apart = query // 3 - key // 3
        mask = (apart >= 0) & ((apart <= 1) | (key < 2))
    else:
        mask = (query - key).abs() <= 2

    def dense(query, key, value, blocks, extra, extra_mask):
        keys, values = key.flatten(1, 2), value.flatten(1, 2)
        return attend_dense(query, keys, values, mask.expand(2, -1, -1))

    monkeypatch.setattr(attention, "attend_blocks", dense)
    close(got, dit(x, t, cond, pattern=pattern))


def test_patterns_that_cannot_be_are_refused() -> None:
    for wrong in ({"block": 0}, {"before": -1}, {"after": -1}, {"sink": -1}):
        with pytest.raises(ValueError, match="is at least"):
            Pattern(**wrong)
