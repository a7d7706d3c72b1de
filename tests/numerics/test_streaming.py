"""What a stream sees of its past (models/config.Streaming): one pass under the mask makes the same,
and block-wise gradients are those of that pass."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from avatar_v.models.attention import KeyValue
from avatar_v.models.blocks import Block, ContextKeys
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.causal import Corruption, as_causal
from avatar_v.models.config import Streaming
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import anchor_frame
from avatar_v.sampling.blocks import make_blocks
from avatar_v.sampling.chunks import Chunk, Span
from avatar_v.sampling.guidance import Passes
from avatar_v.sampling.rollout import Words, next_state
from avatar_v.sampling.settings import Settings
from avatar_v.training.chunk_rollout import ChunkRollout
from random_models import make_cond, make_reference
from references import SIZE, TOLERANCE, VALIDITY

BLOCK = 3
NOISED = Streaming(corrupt_share=0.5, corrupt_strength=0.5)
SWITCHES = {
    "as before": Streaming(),
    "noise": NOISED,
    "clean": Streaming(history="clean"),
    "clean and noise": dataclasses.replace(NOISED, history="clean"),
    "sink": Streaming(sink="replaced"),
    "sink and noise": dataclasses.replace(NOISED, sink="replaced"),
    "all": dataclasses.replace(NOISED, history="clean", sink="replaced"),
}


def scene(
    dit: AvatarDiT,
    streaming: Streaming,
    *,
    length: int = 8,
    window: int | None = 1,
    num_given: int = 1,
    start: int = 0,
) -> tuple[AvatarDiT, ChunkRollout]:
    """A causal network, and the first chunk of a video as training lets it make one by blocks."""
    causal = as_causal(dit, block=BLOCK, window=window)
    settings = Settings(length, num_steps=3, shift=2.0, blend=False, anchor=True, seed=5,
                        guidance_audio=1.0, streaming=streaming)  # fmt: skip
    config = causal.config
    reference = make_reference(config, VALIDITY["ragged"], size=SIZE, has_motion=True)
    prefix = torch.randn(2, num_given, config.latent_channels, SIZE, SIZE)
    cond = make_cond(config, 2, length)
    motion = 0.3 * torch.randn(2, length, config.motion_dim)
    whole = Span(0, length)
    chunk = Chunk(0, "ref2v", whole, num_given, whole, Span(0, 4 * length - 3))
    return causal, ChunkRollout(
        chunk, prefix, Words(cond.text, cond.text), cond.audio, motion, None, reference, None,
        settings, (1, 2), start, "blocks",
    )  # fmt: skip


def passes_of(dit: AvatarDiT, rollout: ChunkRollout) -> Passes:
    _, given = rollout._given(dit)
    assert given.passes is not None
    return given.passes(len(rollout.chunk.latents), rollout.motion)


def under_the_mask(
    dit: AvatarDiT, at: ChunkRollout, finished: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """The velocity of a whole window whose history is that of the ``finished`` video: a fixed
    point of it is what a stream makes."""
    streaming, length = at.settings.streaming, finished.shape[1]
    corruption = Corruption.of(streaming, at.settings.seed)
    noised = (lambda _, keys: keys) if corruption is None else corruption.over(0, length)
    sinks = [passes_of(dit, at)]
    if streaming.sink == "replaced":
        num = at.chunk.num_prefix
        assert at.reference is not None
        assert at.audio is not None
        assert at.motion is not None
        first, audio, motion = (x[:, num : num + 1] for x in (finished, at.audio, at.motion))
        stats = dit.motion_stats
        anchor = anchor_frame(first, at.reference, audio=audio, motion=motion, stats=stats)
        moments, more = dit.reference_moments(at.reference), dit.reference_moments(anchor)
        assert moments is not None
        assert more is not None
        sinks.append(sinks[0].behind(dit.encode_reference(anchor), moments + more))

    def by_sink(x: Tensor, t: Tensor, history: KeyValueCache | None) -> tuple[Tensor, Any]:
        """The first block sees the first sink, the others the last one and the first block's keys
        as they were."""
        run = partial(dit, x, t, return_keys=True)
        seen = noised if history is None else lambda layer, _: history.layers[layer]
        v, keys = run(sinks[0].joint, past=sinks[0].keys(), as_seen=seen)
        if len(sinks) == 1:
            return v, keys
        tokens = 2 * keys.grid[0] * keys.grid[1]

        def of_both(layer: int, own: KeyValue) -> KeyValue:
            before, behind = keys.layers[layer], seen(layer, own)
            key, value = (
                torch.cat([a[:, :tokens], b[:, tokens:]], 1)
                for a, b in zip(before, behind, strict=True)
            )
            return key, value

        later, keys = run(sinks[1].joint, past=sinks[1].keys(), as_seen=of_both)
        return torch.cat([v[:, :2], later[:, 2:]], dim=1), keys

    history = None
    if streaming.history == "clean":
        _, history = by_sink(finished, torch.zeros(2, length), None)
    return lambda x, t: by_sink(x, t, history)[0]


@pytest.mark.parametrize(
    ("name", "num_moves", "length", "window", "num_given"),
    [
        *((name, 3, 8, 1, 1) for name in SWITCHES),
        ("as before", 1, 5, None, 0), ("as before", 2, 11, 2, 0), ("noise", 1, 11, None, 0),
        ("all", 1, 5, 1, 0), ("all", 2, 11, 2, 0), ("all", 2, 8, None, 1),
    ],
)  # fmt: skip
@torch.no_grad()
def test_a_stream_is_one_pass_under_the_mask(
    dit: AvatarDiT, name: str, num_moves: int, length: int, window: int | None, num_given: int
) -> None:
    """In every step, for the fixed point holds for the end of all of them."""
    dit, at = scene(dit, SWITCHES[name], length=length, window=window, num_given=num_given)
    made, _ = at.roll(dit, num_moves)
    got = at.make(under_the_mask(dit, at, made), num_moves)
    torch.testing.assert_close(got, made, atol=TOLERANCE, rtol=TOLERANCE)
    streaming = at.settings.streaming
    if not streaming.needs_blocks:
        got = at.make(at.velocity(dit), num_moves)
        torch.testing.assert_close(got, made, atol=TOLERANCE, rtol=TOLERANCE)
    if num_moves == 3 and name != "as before":
        settings = dataclasses.replace(at.settings, streaming=Streaming())
        plain, _ = dataclasses.replace(at, settings=settings).roll(dit)
        assert (plain[:, 2:] - made[:, 2:]).abs().max() > 1e-3, "the switch does something"


@pytest.mark.parametrize("bf16", [False, True])
def test_what_steps_share_is_computed_once_with_the_same_bits(
    dit: AvatarDiT, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values of text and sound, in inference mode: once a chunk and layer for the steps of
    a whole chunk, in two passes each, and once a block of a causal one, which has its own sound."""
    causal, at = scene(dit, Streaming())
    at = dataclasses.replace(at, settings=dataclasses.replace(at.settings, guidance_audio=2.0))
    calls, original = [], Block.context_keys

    def counted(block: Block, *given: Tensor) -> ContextKeys:
        calls.append(block)
        return original(block, *given)

    monkeypatch.setattr(Block, "context_keys", counted)
    for make, num in ((lambda: at.make(at.velocity(causal)), 1), (lambda: at.roll(causal)[0], 3)):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            with torch.no_grad():
                anew = make()
            assert not calls, "training computes them in every step"
            with torch.inference_mode():
                kept = make()
        assert len(calls) == num * causal.config.num_layers
        calls.clear()
        assert torch.equal(kept, anew)


@torch.no_grad()
def test_a_drawn_place_is_that_of_the_mask(dit: AvatarDiT) -> None:
    dit, at = scene(dit, Streaming(max_start=9), start=7)
    made, _ = at.roll(dit, 1)
    torch.testing.assert_close(at.make(at.velocity(dit), 1), made, atol=TOLERANCE, rtol=TOLERANCE)
    unmoved = dataclasses.replace(at, start=0)
    assert (unmoved.make(unmoved.velocity(dit), 1) - made).abs().max() > 1e-4


@torch.no_grad()
def test_ten_clips_on_end_positions_are_still_those_of_training(
    dit: AvatarDiT, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every key that is read and every frame that is made; without rolling they leave."""
    length, max_start, seen = 8, 4, set[int]()
    forward = type(dit).forward

    def noting(self: AvatarDiT, x: Tensor, *given: Any, past: Any, start: int, **named: Any) -> Any:
        if past.num_stream:
            seen.update(past.position[0, -past.num_stream :].tolist())
        seen.update(range(start, start + x.shape[1]))
        return forward(self, x, *given, past=past, start=start, **named)

    monkeypatch.setattr(type(dit), "forward", noting)
    for rolling in (True, False):
        causal, at = scene(dit, Streaming(max_start=max_start, rolling=rolling), length=length)
        assert at.audio is not None
        (carry, given), chunk = at._given(causal), at.chunk
        for index in range(1, 14):
            (made,), carry = make_blocks(
                given.after(at.motion), carry, chunk, at.settings, at.seeds, causal.config,
                num_moves=1,
            )  # fmt: skip
            first = index * (length - 2)
            span = Span(first, first + length)
            chunk = Chunk(index, "prefix2v", span, 2, span, Span(0, 1))
            carry = next_state(carry, (made,), chunk, at.audio, at.settings)
        if rolling:
            assert seen == set(range(length + max_start))
            assert bool(torch.isfinite(made).all())
    assert max(seen) == 12 * 6 + length - 1 == 10 * length - 1, "ten times the clip"


def gradients(dit: AvatarDiT, parts: Iterator[Tensor]) -> dict[str, Tensor]:
    dit.zero_grad(set_to_none=True)
    for part in parts:
        part.backward()
    return {n: p.grad.clone() for n, p in dit.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(
    ("name", "num_moves", "window"), [("as before", 1, 1), ("as before", 3, None), ("noise", 2, 1)]
)
def test_gradients_by_blocks_are_those_of_the_whole_pass(
    dit: AvatarDiT, name: str, num_moves: int, window: int | None
) -> None:
    """Whose keys of the past are detached, as in alg. 1. Sums of fp32 in another order: 1e-5 of the
    largest gradient of a parameter, over 100 roundings of 1.2e-7."""
    dit, at = scene(dit, SWITCHES[name], length=11, window=window)
    made, steps = at.roll(dit, num_moves, with_steps=True)
    assert steps is not None
    target = torch.randn_like(made)
    made.requires_grad_()
    (gradient,) = torch.autograd.grad((made - target).square().mean(), made)
    got = gradients(dit, steps.parts(gradient))
    corruption = Corruption.of(at.settings.streaming, at.settings.seed)
    noised = (lambda _, keys: keys) if corruption is None else corruption.over(0, 11)

    def without_past(layer: int, keys: KeyValue) -> KeyValue:
        return noised(layer, (keys[0].detach(), keys[1].detach()))

    passes = passes_of(dit, at)

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        return dit(x, t, passes.joint, past=passes.keys(), as_seen=without_past)

    whole = at.make(velocity, num_moves)
    expected = gradients(dit, iter([(whole - target).square().mean()]))
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        assert (got[key] - value).abs().max() <= 1e-5 * value.abs().max(), key


def test_memory_of_gradients_by_blocks_is_that_of_one_block(dit: AvatarDiT) -> None:
    """Bytes that autograd keeps at once, largest over the pass; of a window they grow with it."""
    found = {}
    for num_blocks in (2, 4):
        causal, at = scene(dit, Streaming(), length=2 + BLOCK * num_blocks)
        assert at.roll(causal, 1)[1] is None, "nothing waits where no gradient is asked for"
        made, steps = at.roll(causal, 1, with_steps=True)
        assert steps is not None
        sizes = list(kept_by(steps.parts(torch.ones_like(made))))
        assert len(sizes) == 1 + num_blocks
        window = kept(lambda at=at, dit=causal: at.make(at.velocity(dit), 1).sum())
        found[num_blocks] = max(sizes), window
        assert max(sizes) < 2 * min(sizes[:-1]), "blocks of one length are alike"
    assert found[4][0] == pytest.approx(found[2][0], rel=0.02)
    assert found[4][1] > 1.5 * found[2][1]
    assert found[4][1] > 2.5 * found[4][0]


def kept_by(parts: Iterator[Tensor]) -> Iterator[int]:
    """Bytes of the graph of each part; a part is freed by its backward pass."""
    while True:
        size, part = _counted(lambda: next(parts, None))
        if part is None:
            return
        part.backward()
        yield size


def kept(make: Callable[[], Tensor]) -> int:
    return _counted(make)[0]


def _counted(make: Callable[[], Any]) -> tuple[int, Any]:
    storages: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        storages[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        made = make()
    return sum(storages.values()), made


def test_noise_of_a_share_has_a_strength() -> None:
    with pytest.raises(ValueError, match="both 0 or both more"):
        Streaming(corrupt_share=0.5)
