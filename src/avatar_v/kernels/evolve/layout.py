"""Where inputs and results of a scope lie in the memory that two processes share."""

import mmap
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from avatar_v.kernels import scopes, switch
from avatar_v.kernels.evolve.spec import Spec, bytes_of

Slot = tuple[list[Tensor], list[Tensor]]
"""Inputs of one call, and its results."""


def scope_of(spec: Spec) -> tuple[Callable[..., Any], list[Tensor], list[Tensor]]:
    """The scope's function, and tensors of the shapes that it takes and gives."""
    function, given = scopes.scopes(spec.size())[spec.scope]
    with switch.using("plain"):
        return function, list(given), scopes.tensors_of(function(*given))


def num_bytes(spec: Spec, given: list[Tensor], results: list[Tensor]) -> int:
    """Of all calls of a measurement."""
    return spec.calls * bytes_of([*given, *results])


def slots(spec: Spec, memory: mmap.mmap, given: list[Tensor], results: list[Tensor]) -> list[Slot]:
    """Views of the memory, one slot a call, each tensor in the order of axes of its pattern."""
    found, place = [], 0
    for _ in range(spec.calls):
        views = []
        for pattern in (*given, *results):
            flat = torch.frombuffer(memory, dtype=pattern.dtype, count=pattern.numel(),
                                    offset=place)  # fmt: skip
            stride = torch.empty_like(pattern, device="meta").stride()
            views.append(flat.as_strided(pattern.shape, stride))
            place += bytes_of([pattern])
        found.append((views[: len(given)], views[len(given) :]))
    return found
