"""Attention modules of a block: self-attention with reference keys, and cross-attention.

Sparse Reference Attention (Avatar V §2.1): generated tokens attend to themselves and to all valid
reference tokens, reference tokens to their own segment alone. Both streams call the same module;
which keys a stream is given makes the difference, so no generated x reference mask exists.
Attention that is local in time or causal is made the same way: each block of frames is given the
keys that it may see (`Pattern`).

Between the projections stands a *core*: queries, keys and values of one stream in, outputs out.
`attend_self` is the core of one device; parallel/sequence.py has those of several.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.kernels.attention import QueryBlock, attend, attend_blocks, frames_seen
from avatar_v.kernels.key_mask import KeyMask
from avatar_v.kernels.norm import norm_rotate, rotate
from avatar_v.models.layers import RMSNorm, compute_dtype

Heads = Float[Tensor, "b s heads width"]
KeyValue = tuple[Float[Tensor, "b k heads width"], Float[Tensor, "b k heads width"]]
AsSeen = Callable[[KeyValue], KeyValue]
"""How later blocks see the keys and values of a run of frames, keys not rotated."""
ExtraKeyValue = tuple[Float[Tensor, "b extra heads width"], Float[Tensor, "b extra heads width"]]
ContextKeyValue = tuple[Float[Tensor, "_b _n _heads _width"], Float[Tensor, "_b _n _heads _width"]]
"""Of what cross-attention reads: text, or the sound of each latent frame."""


@dataclass(frozen=True)
class Pattern:
    """Which latent frames see which. Frames form blocks of ``block`` (the last may be shorter, the
    first has ``first``); a block sees itself, ``before`` blocks before it and ``after`` behind it
    (None: all of them), and the first ``sink`` frames. Keys from a cache are seen by all.
    """

    block: int = 1
    before: int | None = None
    after: int | None = None
    sink: int = 0
    first: int | None = None  # None: as long as the others

    def __post_init__(self) -> None:
        for name, least in {"block": 1, "before": 0, "after": 0, "sink": 0, "first": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is at least {least}, got {value}")

    @classmethod
    def causal(
        cls, block: int, window: int | None = None, *, sink: int = 0, first: int | None = None
    ) -> "Pattern":
        """Blocks that see themselves, ``window`` blocks before them and the first ``sink`` frames
        (Live Avatar's block-causal mask)."""
        return cls(block, before=window, after=0, sink=sink, first=first)

    @classmethod
    def local(cls, window: int) -> "Pattern":
        """Frames that see those at most ``window`` away."""
        return cls(1, before=window, after=window)

    def runs(self, num_frames: int) -> list[tuple[int, int]]:
        """Where the blocks of so many frames begin and end."""
        first = self.block if self.first is None else self.first
        edges = [0, *range(first, num_frames, self.block), num_frames]
        return list(pairwise(edges))

    def blocks(self, num_frames: int, *, apart: bool = False) -> list[QueryBlock]:
        """The blocks of so many frames, with what each one sees. With ``apart`` the keys of all
        frames come twice: first as later blocks see them, then as their own block does."""
        found, runs = [], self.runs(num_frames)
        for i, (start, stop) in enumerate(runs):
            first = 0
            if self.before is not None:  # as far as from a block behind many whole ones
                first = max(runs[max(i - self.before, 0)][0], start - self.before * self.block)
            last = len(runs) - 1 if self.after is None else min(i + self.after, len(runs) - 1)
            seen = ((0, min(self.sink, first)), (first, runs[last][1]))
            if apart:
                assert self.after == 0, "a causal pattern"
                own = (num_frames + start, num_frames + stop)
                seen = ((0, min(self.sink, first)), (first, start), own)
            found.append(QueryBlock((start, stop), tuple(run for run in seen if run[0] < run[1])))
        return found

    def blocks_beside(self, num_frames: int) -> list[QueryBlock]:
        """The same for tokens beside the video, of each other: in a causal pattern those of their
        own block, since a cache holds the video's keys alone."""
        if self.after != 0:
            return self.blocks(num_frames)
        return [QueryBlock(run, (run,)) for run in self.runs(num_frames)]


@dataclass(frozen=True)
class Blocked:
    """A pattern over the frames of one stream. Extra keys are seen from everywhere."""

    pattern: Pattern
    num_frames: int
    as_seen: AsSeen | None = None  # None: as their own block sees them

    def video_keys(
        self,
        key: Heads,
        value: Heads,
        rotary: Float[Tensor, "*positions 1 half 2"],
        rotated: Heads | None = None,
    ) -> tuple[Float[Tensor, "b frames n heads width"], Float[Tensor, "b frames n heads width"]]:
        """Rotated keys and values by frames, in the order of `Pattern.blocks`. ``rotated``: the
        keys, if somebody has rotated them."""
        pairs = [(rotate(key, rotary) if rotated is None else rotated, value)]
        if self.as_seen is not None:
            seen_key, seen_value = self.as_seen((key, value))
            pairs.insert(0, (rotate(seen_key, rotary), seen_value))
        keys, values = zip(
            *((k.unflatten(1, (self.num_frames, -1)), v.unflatten(1, (self.num_frames, -1)))
              for k, v in pairs), strict=True,
        )  # fmt: skip
        if len(pairs) == 1:
            return keys[0], values[0]
        return torch.cat(keys, dim=1), torch.cat(values, dim=1)


class ExtraKV(NamedTuple):
    """Keys and values of another stream that x may look at, and the table that rotates the keys.
    With a pattern it has as many frames as x, which are seen alike."""

    key: Float[Tensor, "b k heads width"]
    value: Float[Tensor, "b k heads width"]
    rotary: Float[Tensor, "*positions 1 half 2"]


@runtime_checkable
class Core(Protocol):
    """Self-attention between its projections; see `attend_self`."""

    def __call__(
        self,
        query: Heads,
        key: Heads,
        value: Heads,
        rotary: Float[Tensor, "*positions 1 half 2"],
        *,
        beside: ExtraKV | None = None,
        extra: ExtraKeyValue | None = None,
        key_mask: KeyMask | None = None,
        blocked: Blocked | None = None,
    ) -> tuple[Heads, KeyValue]: ...


class SendingCore(ABC):
    """A core that is given each projection as soon as it is computed: it is called, as a `Core` is,
    with what `send` made of queries, keys and values, in this order."""

    @abstractmethod
    def send(self, x: Heads) -> Any: ...

    @abstractmethod
    def __call__(self, query: Any, key: Any, value: Any, *args: Any, **named: Any) -> Any: ...


def attend_self(
    query: Heads,
    key: Heads,
    value: Heads,
    rotary: Float[Tensor, "*positions 1 half 2"],
    *,
    beside: ExtraKV | None = None,
    extra: ExtraKeyValue | None = None,
    key_mask: KeyMask | None = None,
    blocked: Blocked | None = None,
) -> tuple[Heads, KeyValue]:
    """Attention of a stream over itself and, after it, over the keys ``beside`` and ``extra``.

    Queries and keys are rotated here, ``extra`` keys are rotated already. ``key_mask`` covers the
    three, one after another. With ``blocked`` the stream and ``beside`` are seen by its pattern,
    and of the mask only the part of ``extra`` counts. Also returns the keys and values that a cache
    keeps of the stream, unrotated.
    """
    rotated, own = (rotate(query, rotary), rotate(key, rotary)), (key, value)
    return attend_rotated(rotated, own, rotary, beside, extra, key_mask, blocked), own


def attend_rotated(
    rotated: tuple[Heads, Heads],
    own: KeyValue,
    rotary: Float[Tensor, "*positions 1 half 2"],
    beside: ExtraKV | None,
    extra: ExtraKeyValue | None,
    key_mask: KeyMask | None,
    blocked: Blocked | None,
) -> Heads:
    """`attend_self` of queries and keys that are ``rotated``; ``own`` are not."""
    (query, keys), (_, values) = rotated, own
    if blocked is not None:
        return _attend_blocked(rotated, own, rotary, blocked, beside, extra, key_mask)
    near = None if beside is None else (rotate(beside.key, beside.rotary), beside.value)
    others = [pair for pair in (near, extra) if pair is not None]
    if others:
        keys = torch.cat([keys, *(pair[0] for pair in others)], dim=1)
        values = torch.cat([values, *(pair[1] for pair in others)], dim=1)
    return attend(query, keys, values, key_mask)


class Attention(nn.Module):
    """Projections of one attention: q and k are RMS-normalised over the whole width (Wan)."""

    def __init__(self, dim: int, num_heads: int, eps: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)
        self.query_norm = RMSNorm(dim, eps)
        self.key_norm = RMSNorm(dim, eps)

    def project_query(self, x: Float[Tensor, "b s d"]) -> Heads:
        """Queries, normalised but not rotated."""
        return self._split(self.query_norm(self.query(x)))

    def project_keys(self, x: Float[Tensor, "b s d"]) -> tuple[Heads, Heads]:
        """Keys, normalised but not rotated, and values."""
        return self._split(self.key_norm(self.key(x))), self._split(self.value(x))

    def merge(self, x: Heads) -> Float[Tensor, "b s d"]:
        return self.out(rearrange(x, "b s h w -> b s (h w)"))

    def _split(self, x: Float[Tensor, "b s d"]) -> Heads:
        return rearrange(x, "b s (h w) -> b s h w", h=self.num_heads)


class SelfAttention(Attention):
    def forward(
        self,
        x: Float[Tensor, "b s d"],
        rotary: Float[Tensor, "*positions 1 half 2"],
        *,
        core: Core = attend_self,
        beside: ExtraKV | None = None,
        extra: ExtraKeyValue | None = None,
        key_mask: KeyMask | None = None,
        blocked: Blocked | None = None,
    ) -> tuple[Float[Tensor, "b s d"], KeyValue]:
        """Attention of x over itself and what ``core`` is given besides; the arguments and the
        second result are those of `attend_self`."""
        x = x.to(compute_dtype(x, self.query.weight))
        if core is attend_self:  # norm and rotation in one pass over memory
            rotated, own = self._project_rotated(x, rotary)
            y = attend_rotated(rotated, own, rotary, beside, extra, key_mask, blocked)
            return self.merge(y), own
        send = core.send if isinstance(core, SendingCore) else _as_it_is
        query = send(self.project_query(x))  # a rotation of queries and keys waits not for values
        key = send(self._split(self.key_norm(self.key(x))))
        value = send(self._split(self.value(x)))
        y, kept = core(
            query, key, value, rotary,
            beside=beside, extra=extra, key_mask=key_mask, blocked=blocked,
        )  # fmt: skip
        return self.merge(y), kept

    def _project_rotated(
        self, x: Float[Tensor, "b s d"], rotary: Float[Tensor, "*positions 1 half 2"]
    ) -> tuple[tuple[Heads, Heads], KeyValue]:
        """Rotated queries and keys, and the keys as they were before, with their values."""
        (query, _), (rotated, key) = (
            norm_rotate(linear(x), norm.weight, rotary, norm.eps, keep=linear is self.key)
            for linear, norm in ((self.query, self.query_norm), (self.key, self.key_norm))
        )
        assert key is not None, "asked for"
        return (query, rotated), (key, self._split(self.value(x)))


def _as_it_is(x: Heads) -> Heads:
    return x


class CrossAttention(Attention):
    def forward(
        self, x: Float[Tensor, "b s d"], context: Float[Tensor, "b n d"] | ContextKeyValue
    ) -> Float[Tensor, "b s d"]:
        """``context``: tokens, or their keys and values."""
        query = self.project_query(x.to(compute_dtype(x, self.query.weight)))
        key, value = self.project_keys(context) if isinstance(context, Tensor) else context
        return self.merge(attend(query, key, value))


def _attend_blocked(
    rotated: tuple[Heads, Heads],
    own: KeyValue,
    rotary: Float[Tensor, "*positions 1 half 2"],
    blocked: Blocked,
    beside: ExtraKV | None,
    extra: ExtraKeyValue | None,
    key_mask: KeyMask | None,
) -> Heads:
    (query, keys), num, pattern = rotated, blocked.num_frames, blocked.pattern
    seen = pattern.blocks(num, apart=blocked.as_seen is not None)
    mask = mask_of_extra(key_mask, extra)
    if beside is None:
        return attend_blocks(query, *blocked.video_keys(*own, rotary, keys), seen, extra, mask)
    keys, values = (x.unflatten(1, (num, -1)) for x in (keys, own[1]))
    near = blocked.video_keys(*beside)
    outputs, queries = [], query.unflatten(1, (num, -1))
    for rows, block in zip(pattern.blocks_beside(num), seen, strict=True):
        parts = [tuple(frames_seen(x, rows) for x in (keys, values))]
        parts.append(tuple(frames_seen(x, block) for x in near))
        parts += [] if extra is None else [extra]
        key, value = (torch.cat(x, dim=1) for x in zip(*parts, strict=True))
        before = sum(part[0].shape[1] for part in parts[:2])
        hidden = None if mask is None else mask.behind(before)
        outputs.append(attend(queries[:, slice(*rows.frames)].flatten(1, 2), key, value, hidden))
    return torch.cat(outputs, dim=1)


def mask_of_extra(key_mask: KeyMask | None, extra: ExtraKeyValue | None) -> KeyMask | None:
    """The last part of a mask of all keys."""
    if extra is None or key_mask is None:
        return None
    return key_mask.last(extra[0].shape[1])
