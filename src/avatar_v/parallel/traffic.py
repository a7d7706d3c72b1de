"""What the ranks of a sequence group send to each other, by a rule and as it is counted.

The rule is of one self-attention (parallel/sequence.py); the count is of any collective that
sequence parallelism calls.
"""

from typing import Any

import torch.distributed as dist
from torch._ops import OpOverload

from avatar_v.parallel.sequence import degrees


def attention_elements(num_heads: int, num_ranks: int, elements: int) -> tuple[int, int]:
    """Elements that one rank sends in the forward pass of a self-attention: in the two exchanges of
    Ulysses, and round the ring.

    ``elements`` is the size of the whole video's queries, b · s · heads · width, with padding. With
    a Ulysses degree of U and a ring of R on P ranks they are 4 (U - 1) / (U P) and 2 (R - 1) / P of
    it: 4 (P - 1) / P² where there is no ring. Keys of a reference are not sent.
    """
    ulysses, ring = degrees(num_heads, num_ranks)
    exchanged = 4 * (ulysses - 1) * elements // (ulysses * num_ranks)
    return exchanged, 2 * (ring - 1) * elements // num_ranks


def sent_elements(func: OpOverload, args: tuple[Any, ...]) -> int:
    """Elements that this rank gives to others by the operator ``func``; 0 for one that is no
    collective. ValueError for a collective that sequence parallelism does not call."""
    if func.namespace != "c10d":
        return 0
    if func.name() != "c10d::alltoall_base_":
        raise ValueError(f"a collective that nobody counts: {func.name()}")
    _, x, boxed, _, splits = args[:5]
    group = dist.ProcessGroup.unbox(boxed)
    share = x.numel() // group.size()
    splits = splits or [share] * group.size()
    return sum(n for i, n in enumerate(splits) if i != group.rank())
