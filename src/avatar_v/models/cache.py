"""Keys and values of latent frames, kept for tokens that attend to them later: one cache for all.

The reference of a request is such a cache, and so is what a causal student has made so far
(Avatar V §4.3, Live Avatar). Keys are stored as they were before rotation, beside the temporal
positions of their frames: they are rotated when they are read, so a position can change while a key
stays (`shifted`: the rolling RoPE of Live Avatar, which moves old frames along with the stream).
Frames lie in order: first those that condition everything (the reference), which `evict` never
drops and Cond.reference_keep hides; behind them the ``num_stream`` frames of a stream.

A cache is a value: every operation gives a new one. It holds no statistics and no pictures.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from avatar_v.kernels.norm import rotate
from avatar_v.models.attention import KeyValue
from avatar_v.models.layers import rotary_table


@dataclass(frozen=True)
class KeyValueCache:
    """K and V of every layer, "b (f n) heads width": f latent frames of n tokens each."""

    layers: tuple[KeyValue, ...]
    position: Shaped[Tensor, "b f"]  # temporal, whole numbers or not; the new frames' axis
    mask: Bool[Tensor, "b f"] | None
    """False: padding, never attended to; None: there is none. On the CPU wherever the keys are."""
    grid: tuple[int, int]  # n = y times x
    num_stream: int = 0  # an int that all references share: a compiler makes one graph for them
    is_rotated: bool = False  # keys are stored as `position` rotates them

    @property
    def num_samples(self) -> int:
        return self.position.shape[0]

    @property
    def num_frames(self) -> int:
        """Frames of the longest sample; ``mask`` says which are there."""
        return self.position.shape[1]

    @property
    def num_context(self) -> int:
        """Frames in front of the stream."""
        return self.num_frames - self.num_stream

    def append(self, other: "KeyValueCache") -> "KeyValueCache":
        """This cache and, behind it, the frames of ``other`` at the positions that they have.

        ValueError for another number of samples, another grid, keys of which only one part is
        rotated, and context behind a stream.
        """
        sizes = [(cache.num_samples, cache.grid) for cache in (self, other)]
        if sizes[0] != sizes[1]:
            raise ValueError(f"caches to join have one number of samples and one grid, got {sizes}")
        if self.is_rotated != other.is_rotated:
            raise ValueError("caches to join are both rotated or both not: got one of each")
        if self.num_stream and other.num_context:
            raise ValueError("context lies in front of the stream: it cannot be appended to one")
        mask = None
        if self.mask is not None or other.mask is not None:
            mask = torch.cat([self._whole_mask(), other._whole_mask()], dim=1)
        return dataclasses.replace(
            self,
            layers=tuple(
                (torch.cat([a[0], b[0]], dim=1), torch.cat([a[1], b[1]], dim=1))
                for a, b in zip(self.layers, other.layers, strict=True)
            ),
            position=torch.cat([self.position, other.position], dim=1),
            mask=mask,
            num_stream=self.num_stream + other.num_stream,
        )

    def evict(self, window: int, *, sink: int = 0) -> "KeyValueCache":
        """At most ``sink`` + ``window`` frames of the stream: its first and its last ones."""
        first = self.num_context + sink
        last = self.num_frames - window
        if last <= first:
            return self
        return self.frames(slice(first)).append(self.frames(slice(last, None)))

    def frames(self, which: slice) -> "KeyValueCache":
        """A run of the frames, without a copy."""
        start, stop, step = which.indices(self.num_frames)
        if step != 1:
            raise ValueError(f"frames are taken in runs, got a step of {step}")
        n = self.grid[0] * self.grid[1]
        tokens = slice(n * start, n * stop)
        return dataclasses.replace(
            self,
            layers=tuple((key[:, tokens], value[:, tokens]) for key, value in self.layers),
            position=self.position[:, start:stop],
            mask=None if self.mask is None else self.mask[:, start:stop],
            num_stream=max(stop - max(start, self.num_context), 0),
        )

    def shifted(self, by: int | float, which: slice = slice(None)) -> "KeyValueCache":
        """The same frames, those of ``which`` at positions ``by`` later. ValueError for keys that
        are rotated already."""
        if self.is_rotated:
            raise ValueError("rotated keys cannot be shifted: shift them before they are rotated")
        moved = torch.zeros_like(self.position, dtype=torch.tensor(by).dtype)
        moved[:, which] = by
        return dataclasses.replace(self, position=self.position + moved)

    def rotated(self) -> "KeyValueCache":
        """The same cache with its keys rotated once, for passes that all read it at the same
        positions: the same output, a rotation of every key less in each."""
        if self.is_rotated:
            return self
        rotary = self.rotary()
        layers = tuple(self.read(i, rotary) for i in range(len(self.layers)))
        return dataclasses.replace(self, layers=layers, is_rotated=True)

    def rotary(self) -> Float[Tensor, "b k 1 half 2"] | None:
        """The table by which `read` rotates keys; None where they are rotated."""
        if self.is_rotated:
            return None
        return rotary_table(self.position, *self.grid, self.layers[0][0].shape[-1])

    def read(self, layer: int, rotary: Float[Tensor, "b k 1 half 2"] | None) -> KeyValue:
        """Rotated keys and values of one layer."""
        key, value = self.layers[layer]
        return (key if rotary is None else rotate(key, rotary)), value

    def seen_frames(self, keep: Bool[Tensor, "b"] | None = None) -> Bool[Tensor, "b f"] | None:
        """Which frames may be attended to (None: all), on the CPU. ``keep`` False hides a sample's
        context."""
        if keep is None:
            return self.mask
        is_stream = torch.arange(self.num_frames) >= self.num_context
        return self._whole_mask() & (keep[:, None] | is_stream)

    def expand(self, num_samples: int) -> "KeyValueCache":
        """A cache of one sample, shared without a copy by ``num_samples``."""
        if self.num_samples == num_samples:
            return self
        if self.num_samples != 1:
            raise ValueError(
                f"a cache of {self.num_samples} samples cannot serve a batch of {num_samples}"
            )
        return self.map(lambda x: x.expand(num_samples, *x.shape[1:]))

    def repeat(self, num: int) -> "KeyValueCache":
        """The samples ``num`` times over, for as many passes in one batch."""
        if self.num_samples == 1:
            return self.expand(num)
        return self.map(lambda x: x.repeat(num, *[1] * (x.dim() - 1)))

    def map(self, fn: Callable[[Tensor], Tensor]) -> "KeyValueCache":
        """The same cache with ``fn`` applied to every tensor (as in types.py)."""
        return dataclasses.replace(
            self,
            layers=tuple((fn(key), fn(value)) for key, value in self.layers),
            position=fn(self.position),
            mask=None if self.mask is None else fn(self.mask),
        )

    def to(self, device: torch.device | str) -> "KeyValueCache":
        moved = self.map(lambda x: x.to(device, non_blocking=True))
        return dataclasses.replace(moved, mask=self.mask)

    def detach(self) -> "KeyValueCache":
        return self.map(torch.detach)

    def _whole_mask(self) -> Bool[Tensor, "b f"]:
        if self.mask is not None:
            return self.mask
        return torch.ones(self.position.shape, dtype=torch.bool)
