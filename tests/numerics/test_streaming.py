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
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.causal import Corruption, as_causal
from avatar_v.models.config import Streaming
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.reference import anchor_frame
from avatar_v.sampling.blocks import BlockSteps, LastStep, make_blocks
from avatar_v.sampling.chunks import Chunk, Span
from avatar_v.sampling.guidance import Passes
from avatar_v.sampling.rollout import (
    ChunkState,
    ChunkVelocity,
    History,
    Words,
    begin,
    chunk_velocity,
    make_chunk,
    next_state,
)
from avatar_v.sampling.settings import Settings
from avatar_v.sampling.solver import last_with_gradient
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


@dataclasses.dataclass(frozen=True)
class Scene:
    """A causal network in front of the first chunk of a video."""

    dit: AvatarDiT
    settings: Settings
    carry: ChunkState
    velocity: ChunkVelocity
    chunk: Chunk
    audio: Tensor
    motion: Tensor

    @property
    def passes(self) -> Passes:
        assert self.velocity.passes is not None
        return self.velocity.passes(len(self.chunk.latents), None)

    def plain(self) -> ChunkVelocity:
        """Without noise in the history."""
        passes = dataclasses.replace(self.passes, corruption=None)
        return dataclasses.replace(self.velocity, passes=lambda *_: passes)

    def stream(self, **named: Any) -> tuple[Tensor, ChunkState]:
        (made,), carry = make_blocks(
            self.velocity, self.carry, self.chunk, self.settings, (1, 2), self.dit.config, **named
        )
        return made, carry

    def window(self, velocity: Callable[[Tensor, Tensor], Tensor], **named: Any) -> Tensor:
        """The chunk under the mask."""
        given = ChunkVelocity(lambda *_: velocity)
        (made,) = make_chunk(given, self.carry.prefixes, self.chunk, self.settings, (1, 2), **named)
        return made


def scene(
    dit: AvatarDiT,
    streaming: Streaming,
    *,
    length: int = 8,
    window: int | None = 1,
    num_given: int = 1,
    start: int = 0,
    **changes: Any,
) -> Scene:
    causal = as_causal(dit, block=BLOCK, window=window)
    settings = Settings(length, num_steps=3, shift=2.0, blend=False, anchor=True, seed=5,
                        guidance_audio=1.0, streaming=streaming, **changes)  # fmt: skip
    config = causal.config
    reference = make_reference(config, VALIDITY["ragged"], size=SIZE, has_motion=True)
    prefix = torch.randn(2, num_given, config.latent_channels, SIZE, SIZE)
    carry = begin(causal, (prefix,), reference, settings)
    carry = dataclasses.replace(carry, history=History((), start))
    cond = make_cond(config, 2, length)
    assert cond.audio is not None
    motion = 0.3 * torch.randn(2, length, config.motion_dim)
    given = chunk_velocity(causal, Words(cond.text, cond.text), cond.audio, carry, settings)
    assert given.passes is not None
    passes = given.passes  # with a motion, as training gives it
    velocity = dataclasses.replace(given, passes=lambda num, _: passes(num, motion))
    whole = Span(0, length)
    chunk = Chunk(0, "ref2v", whole, num_given, whole, Span(0, 4 * length - 3))
    return Scene(causal, settings, carry, velocity, chunk, cond.audio, motion)


def under_the_mask(at: Scene, finished: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """The velocity of a whole window whose history is that of the ``finished`` video: a fixed
    point of it is what a stream makes."""
    streaming, length = at.settings.streaming, finished.shape[1]
    corruption = Corruption.of(streaming, at.settings.seed)
    noised = (lambda _, keys: keys) if corruption is None else corruption.over(0, length)
    sinks = [at.passes]
    if streaming.sink == "replaced":
        num = at.chunk.num_prefix
        first, audio, motion = (x[:, num : num + 1] for x in (finished, at.audio, at.motion))
        anchor = anchor_frame(first, at.carry.reference, audio=audio, motion=motion,  # pyright: ignore
                              stats=at.dit.motion_stats)  # fmt: skip
        more = at.dit.reference_moments(anchor)
        assert at.carry.moments is not None
        assert more is not None
        sinks.append(at.passes.behind(at.dit.encode_reference(anchor), at.carry.moments + more))

    def by_sink(x: Tensor, t: Tensor, history: KeyValueCache | None) -> tuple[Tensor, Any]:
        """The first block sees the first sink, the others the last one and the first block's keys
        as they were."""
        run = partial(at.dit, x, t, return_keys=True)
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
    at = scene(dit, SWITCHES[name], length=length, window=window, num_given=num_given)
    made, _ = at.stream(num_moves=num_moves)
    got = at.window(under_the_mask(at, made), num_moves=num_moves)
    torch.testing.assert_close(got, made, atol=TOLERANCE, rtol=TOLERANCE)
    streaming = at.settings.streaming
    if not streaming.needs_blocks:
        got = at.window(at.passes.velocity, num_moves=num_moves)
        torch.testing.assert_close(got, made, atol=TOLERANCE, rtol=TOLERANCE)
    if num_moves == 3 and name != "as before":
        settings = dataclasses.replace(at.settings, streaming=Streaming())
        plain, _ = dataclasses.replace(at, settings=settings, velocity=at.plain()).stream()
        assert (plain[:, 2:] - made[:, 2:]).abs().max() > 1e-3, "the switch does something"


@torch.no_grad()
def test_a_drawn_place_is_that_of_the_mask_and_moves_away_from_the_sink(dit: AvatarDiT) -> None:
    at = scene(dit, Streaming(shift=9), start=7)
    made, after = at.stream(num_moves=1)
    got = at.window(partial(at.passes.velocity, start=7), num_moves=1)
    torch.testing.assert_close(got, made, atol=TOLERANCE, rtol=TOLERANCE)
    assert (at.window(at.passes.velocity, num_moves=1) - made).abs().max() > 1e-4
    assert after.history is not None
    assert after.history.next_start == 8 + 9 - 3, "where the last block of training begins"


@torch.no_grad()
def test_ten_clips_on_end_positions_are_still_those_of_training(
    dit: AvatarDiT, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of every key that is read and every frame that is made; without rolling they leave."""
    length, window, shift, seen = 8, 1, 4, set[int]()
    forward = type(dit).forward

    def noting(self: AvatarDiT, x: Tensor, *given: Any, past: Any, start: int, **named: Any) -> Any:
        if past.num_stream:
            seen.update(past.position[0, -past.num_stream :].tolist())
        seen.update(range(start, start + x.shape[1]))
        return forward(self, x, *given, past=past, start=start, **named)

    monkeypatch.setattr(type(dit), "forward", noting)
    for rolling in (True, False):
        at = scene(dit, Streaming(shift=shift, rolling=rolling), length=length, window=window)
        made, carry = at.stream(num_moves=1)
        for index in range(1, 13):
            first = index * (length - 2)
            span = Span(first, first + length)
            chunk = Chunk(index, "prefix2v", span, 2, span, Span(0, 1))
            carry = next_state(carry, (made,), chunk, at.audio, at.settings)
            (made,), carry = make_blocks(
                at.velocity, carry, chunk, at.settings, (1, 2), at.dit.config, num_moves=1
            )
        if rolling:
            assert seen == set(range(length + shift))
            assert bool(torch.isfinite(made).all())
    assert max(seen) == 12 * 6 + length - 1 == 10 * length - 1, "ten times the clip"


def gradients(dit: AvatarDiT, parts: Iterator[Tensor]) -> dict[str, Tensor]:
    dit.zero_grad(set_to_none=True)
    for part in parts:
        part.backward()
    return {n: p.grad.clone() for n, p in dit.named_parameters() if p.grad is not None}


def stepped(at: Scene, num_moves: int) -> tuple[Tensor, BlockSteps]:
    last: list[LastStep] = []
    with torch.no_grad():
        made, _ = at.stream(num_moves=num_moves, last=last)
    return made, BlockSteps(last, at.settings, at.dit.config)


@pytest.mark.parametrize(
    ("name", "num_moves", "window"), [("as before", 1, 1), ("as before", 3, None), ("noise", 2, 1)]
)
def test_gradients_by_blocks_are_those_of_the_whole_pass(
    dit: AvatarDiT, name: str, num_moves: int, window: int | None
) -> None:
    """Whose keys of the past are detached, as in alg. 1. Sums of fp32 in another order: 1e-5 of the
    largest gradient of a parameter, over 100 roundings of 1.2e-7."""
    at = scene(dit, SWITCHES[name], length=11, window=window)
    made, steps = stepped(at, num_moves)
    target = torch.randn_like(made)
    made.requires_grad_()
    (gradient,) = torch.autograd.grad((made - target).square().mean(), made)
    got = gradients(at.dit, steps.parts(gradient))
    corruption = Corruption.of(at.settings.streaming, at.settings.seed)
    noised = (lambda _, keys: keys) if corruption is None else corruption.over(0, 11)

    def without_past(layer: int, keys: KeyValue) -> KeyValue:
        return noised(layer, (keys[0].detach(), keys[1].detach()))

    def velocity(x: Tensor, t: Tensor) -> Tensor:
        past = at.passes.keys()
        assert past is not None
        return at.dit(x, t, at.passes.joint, past=past.detach(), as_seen=without_past)

    whole = at.window(last_with_gradient(velocity, num_moves), num_moves=num_moves)
    expected = gradients(at.dit, iter([(whole - target).square().mean()]))
    assert got.keys() == expected.keys()
    for key, value in expected.items():
        assert (got[key] - value).abs().max() <= 1e-5 * value.abs().max(), key


def test_memory_of_gradients_by_blocks_is_that_of_one_block(dit: AvatarDiT) -> None:
    """Bytes that autograd keeps at once, largest over the pass; of a window they grow with it."""
    found = {}
    for num_blocks in (2, 4):
        at = scene(dit, Streaming(), length=2 + BLOCK * num_blocks, window=1)
        made, steps = stepped(at, 1)
        sizes = list(kept_by(steps.parts(torch.ones_like(made))))
        assert len(sizes) == 1 + num_blocks
        window = kept(lambda at=at: at.window(at.passes.velocity, num_moves=1).sum())
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
