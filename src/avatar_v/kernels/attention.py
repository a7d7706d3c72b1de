"""The fast path of attention (`attend`); the tests hold its specification (naive_attention.py).

Layout is "b token head width" on both sides of the call. The fast path knows only which keys each
sample sees (kernels/key_mask.py); block structure is expressed by *which* keys a query is given,
never by a q x k mask. Its kernels are those of kernels/backends.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from avatar_v.kernels import backends
from avatar_v.kernels.key_mask import KeyMask


@dataclass(frozen=True)
class QueryBlock:
    """A run of frames and the runs of frames that it sees, each (start, stop)."""

    frames: tuple[int, int]
    seen: tuple[tuple[int, int], ...]


def attend(
    query: Float[Tensor, "b q heads width"],
    key: Float[Tensor, "b k heads width"],
    value: Float[Tensor, "b k heads width"],
    key_mask: KeyMask | None = None,
) -> Float[Tensor, "b q heads width"]:
    """softmax(q kᵀ / √width) v over the keys that each sample sees. Softmax statistics are fp32.

    Every sample sees at least one key. Where a mask has groups, hidden keys are neither read nor
    multiplied. The kernel is the one that is named, or the fastest (`backends.chosen`): on a CPU
    PyTorch's SDPA, except for short bf16 sequences, where two batched products take a third of its
    time (forward and backward of 24 x 4 x 208 tokens on one AVX512-BF16 core: 24 against 67 ms) and
    the scores that enter the softmax are rounded to bf16.
    """
    name = backends.chosen(query, key, value, key_mask)
    return backends.run(name, query, key, value, key_mask)


def attend_blocks(
    query: Float[Tensor, "b q heads width"],
    key: Float[Tensor, "b l m heads width"],
    value: Float[Tensor, "b l m heads width"],
    blocks: Sequence[QueryBlock],
    extra: tuple[Tensor, Tensor] | None = None,
    extra_mask: KeyMask | None = None,
) -> Float[Tensor, "b q heads width"]:
    """`attend` from each block of the l frames (q / l queries a frame) to the keys of the frames
    that it sees, and to the ``extra`` keys "b e heads width" that ``extra_mask`` lets it see.

    One call a block: keys that a block may not see are never multiplied, so the cost of a window
    is linear in l. ``blocks`` cover all frames of the queries in order; there may be more of keys.
    """
    queries, outputs = query.unflatten(1, (blocks[-1].frames[1], -1)), []
    for block in blocks:
        own = queries[:, slice(*block.frames)].flatten(1, 2)
        keys, values, mask = frames_seen(key, block), frames_seen(value, block), None
        if extra is not None:
            if extra_mask is not None:
                mask = extra_mask.behind(keys.shape[1])
            keys = torch.cat([keys, extra[0]], dim=1)
            values = torch.cat([values, extra[1]], dim=1)
        outputs.append(attend(own, keys, values, mask))
    return torch.cat(outputs, dim=1)


def frames_seen(
    x: Float[Tensor, "b l m heads width"], block: QueryBlock
) -> Float[Tensor, "b k heads width"]:
    """Of the keys or values of all frames those that ``block`` sees."""
    runs = [x[:, slice(*run)] for run in block.seen]
    return (runs[0] if len(runs) == 1 else torch.cat(runs, dim=1)).flatten(1, 2)
