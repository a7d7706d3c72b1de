"""Kernels of attention: which of them this machine has, which one a call takes, and the calls.

| name | kernel | keys hidden from some samples |
|---|---|---|
| flash | the package flash-attn 3 or 2 | packed into one row, no mask |
| varlen | torch's own FlashAttention of packed rows | packed into one row, no mask |
| sdpa | torch's scaled_dot_product_attention | a call for each group of samples |
| flex | torch's flex_attention, compiled | skipped by blocks of 128 |
| products | two matrix products with the scores in memory | a call for each group of samples |

All compute softmax(q kᵀ / √width) v, layout "b token heads width". `kernels/attention.py` has the
specification. The environment's AVATAR_V_ATTENTION, or `using`, names the one that every call has
to take.
"""

import contextlib
import functools
import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from avatar_v.kernels.key_mask import Group, KeyMask

Heads = Float[Tensor, "b q heads width"]
Keys = Float[Tensor, "b k heads width"]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

VARIABLE = "AVATAR_V_ATTENTION"
NAMES = ("flash", "varlen", "sdpa", "flex", "products")
Kernel = Callable[..., Tensor | tuple[Tensor, ...]]
HALF = (torch.bfloat16, torch.float16)
MAX_SCORES = 2**20
"""Queries times keys up to which ``products`` is chosen."""
MAX_WIDTH = 256
"""Of a head in FlashAttention."""

_named: str | None = os.environ.get(VARIABLE) or None


@contextlib.contextmanager
def using(name: str) -> Iterator[None]:
    """Within the block every call takes the backend ``name``, whatever the environment says."""
    global _named
    before, _named = _named, name
    try:
        yield
    finally:
        _named = before


def check_named(device: torch.device) -> None:
    """ValueError for a name in AVATAR_V_ATTENTION that is unknown or cannot run on ``device``."""
    if _named is None:
        return
    if _named not in NAMES:
        raise ValueError(f"{VARIABLE} is one of {', '.join(NAMES)}, got {_named}")
    lacks = lacking(_named, device)
    if lacks is not None:
        there = ", ".join(name for name in NAMES if lacking(name, device) is None)
        raise ValueError(f"{VARIABLE} is {_named}, which needs {lacks}; here run {there}")


def told(device: torch.device) -> str:
    """Which backends there are on ``device``, and which of them are used, in words."""
    there = ", ".join(name for name in NAMES if lacking(name, device) is None)
    if _named is not None:
        return f"{there}; {VARIABLE} asks for {_named}"
    if device.type == "cpu":
        return f"{there}; used: products for short bf16, else sdpa"
    if device.type == "cuda" and lacking("flash", device) is None:
        return f"{there}; used: flash in bf16 and fp16, else sdpa"
    if device.type == "cuda" and lacking("varlen", device) is None:
        return f"{there}; used: varlen where samples see different keys in bf16 and fp16, else sdpa"
    return f"{there}; used: sdpa"


@functools.cache
def lacking(name: str, device: torch.device) -> str | None:
    """What there has to be for a backend to run on ``device``; None: it runs."""
    if name in ("sdpa", "products"):
        return None
    if device.type != "cuda":
        return "a CUDA device"
    if name == "flex":
        has_triton = importlib.util.find_spec("triton") is not None
        return None if has_triton else "triton, which torch's builds for CUDA bring"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "a GPU of compute capability 8.0 or later (A100, RTX 30)"
    if name == "flash":
        found = _flash_module(device)
        return None if found is not None else "flash-attn: pip install 'avatar_v[cuda]'"
    if not torch.backends.cuda.is_flash_attention_available():
        return "a torch that is built with FlashAttention"
    return None


def chosen(query: Heads, key: Keys, value: Keys, mask: KeyMask | None) -> str:
    """The backend of a call: the one that is named, else the fastest that fits.

    ValueError for a named one that cannot run here, or not with these tensors.
    """
    if _named is not None:
        check_named(query.device)
        refusal = _refusal(_named, query, key, value, mask)
        if refusal is not None:
            raise ValueError(f"{VARIABLE} is {_named}, which {refusal}")
        return _named
    if query.device.type == "cpu":
        is_short = query.shape[1] * key.shape[1] <= MAX_SCORES
        return "products" if query.dtype == torch.bfloat16 and is_short else "sdpa"
    if query.device.type != "cuda" or torch.compiler.is_compiling():
        return "sdpa"
    is_ragged = mask is not None and mask.groups is not None and len(mask.groups) > 1
    for name in ("flash", "varlen") if is_ragged else ("flash",):
        fits = lacking(name, query.device) is None
        if fits and _refusal(name, query, key, value, mask) is None:
            return name
    return "sdpa"  # whose kernels of GPUs are torch's own FlashAttention first of all


def run(name: str, query: Heads, key: Keys, value: Keys, mask: KeyMask | None) -> Heads:
    """`attend` by the backend ``name``."""
    assert mask is None or mask.groups is None or mask.seen.shape[1] == key.shape[1]
    if name in ("flash", "varlen"):
        return _packed(name, query, key, value, mask)
    if name == "flex":
        return _flex(query, key, value, mask)
    attend = attend_sdpa if name == "sdpa" else attend_products
    if mask is None:
        return attend(query, key, value)
    if mask.groups is None:
        return attend(query, key, value, mask.seen)
    return _by_groups(attend, query, key, value, mask.groups)


def attend_products(
    query: Heads, key: Keys, value: Keys, seen: Bool[Tensor, "b k"] | None = None
) -> Heads:
    """With q x k scores in memory, rounded to the dtype of the query; the softmax sums them in
    fp32."""
    num_samples = query.shape[0]
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
    scores = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)).unflatten(0, (num_samples, -1))
    if seen is not None:
        scores = scores.masked_fill(~seen[:, None, None, :], float("-inf"))
    out = torch.bmm(scores.softmax(-1).flatten(0, 1), v)
    return out.unflatten(0, (num_samples, -1)).transpose(1, 2)


def attend_sdpa(
    query: Heads, key: Keys, value: Keys, seen: Bool[Tensor, "b k"] | None = None
) -> Heads:
    mask = None if seen is None else seen[:, None, None, :]
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)


def _refusal(
    name: str, query: Tensor, key: Tensor, value: Tensor, mask: KeyMask | None
) -> str | None:
    """Why a backend does not take these tensors."""
    if name not in ("flash", "varlen"):
        return None
    dtypes = {x.dtype for x in (query, key, value)}
    if len(dtypes) > 1 or query.dtype not in HALF:
        found = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        return f"computes in bfloat16 or float16 alone, got {found}"
    if query.shape[-1] > MAX_WIDTH or query.shape[-1] % 8:
        return f"takes heads of 8, 16, … {MAX_WIDTH} channels, got {query.shape[-1]}"
    if mask is not None and mask.groups is None:
        return "takes no mask inside a compiler"
    return None


def _by_groups(
    attend: Attend, query: Heads, key: Keys, value: Keys, groups: Sequence[Group]
) -> Heads:
    """Each group with the keys that it sees; nobody reads or multiplies the others."""
    outputs = []
    for group in groups:
        keys, values = (
            _joined(
                [_select_samples(x[:, slice(*run)], group.samples) for run in group.runs], dim=1
            )
            for x in (key, value)
        )
        outputs.append(attend(_select_samples(query, group.samples), keys, values))
    order = [sample for group in groups for sample in group.samples]
    return _select_samples(
        _joined(outputs, dim=0), sorted(range(len(order)), key=order.__getitem__)
    )


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=dim)


def _select_samples(
    x: Float[Tensor, "b *rest"], samples: Sequence[int]
) -> Float[Tensor, "some *rest"]:
    """Some samples: a view where they are neighbours. (Indices would have to be moved.)"""
    first, num = samples[0], len(samples)
    if list(samples) == list(range(first, first + num)):
        return x[first : first + num]
    return torch.stack([x[i] for i in samples])


@dataclass(frozen=True)
class Packing:
    """Where the keys that are seen lie, of all samples one after another."""

    index: Int[Tensor, " keys"] | None  # into the flat (b k); None: all of them
    query_starts: Int[Tensor, " b_1"]  # int32, with the end of the last sample
    key_starts: Int[Tensor, " b_1"]
    most_keys: int


@functools.lru_cache(maxsize=8)  # every layer of a pass has the same
def packing(
    groups: tuple[Group, ...] | None,
    num_samples: int,
    num_queries: int,
    num_keys: int,
    device: torch.device,
) -> Packing:
    """Of b x q queries and b x k keys, on ``device`` without waiting for it."""
    counts, index = [num_keys] * num_samples, None
    if groups is not None:
        every = torch.arange(num_samples * num_keys).unflatten(0, (num_samples, num_keys))
        found = [every[:0]] * num_samples
        for group in groups:
            for i in group.samples:
                found[i] = torch.cat([every[i, slice(*run)] for run in group.runs])
                counts[i] = group.num_keys
        index = torch.cat(found).to(device, non_blocking=True)

    def starts(sizes: list[int]) -> Tensor:
        ends = torch.tensor([0, *sizes]).cumsum(0).int()
        return ends.to(device, non_blocking=True)

    return Packing(index, starts([num_queries] * num_samples), starts(counts), max(counts))


def _packed(name: str, query: Heads, key: Keys, value: Keys, mask: KeyMask | None) -> Heads:
    """One call over the keys of all samples in a row, without those that are hidden."""
    num_samples, num_queries = query.shape[:2]
    groups = None if mask is None else mask.groups
    lie = packing(groups, num_samples, num_queries, key.shape[1], query.device)
    keys, values = (
        x.flatten(0, 1) if lie.index is None else x.flatten(0, 1)[lie.index] for x in (key, value)
    )
    kernel = _flash_kernel(query.device) if name == "flash" else _varlen_kernel()
    out = kernel(
        query.flatten(0, 1), keys, values,
        lie.query_starts, lie.key_starts, num_queries, lie.most_keys,
    )  # fmt: skip
    out = out[0] if isinstance(out, tuple) else out  # early versions of 3 add the log-sum-exp
    return out.unflatten(0, (num_samples, num_queries))


def _varlen_kernel() -> Kernel:
    from torch.nn.attention.varlen import varlen_attn

    return varlen_attn


def _flash_kernel(device: torch.device) -> Kernel:
    module = _flash_module(device)
    assert module is not None, "chosen where it is"
    return importlib.import_module(module).flash_attn_varlen_func


@functools.cache
def _flash_module(device: torch.device) -> str | None:
    """FlashAttention 3 on a Hopper, else 2; None where the package is not installed."""
    is_hopper = torch.cuda.get_device_capability(device)[0] == 9
    for name in ("flash_attn_interface", "flash_attn") if is_hopper else ("flash_attn",):
        if importlib.util.find_spec(name) is not None:
            return name
    return None


def _flex(query: Heads, key: Keys, value: Keys, mask: KeyMask | None) -> Heads:
    from torch.nn.attention.flex_attention import create_block_mask  # it imports the compiler

    blocks = None
    if mask is not None:
        seen, size = mask.seen, (query.shape[0], None, query.shape[1], key.shape[1])
        blocks = create_block_mask(lambda b, h, q, k: seen[b, k], *size, device=query.device)
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    return _flex_kernel()(q, k, v, block_mask=blocks).transpose(1, 2)


@functools.cache
def _flex_kernel() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)
