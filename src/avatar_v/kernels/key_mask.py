"""Which keys each sample of a batch sees: for kernels that need no mask, and for those that do.

With a mask of b x keys FlashAttention cannot run, and hidden keys are multiplied. What is hidden is
known on the CPU before a network runs, since packing and dropout happen there; so a mask is made of
CPU tensors, and says which samples see the same keys, and which runs of keys. `attend` then gives
each of these groups its own keys alone, or packs all keys into one row. No device is waited for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

Run = tuple[int, int]
"""Keys from the first number on, up to the second without it."""


@dataclass(frozen=True)
class Group:
    """Samples that see the same keys: those of ``runs``, which neither touch nor overlap."""

    samples: tuple[int, ...]
    runs: tuple[Run, ...]

    @property
    def num_keys(self) -> int:
        return sum(stop - start for start, stop in self.runs)


class KeyPart(NamedTuple):
    """Keys that lie beside each other, ``num`` for each entry: tokens of a frame."""

    entries: Bool[Tensor, "b entries"]  # on the CPU; False: hidden
    num: int


@dataclass(frozen=True)
class KeyMask:
    """Keys that are seen, as a tensor on the device of the keys and as groups of samples.

    Inside a compiler there are no groups: the same graph serves all masks.
    """

    seen: Bool[Tensor, "b k"]
    groups: tuple[Group, ...] | None

    @classmethod
    def of(cls, *parts: KeyPart, device: torch.device | str = "cpu") -> "KeyMask":
        """The mask of ``parts``, one after another. ValueError for entries on a device, which the
        host would have to wait for."""
        for part in parts:
            if part.entries.device.type != "cpu":
                raise ValueError(
                    "what is hidden from attention is known on the CPU: expected a mask of frames "
                    f"or samples that lies there, got one on {part.entries.device}"
                )
        spread = [
            part.entries.to(device, non_blocking=True).repeat_interleave(part.num, dim=1)
            for part in parts
        ]
        groups = None if torch.compiler.is_compiling() else _groups(parts)
        return cls(torch.cat(spread, dim=1), groups)

    def last(self, num: int) -> "KeyMask":
        """The mask of the last ``num`` keys."""
        first = self.seen.shape[1] - num
        groups = self.groups
        if groups is not None:
            groups = tuple(Group(g.samples, _moved(g.runs, -first)) for g in groups)
        return KeyMask(self.seen[:, first:], groups)

    def behind(self, num: int) -> "KeyMask":
        """The mask of ``num`` keys that all see and, behind them, of these."""
        groups = self.groups
        if groups is not None and num > 0:
            groups = tuple(
                Group(g.samples, _merged([(0, num), *_moved(g.runs, num)])) for g in groups
            )
        own = self.seen.new_ones(self.seen.shape[0], num)
        return KeyMask(torch.cat([own, self.seen], dim=1), groups)


def build_mask(*parts: KeyPart, device: torch.device | str) -> KeyMask | None:
    """`KeyMask.of`, or None where nothing is hidden (not asked inside a compiler)."""
    if not torch.compiler.is_compiling() and all(bool(part.entries.all()) for part in parts):
        return None
    return KeyMask.of(*parts, device=device)


def _groups(parts: Sequence[KeyPart]) -> tuple[Group, ...]:
    sizes = [part.num for part in parts for _ in range(part.entries.shape[1])]
    samples: dict[tuple[bool, ...], list[int]] = {}
    for i, row in enumerate(torch.cat([part.entries for part in parts], dim=1).tolist()):
        samples.setdefault(tuple(row), []).append(i)
    return tuple(Group(tuple(found), _runs(row, sizes)) for row, found in samples.items())


def _runs(row: Sequence[bool], sizes: Sequence[int]) -> tuple[Run, ...]:
    runs, start = [], 0
    for is_seen, size in zip(row, sizes, strict=True):
        if is_seen:
            runs.append((start, start + size))
        start += size
    return _merged(runs)


def _moved(runs: Sequence[Run], by: int) -> tuple[Run, ...]:
    """The runs ``by`` keys later; what would lie before the first key is left out."""
    moved = ((max(start + by, 0), stop + by) for start, stop in runs)
    return tuple(run for run in moved if run[0] < run[1])


def _merged(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The same runs, those that touch being one."""
    merged: list[Run] = []
    for start, stop in runs:
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], stop)
        elif start < stop:
            merged.append((start, stop))
    return tuple(merged)
