"""Stored tensors, checked before a network is built: damaged files, keys, shapes and numbers.

The files' places and the networks that they make are weights/weights.py's and critics/frozen.py's.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from avatar_v.base.outside import check_pulled

WIDE = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types that torch computes in."""
EIGHT_BITS = (
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz
)  # fmt: skip
"""Types that are stored alone; torch has more, which it cannot convert."""
MAX_LINES = 4
"""Keys that an error names: it is one line on the command line."""


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file, on the CPU. ValueError: missing, damaged."""
    return read_with_header(path)[0]


def read_with_header(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The same, and the words of the file's header."""
    if not path.is_file():
        raise ValueError(f"no file {path}")
    check_pulled(path)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return tensors, file.metadata() or {}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error


def holds_tensors(path: Path) -> bool:
    """Whether a file begins as a safetensors file does: the size of its header, then JSON."""
    with open(path, "rb") as file:
        return file.read(9)[8:] == b"{"


def hash_of(config: Mapping[str, Any], state: Iterable[tuple[str, Tensor]]) -> str:
    """16 hex digits of a config and of weights as fp32, whatever type they are stored in."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name, value in state:
        digest.update(name.encode())
        digest.update(value.detach().cpu().float().contiguous().numpy().data)
    return digest.hexdigest()[:16]


def common_dtype(state: Mapping[str, Tensor]) -> torch.dtype:
    """The smallest type of 16 bits or more that holds all of these tensors exactly: of fp16 and
    bf16 fp32."""
    dtypes = [torch.bfloat16 if x.dtype.itemsize == 1 else x.dtype for x in state.values()]
    return functools.reduce(torch.promote_types, dtypes)


def check_state(
    expected: Mapping[str, Tensor], found: Mapping[str, Tensor], *, where: str | Path
) -> None:
    """One ValueError that names missing, unexpected and misshapen keys, `MAX_LINES` at most."""
    lines = [f"missing: {key}" for key in expected if key not in found]
    lines += [f"unexpected: {key}" for key in found if key not in expected]
    lines += [
        f"shape of {key}: {tuple(found[key].shape)}, expected {tuple(value.shape)}"
        for key, value in expected.items()
        if key in found and found[key].shape != value.shape
    ]
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"and {len(lines) - MAX_LINES} more"]
    if lines:
        raise ValueError(f"weights in {where} do not fit the model:\n  " + "\n  ".join(lines))


def check_numbers(
    state: Mapping[str, Tensor], *, where: str | Path, counters: Mapping[str, Tensor] | None = None
) -> None:
    """ValueError naming each key whose numbers no network can use: not finite in fp32, or not
    stored as floating point. Those that are whole numbers in ``counters`` (of batches, in norms)
    may be so here.
    """
    wrong = []
    for key, value in state.items():
        if value.dtype not in WIDE + EIGHT_BITS:
            model = None if counters is None else counters.get(key)
            if model is None or model.dtype != value.dtype:
                wrong.append(f"{key} is stored as {_name(value)}, expected floating point")
        elif not bool(_exact(value).isfinite().all()):
            wrong.append(f"{key} holds numbers that are not finite")
    if wrong:
        more = f" (and {len(wrong) - 2} more)" if len(wrong) > 2 else ""
        raise ValueError(f"weights in {where}: {'; '.join(wrong[:2])}{more}")


def _exact(value: Tensor) -> Tensor:
    """In a type that tells what is finite, and in which it is used: fp32 for 8 and 64 bits."""
    same = value.dtype in (torch.float32, torch.float16, torch.bfloat16)
    return value if same else value.float()


def _name(value: Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
