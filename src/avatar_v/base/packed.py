"""Tensors in fewer bytes, alone or as what they change in others, their base.

A file of them holds

- ``NAME``: a tensor as it is;
- ``NAME.packed``, ``NAME.like``: the bytes of a tensor, the first of each number and so on to the
  last, packed by zlib; and an empty tensor of its type and shape, with a 0 before that;
- ``NAME.codes``, ``NAME.step``: whole numbers in row-major order, their low bytes (signed) and then
  the high ones, which are left out where all are 0, packed by zlib; and what one of them counts. A
  number of the base becomes ``base + step * code``, in the type of the base;
- ``NAME.codes``, ``NAME.step``, ``NAME.like``: the same of a tensor that the base has not, which
  counts as zeros of this type and shape.

A step has 8 bits and a code 16, so that the product is exact in fp32; one addition and one rounding
follow, which IEEE 754 fixes: every processor restores the same weights.
"""

import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

CODES, STEP, PACKED, LIKE = ".codes", ".step", ".packed", ".like"
PAIRS = {CODES: STEP, PACKED: LIKE}
NEEDS = {STEP: (CODES,), LIKE: (PACKED, CODES)}
LEAST_NUMEL = 2048
"""Smaller tensors, and those of one dimension, are stored as they are."""
LARGEST_CODE = 2**15 - 129
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHRINK = 0.94
"""From one step that is tried to the next."""
MOST_LOST = 0.25
"""Of a change, whatever its size: what is lost of many small ones points one way."""
MAX_RATIO = 4
"""Packed weights are not smaller than this part of themselves: what claims to be fills memory."""

State = Mapping[str, Tensor]


def decompressed(base: State, stored: State, *, where: str | Path) -> dict[str, Tensor]:
    """``base`` with what is ``stored``. ValueError names the key that does not fit."""
    state = dict(base)
    for key, value in stored.items():
        name, dot, end = key.rpartition(".")
        if dot + end in NEEDS:
            if not any(name + other in stored for other in NEEDS[dot + end]):
                raise ValueError(f"{where}: {key} stands without {name}{NEEDS[dot + end][0]}")
            continue
        if dot + end not in PAIRS:
            state[key] = value
            continue
        partner, like = stored.get(name + PAIRS[dot + end]), stored.get(name + LIKE)
        if partner is None:
            raise ValueError(f"{where}: {key} stands without {name}{PAIRS[dot + end]}")
        if name in stored or {name + CODES, name + PACKED} <= stored.keys():
            raise ValueError(f"{where} holds {name} twice")
        if value.dtype != torch.uint8 or value.ndim != 1:
            raise ValueError(f"{where}: {key} is {_kind(value)}, expected bytes")
        if dot + end == PACKED:
            state[name] = _unpacked(value, partner, where=f"{where}: {key}")
        elif like is None:
            state[name] = _decoded(base.get(name), value, partner, where=f"{where}: {key}")
        elif name in base:
            raise ValueError(f"{where}: {key} is a whole tensor, and the base has {name}")
        else:
            _check_like(like, len(value), where=f"{where}: {key}")
            zeros = like.new_zeros(like.shape[1:])
            state[name] = _decoded(zeros, value, partner, where=f"{where}: {key}")
    return state


def compressed(base: State, state: State, error: float) -> dict[str, Tensor]:
    """What `decompressed` restores: tensors to within ``error`` of their norm, small ones and those
    that codes cannot hold exactly."""
    stored = {}
    for key, value in state.items():
        before = base.get(key)
        if before is not None and before.dtype == value.dtype and torch.equal(before, value):
            continue
        if value.ndim < 2 or value.numel() < LEAST_NUMEL or value.dtype not in DTYPES:
            stored[key] = value
            continue
        coded = None
        if before is not None and _kind(before) == _kind(value):
            coded = _coded(before, value, error)
        elif before is None and error > 0:
            coded = _coded(torch.zeros_like(value), value, error)
            if coded is not None and value.nbytes > MAX_RATIO * len(coded[CODES]):
                coded = None  # a reader would not believe it
            coded = None if coded is None else {**coded, LIKE: value.new_empty(0, *value.shape)}
        found = _packed(value) if coded is None else coded
        if coded is None and value.nbytes > MAX_RATIO * len(found[PACKED]):
            stored[key] = value  # zeros pack better than a reader would believe
            continue
        stored |= {key + end: x for end, x in found.items()}
    return {key: value.contiguous() for key, value in stored.items()}


def _coded(before: Tensor, value: Tensor, error: float) -> dict[str, Tensor] | None:
    """Suffix → tensor, with the largest step that leaves an error of ``error`` times the norm, and
    of `MOST_LOST` of the change; None where no codes do."""
    whole, change = value.float(), value.float() - before.float()
    most = min(error * whole.norm().item(), MOST_LOST * change.norm().item())
    step = torch.tensor(2 * most * math.sqrt(12 / value.numel())).bfloat16()
    while step > 0:
        codes = (change / step.float()).round()
        if codes.abs().max() > LARGEST_CODE:
            break
        counts = _unbiased(change, codes)
        if (_added(before, codes, counts).float() - whole).norm().item() <= most:
            return {CODES: _zipped(_bytes_of_codes(codes)), STEP: counts}
        step = (step.float() * SHRINK).bfloat16()
    return None


def _unbiased(change: Tensor, codes: Tensor) -> Tensor:
    """What a code has to count, so that rounding makes the change neither weaker nor stronger."""
    along = (codes * change).sum()
    return (change.square().sum() / along if along > 0 else along).bfloat16()


def _added(before: Tensor, codes: Tensor, step: Tensor) -> Tensor:
    return (before.float() + codes.view(before.shape) * step.float()).to(before.dtype)


def _bytes_of_codes(codes: Tensor) -> np.ndarray:
    numbers = codes.flatten().to(torch.int32).numpy()
    high = (numbers + 128) // 256
    planes = [numbers - 256 * high, high] if high.any() else [numbers]
    return np.stack(planes).astype(np.int8).view(np.uint8)


def _decoded(before: Tensor | None, codes: Tensor, step: Tensor, *, where: str) -> Tensor:
    if before is None or before.dtype not in DTYPES:
        raise ValueError(f"{where} stands for what a tensor changes that the base has not")
    if step.dtype != torch.bfloat16 or step.ndim:
        raise ValueError(f"{where} has a step {_kind(step)}, expected one number, bfloat16")
    planes = _unzipped(codes, before.numel(), (1, 2), where=where).view(np.int8)
    numbers = sum(256.0**i * plane.astype(np.float32) for i, plane in enumerate(planes))
    return _added(before, torch.from_numpy(numbers), step)


def _packed(value: Tensor) -> dict[str, Tensor]:
    numbers = value.contiguous().view(torch.uint8).numpy()
    planes = numbers.reshape(value.numel(), value.element_size()).T
    return {PACKED: _zipped(planes), LIKE: value.new_empty(0, *value.shape)}


def _unpacked(packed: Tensor, like: Tensor, *, where: str) -> Tensor:
    num, size = math.prod(like.shape[1:]), like.element_size()
    _check_like(like, len(packed), where=where)
    planes = _unzipped(packed, num, (size,), where=where)
    numbers = torch.from_numpy(np.ascontiguousarray(planes.T))
    return numbers.view(like.dtype).view(like.shape[1:])


def _check_like(like: Tensor, num_bytes: int, *, where: str) -> None:
    whole = math.prod(like.shape[1:]) * like.element_size()
    if like.numel() or like.dtype not in DTYPES or not 0 < whole <= MAX_RATIO * num_bytes:
        raise ValueError(
            f"{where} is of {_kind(like)}, expected an empty tensor of weights, with a shape for "
            f"at most {MAX_RATIO} times the packed bytes"
        )


def _zipped(planes: np.ndarray) -> Tensor:
    return torch.frombuffer(bytearray(zlib.compress(planes.tobytes(), 9)), dtype=torch.uint8)


def _unzipped(value: Tensor, num: int, planes: tuple[int, ...], *, where: str) -> np.ndarray:
    """Arrays of ``num`` bytes, as many as one of ``planes`` says."""
    most, stream = num * max(planes), zlib.decompressobj()
    try:
        found = stream.decompress(value.numpy().tobytes(), most + 1)
    except zlib.error as error:
        raise ValueError(f"{where} is damaged: {error}") from error
    if not stream.eof or len(found) not in [num * each for each in planes]:
        raise ValueError(f"{where} is damaged: expected {num:,} numbers, no more and no fewer")
    return np.frombuffer(found, np.uint8).reshape(-1, num)


def _kind(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
