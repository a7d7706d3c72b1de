"""Which of the project's Triton kernels run, and the pieces of Triton that they are written with.

Each file of kernels beside this one holds a specification in plain torch, which computes everywhere
and on CPUs always, and the same as a Triton kernel behind an operator of torch. Triton is an
optional import. The environment's AVATAR_V_KERNELS, or `using`, names the way of all, which is
`plain` where neither does, until a GPU has measured them:

| name | on a GPU | inside torch.compile |
|---|---|---|
| auto | the Triton kernels | the specification, which the compiler fuses |
| triton | the Triton kernels | the Triton kernels, as operators of the graph |
| plain | the specification | the specification |

With TRITON_INTERPRET=1 `triton` also runs on a CPU: Triton's interpreter, for tests.
"""

import contextlib
import importlib
import importlib.util
import inspect
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

VARIABLE = "AVATAR_V_KERNELS"
NAMES = ("auto", "triton", "plain")
HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_BLOCK = 16384
"""Channels of the longest row that one program holds."""

_named: str = os.environ.get(VARIABLE) or "plain"

triton: Any = None
tl: Any = None
if HAS_TRITON and (INTERPRETS or torch.cuda.is_available()):  # a third of a second
    triton, tl = map(importlib.import_module, ("triton", "triton.language"))
if TYPE_CHECKING:
    constexpr = Any
else:
    constexpr = int if tl is None else tl.constexpr


def jit(function: Callable[..., Any]) -> Any:
    """`triton.jit`; where Triton does not run the function itself, which nobody calls."""
    if tl is None:
        return function
    return triton.jit(inspect.unwrap(function))  # the tests wrap functions to check their shapes


def load(pointer, inside):
    """In fp32; 0 outside. (The interpreter computes bf16 wrongly.)"""
    return tl.load(pointer, inside, 0).to(tl.float32)


load = inspect.unwrap(load) if INTERPRETS else jit(load)  # which takes a call for a launch


@contextlib.contextmanager
def using(name: str) -> Iterator[None]:
    """Within the block the kernels run as ``name`` says, whatever the environment says."""
    global _named
    before, _named = _named, name
    try:
        yield
    finally:
        _named = before


def takes(x: Tensor) -> bool:
    """Whether the Triton kernels compute with ``x``."""
    if _named == "plain" or tl is None or x.dtype not in DTYPES or x.numel() == 0:
        return False
    if x.shape[-1] > MAX_BLOCK:
        return False
    if x.device.type == "cuda" and torch.compiler.is_compiling():
        return _named == "triton"
    return lacking(x.device) is None


def check_named(device: torch.device) -> None:
    """ValueError for a name in AVATAR_V_KERNELS that is unknown or cannot run on ``device``."""
    if _named not in NAMES:
        raise ValueError(f"{VARIABLE} is one of {', '.join(NAMES)}, got {_named}")
    lacks = lacking(device)
    if _named == "triton" and lacks is not None:
        raise ValueError(f"{VARIABLE} is triton, which needs {lacks}")


def lacking(device: torch.device) -> str | None:
    """What there has to be for the Triton kernels to run on ``device``; None: they run."""
    if not HAS_TRITON:
        return "the package triton, which torch's builds for CUDA bring"
    if device.type != "cuda":
        is_interpreted = INTERPRETS and _named == "triton" and device.type == "cpu"
        return None if is_interpreted else "a CUDA device"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "a GPU of compute capability 8.0 or later (A100, RTX 30)"
    return None


def told(device: torch.device) -> str:
    """Which kernels are used on ``device``, in words."""
    lacks = lacking(device)
    if _named == "plain":
        return f"the specification in torch alone; {VARIABLE}=auto takes Triton's, unmeasured yet"
    if lacks is not None:
        return "the specification in torch"
    within = "also" if _named == "triton" else "not"
    return f"Triton's, {within} inside torch.compile"


def block_of(size: int) -> int:
    """The power of two that holds ``size`` channels."""
    return 1 << max(size - 1, 1).bit_length()


def num_warps(block: int) -> int:
    """Of a program that holds ``block`` channels: 16 a thread, as far as 16 warps go."""
    return min(max(block // 512, 1), 16)
