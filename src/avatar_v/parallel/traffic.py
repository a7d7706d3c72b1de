"""What the ranks of a sequence group send to each other, counted in any collective that sequence
parallelism (sequence.py) calls."""

from typing import Any

import torch.distributed as dist
from torch._ops import OpOverload


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
