"""What a search looks for: the scope, its shapes, how exact, what it is compared with, and budgets.

A specification is a file of YAML that may be another person's: it holds plain values within ranges,
names no code, and what is asked is checked before anything is started.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import torch

from avatar_v.base.outside import read_yaml
from avatar_v.base.stored import Within, built
from avatar_v.kernels import scopes, switch

Family = Literal["inductor", "cpp", "triton"]
ScopeName = Literal[
    "modulated_norm", "gated_add", "gated_add_norm", "add_layer_norm", "norm_rotate", "rotate",
    "norm_silu",
]  # fmt: skip
TEMPLATED = ("modulated_norm", "gated_add", "gated_add_norm")
"""Scopes that the grammar has templates in C++ and Triton of."""
MOST_BYTES = 1 << 30
"""Of the tensors that one process of a candidate is handed at a time."""


@dataclass(frozen=True)
class Shape:
    """Latent frames, tokens of each, heads and their channels, as kernels/scopes.py takes them."""

    frames: Annotated[int, Within(1, 256)]
    tokens: Annotated[int, Within(1, 16384)]
    heads: Annotated[int, Within(1, 64)]
    width: Annotated[int, Within(2, 256)]
    samples: Annotated[int, Within(1, 16)] = 1


@dataclass(frozen=True)
class Budget:
    """The search ends where the first of both is spent. Time counts over all its runs."""

    candidates: Annotated[int, Within(1, 10_000)]
    minutes: Annotated[float, Within(0.1, 10_080)]


@dataclass(frozen=True)
class Limits:
    """Of one candidate: wall time until its first result and of a later measurement, seconds of
    computing, MiB of memory, MiB of files, and processes."""

    build_s: Annotated[float, Within(1, 3600)] = 240.0
    window_s: Annotated[float, Within(0.1, 600)] = 20.0
    cpu_s: Annotated[int, Within(1, 36_000)] = 600
    memory_mb: Annotated[int, Within(512, 1 << 20)] = 6144
    files_mb: Annotated[int, Within(1, 65_536)] = 512
    processes: Annotated[int, Within(8, 4096)] = 128


@dataclass(frozen=True)
class Spec:
    """One search. A result may differ from the scope's own by ``absolute + relative · |its|``.

    ``calls`` go into one measurement, each with inputs of its own; ``pairs`` measurements of
    baseline and candidate in one start judge a candidate, ``final_pairs`` over several starts of
    both processes the winner. The clock is the wall's,
    or on a CPU that others load the time that the process computes, of all its threads together.
    """

    scope: ScopeName
    shape: Shape
    families: tuple[Family, ...]
    budget: Budget
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    baseline: Literal["eager", "inductor"] = "inductor"
    absolute: Annotated[float, Within(0, 0.05)] = 1e-5
    relative: Annotated[float, Within(0, 0.05)] = 1e-4
    islands: Annotated[int, Within(1, 16)] = 3
    per_generation: Annotated[int, Within(1, 64)] = 4
    migrate_every: Annotated[int, Within(1, 1000)] = 2
    calls: Annotated[int, Within(1, 256)] = 8
    pairs: Annotated[int, Within(6, 1000)] = 15
    final_pairs: Annotated[int, Within(6, 10_000)] = 60
    threads: Annotated[int, Within(1, 256)] = 1
    clock: Literal["wall", "computing"] = "wall"
    seed: Annotated[int, Within(0, 2**53)] = 0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not self.families or len(set(self.families)) != len(self.families):
            raise ValueError(f"families: expected some, each once, got {list(self.families)}")
        if self.absolute + self.relative == 0:
            raise ValueError("absolute and relative are both 0; orders of summing differ")
        for family in {"cpp", "triton"} & set(self.families):
            if self.scope not in TEMPLATED:
                known = ", ".join(TEMPLATED)
                raise ValueError(f"families: {family} has templates of {known}, not {self.scope}")
        if "inductor" in self.families and self.device != "cpu":
            raise ValueError("families: the choices of inductor are those of a cpu")
        if "cpp" in self.families and (self.dtype, self.device) != ("float32", "cpu"):
            raise ValueError(f"families: cpp is float32 on a cpu, not {self.dtype}, {self.device}")
        if "triton" in self.families and not switch.HAS_TRITON:
            raise ValueError("families: triton needs the package triton")
        if (self.device, self.clock) == ("cuda", "computing"):
            raise ValueError("clock: a GPU's time is the wall's")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device: there is no cuda here")
        size = self.shape
        numel = size.samples * size.frames * size.tokens * size.heads * size.width
        if 24 * numel * self.calls > MOST_BYTES:  # five tensors at most, and small ones
            raise ValueError(
                f"shape and calls: {24 * numel * self.calls / 2**20:,.0f} MiB of inputs and results"
                f" at a time, of {MOST_BYTES >> 20:,} at most"
            )

    def size(self) -> scopes.Size:
        """For kernels/scopes.py; the tensors themselves lie in the memory that is shared."""
        shape = self.shape
        dtype = torch.float32 if self.dtype == "float32" else torch.bfloat16
        return scopes.Size(
            shape.frames, shape.tokens, shape.heads, shape.width, dtype, samples=shape.samples
        )


def read_spec(path: str | Path) -> Spec:
    """ValueError, in one line, for a file that is no specification."""
    values = read_yaml(path, "specification of a search")
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected keys and values, got a {type(values).__name__}")
    return built(Spec, values, where=path, sparse=True)


def bytes_of(tensors: list[torch.Tensor]) -> int:
    """Of all, each at a multiple of 64."""
    return sum(math.ceil(x.numel() * x.element_size() / 64) * 64 for x in tensors)
